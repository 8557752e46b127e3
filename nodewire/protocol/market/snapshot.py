"""The snapshot: every integer about every live node that `assign/2` reads, and the signed events it was derived from.

A snapshot is a blob (canonical msgpack), cited by plain SHA-256. `derive` makes it from events alone, so every oracle,
and later every auditor, gets the same bytes.

Rules of derivation for epoch e, over beats that f+1 of the cited inventories list (`listed`):
1. A beat counts if it names the committee and its epoch is from e - live_epochs to e (`Committee.live_epochs`).
2. Of a node's beats the one with the highest (epoch, created_at) counts, then the smallest id.
3. The ad it names must be the node's own, be well-formed and accept the committee; else the node is left out.
4. free slots = min(beat, ad). The prior of a manifest's task is the least us_per_position by which half of the bond
   units (at most 1,000 a node) of all nodes that hold it with a bond have claimed no more; one each if none has a bond.
   us_per_position = max(ad's, prior, min_us_per_position): a claim only ever makes a node slower than its peers.
5. bond = min(ad's bond_msat, the amount of the statement that the ad names), if a holder listed by the committee signed
   it for this node and it runs to the end of the snapshot's last valid epoch; else 0. A bond of a unit or more counts
   for bond // (the committee's `stake` * a slot's price) slots, where a slot's price is that of all tasks in the ad: no
   manifest has more free. Where it is not enough for one slot it is none.
6. epochs = 1 + what the previous certified snapshot says of the node: in how many certified snapshots it has been. A
   previous snapshot more than 16 epochs older does not count (its blob may be gone): all start again at 1.
7. `judged` is what f+1 of the cited inventories list, as far as it is due (`reputation.due`; with no previous snapshot
   that counts, since epoch e - 1). passed and withheld = the node's points in the previous snapshot, faded for each
   epoch since. Of `judged` about it, each withheld one adds 4,096, and each pass 4,096 times its price_msat, up to
   2^53 - 1 in all. Then each unsure leaves passed // 8. `absent` has the points above 0 of all others: at most 4,096
   accounts, those with the most withheld, then the most passed, then the least pubkey.
8. At most 4,096 nodes, and 24 MiB of ads, bond statements and counting beats: nodes are taken by descending bond, then
   by the id of their ad, in which a small id is work (NIP-13), until one does not fit. Nothing is read of the others,
   so whoever lacks their ads derives the same.
9. `seen` has of the node's previous `seen`, and of what the counting beats of other nodes say of it (`observed`), each
   with its beat's epoch, the newest of each observer that is here; none older than e - 4, at most 8. An observer's
   word counts if it has a bond in the previous snapshot, and the body that its beat names as `last` draws it for the
   node (`observation`). If three, and more than half, of `seen` found nobody, the node has no free slot of anything. It
   is placed if three, and more than half, measured what its coordinates and the observers' predict.
`nodes` and `absent` are sorted by pubkey. `events` holds the JSON text (NIP-01 field order, no spaces) of all listed
beats, sorted by id, then of the taken nodes' ads and bond statements, sorted by id.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodewire.core.slices import Sliced, whole
from nodewire.errors import BadEvent, BadHash, BadInput, NotAllowed
from nodewire.nostr.event import Event
from nodewire.nostr.event import parse as parse_event
from nodewire.protocol.committee import reputation as _account
from nodewire.protocol.committee.committee import VALID_EPOCHS, Committee, Ppm
from nodewire.protocol.committee.oracle_round import MAX_BEATS, Inventory
from nodewire.protocol.committee.reputation import (
    DOUBT_LEAVES_ONE_IN,
    MAX_JUDGED,
    MAX_POINTS,
    POINTS,
    Account,
    ReputationVerdict,
)
from nodewire.protocol.encoding import pieces, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Label, Msat, Schema
from nodewire.protocol.market import ad as _ad
from nodewire.protocol.market import ad_profile
from nodewire.protocol.market import bond as _bond
from nodewire.protocol.market import heartbeat as _beat
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.coordinates import Coordinates
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.market.observation import (
    MAX_SEEN,
    NodeObservation,
    check_drawn,
    is_placed,
    is_unreachable,
    merged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from nodewire.protocol.market.ad_profile import PublishedProfile

MAX_NODES = 4_096
MAX_ABSENT = 4_096
REMEMBERED_EPOCHS = 16
MAX_SLOTS = 4_096
MAX_UNITS = 1_000
"""Of a bond, that count as weight."""
MAX_EVENT_BYTES = 25_165_824
_MAX_EVENTS = 3 * MAX_BEATS + 2 * MAX_NODES


class HeldTasks(Schema):
    """What a node holds of one manifest: `free` sessions, and the tasks with their certified speed."""

    manifest: Hex32
    free: int = Field(ge=0, le=MAX_SLOTS)
    tasks: tuple[TaskOffer, ...] = Field(max_length=_ad.MAX_OFFERS)


class Node(Schema):
    """One live node, as certified integers; `beat` and `ad` are the ids of the events they come from."""

    pubkey: Hex32
    beat: Hex32
    ad: Hex32
    held: tuple[HeldTasks, ...] = Field(max_length=16)
    bond_msat: Msat
    region: Label
    load_ppm: Ppm
    coordinates: Coordinates
    epochs: Count
    passed: Count = 0
    withheld: Count = 0
    """Points (`account`)."""
    seen: tuple[NodeObservation, ...] = Field(default=(), max_length=MAX_SEEN)
    is_placed: bool = False
    """Whether others have found it where its coordinates say that it is."""


class Snapshot(Schema):
    MAX_BYTES: ClassVar[int] = 100_663_296
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    nodes: tuple[Node, ...] = Field(max_length=MAX_NODES)
    events: tuple[Annotated[str, Field(max_length=65_536)], ...] = Field(max_length=_MAX_EVENTS)
    judged: tuple[ReputationVerdict, ...] = Field(default=(), max_length=MAX_JUDGED)
    """What this snapshot counts for the first time."""
    absent: tuple[Account, ...] = Field(default=(), max_length=MAX_ABSENT)
    """Nobody gets rid of an account by staying away."""

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        for name in ("nodes", "absent"):
            if any(a.pubkey >= b.pubkey for a, b in pairwise(getattr(self, name))):
                raise ValueError(f"{name}: not sorted, or one stands twice")
        return self

    def pack(self) -> bytes:
        """As every document's bytes. Of many nodes that takes long: on an event loop use `pieces.packed`."""
        return whole(pieces.packed(self))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """As every document's. Of many nodes that takes long: on an event loop use `unpacked`."""
        return whole(cls._unpacked(data))

    @classmethod
    def _unpacked(cls, data: bytes) -> Sliced[Self]:
        document = yield from cls.read(data)
        if document.get("v") == 1 and "nodes" in document:
            for number, item in enumerate(document["nodes"]):
                try:
                    document["nodes"][number] = Node.from_document(item)
                except BadInput as error:
                    raise BadInput(f"nodes.{number}.{error.field}", error.reason) from error
                yield
        return cls.from_document({k: tuple(v) if isinstance(v, list) else v for k, v in document.items()})

    def node(self, pubkey: str) -> Node | None:
        at = bisect_left(self.nodes, pubkey, key=attrgetter("pubkey"))
        return self.nodes[at] if at < len(self.nodes) and self.nodes[at].pubkey == pubkey else None

    def ads(self, pubkeys: Collection[str]) -> dict[str, Ad]:
        """The ads (addresses, LNURL, relays) of these nodes. Raises BadInput if the blob's events are not sound."""
        return {pubkey: _ad.parse(event) for pubkey, event in self.ad_events(pubkeys)}

    def profiles(self, pubkeys: Collection[str]) -> dict[str, PublishedProfile]:
        """What these nodes have published beside their ads, which nobody certifies. Raises as `ads`."""
        events = self.ad_events(pubkeys)
        return {pubkey: ad_profile.parse(event, _ad.parse(event)) for pubkey, event in events}

    def ad_events(self, pubkeys: Collection[str]) -> Iterator[tuple[str, Event]]:
        """By node, its ad as it has signed it. Raises as `ads`."""
        wanted = {node.ad: node.pubkey for node in self.nodes if node.pubkey in pubkeys}
        for text in self.events:
            if _id(text) in wanted:
                event = parse_event(text)
                yield wanted[event.id], event

    def beats(self, pubkeys: Collection[str]) -> dict[str, Beat]:
        """The beats that count of those of these nodes that are listed. Raises as `ads`."""
        wanted = {node.beat: node.pubkey for node in self.nodes if node.pubkey in pubkeys}
        events = (parse_event(text) for text in self.events if _id(text) in wanted)
        return {wanted[event.id]: _beat.parse(event) for event in events}


