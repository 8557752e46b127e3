"""The market as customers and providers both read it: committee, certified epochs, snapshots, manifests.

All of it comes from relays and blob stores and is checked before it is believed: signatures by the pool, certificates
and beacons against the committee, blobs against their hashes, manifests against the digest that cites them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.core.loop_turn import in_slices
from nodewire.errors import (
    BadConfig,
    BadEvent,
    BadHash,
    BadInput,
    BadQuorum,
    LinkLost,
    NodewireError,
    NoQuorum,
    NotFound,
)
from nodewire.nostr.event import MAX_BYTES, Event, of_hashed
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.nostr.pool import Pool
from nodewire.plan.epoch import Epoch, Epochs, is_valid
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment, committee, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import Commitment, CommitmentEvent
from nodewire.protocol.committee.committee import VALID_EPOCHS, Committee
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.encoding import tags
from nodewire.protocol.market import snapshot
from nodewire.protocol.market.snapshot import Node, Snapshot
from nodewire.protocol.model import manifest_event
from nodewire.protocol.model.manifest import Manifest
from nodewire.store.blobs import Blobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from nodewire.config import Role
    from nodewire.protocol.committee.epoch_body import Body
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.ad import Ad

_FETCH_S = 10.0
_KEPT_MANIFESTS = 1_024
_KEPT_SNAPSHOTS = 16
_IDS_PER_FETCH = 256
_BLOBS_TOGETHER = 16
_KEPT_COMMITMENTS = 16_384
_KEPT_COMMITMENT_BYTES = 64 * 1024**2
log = logging.getLogger("nodewire.market")


@dataclass(frozen=True, slots=True)
class Contents:
    """The commitments that a body certifies, as far as they could be read; `lacking` are the ids of the others."""

    commitments: tuple[CommitmentEvent, ...]
    lacking: tuple[str, ...]


class Market:
    """Follows one committee over a pool of relays. `run` must be running for epochs to arrive."""

    def __init__(self, pool: Pool, blobs: Blobs, committee_: Committee) -> None:
        self.committee = committee_
        self._committee_digest = committee_.digest()
        self._pool = pool
        self.blobs = blobs
        self._epochs = Epochs(committee_)
        self._changed = asyncio.Condition()
        self._snapshots = BoundedDict[str, Snapshot](_KEPT_SNAPSHOTS)
        self._commitments = BoundedDict[str, tuple[CommitmentEvent, ...]](_KEPT_SNAPSHOTS)
        self._kept: OrderedDict[str, Event] = OrderedDict()
        self._kept_bytes = 0
        self._reading = asyncio.Lock()
        self._manifests = BoundedDict[str, Manifest](_KEPT_MANIFESTS)
        self._failure: NodewireError | None = None

    @classmethod
    async def open(cls, pool: Pool, blobs: Blobs, address: str, digest: str | None = None) -> Market:
        """The market of the committee at `address` (38841:<author>:<name>), if it has the `digest` that is given.

        Raises:
            NotFound: no relay has the committee.
            BadConfig: the address is not a committee's.

        """
        found = committee.parse(await addressed(pool, address, kinds.COMMITTEE))
        if digest is not None and found.digest() != digest:
            raise NotFound("committee", f"{address} is now another one than {digest}")
        return cls(pool, blobs, found)

    @property
    def committee_digest(self) -> str:
        return self._committee_digest

    async def run(self) -> None:
        """Follow certificates and beacon partials until cancelled."""
        since = int(time.time()) - VALID_EPOCHS * self.committee.epoch_ms // 1000 - 60
        oracles = frozenset(oracle.pubkey for oracle in self.committee.oracles)
        both = frozenset({kinds.CERTIFICATE, kinds.BEACON})
        async for event in self._pool.subscribe([Filter(kinds=both, authors=oracles, since=since)]):
            try:
                await self.add_event(event)
            except NodewireError:
                continue  # one oracle's malformed event; the others' go on

    async def follow(self) -> None:
        """`run`, beside others: what ends it is what `epoch` raises from then on."""
        try:
            await self.run()
            raise LinkLost("relays", "every relay has ended the subscription")
        except NodewireError as error:
            self._failure = error
            async with self._changed:
                self._changed.notify_all()

    async def add_event(self, event: Event) -> None:
        """Take note of a certificate or a beacon partial. Raises as `Epochs.add_event`."""
        self._epochs.add_event(event)
        async with self._changed:
            self._changed.notify_all()

    async def epoch(self, *, timeout_s: float, after: int = -1) -> Epoch:
        """The newest epoch that an assignment may stand on, later than number `after`.

        Raises:
            NoQuorum: none was certified in time.

        """
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                found = await self._changed.wait_for(lambda: self._failure or self._latest(after))
        except TimeoutError as error:
            raise NoQuorum("epoch", f"no valid one was certified within {timeout_s:.0f} s") from error
        if not isinstance(found, Epoch):
            raise self._failure or NoQuorum("epoch", "none is certified")
        return found

    def epochs_after(self, epoch: int) -> list[Epoch]:
        """The certified epochs later than number `epoch` whose beacons are known, oldest first; at most 16."""
        return self._epochs.after(epoch, _now_ms())

    def _latest(self, after: int) -> Epoch | None:
        try:
            latest = self._epochs.latest(_now_ms())
        except NoQuorum:
            return None
        return latest if latest.body.epoch > after else None

    def last_body(self) -> str:
        """What a beat cites as `last`."""
        return self._epochs.last(_now_ms())

    async def certified(self, digest: str, event_id: str) -> Body:
        """The body with `digest`, certified; fetched from relays by the certificate's event id if it has not come.

        Raises:
            NotFound, BadQuorum: there is none, or the event does not certify it.

        """
        known = self._epochs.certificate(digest)
        if known is None:
            event = await self.certificate_event(event_id)
            known = quorum_certificate.parse(event)
            if known.digest != digest:
                raise BadQuorum("certificate", "certifies another body")
            await self.add_event(event)
        return known.body

    async def certificate_event(self, id_: str) -> Event:
        """A certificate's event: of relays, or from the stores when these keep it no longer. It proves itself.

        Raises:
            NotFound: it is nowhere to be had.
            RelayRefused, TimedOut: no relay answers.

        """
        found = await self._certified_events([id_])
        if id_ not in found:
            raise NotFound("certificate", f"no relay and no store has {id_}")
        return found[id_]

    def newest(self) -> Body | None:
        """The newest certified body of a closed epoch that has come; None before the first."""
        known = self._epochs.newest(_now_ms())
        return None if known is None else known.body

    def body_of(self, epoch: int) -> Body | None:
        """The certified body of an epoch, if it has come and is not too old."""
        known = self._epochs.certified(epoch)
        return None if known is None else known.body

    async def find_body(self, epoch: int) -> Body | None:
        """The certified body of an epoch of whatever age; None if relays have none.

        Raises:
            RelayRefused, TimedOut: no relay answers.

        """
        if (known := self.body_of(epoch)) is not None:
            return known
        oracles = frozenset(oracle.pubkey for oracle in self.committee.oracles)
        about = {"c": frozenset({self.committee_digest}), "n": frozenset({tags.epoch_topic(epoch)})}
        wanted = Filter(kinds=frozenset({kinds.CERTIFICATE}), authors=oracles, tags=about)
        for event in await self._pool.fetch([wanted], timeout_s=_FETCH_S):
            try:
                found = quorum_certificate.parse(event)
                found.check(self.committee)
            except NodewireError:
                continue  # one oracle's malformed event; the others' are read
            if found.body.epoch == epoch:
                return found.body
        return None

    def is_valid(self, body: Body) -> bool:
        """Whether a request that comes now may stand on `body`: it had an epoch's time to come here."""
        return is_valid(self.committee, body.epoch, _now_ms(), grace_ms=self.committee.epoch_ms)

    async def snapshot(self, sha256: str, *, keep: bool = True) -> Snapshot:
        """The snapshot blob, checked against its hash. Without `keep` it is not left on the disk.

        Raises:
            NotFound, BadHash, BadInput: no store has it, or it is not what was cited.

        """
        async with self._reading:  # many jobs begin with an epoch: its snapshot is read once
            if sha256 not in self._snapshots:
                stays = keep or self.blobs.path(sha256).exists()
                path = await self.blobs.get(sha256, max_bytes=Snapshot.MAX_BYTES)
                blob = await asyncio.to_thread(path.read_bytes)
                if not stays:
                    path.unlink(missing_ok=True)
                self.keep_snapshot(sha256, await in_slices(snapshot.unpacked(blob, sha256)))
            return self._snapshots[sha256]

    def keep_snapshot(self, sha256: str, one: Snapshot) -> None:
        """Remember a snapshot that was derived here: no store is asked for it, and nobody unpacks it."""
        self._snapshots[sha256] = one

    async def ads(self, plan: Plan) -> dict[str, Ad]:
        """The ads of a plan's members as its snapshot has them. Raises as `snapshot`."""
        return (await self.snapshot(plan.snapshot)).ads(set(plan.providers()))

    async def nodes(self, plan: Plan) -> dict[str, Node]:
        """A plan's members as its snapshot has them. Raises as `snapshot`."""
        members = set(plan.providers())
        return {node.pubkey: node for node in (await self.snapshot(plan.snapshot)).nodes if node.pubkey in members}

    def lists(self, public: str) -> bool:
        """Whether a snapshot that was read lately lists this provider."""
        return any(snapshot.node(public) is not None for snapshot in self._snapshots.values())

    async def commitments(self, body: Body) -> tuple[CommitmentEvent, ...]:
        """The commitments that `body` certifies, with their chunk roots: all of them but the malformed ones.

        Raises:
            NotFound: one of them, its blob, or an inventory that the body cites is not to be had (yet).
            BadHash: what the inventories list is not what it certifies.
            RelayRefused, TimedOut: no relay answers.

        """
        found = await self.contents(body)
        if found.lacking:
            raise NotFound("commitments", f"{len(found.lacking)} are not to be had, such as {found.lacking[0]}")
        return found.commitments

    async def contents(self, body: Body) -> Contents:
        """As `commitments`, but for a reader who can do with those that are to be had. Raises as it, of inventories."""
        digest = body.digest()
        if digest in self._commitments:
            return Contents(self._commitments[digest], ())
        ids = await self.commitment_ids(body)
        events = await self._certified_events(ids)
        found: list[CommitmentEvent] = []
        lacking = [id_ for id_ in ids if id_ not in events]
        for id_ in ids:
            if id_ not in events:
                continue
            try:
                committed = commitment.parse(events[id_])
                if committed.blob is not None:
                    committed = committed.attach(await self._commitment_blob(committed.blob))
                found.append(committed)
            except NotFound as error:
                log.info("%s", error)
                lacking.append(id_)
            except BadInput:
                continue  # a provider's malformed word for its own work: nothing of it is final
        if not lacking:
            self._commitments[digest] = tuple(found)
        return Contents(tuple(found), tuple(lacking))

    async def commitment_ids(self, body: Body) -> list[str]:
        """The event ids of the commitments that `body` certifies. Raises as `commitments`; or no relay answers."""
        if body.commitments == commitment.certified_root([]):
            return []
        events = await self._certified_events(body.inventories)
        inventories = [one for one in [await self._inventory(event) for event in events.values()] if one is not None]
        _, ids = snapshot.listed(self.committee, inventories)
        if commitment.certified_root(ids) != body.commitments:  # who lists none may be lacking
            if len(inventories) < len(body.inventories):
                raise NotFound("inventories", f"{len(inventories)} of {len(body.inventories)} cited ones are to be had")
            raise BadHash("commitments", "not those that the inventories list")
        return ids

    def keep(self, event: Event) -> None:
        """Remember a verified event that may be certified: for it no relay is asked, where its author may delete it."""
        if event.id not in self._kept:
            self._kept[event.id] = event
            self._kept_bytes += len(event.content)
        while self._kept_bytes > _KEPT_COMMITMENT_BYTES or len(self._kept) > _KEPT_COMMITMENTS:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.content)

    async def _certified_events(self, ids: Sequence[str]) -> dict[str, Event]:
        """The events with these certified ids that are to be had: of relays, or else as oracles have stored them.

        Raises:
            RelayRefused, TimedOut: no relay answers.

        """
        found = {id_: self._kept[id_] for id_ in ids if id_ in self._kept}
        wanted = [id_ for id_ in ids if id_ not in found]
        for i in range(0, len(wanted), _IDS_PER_FETCH):
            some = frozenset(wanted[i : i + _IDS_PER_FETCH])
            for event in await self._pool.fetch([Filter(ids=some)], timeout_s=_FETCH_S):
                if event.id in some:
                    found[event.id] = event
        lacking = [id_ for id_ in wanted if id_ not in found]
        for i in range(0, len(lacking), _BLOBS_TOGETHER):
            stored = await asyncio.gather(*(self._stored_event(id_) for id_ in lacking[i : i + _BLOBS_TOGETHER]))
            found.update((event.id, event) for event in stored if event is not None)
        return found

    async def _stored_event(self, id_: str) -> Event | None:
        """A certified event whose author deleted it: its bytes are a blob with its id for an address.

        Its signature is not there; of the oracles that list it, f+1 at least, one is honest and has checked that.
        """
        try:
            path = await self.blobs.get(id_, max_bytes=MAX_BYTES)
            return of_hashed(await asyncio.to_thread(path.read_bytes))
        except NodewireError as error:
            log.info("event %s is on no relay, and as a blob: %s", id_[:16], error)
            return None

    async def _commitment_blob(self, sha256: str) -> bytes:
        """What a certified commitment cites. Raises NotFound: whatever stores say, an honest oracle has it."""
        try:
            path = await self.blobs.get(sha256, max_bytes=Commitment.MAX_BYTES)
        except NodewireError as error:
            raise NotFound("commitments", f"blob {sha256}: {error}") from error
        return await asyncio.to_thread(path.read_bytes)

    async def _inventory(self, event: Event) -> Inventory | None:
        try:
            listed = oracle_round.parse(event)
            if not isinstance(listed, oracle_round.InventoryEvent):
                return None
            if listed.inventory is None and listed.blob is not None:
                path = await self.blobs.get(listed.blob, max_bytes=Inventory.MAX_BYTES)
                listed = listed.attach(await asyncio.to_thread(path.read_bytes))
        except NodewireError:
            return None
        return listed.inventory

    async def manifest(self, address: str, digest: str | None = None) -> Manifest:
        """The manifest at `address` (38840:<author>:<name>), or that version of it whose digest is given.

        Raises:
            NotFound: no relay has it, or only another version.
            BadManifest, BadHash: it is malformed or not what its event says.

        """
        if digest is not None and digest in self._manifests:
            return self._manifests[digest]
        manifest = await read_manifest(await addressed(self._pool, address, kinds.MANIFEST), self.blobs)
        found = manifest.digest()
        self._manifests[found] = manifest
        if digest is not None and found != digest:
            raise NotFound("manifest", f"{address} is now another version than {digest}")
        return manifest

    def keep_manifest(self, manifest: Manifest) -> None:
        """Have one that was read be found by its digest from now on, whatever its address has by then."""
        self._manifests[manifest.digest()] = manifest

    async def fetch_blob(self, sha256: str, max_bytes: int) -> Path:
        """A blob's file in the local cache. Raises NotFound, BadHash, TooLarge."""
        return await self.blobs.get(sha256, max_bytes=max_bytes)


