"""The committee's rules, pure: `apply(input, state) -> (state, actions)`. No I/O, no clock, no keys.

`sliced` is the same in slices (`nodewire.core.slices`): what looks at every node would hold an event loop. Whoever
drives it applies one input after the other.

A round certifies the epoch e that has just closed; it is over when e+1 closes.

close(e) + skew      every oracle lists the beats and commitments that it holds, with their blobs, and finds valid
then                 who listed an event that f+1 inventories list and another lacks supplies it
2f+1 inventories     the leader (e mod n), with all n of them or at close(e) + 2 skews, proposes a body. What it lacks
                     of strangers it leaves out in the end, by calling the body crowded; bonded nodes' events that are
                     missing until close(e) + 3 skews cost the inventories that list them their place among the cited
proposal             each oracle derives snapshot and commitments from what it holds, votes for the same at most once
2f+1 votes           the leader publishes the certificate, after one more skew everybody who has the votes does
certificate          each oracle publishes its partial of the beacon

An epoch without quorum is skipped: nothing carries over but what beats say next. There is no view change and no lock:
two conflicting certificates need 2f+1 votes each, hence f+1 oracles that voted twice, and each of these is proven by
two signed votes (kind 8853). Ads are not listened for but fetched when a beat names them, and nodes have places
(`places`), so what is held is bounded, whoever beats. What certified verdicts say of a node is listed when it is due
for counting (`protocol.committee.reputation`). Whom one convicts (`verdict_rules`) is listed no more: as soon as at
most f oracles do not know the verdict, no snapshot has that node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from nodewire.core.persistent_map import PersistentMap
from nodewire.core.slices import Sliced, whole
from nodewire.errors import BadInput
from nodewire.oracle.committee import intake, node_places
from nodewire.oracle.committee.citation import Citation
from nodewire.oracle.committee.derivation import Derivation, DerivationResult
from nodewire.oracle.committee.state import (
    Action,
    BlobCame,
    Conviction,
    Derive,
    FetchBlob,
    FetchCertificates,
    FetchEvents,
    Input,
    KeepSnapshot,
    PublishCertificate,
    Round,
    SayInventory,
    SayProposal,
    SaySupply,
    SayVote,
    State,
    Step,
    Tick,
    VerifiedEvent,
)
from nodewire.protocol.committee import commitment as _commitment
from nodewire.protocol.committee import oracle_round as _inventory
from nodewire.protocol.committee import reputation as _account
from nodewire.protocol.committee.committee import KEPT_EPOCHS, VALID_EPOCHS
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory, InventoryEvent
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.encoding import tags
from nodewire.protocol.market import ad as _ad
from nodewire.protocol.market import bond as _bond
from nodewire.protocol.market import heartbeat as _beat
from nodewire.protocol.market import snapshot as _snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodewire.nostr.event import Event
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.heartbeat import Beat
    from nodewire.protocol.market.snapshot import Snapshot

LISTED_PER_NODE = 2
FRESH = 4
"""A beat's `last` may be any of the newest four certified bodies."""
MAX_ASKED_IDS = 256
_HELD_KINDS = frozenset({_beat.KIND, _ad.KIND, _bond.KIND, _commitment.KIND})


def apply(what: Input, state: State) -> Step:
    """The state after `what`, and what the oracle must now do, in order. Malformed events change nothing."""
    return whole(sliced(what, state))


