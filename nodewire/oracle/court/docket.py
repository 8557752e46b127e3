"""What an epoch's beacon draws, read from relays and stores: certified commitments, the requests that they name."""

from __future__ import annotations

import logging
from collections import OrderedDict
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, TypeVar

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.net import host_port
from nodewire.net.connection_limits import origin_of
from nodewire.nostr.nips.nip01 import Filter
from nodewire.oracle.court.arrivals import MAX_OTHERS
from nodewire.oracle.court.case import EpochDraw, Parties, RootKey
from nodewire.plan.sample import draw, is_audited, is_inspected, place, turn
from nodewire.protocol.encoding.address import SpliceAddress, is_splice
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import MAX_JOB_EPOCHS
from nodewire.protocol.job.request import Request
from nodewire.protocol.verification.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from nodewire.market import Market
    from nodewire.nostr.relays import Relays
    from nodewire.plan.epoch import Epoch
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.market.snapshot import Snapshot

MAX_REQUESTS = 4_096
"""Job requests looked up for one epoch: the bonded nodes' by turns, then the others', so that nobody is crowded out."""

_IDS_PER_FETCH = 256
_SEEN_EPOCHS = 64
_MAX_SEEN = 262_144
_KEPT_REQUESTS = 8_192
_KEPT_DRAWN = 16_384
_log = logging.getLogger("nodewire.oracle.docket")
T = TypeVar("T")


class Docket:
    """Reads epochs; remembers which samples they held, and the requests of those drawn.

    Read late, or again, after later ones, an epoch draws what it would have drawn in its turn.
    """

    def __init__(self, market: Market, relays: Relays) -> None:
        self._market = market
        self._relays = relays
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._owners: OrderedDict[str, tuple[tuple[RootKey, int], ...]] = OrderedDict()
        """By root: for which work it was committed to by whom, and the epoch."""
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._drawn = BoundedDict[str, Request](_KEPT_DRAWN)
        self._snapshots = BoundedDict[int, str](_SEEN_EPOCHS)
        self._newest = -1

    async def request(self, id_: str) -> Request:
        """A request of which a recent epoch drew samples, or might have. Raises NotFound."""
        found = self._drawn.get(id_) or self._requests.get(id_)
        if found is None:
            raise NotFound("request", f"{id_[:8]} was not read")
        return found

    def snapshot(self, epoch: int) -> str | None:
        """SHA-256 of the snapshot of an epoch that was read lately."""
        return self._snapshots.get(epoch)

    def snapshots(self) -> Mapping[int, str]:
        """SHA-256 of the snapshots of all epochs that were read lately."""
        return self._snapshots

    async def read(self, epoch: Epoch) -> EpochDraw:
        """What `epoch` drew and certifies.

        Raises:
            NotFound, BadHash ...: the commitments or the snapshot are not to be had (yet).

        """
        number = epoch.body.epoch
        commitments = await self._market.commitments(epoch.body)
        roots: dict[RootKey, str] = {}
        for committed in sorted(commitments, key=lambda one: one.id):
            for chunk in committed.commitment.chunks if committed.commitment is not None else ():
                roots.setdefault((committed.provider, *chunk.key), chunk.root)
        samples: tuple[Sample, ...] = ()
        requests: dict[str, Request] = {}
        parties: dict[str, Parties] = {}
        if roots:
            snapshot = await self._market.snapshot(epoch.snapshot)
            requests = await self._sampled(_by_turns(roots, snapshot, self._market.committee), number)
            drawn = draw(
                self._market.committee, epoch.beacon, commitments, requests, snapshot, seen=self._before(number)
            )
            samples = _in_turn(drawn, epoch.beacon, snapshot, self._market.committee)
            parties = _parties(samples, requests, snapshot, self._market.committee)
        manifests = {}
        for id_ in sorted({sample.request for sample in samples}):
            self._drawn[id_] = requests[id_]
            try:
                manifests[id_] = await self._market.manifest(
                    requests[id_].manifest_address, requests[id_].plan.manifest
                )
            except NodewireError as error:
                _log.warning("samples of request %s are not judged: %s", id_[:8], error)
        self._snapshots[number] = epoch.snapshot
        for key, root in roots.items():
            known = self._owners.get(root, ())
            if len(known) <= MAX_OTHERS and all(key != of for of, _ in known):
                self._owners[root] = (*known, (key, number))
        others = {sample.key: found for sample in samples if (found := self._others(sample))}
        self._remember((place(*key[:4]) for key in roots), number)
        audited = frozenset(sample.key for sample in samples if is_audited(epoch.beacon, sample.key))
        inspected = frozenset(sample.key for sample in samples if is_inspected(epoch.beacon, sample.key))
        return EpochDraw(number, epoch.body.digest(), samples, manifests, roots, audited, inspected, others, parties)

    async def _sampled(self, ids: Iterable[str], epoch: int) -> dict[str, Request]:
        """The requests among `ids` that are to be sampled in `epoch`."""
        wanted = list(dict.fromkeys(islice(ids, MAX_REQUESTS)))
        missing = [id_ for id_ in wanted if self._requests.get(id_) is None]
        for i in range(0, len(missing), _IDS_PER_FETCH):
            some = frozenset(missing[i : i + _IDS_PER_FETCH])
            for event in await self._relays.fetch([Filter(ids=some)]):
                if event.id not in some:
                    continue
                try:
                    self._requests[event.id] = job.parse(event)
                except BadInput as error:
                    _log.info("request %s: %s", event.id[:8], error)
        found = {id_: request for id_ in wanted if (request := self._requests.get(id_)) is not None}
        while len(self._requests) > _KEPT_REQUESTS:
            self._requests.popitem(last=False)
        return {
            id_: request
            for id_, request in found.items()
            if request.plan.verification.policy == "sampled"
            and request.plan.epoch <= epoch <= request.plan.epoch + MAX_JOB_EPOCHS
        }

    def _others(self, sample: Sample) -> tuple[Sample, ...]:
        """What other nodes committed to with the sample's root."""
        return tuple(
            Sample(
                provider=provider,
                request=request,
                task=task,
                chunk=chunk,
                attempt=attempt,
                root=sample.root,
                verifiers=(),
            )
            for (provider, request, task, chunk, attempt), _ in self._owners.get(sample.root, ())
            if provider != sample.provider
        )[:MAX_OTHERS]

    def _before(self, epoch: int) -> Collection[str]:
        """The places of which earlier epochs hold a root."""
        if epoch > self._newest:
            return self._seen.keys()
        return {key for key, at in self._seen.items() if at < epoch}

    def _remember(self, keys: Iterable[str], epoch: int) -> None:
        self._newest = max(self._newest, epoch)
        for key in keys:
            self._seen[key] = min(epoch, self._seen.get(key, epoch))
        while self._seen and (len(self._seen) > _MAX_SEEN or next(iter(self._seen.values())) < epoch - _SEEN_EPOCHS):
            self._seen.popitem(last=False)
        while self._owners and (
            len(self._owners) > _MAX_SEEN or next(iter(self._owners.values()))[0][1] < epoch - _SEEN_EPOCHS
        ):
            self._owners.popitem(last=False)