def sha256(blob: bytes) -> str:
    """What cites a snapshot: the plain SHA-256 of its blob."""
    return hashlib.sha256(blob).hexdigest()


def unpack(blob: bytes, expected: str) -> Snapshot:
    """The snapshot cited as `expected`. Raises BadHash, or as `Snapshot.unpack`."""
    return whole(unpacked(blob, expected))


def unpacked(blob: bytes, expected: str) -> Sliced[Snapshot]:
    """The same as `unpack`, in slices."""
    if (yield from pieces.sha256(blob)) != expected:
        raise BadHash("snapshot", "not the blob that was cited")
    return (yield from Snapshot._unpacked(blob))


def listed(
    committee: Committee, inventories: Sequence[Inventory], leader: Inventory | None = None
) -> tuple[list[str], list[str]]:
    """The ids of beats and of commitments that f+1 of these inventories (of distinct oracles) list, sorted.

    leader: the leader's inventory, if the body is crowded. A beat that fewer than f+1 list as a bonded node's then
    counts only if the leader lists it, too: the leader holds what it lists, so no stranger keeps it from proposing.

    Of each that is fewer than three times what one inventory holds: 3f+1 lists give no more places than that. No cut is
    made among them, since a cut by ids or by how many list them is for strangers to bend.
    """
    beats = popular(committee, (i.all_beats for i in inventories))
    if leader is not None:
        counting = {*popular(committee, (i.bonded for i in inventories)), *leader.all_beats}
        beats = [id_ for id_ in beats if id_ in counting]
    return beats, popular(committee, (i.commitments for i in inventories))