def sliced(what: Input, state: State) -> Sliced[Step]:
    """The same as `apply`, in slices."""
    actions: list[Action] = []
    match what:
        case Tick(now_ms):
            state = yield from _open_round(replace(state, now_ms=max(now_ms, state.now_ms)))
            state, first = intake.fetch_commitments(state)
            actions += first
        case VerifiedEvent(event):
            try:
                state, first = intake.receive(event, state)
            except BadInput:
                return state, ()
            if event.kind in _HELD_KINDS:  # they change no round before its time has come
                return state, first
            actions += first
        case Conviction(pubkey):
            return replace(state, convicted=state.convicted | {pubkey}), ()
        case DerivationResult(epoch, key):
            if epoch in state.rounds:
                round_ = state.rounds[epoch]
                state = state.with_round(epoch, replace(round_, derived={**round_.derived, key: what}))
        case BlobCame(sha256, data):
            state, first = yield from intake.blob_came(sha256, data, state)
            actions += first
    for epoch in sorted(state.rounds):
        for step in (_list, _supply, _propose, _consider, _certify):
            state, more = yield from step(epoch, state)
            actions += more
    return state, tuple(actions)


# ---- a round's steps ----------------------------------------------------------------------------------------------


def _list(epoch: int, state: State) -> Sliced[Step]:
    """Say what this oracle holds, once, when the epoch's events have had time to arrive."""
    round_ = state.rounds[epoch]
    if round_.listed or not _is_open(epoch, state) or state.now_ms < _close(epoch, state, skews=1):
        return state, ()
    beats: dict[bool, list[str]] = {False: [], True: []}
    held: dict[str, Event] = {}
    room = _inventory.MAX_BEATS
    for units, _, pubkey in state.order:
        listable = _listable(pubkey, epoch, state)[:room]
        room -= len(listable)
        for event, beat in listable:
            beats[units < 0].append(event.id)
            held.update((one.id, one) for one in (event, *_closure(beat, state)))
        if not room:
            break
        yield
    inventory = Inventory(
        committee=state.digest,
        epoch=epoch,
        beats=tuple(sorted(beats[False])),
        bonded=tuple(sorted(beats[True])),
        commitments=tuple(sorted(state.commitments.get(epoch, {}).values())),
        judged=_account.due(state.judged.values(), epoch, _last(epoch, state)),
    )
    round_ = replace(round_, listed=True, extra={**round_.extra, **held})
    return state.with_round(epoch, round_), (SayInventory(inventory),)


def _listable(pubkey: str, epoch: int, state: State) -> list[tuple[Event, Beat]]:
    """The newest two beats of a node that are alive in `epoch`, not signed ahead, and whose ad and bond are at hand."""
    if pubkey in state.convicted:
        return []
    fresh = [certificate.digest for certificate in state.certified[-FRESH:]]
    if len(fresh) < FRESH:
        fresh.append(state.digest)
    found = []
    for event, beat in state.beats[pubkey]:
        alive = epoch - state.committee.live_epochs <= beat.epoch <= epoch and beat.last in fresh
        ad_event, ad = state.ads.get(beat.ad, (None, None))
        own = ad_event is not None and ad_event.pubkey == pubkey
        if alive and own and ad is not None and (ad.bond is None or ad.bond in state.bonds):
            found.append((event, beat))
    return found[:LISTED_PER_NODE]


def _supply(epoch: int, state: State) -> Sliced[Step]:
    """Hand out what this oracle listed, f+1 inventories list, and another lacks: bonded nodes' events first."""
    round_ = state.rounds[epoch]
    complete = _complete(epoch, state)
    if round_.supplied or not round_.listed or not _is_open(epoch, state) or len(complete) < state.committee.quorum:
        return state, ()
    if len(complete) < len(state.committee.oracles) and state.now_ms < _close(epoch, state, skews=2):
        return state, ()
    lists = [set(inventory.all_beats) for inventory in complete.values()]
    beats, _ = _snapshot.listed(state.committee, list(complete.values()))
    yield
    rare = [round_.extra[id_] for id_ in beats if id_ in round_.extra and any(id_ not in ids for ids in lists)]
    rare.sort(key=lambda event: -state.backed.get(event.pubkey, 0))
    events: dict[str, Event] = {}
    for event in rare:
        events[event.id] = event
        mine = {known.id for known, _ in state.beats.get(event.pubkey, ())}
        if any(ids.isdisjoint(mine) for ids in lists):  # else all have the node's ad
            events.update((one.id, one) for one in _closure(_beat.parse(event), state))
        if len(events) >= _inventory.MAX_SUPPLIES * _inventory.MAX_SUPPLIED:
            break
        yield
    state = state.with_round(epoch, replace(round_, supplied=True))
    return state, ((SaySupply(epoch, tuple(events.values())),) if events else ())


