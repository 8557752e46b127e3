"""What people call a model, and the address that it stands for. `ModelNames.find` says in which order it is looked for.

Anybody may publish under any name, keys are free, and relays choose what they answer. So nobody's word makes a name
but the customer's own (its pins, its follow list) and, where that says nothing, what providers are certified to hold.
Where any of it is doubtful the customer is asked. What is read is bounded: keys, events, manifests, and what is listed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypeVar

from nodewire.errors import Ambiguous, BadInput, NodewireError, NotFound, TooLarge
from nodewire.market import Market, read_manifest
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip19
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.market.model_name import NADDR, name_in, skeleton
from nodewire.protocol.model import manifest_event
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from nodewire.config import ModelPin
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.market.snapshot import Snapshot

FOLLOW_LIST = 3
"""NIP-02: whom a key follows, in `p` tags."""
MAX_HELD = 2_048
"""Certified manifests among which a name is looked for: those with the most bonds behind them."""
MAX_PUBLICATIONS = 128
"""Of an answer. They are 8 MiB at most, so that no relay's answer drops any."""
MAX_READ = 64
"""Manifests of one name after which no more are fetched and parsed."""
MAX_LISTED = 16
"""Models among which somebody is asked to choose."""
_TRIES = 16
"""Publications of one certified digest that are read, the oldest first, until one is what it says."""
_VALUES = 500
"""In one filter."""
_EPOCH_S = 30.0
_HEX = frozenset("0123456789abcdef")
_T = TypeVar("_T")

Standing = Literal["pinned", "own", "followed", "stranger"]
_RANKS: tuple[Standing, ...] = ("pinned", "own", "followed", "stranger")


@dataclass(frozen=True, slots=True)
class ModelAt:
    """A model's address, the version of its manifest that is meant (any if None), and by what it was found."""

    address: str
    digest: str | None = None
    by: Literal["address", "pin", "follow list", "record", "choice"] = "address"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that a name may mean.

    `bytes` are its weights', `price_msat` is a chunk's over all its tasks, of the cheapest; None if it is not known, or
    no provider holds one of them. `mode` and `chunk` are the manifest's, empty and 0 where that is not to be had.
    `resembles` is the address of a pinned or followed model that has the same name, or one that looks alike. `fault`
    says why its manifest is not to be had.
    """

    address: str
    name: str
    publisher: str
    standing: Standing
    digest: str = ""
    bytes: int | None = None
    tasks: int = 0
    providers: int = 0
    bond_msat: int = 0
    price_msat: int | None = None
    mode: str = ""
    chunk: int = 0
    resembles: str = ""
    fault: str = ""

    @property
    def model(self) -> ModelAt:
        return ModelAt(self.address, self.digest or None, "choice")

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The nearest first, then those with the most bonds and providers."""
        return _RANKS.index(self.standing), -self.bond_msat, -self.providers, self.address


@dataclass(slots=True)
class TrustedSources:
    """Whom a customer follows, and the addresses that it has pinned or whose authors it follows."""

    own: str
    followed: frozenset[str]
    pins: Mapping[str, ModelPin]
    addresses: list[str] = field(default_factory=list)

    def standing(self, address: str) -> Standing:
        if any(pin.manifest == address for pin in self.pins.values()):
            return "pinned"
        author = address.split(":", 2)[1]
        return "own" if author == self.own else "followed" if author in self.followed else "stranger"

    def resembled(self, address: str) -> str:
        """The known address that a stranger's may be taken for by its name; empty if there is none."""
        if self.standing(address) != "stranger":
            return ""
        shape = skeleton(_name(address))
        pinned = (pin.manifest for alias, pin in self.pins.items() if skeleton(alias) == shape)
        return next(pinned, "") or next((one for one in self.addresses if skeleton(_name(one)) == shape), "")

    @property
    def names(self) -> list[str]:
        return [*self.pins, *map(_name, self.addresses)]


@dataclass(slots=True)
class _Offers:
    """Of one manifest, in a snapshot."""

    providers: int = 0
    bond_msat: int = 0
    prices_msat: dict[str, int] = field(default_factory=dict)
    """The least of each task."""