def popular(committee: Committee, lists: Iterable[tuple[str, ...]]) -> list[str]:
    """The ids that stand in f+1 of the lists, sorted."""
    count = Counter(id_ for ids in lists for id_ in ids)
    return sorted(id_ for id_, n in count.items() if n > committee.f)


def judged(committee: Committee, inventories: Sequence[Inventory]) -> list[ReputationVerdict]:
    """What f+1 of these inventories (of distinct oracles) list of verdicts, sorted; not all of it is due."""
    return _account.agreed((inventory.judged for inventory in inventories), committee.f)


def needed(
    committee: Committee,
    epoch: int,
    beats: Iterable[Event],
    known: Mapping[str, Event],
    parsed: Mapping[str, Beat | Ad] | None = None,
) -> Sliced[set[str]]:
    """Ids of ads and bond statements that deriving from these beats needs and that `known` (by id) lacks."""
    missing, parsed, digest = set(), parsed or {}, committee.digest()
    counting = yield from _counting(committee, epoch, beats, parsed)
    for event, beat in counting.values():
        yield
        if beat.ad not in known:
            missing.add(beat.ad)
        elif (ad := _own_ad(digest, event.pubkey, known[beat.ad], parsed)) and ad.bond and ad.bond not in known:
            missing.add(ad.bond)
    return missing


def derive(
    committee: Committee,
    epoch: int,
    beats: Sequence[Event],
    ads: Iterable[Event],
    *,
    bonds: Iterable[Event] = (),
    judged: Iterable[ReputationVerdict] = (),
    previous: Snapshot | None = None,
    parsed: Mapping[str, Beat | Ad] | None = None,
) -> Snapshot:
    """The snapshot of `epoch` from verified events, by the rules above. Malformed events are passed over."""
    return whole(derived(committee, epoch, beats, (*ads, *bonds), judged=judged, previous=previous, parsed=parsed))