async def open_market(stack: AsyncExitStack, role: Role) -> tuple[Keys, Pool, Market]:
    """A role's keys, its relay pool and its market, which is not running yet. Raises as `Market.open`."""
    role.state.mkdir(parents=True, exist_ok=True)
    keys = Keys.from_file(role.key)
    pool = await stack.enter_async_context(Pool(role.relays, keys=keys))
    blobs = await stack.enter_async_context(Blobs(role.blossom, role.blobs, keys=keys))
    return keys, pool, await Market.open(pool, blobs, role.committee, role.committee_digest)


async def read_manifest(event: Event, blobs: Blobs) -> Manifest:
    """The manifest that an event publishes, fetched where the event cites it.

    Raises:
        NotFound: no store has it.
        BadManifest, BadHash ...: it is malformed, or not what the event says.

    """
    blob = None
    if not event.content:
        path = await blobs.get(event.tag("blob") or "", max_bytes=Manifest.MAX_BYTES)
        blob = await asyncio.to_thread(path.read_bytes)
    return manifest_event.parse(event, blob)


async def addressed(pool: Pool, address: str, kind: int) -> Event:
    """The newest event at an address `kind:author:name`.

    Raises:
        NotFound: no relay has it.
        BadConfig: the address is of another kind.
        RelayRefused, TimedOut: no relay answers.

    """
    number, _, rest = address.partition(":")
    author, _, name = rest.partition(":")
    if number != str(kind):
        raise BadConfig("address", f"{address[:80]!r} is not of kind {kind}")
    wanted = Filter(kinds=frozenset({kind}), authors=frozenset({author}), tags={"d": frozenset({name})})
    events = await pool.fetch([wanted], timeout_s=_FETCH_S)
    if not events:
        raise NotFound(address[:120], "no relay of `relays` has it: is the address right, and are these its relays?")
    newest = min(events, key=newest_first)
    if newest.tag("d") != name:
        raise BadEvent("d", "not the name that was asked for")
    return newest


def _now_ms() -> int:
    return int(time.time() * 1000)