def _closure(beat: Beat, state: State) -> Iterable[Event]:
    """The ad and the bond statement that a beat needs, as far as they are at hand."""
    ad_event, ad = state.ads.get(beat.ad, (None, None))
    if ad_event is not None and ad is not None:
        yield ad_event
        if ad.bond is not None and ad.bond in state.bonds:
            yield state.bonds[ad.bond][0]


def _propose(epoch: int, state: State) -> Sliced[Step]:
    """As the leader: propose the body that follows from as many inventories as possible."""
    round_, committee = state.rounds[epoch], state.committee
    if committee.leader(epoch) != state.me or round_.proposed or round_.is_deriving or not _is_open(epoch, state):
        return state, ()
    complete = _complete(epoch, state)
    waiting = len(complete) < len(committee.oracles) and state.now_ms < _close(epoch, state, skews=2)
    if len(complete) < committee.quorum or waiting:
        return _fetch_inventories(epoch, state)
    previous, previous_digest, state, actions = _previous(epoch, state)
    if isinstance(previous, str):
        return state, actions
    known, parsed = yield from _at_hand(round_, state)
    if round_.chosen is None:
        state, actions = yield from _choose(epoch, complete, known, parsed, state)
        round_ = state.rounds[epoch]
        if round_.chosen is None:
            return state, actions
    ids, is_crowded = round_.chosen
    cited = Citation.build(ids, is_crowded, round_, committee.leader(epoch))
    derived, state, actions = _derived(epoch, cited, (previous, previous_digest), known, parsed, state)
    if derived is None or derived.snapshot is None:
        return state, actions
    body = Body(
        committee=state.digest,
        epoch=epoch,
        snapshot=derived.sha256,
        commitments=_commitment.certified_root(cited.listed(committee)[1]),
        inventories=tuple(sorted(ids)),
        previous=previous_digest,
        is_crowded=is_crowded,
    )
    state = replace(state, snapshots={**state.snapshots, body.snapshot: derived.snapshot})
    state = state.with_round(
        epoch, replace(state.rounds[epoch], proposed=body.digest(), deriving=frozenset(), derived={})
    )
    keep = KeepSnapshot(derived.sha256, derived.snapshot, derived.blob)
    return state, (keep, SayProposal(body, derived.blob))


def _choose(
    epoch: int,
    complete: Mapping[str, Inventory],
    known: Mapping[str, Event],
    parsed: Mapping[str, Beat | Ad],
    state: State,
) -> Sliced[Step]:
    """As the leader: settle on inventories of which everything is at hand, or ask for what is missing.

    Strangers can make oracles list what the leader lacks, as much as they like. It waits for little, and not for long.
    """
    committee, ids, is_crowded = state.committee, set(complete), False
    is_late = state.now_ms >= _close(epoch, state, skews=3)
    while True:
        cited = Citation.build(ids, is_crowded, state.rounds[epoch], state.me)
        listed, _ = cited.listed(committee)
        yield
        missing = yield from _missing(epoch, listed, known, parsed, state)
        is_much = len(missing) > MAX_ASKED_IDS or len(listed) > _inventory.MAX_BEATS
        if not is_crowded and cited.leader_inventory is not None and (is_much or (missing and is_late)):
            is_crowded = True
        elif not missing:
            round_ = replace(state.rounds[epoch], chosen=(frozenset(ids), is_crowded))
            return state.with_round(epoch, round_), ()
        elif not is_late or len(ids) == committee.quorum:
            return state.ask(f"missing/{epoch}", FetchEvents(tuple(sorted(missing)[:MAX_ASKED_IDS])))
        else:
            others = {id_: one for id_, one in cited.inventories.items() if one is not cited.leader_inventory}
            ids.remove(max(others, key=lambda id_: (len(missing.intersection(others[id_].all_beats)), id_)))