def derived(
    committee: Committee,
    epoch: int,
    beats: Sequence[Event],
    cited: Iterable[Event],
    *,
    judged: Iterable[ReputationVerdict] = (),
    previous: Snapshot | None = None,
    parsed: Mapping[str, Beat | Ad] | None = None,
    refuse: Callable[[NotAllowed], None] = lambda refused: None,
) -> Sliced[Snapshot]:
    """The same as `derive`, in slices. `cited`: ads and bond statements, in any order.

    `parsed` has, by event id, what was read of these events before: to read it again is most of the work. `refuse` gets
    each observation that counts for nothing: a stranger's, or one that nobody drew.
    """
    parsed = parsed or {}
    texts, digest = _Texts(), committee.digest()
    by_id = {event.id: event for event in cited if event.kind in (_ad.KIND, _bond.KIND)}
    if previous is not None and previous.epoch < epoch - REMEMBERED_EPOCHS:
        previous = None
    seen = {node.pubkey: node.epochs for node in previous.nodes} if previous else {}
    held = {node.pubkey: node for node in previous.nodes} if previous else {}
    fresh = _account.due(judged, epoch, previous.epoch if previous else epoch - 1)
    accounts = _accounts(epoch, previous, fresh)
    live: list[_Live] = []
    counting = yield from _counting(committee, epoch, beats, parsed)
    for event, beat in counting.values():
        yield
        ad_event = by_id.get(beat.ad)
        ad = _own_ad(digest, event.pubkey, ad_event, parsed) if ad_event else None
        if ad_event is None or ad is None:
            continue
        bond_event = by_id.get(ad.bond) if ad.bond else None
        bond_msat = _bond_msat(committee, epoch, event.pubkey, ad, bond_event) if bond_event else 0
        slots = _covered_slots(committee, ad, bond_msat)
        live.append(_Live(event, beat, ad_event, ad, bond_event, bond_msat if slots else 0, slots or MAX_SLOTS))
    live = yield from _fitting(live, texts)
    least_us = yield from _priors(committee, live)
    observed = yield from _observed(committee, epoch, live, previous, refuse)
    at = {one.pubkey: one.beat.coordinates for one in live}
    nodes = []
    for one in live:
        yield
        by = tuple(known for known in observed[one.pubkey] if known.observer in at)
        nodes.append(_node(one, seen.get(one.pubkey, 0) + 1, accounts, least_us, by, at, held.get(one.pubkey)))
    closure = {e.id: e for one in live for e in (one.ad_event, one.bond) if e is not None}
    events = [*sorted(beats, key=lambda e: e.id), *(closure[id_] for id_ in sorted(closure))]
    said = []
    for event in events:
        said.append(texts[event])
        yield
    return Snapshot(
        committee=digest,
        epoch=epoch,
        nodes=tuple(sorted(nodes, key=lambda node: node.pubkey)),
        events=tuple(said),
        judged=fresh,
        absent=_absent(account for pubkey, account in accounts.items() if pubkey not in at),
    )


def _id(text: str) -> str:
    """The id that an event's JSON text claims: it begins with {"id":"."""
    return text[7:71]


@dataclass(frozen=True, slots=True)
class _Live:
    """A node whose beat and ad count, with what they say."""

    event: Event
    beat: Beat
    ad_event: Event
    ad: Ad
    bond: Event | None
    bond_msat: int
    slots: int
    """Of each manifest, that it may have free at most."""

    @property
    def pubkey(self) -> str:
        return self.event.pubkey


class _Texts(dict[str, str]):
    """The JSON texts of events, each written once."""

    def __getitem__(self, event: Event) -> str:  # type: ignore[override]
        text = self.get(event.id)
        if text is None:
            text = event.to_json()
            self[event.id] = text
        return text