def _by_turns(roots: Iterable[RootKey], snapshot: Snapshot, committee: Committee) -> Iterator[str]:
    """The requests that nodes committed work for, each once: the bonded nodes' by turns, then the others'."""
    named: dict[str, dict[str, None]] = {}
    for provider, request, *_ in sorted(roots):
        named.setdefault(provider, {})[request] = None
    return iter(dict.fromkeys(_turns(named, snapshot, committee)))


def _in_turn(samples: Iterable[Sample], beacon: str, snapshot: Snapshot, committee: Committee) -> tuple[Sample, ...]:
    """The samples, so that the first of them may be all that are judged: by turns, too, each node's own by lot."""
    mine: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda one: turn(beacon, one.key)):
        mine.setdefault(sample.provider, []).append(sample)
    return tuple(_turns(dict(sorted(mine.items())), snapshot, committee))


def _parties(
    samples: Sequence[Sample], requests: Mapping[str, Request], snapshot: Snapshot, committee: Committee
) -> dict[str, Parties]:
    """By the sample's key, whose it is."""
    bonded = {node.pubkey for node in snapshot.nodes if committee.is_bond(node.bond_msat)}
    try:
        ads = snapshot.ads({sample.provider for sample in samples})
    except BadInput as error:  # certified all the same; addresses are read elsewhere, too
        _log.warning("ads of epoch %d: %s", snapshot.epoch, error)
        ads = {}
    at = {provider: frozenset(map(_origin, ad.wire)) for provider, ad in ads.items()}
    return {
        one.key: Parties(
            one.provider in bonded,
            requests[one.request].customer,
            at.get(one.provider, frozenset()),
            requests[one.request].plan.standing_msat(one.task, one.provider),
        )
        for one in samples
    }


def _turns(of: Mapping[str, Iterable[T]], snapshot: Snapshot, committee: Committee) -> Iterator[T]:
    """What the bonded nodes have, by turns, then what the others have."""
    bonded = {node.pubkey for node in snapshot.nodes if committee.is_bond(node.bond_msat)}
    first = zip_longest(*(of[provider] for provider in of if provider in bonded))
    rest = zip_longest(*(of[provider] for provider in of if provider not in bonded))
    return (one for round_ in chain(first, rest) for one in round_ if one is not None)


def _origin(address: str) -> str:
    """Where an ad's address is, as `nodewire.net.connection_limits` counts.

    Of a splice, which one it is at which host.
    """
    if not is_splice(address):
        return origin_of(host_port.parse(address)[0])
    splice = SpliceAddress.parse(address)
    return str(SpliceAddress(splice.public, host_port.parse(splice.at)[0]))