class ModelNames:
    """For whom `public` is. The market must be followed: certified epochs are read."""

    def __init__(self, public: str, pool: Pool, market: Market, pins: Mapping[str, ModelPin]) -> None:
        self._public, self._pool, self._market, self._pins = public, pool, market, pins

    async def find(self, text: str) -> ModelAt:
        """The model that somebody calls `text`. The first of these decides, and no later one is asked.

        1. An address (38840:AUTHOR:NAME, or its naddr) is itself, whatever any name says.
        2. A name that the configuration pins is that address, and that version.
        3. What the own key, or a key that it follows, publishes under the name.
        4. What providers hold under the name, by the newest certified snapshot.

        Where several models are left, or at 4. the name looks like one of 2. or 3., or not all of what is published
        under it could be read, nothing is chosen.

        Raises:
            BadInput: it is neither an address nor a name.
            Ambiguous: somebody must choose; the candidates are listed.
            NotFound: nobody has such a model.
            TooLarge: a follow list is there that cannot be read.
            NoQuorum: no epoch is certified.
            RelayRefused, TimedOut: no relay answers.

        """
        if (address := address_in(text)) is not None:
            return ModelAt(address)
        name = name_in(text)
        if (pin := self._pins.get(name)) is not None:
            return ModelAt(pin.manifest, pin.digest, "pin")
        keys = await self._followed()
        published = await self._published(keys, name)
        if len(published) == 1:
            return ModelAt(manifest_event.address(published[0]), tags.hex32(published[0], "x"), "follow list")
        if published:
            raise await self._ambiguous(name, TrustedSources(self._public, keys, self._pins), published)
        known = await self._known(keys)
        held, is_all = await self._held(name)
        alike = [one for one in known.addresses if skeleton(_name(one)) == skeleton(name)]
        alike += [pin.manifest for alias, pin in self._pins.items() if skeleton(alias) == skeleton(name)]
        if len(held) == 1 and is_all and {manifest_event.address(held[0])}.issuperset(alike):
            return ModelAt(manifest_event.address(held[0]), tags.hex32(held[0], "x"), "record")
        if held:
            raise await self._ambiguous(name, known, held, alike, is_all=is_all)
        close = [*alike, *get_close_matches(name, known.names, n=1)]
        meant = f"; did you mean {close[0]}?" if close else ""
        raise NotFound(
            "model",
            f"{name!r} is not pinned, nobody whom you follow publishes it, and no provider holds it"
            + ("" if is_all else ", as far as could be read")
            + meant,
        )

    async def known(self) -> TrustedSources:
        """Raises TooLarge, RelayRefused, TimedOut: as `find`."""
        return await self._known(await self._followed())

    async def market_events(self, known: TrustedSources, snapshot: Snapshot, most: int) -> list[Event]:
        """At most `most` publications: what is pinned or followed, what providers hold, then the newest of others.

        Raises RelayRefused, TimedOut: no relay answers.
        """
        found: dict[str, Event] = {}

        def add_newest(events: Iterable[Event]) -> None:
            for event in sorted(events, key=newest_first):
                found.setdefault(manifest_event.address(event), event)

        for address in dict.fromkeys(pin.manifest for pin in self._pins.values()):
            if len(found) < most:
                _, author, name = address.split(":", 2)
                add_newest(await self._fetched(authors={author}, about={"d": {name}}))
        for some in _parts(sorted({known.own, *known.followed})):
            add_newest(await self._fetched(authors=some))
        for some in _held_parts(snapshot):
            if len(found) < most:
                add_newest(await self._fetched(about={"x": some}))
        add_newest(await self._fetched())
        return list(found.values())[:most]

    async def candidates(self, known: TrustedSources, models: Sequence[tuple[str, Event | None]]) -> list[Candidate]:
        """What is known of models by their addresses, with their events where these are there; the nearest first."""
        epoch = await self._market.epoch(timeout_s=_EPOCH_S)
        snapshot = await self._market.snapshot(epoch.body.snapshot)
        read = await asyncio.gather(*(self._read(address, event) for address, event in models))
        offers = _offers(snapshot, {one.digest() for one in read if isinstance(one, Manifest)})
        found = []
        for (address, _), one in zip(models, read, strict=True):
            publisher, resembles = address.split(":", 2)[1], known.resembled(address)
            candidate = Candidate(address, _name(address), publisher, known.standing(address), resembles=resembles)
            if isinstance(one, NodewireError):
                found.append(replace(candidate, fault=str(one)[:200]))
                continue
            offer = offers[one.digest()]
            prices = [offer.prices_msat.get(task.name) for task in one.tasks]
            found.append(
                replace(
                    candidate,
                    digest=one.digest(),
                    bytes=one.weight_bytes,
                    tasks=len(one.tasks),
                    providers=offer.providers,
                    bond_msat=offer.bond_msat,
                    price_msat=None if None in prices else sum(price or 0 for price in prices),
                    mode=one.mode,
                    chunk=one.chunk,
                )
            )
        return sorted(found, key=lambda candidate: candidate.order)

    async def _read(self, address: str, event: Event | None) -> Manifest | NodewireError:
        try:
            if event is None:
                return await self._market.manifest(address)
            return await read_manifest(event, self._market.blobs)
        except NodewireError as error:
            return error

    async def _ambiguous(
        self,
        name: str,
        known: TrustedSources,
        events: Sequence[Event],
        alike: Sequence[str] = (),
        *,
        is_all: bool = True,
    ) -> Ambiguous:
        """The error that lists what `name` may mean: what is alike and known first, then the publications."""
        models: dict[str, Event | None] = dict.fromkeys(alike)
        models.update((manifest_event.address(event), event) for event in events)
        some = list(models.items())[:MAX_LISTED]
        found = await self.candidates(known, some)
        more = f" and {len(models) - len(some)} more" if len(models) > len(some) else ""
        more += "" if is_all else ", and not all that is published under the name could be read"
        listed = ", ".join(one.address for one in found)
        return Ambiguous(
            "model",
            f"{name!r} may be any of these: {listed}{more}. Say which by its address, or pin one:"
            f" `nodewire models pin {name} ADDRESS --config FILE`",
            [asdict(one) for one in found],
        )

    async def _followed(self) -> frozenset[str]:
        """The own key, and whom its newest follow list names.

        An event that cannot be read is one that is not there: so who follows more than fits would follow nobody, and
        a stranger's model would be found in place of a friend's. What fits has fewer keys than a filter may have.
        """
        wanted = Filter(kinds=frozenset({FOLLOW_LIST}), authors=frozenset({self._public}))
        try:
            lists = await self._pool.fetch([wanted], is_whole=True)
        except TooLarge as error:
            raise TooLarge(
                "follow list",
                "a relay has one of this key (kind 3) that cannot be read: above 128 KiB or 2,000 tags, or malformed."
                " Name models by their addresses, or pin them",
            ) from error
        newest = min(lists, key=newest_first, default=None)
        named = [] if newest is None else newest.values("p")
        return frozenset({self._public, *(key for key in named if len(key) == 64 and _HEX.issuperset(key))})

    async def _published(self, keys: Collection[str], name: str) -> list[Event]:
        """What these keys publish under a name, of each address the newest and of each version one."""
        found: list[Event] = []
        for some in _parts(sorted(keys)):
            found += await self._fetched(authors=some, about={"d": {name}})
        versions: dict[str | None, Event] = {}
        for event in sorted(_newest(found, name), key=lambda one: (one.pubkey != self._public, one.created_at)):
            versions.setdefault(event.tag("x"), event)
        return list(versions.values())

    async def _known(self, keys: frozenset[str]) -> TrustedSources:
        known = TrustedSources(self._public, keys, self._pins, [pin.manifest for pin in self._pins.values()])
        for some in _parts(sorted(keys)):
            known.addresses += [manifest_event.address(event) for event in _newest(await self._fetched(authors=some))]
        return known

    async def _held(self, name: str) -> tuple[list[Event], bool]:
        """One publication of each model that providers hold under a name, and whether all were looked at.

        What is no manifest, or not the one that it cites, says nothing of the one that providers hold.
        """
        epoch = await self._market.epoch(timeout_s=_EPOCH_S)
        found, read, looked, is_all = list[Event](), 0, 0, True
        for some in _held_parts(await self._market.snapshot(epoch.body.snapshot)):
            if looked >= MAX_HELD or read >= MAX_READ or len(found) > MAX_LISTED:
                return found, False
            looked += len(some)
            events = await self._fetched(about={"d": {name}, "x": some})
            is_all &= len(events) < MAX_PUBLICATIONS
            told: dict[str, list[Event]] = defaultdict(list)
            for event in sorted(_newest(events, name), key=lambda one: (one.created_at, one.id)):
                told[event.tag("x") or ""].append(event)
            for digest in (one for one in some if one in told):
                for event in told[digest][:_TRIES]:
                    read += 1
                    await asyncio.sleep(0)  # a manifest takes milliseconds, and others wait
                    said = await self._read("", event)
                    if isinstance(said, Manifest):
                        found.append(event)
                        self._market.keep_manifest(said)  # whose author may publish another before it is bought
                        break
                    is_all &= isinstance(said, BadInput | NotFound)
                else:  # of copies, which anybody may publish, one is enough
                    is_all &= len(told[digest]) <= _TRIES
        return found, is_all

    async def _fetched(
        self, *, authors: Collection[str] | None = None, about: Mapping[str, Collection[str]] | None = None
    ) -> list[Event]:
        """Manifests' events, at most MAX_PUBLICATIONS of the newest."""
        wanted = Filter(
            kinds=frozenset({kinds.MANIFEST}),
            authors=None if authors is None else frozenset(authors),
            tags={letter: frozenset(values) for letter, values in (about or {}).items()},
        )
        return await self._pool.fetch([wanted], max_events=MAX_PUBLICATIONS)