def _derived(
    epoch: int,
    cited: Citation,
    previous: tuple[Snapshot | None, str],
    known: Mapping[str, Event],
    parsed: Mapping[str, Beat | Ad],
    state: State,
    blob: bytes = b"",
) -> tuple[DerivationResult | None, State, tuple[Action, ...]]:
    """What follows from these inventories, if that is known; the work is given out once."""
    round_, key = state.rounds[epoch], cited.key(previous[1])
    if key in round_.derived or key in round_.deriving:
        return round_.derived.get(key), state, ()
    work = Derivation(
        committee=state.committee,
        epoch=epoch,
        key=key,
        beats=tuple(cited.listed(state.committee)[0]),
        judged=tuple(cited.judged(state.committee)),
        previous=previous[0],
        known=known,
        parsed=parsed,
        bonded=tuple(cited.bonded(state.committee)),
        blob=blob,
    )
    state = state.with_round(epoch, replace(round_, deriving=round_.deriving | {key}))
    return None, state, (Derive(work),)


def _missing(
    epoch: int, beats: Iterable[str], known: Mapping[str, Event], parsed: Mapping[str, Beat | Ad], state: State
) -> Sliced[set[str]]:
    """What deriving from these beats lacks: beats not at hand; ads and bond statements, with the beats they are for."""
    at_hand = [known[id_] for id_ in beats if id_ in known]
    missing = {id_ for id_ in beats if id_ not in known}
    if (yield from _snapshot.needed(state.committee, epoch, at_hand, known, parsed)):
        for event in at_hand:  # rarely: which beats need it?
            lacking = yield from _snapshot.needed(state.committee, epoch, [event], known, parsed)
            if lacking:
                missing |= lacking | {event.id}
    return missing


def _consider(epoch: int, state: State) -> Sliced[Step]:
    """Vote for the leader's proposal if everything that it cites gives the same body."""
    round_ = state.rounds[epoch]
    if round_.voted or round_.refused or round_.is_deriving or not round_.proposals or not _is_open(epoch, state):
        return state, ()
    body = next(iter(round_.proposals.values())).body
    keep: tuple[Action, ...] = ()
    if round_.proposed != body.digest():
        state, derived, actions = yield from _checked(epoch, body, state)
        if derived is None:
            return state, actions
        if derived.snapshot is None or derived.sha256 != body.snapshot:
            return _refused(epoch, "snapshot: not what the inventories give", state), ()
        state = replace(state, snapshots={**state.snapshots, derived.sha256: derived.snapshot})
        keep = (KeepSnapshot(derived.sha256, derived.snapshot, derived.blob),)
    vote = SayVote(tags.epoch_topic(epoch), body.digest())
    round_ = replace(state.rounds[epoch], voted=True, deriving=frozenset(), derived={}, offered={})
    return state.with_round(epoch, round_), (*keep, vote)