def _counting(
    committee: Committee, epoch: int, beats: Iterable[Event], parsed: Mapping[str, Beat | Ad]
) -> Sliced[dict[str, tuple[Event, Beat]]]:
    """By pubkey, the one beat that counts in `epoch`."""
    digest, best = committee.digest(), dict[str, tuple[tuple[int, int, str], Event, Beat]]()
    for event in beats:
        yield
        known = parsed.get(event.id)
        try:
            beat = known if isinstance(known, Beat) else _beat.parse(event)
        except BadInput:
            continue
        if beat.committee != digest or not epoch - committee.live_epochs <= beat.epoch <= epoch:
            continue
        rank = (-beat.epoch, -event.created_at, event.id)
        if event.pubkey not in best or rank < best[event.pubkey][0]:
            best[event.pubkey] = (rank, event, beat)
    return {pubkey: (event, beat) for pubkey, (_, event, beat) in best.items()}


def _own_ad(committee: str, pubkey: str, event: Event, parsed: Mapping[str, Beat | Ad]) -> Ad | None:
    known = parsed.get(event.id)
    try:
        ad = known if isinstance(known, Ad) else _ad.parse(event)
    except BadInput:
        return None
    return ad if event.pubkey == pubkey and committee in ad.committees else None


def _bond_msat(committee: Committee, epoch: int, pubkey: str, ad: Ad, event: Event) -> int:
    try:
        statement = _bond.parse(event)
    except BadEvent:
        return 0
    good = statement.holder in committee.bond_holders and statement.provider == pubkey
    lasting = statement.expires_at_s * 1000 >= committee.close_ms(epoch + VALID_EPOCHS)
    return min(ad.bond_msat, statement.amount_msat) if good and lasting else 0


def _accounts(epoch: int, previous: Snapshot | None, fresh: Sequence[ReputationVerdict]) -> dict[str, Account]:
    """By pubkey, what is left of the previous snapshot's accounts, and what is counted now."""
    passed, withheld = Counter[str](), Counter[str]()
    if previous is not None:
        accounts: tuple[Node | Account, ...] = (*previous.nodes, *previous.absent)
        for old in accounts:
            passed[old.pubkey] = _account.faded(old.passed, epoch - previous.epoch)
            withheld[old.pubkey] = _account.faded(old.withheld, epoch - previous.epoch)
    doubts = Counter(one.provider for one in fresh if one.outcome == "unsure")
    for one in fresh:
        if one.outcome == "pass":
            passed[one.provider] = min(passed[one.provider] + POINTS * one.price_msat, MAX_POINTS)
        elif one.outcome == "withheld":
            withheld[one.provider] += POINTS
    for provider, times in doubts.items():
        passed[provider] //= DOUBT_LEAVES_ONE_IN**times
    passed, withheld = +passed, +withheld
    known = passed | withheld  # those above 0
    return {pubkey: Account(pubkey=pubkey, passed=passed[pubkey], withheld=withheld[pubkey]) for pubkey in known}


def _absent(accounts: Iterable[Account]) -> tuple[Account, ...]:
    kept = sorted(accounts, key=lambda a: (-a.withheld, -a.passed, a.pubkey))[:MAX_ABSENT]
    return tuple(sorted(kept, key=lambda a: a.pubkey))