def address_in(text: str, field: str = "model") -> str | None:
    """The address that `text` is; None if it can only be a name. Errors name `field`.

    Raises BadInput: it is written as an address, and is no manifest's.
    """
    entity = text.removeprefix("nostr:")
    if entity.startswith(NADDR):
        try:
            found = nip19.parse(entity)
        except (BadInput, TooLarge) as error:
            raise BadInput(field, f"{text[:80]!r} is no naddr: {error.reason}") from error
        if not isinstance(found, nip19.Naddr):
            raise BadInput(field, f"{text[:80]!r} is no naddr")
        text = f"{found.kind}:{found.pubkey}:{found.d}"
    if ":" not in text:
        return None
    kind, _, rest = text.partition(":")
    author, _, name = rest.partition(":")
    try:
        is_address = kind == str(kinds.MANIFEST) and len(author) == 64 and _HEX.issuperset(author)
        if is_address and name_in(name) == name:
            return text
    except BadInput:
        pass
    raise BadInput(field, f"{text[:120]!r} is neither a name nor an address (38840:<author, 64 hex digits>:<name>)")


def _name(address: str) -> str:
    return address.split(":", 2)[2]


def _newest(events: Iterable[Event], name: str | None = None) -> list[Event]:
    """Of each address the newest, under `name` alone if one is given; relays do not all have the same."""
    found: dict[str, Event] = {}
    for event in sorted(events, key=newest_first):
        if name is None or event.tag("d") == name:
            found.setdefault(manifest_event.address(event), event)
    return list(found.values())