def _checked(epoch: int, body: Body, state: State) -> Sliced[tuple[State, DerivationResult | None, tuple[Action, ...]]]:
    """What this oracle derives from the inventories that `body` cites, once all is there; a wrong body is refused."""
    state, is_ready, actions = _gather(epoch, body, state)
    if not is_ready:
        return state, None, actions
    round_, committee = state.rounds[epoch], state.committee
    cited = Citation.build(body.inventories, body.is_crowded, round_, committee.leader(epoch))
    if len({round_.inventories[id_].oracle for id_ in cited.inventories}) != len(cited.inventories):
        return _refused(epoch, "inventories: two of one oracle", state), None, ()
    if len(cited.inventories) < committee.quorum:
        return _refused(epoch, "inventories: not of 2f+1 oracles", state), None, ()
    if body.is_crowded and cited.leader_inventory is None:
        return _refused(epoch, "is_crowded: the leader's inventory is not cited", state), None, ()
    previous, previous_digest, state, _ = _previous(epoch, state)
    if body.previous != previous_digest or isinstance(previous, str):
        return _refused(epoch, "previous: not the newest certified body", state), None, ()
    beats, commitments = cited.listed(committee)
    if _commitment.certified_root(commitments) != body.commitments:
        return _refused(epoch, "commitments: not those that the inventories list", state), None, ()
    key = cited.key(previous_digest)
    if key in round_.derived or key in round_.deriving:
        return state, round_.derived.get(key), ()
    known, parsed = yield from _at_hand(round_, state)
    blob = round_.offered.get(body.snapshot, b"")
    if not blob and (yield from _missing(epoch, beats, known, parsed, state)):  # the proposal has what is lacking here
        state, ask = state.ask(f"blob/{body.snapshot}", FetchBlob(body.snapshot))
        return state, None, ask
    derived, state, actions = _derived(epoch, cited, (previous, previous_digest), known, parsed, state, blob)
    return state, derived, actions


def _refused(epoch: int, why: str, state: State) -> State:
    return state.with_round(epoch, replace(state.rounds[epoch], refused=why))


def _gather(epoch: int, body: Body, state: State) -> tuple[State, bool, tuple[Action, ...]]:
    """Ask for whatever checking `body` lacks but events; true if nothing is lacking."""
    round_ = state.rounds[epoch]
    actions: list[Action] = []
    absent = tuple(id_ for id_ in body.inventories if id_ not in round_.inventories)
    if absent:
        state, ask = state.ask(f"inventories/{epoch}", FetchEvents(absent))
        actions += ask
    bare = [round_.inventories[id_].blob for id_ in body.inventories if _is_bare(round_.inventories.get(id_))]
    for sha256 in bare:
        if sha256 is not None:
            state, ask = state.ask(f"blob/{sha256}", FetchBlob(sha256, Inventory.MAX_BYTES))
            actions += ask
    certificates = {certificate.digest for certificate in state.certified}
    if body.previous != state.digest and body.previous not in certificates:
        state, ask = state.ask("certificates", FetchCertificates())
        return state, False, (*actions, *ask)
    previous, _, state, more = _previous(epoch, state)
    complete = not absent and not bare and not isinstance(previous, str)
    return state, complete, (*actions, *more)


def _certify(epoch: int, state: State) -> Sliced[Step]:
    """With 2f+1 votes for one body: publish the certificate, the leader at once, others if nobody has after a skew."""
    round_, committee = state.rounds[epoch], state.committee
    if round_.quorum_ms is None or any(c.body.epoch == epoch for c in state.certified):
        return state, ()
    patient = committee.leader(epoch) != state.me and state.now_ms < round_.quorum_ms + committee.skew_ms
    for digest, proposal in round_.proposals.items():
        votes = [event for (x, _), event in sorted(round_.votes.items()) if x == digest]
        if len(votes) >= committee.quorum and not patient:
            certificate = Certificate(proposal.body, tuple(votes))
            yield
            state, actions = intake.certificate_came(certificate, state)
            return state, (PublishCertificate(certificate), *actions)
    return state, ()


# ---- smaller parts ------------------------------------------------------------------------------------------------

_UNKNOWN: Literal["unknown"] = "unknown"


def _previous(epoch: int, state: State) -> tuple[Snapshot | str | None, str, State, tuple[Action, ...]]:
    """The snapshot certified last before `epoch`, and the digest that a body cites for it.

    The snapshot is None before the first, and `_UNKNOWN` while its blob is fetched.
    """
    before = [certificate for certificate in state.certified if certificate.body.epoch < epoch]
    if not before:
        return None, state.digest, state, ()
    if before[-1].body.epoch < epoch - _snapshot.REMEMBERED_EPOCHS:
        return None, before[-1].digest, state, ()
    sha256 = before[-1].body.snapshot
    if sha256 in state.snapshots:
        return state.snapshots[sha256], before[-1].digest, state, ()
    state, actions = state.ask(f"blob/{sha256}", FetchBlob(sha256))
    return _UNKNOWN, before[-1].digest, state, actions