def _covered_slots(committee: Committee, ad: Ad, bond_msat: int) -> int:
    """How many slots of every manifest of the ad a bond counts for, by rule 5."""
    slot_msat = sum(task.price_msat for offer in ad.manifests for task in offer.tasks)
    if not committee.is_bond(bond_msat) or not committee.stake * slot_msat:
        return MAX_SLOTS
    return min(bond_msat // (committee.stake * slot_msat), MAX_SLOTS)


Speeds = dict[tuple[str, str], int]
"""By manifest and task, the fastest that any node is credited with (us a position)."""


def _priors(committee: Committee, live: Iterable[_Live]) -> Sliced[Speeds]:
    """The weighted median of claims, by rule 4: whoever would make it faster needs half of the bonds."""
    claims: dict[tuple[str, str], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for one in live:
        yield
        units = min(one.bond_msat // committee.bond_unit_msat, MAX_UNITS)
        for offer in one.ad.manifests:
            for task in offer.tasks:
                both = claims.setdefault((offer.manifest, task.task), ([], []))
                both[units > 0].append((task.us_per_position, max(units, 1)))
    found: Speeds = {}
    for key, (unbonded, bonded) in claims.items():
        yield
        said = sorted(bonded or unbonded)
        left = -(-sum(units for _, units in said) // 2)
        for us, units in said:
            left -= units
            if left <= 0:
                found[key] = max(us, committee.min_us_per_position)
                break
    return found


def _observed(
    committee: Committee,
    epoch: int,
    live: Iterable[_Live],
    previous: Snapshot | None,
    refuse: Callable[[NotAllowed], None],
) -> Sliced[dict[str, tuple[NodeObservation, ...]]]:
    """By node, what is known of it by rule 9: of the previous snapshot, and what drawn observers say now."""
    before = {node.pubkey: node for node in previous.nodes} if previous else {}
    units = {pubkey: node.bond_msat // committee.bond_unit_msat for pubkey, node in before.items()}
    total = sum(units.values())
    new: dict[str, list[NodeObservation]] = {one.pubkey: [] for one in live}
    for one in live:
        yield
        for said in one.beat.observed:
            try:
                check_drawn(one.beat.last, one.pubkey, said.node, units.get(one.pubkey, 0), total)
            except NotAllowed as error:
                refuse(error)
                continue
            if said.node in new:
                new[said.node].append(NodeObservation(observer=one.pubkey, epoch=one.beat.epoch, rtt_us=said.rtt_us))
    observed = {}
    for pubkey, found in new.items():
        observed[pubkey] = merged(before[pubkey].seen if pubkey in before else (), found, epoch)
        yield
    return observed


def _credited(offer: ManifestOffer, least_us: Speeds, before: tuple[TaskOffer, ...]) -> tuple[TaskOffer, ...]:
    """The offer's tasks with their certified speeds; `before` itself, from the same ad, if nothing has changed."""
    speeds = [max(task.us_per_position, least_us[offer.manifest, task.task]) for task in offer.tasks]
    if speeds == [task.us_per_position for task in before]:
        return before
    return tuple(
        task
        if us == task.us_per_position
        else TaskOffer(task=task.task, price_msat=task.price_msat, us_per_position=us)
        for task, us in zip(offer.tasks, speeds, strict=True)
    )


def _node(
    one: _Live,
    epochs: int,
    accounts: Mapping[str, Account],
    least_us: Speeds,
    seen: tuple[NodeObservation, ...],
    at: Mapping[str, Coordinates],
    before: Node | None,
) -> Node:
    """`seen` by nodes whose places are in `at`."""
    account, is_lost = accounts.get(one.pubkey), is_unreachable(seen)

    kept = before.held if before is not None and before.ad == one.beat.ad else ()
    held = tuple(
        HeldTasks(
            manifest=offer.manifest,
            free=0 if is_lost else min(offer.slots, one.beat.free.get(offer.manifest, 0), one.slots),
            tasks=_credited(offer, least_us, kept[at_].tasks if at_ < len(kept) else ()),
        )
        for at_, offer in enumerate(one.ad.manifests)
    )
    return Node(
        pubkey=one.pubkey,
        beat=one.event.id,
        ad=one.beat.ad,
        held=held,
        bond_msat=one.bond_msat,
        region=one.ad.region,
        load_ppm=one.beat.load_ppm,
        coordinates=one.beat.coordinates,
        epochs=epochs,
        passed=account.passed if account else 0,
        withheld=account.withheld if account else 0,
        seen=seen,
        is_placed=is_placed(one.beat.coordinates, ((at[by.observer], by.rtt_us) for by in seen)),
    )


def _fitting(live: list[_Live], texts: _Texts) -> Sliced[list[_Live]]:
    taken, room = [], MAX_EVENT_BYTES
    for one in sorted(live, key=lambda one: (-one.bond_msat, one.ad_event.id))[:MAX_NODES]:
        yield
        room -= sum(len(texts[event]) for event in (one.event, one.ad_event, one.bond) if event is not None)
        if room < 0:
            break
        taken.append(one)
    return taken