def _held_parts(snapshot: Snapshot) -> Iterator[Sequence[str]]:
    """The digests of what nodes hold, in parts that an answer has room for.

    Those with the most bonds behind them come first, then the most nodes. What has no bond behind it is asked for
    apart, and so keeps nothing else out.
    """
    weights: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for node in snapshot.nodes:
        for held in node.held:
            weights[held.manifest][0] += node.bond_msat
            weights[held.manifest][1] += 1
    ranked = sorted(weights, key=lambda digest: (*(-weight for weight in weights[digest]), digest))
    for is_bonded in (True, False):
        yield from _parts([one for one in ranked if (weights[one][0] > 0) == is_bonded], MAX_PUBLICATIONS // 2)


def _offers(snapshot: Snapshot, digests: Collection[str]) -> Mapping[str, _Offers]:
    found: dict[str, _Offers] = defaultdict(_Offers)
    for node in snapshot.nodes:
        for held in node.held:
            if held.manifest not in digests:
                continue
            offers = found[held.manifest]
            offers.providers += 1
            offers.bond_msat += node.bond_msat
            for task in held.tasks:
                least = offers.prices_msat.get(task.task, task.price_msat)
                offers.prices_msat[task.task] = min(least, task.price_msat)
    return found


def _parts(values: Sequence[_T], size: int = _VALUES) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