def _last(epoch: int, state: State) -> int:
    """The epoch that was certified last before `epoch`, as far as is known here and matters to what is due.

    Who knows too little lists too much, which is not counted.
    """
    oldest = epoch - _snapshot.REMEMBERED_EPOCHS
    return max((c.body.epoch for c in state.certified if oldest <= c.body.epoch < epoch), default=oldest)


def _complete(epoch: int, state: State) -> dict[str, Inventory]:
    """One readable inventory of each oracle, by event id. Of two by one oracle, neither: it contradicts itself."""
    found: dict[str, list[InventoryEvent]] = {}
    for listed in state.rounds[epoch].inventories.values():
        found.setdefault(listed.oracle, []).append(listed)
    single = [ones[0] for ones in found.values() if len(ones) == 1]
    return {listed.id: listed.inventory for listed in single if listed.inventory is not None}


def _fetch_inventories(epoch: int, state: State) -> Step:
    actions: list[Action] = []
    for listed in state.rounds[epoch].inventories.values():
        if _is_bare(listed) and listed.blob is not None:
            state, ask = state.ask(f"blob/{listed.blob}", FetchBlob(listed.blob, Inventory.MAX_BYTES))
            actions += ask
    return state, tuple(actions)


def _is_bare(listed: InventoryEvent | None) -> bool:
    return listed is not None and listed.inventory is None


def _at_hand(round_: Round, state: State) -> Sliced[tuple[dict[str, Event], dict[str, Beat | Ad]]]:
    """By id, every beat, ad and bond statement at hand, and what was read of the beats and ads."""
    known: dict[str, Event] = {}
    parsed: dict[str, Beat | Ad] = {}
    for beats in state.beats.values():
        for event, beat in beats:
            known[event.id], parsed[event.id] = event, beat
        yield
    for event, ad in state.ads.values():
        known[event.id], parsed[event.id] = event, ad
        yield
    for event, _ in state.bonds.values():
        known[event.id] = event
        yield
    known.update(round_.extra)
    return known, parsed


def _is_open(epoch: int, state: State) -> bool:
    return _close(epoch, state) <= state.now_ms < _close(epoch + 1, state)


def _close(epoch: int, state: State, *, skews: int = 0) -> int:
    return state.committee.close_ms(epoch) + skews * state.committee.skew_ms


def _open_round(state: State) -> Sliced[State]:
    """Once an epoch: open the round of the one that has closed, and forget what is too old to matter."""
    epoch = state.epoch
    if state.opened >= epoch - 1 or epoch < 1:
        return state
    rounds = {e: round_ for e, round_ in state.rounds.items() if e >= epoch - VALID_EPOCHS}
    rounds.setdefault(epoch - 1, Round())
    snapshots = {c.body.snapshot for c in state.certified[-FRESH:]}
    snapshots |= {p.body.snapshot for round_ in rounds.values() for p in round_.proposals.values()}
    asked = {key: at for key, at in state.asked.items() if at > state.now_ms - 2 * state.committee.epoch_ms}
    return replace(
        (yield from node_places.pruned(state)),
        rounds=rounds,
        opened=epoch - 1,
        certified=tuple(one for one in state.certified if one.body.epoch >= epoch - KEPT_EPOCHS),
        commitments={e: ids for e, ids in state.commitments.items() if e >= epoch - 1},
        bare={e: bare for e, bare in state.bare.items() if e >= epoch - 1},
        unbonded_blobs={e: count for e, count in state.unbonded_blobs.items() if e >= epoch - 1},
        judged={key: one for key, one in state.judged.items() if one.epoch >= epoch - intake.JUDGED_EPOCHS},
        snapshots={sha256: s for sha256, s in state.snapshots.items() if sha256 in snapshots},
        asked=PersistentMap(asked),
    )
