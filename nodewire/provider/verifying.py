"""The provider as a verifier: it computes chunks again that a beacon drew it for, and commits to what it gets.

    oracles publish samples (8844)   ->  inputs pulled, task computed in the own worker, root committed (8854)
    a certificate holds the root     ->  report (6844); oracles pull the opening and compare, which is all that counts

It never sees what it is compared with: it has nothing to copy. The first verifier of a sample begins at once, the
others when no certificate of the next two epochs holds a root of the first's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from nodewire.errors import BadInput, Busy, NodewireError, NotAllowed, NotFound
from nodewire.kind import JobKind, Worker
from nodewire.market import Market
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nip01 import Filter
from nodewire.plan.sample import is_drawn
from nodewire.protocol import job, kinds, verification
from nodewire.protocol.chunk import Opening, opening
from nodewire.protocol.commitment import ChunkRoot, Committed
from nodewire.protocol.job import Request
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.verification import Report, Sample
from nodewire.provider.serving import Served, loaded_name
from nodewire.verify.inquiry import Inquiry
from nodewire.wire.node import Node

log = logging.getLogger("nodewire.provider")

VERIFIED_EPOCHS = 4
"""A root counts that is certified up to this many epochs after the draw."""
MAX_WAITING = 1_024
"""Samples at a time; further ones are left to the other verifiers."""

_KEPT_REQUESTS = 1_024


class Relays(Protocol):
    """The relay pool (`nodewire.nostr.pool`). Events come verified."""

    def subscribe(self, filters: Sequence[Filter]) -> AsyncIterator[Event]: ...

    async def fetch(self, filters: Sequence[Filter]) -> Sequence[Event]: ...

    async def fetch_all(self, filters: Iterable[Filter]) -> Sequence[Event]: ...


class Verifying:
    """`await run()` until cancelled."""

    def __init__(
        self,
        *,
        keys: Keys,
        market: Market,
        relays: Relays,
        node: Node,
        job_kinds: Mapping[int, JobKind],
        served: Mapping[str, Served],
        workers: Mapping[str, Worker],
        commit: Callable[[Sequence[ChunkRoot], int], Awaitable[None]],
        keep: Callable[[Opening], None],
        publish: Callable[[Event], Awaitable[None]],
    ) -> None:
        """`commit` takes roots into the next commitment, and the last epoch that may certify them; `keep` an opening,
        to be shown to oracles."""
        self._keys = keys
        self._market = market
        self._committee = market.committee
        self._relays = relays
        self._served = served
        self._workers = workers
        self._commit = commit
        self._keep = keep
        self._publish = publish
        self._requests: dict[str, Request] = {}
        self._inquiry = Inquiry(market, relays, self, node, job_kinds, self._loaded)
        self._known: dict[str, int] = {}
        """By sample key, its epoch: what was taken up, or refused."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._computing = asyncio.Lock()

    async def run(self) -> None:
        """Follow the draws until cancelled."""
        oracles = frozenset(oracle.pubkey for oracle in self._committee.oracles)
        wanted = Filter(
            kinds=frozenset({kinds.VERIFICATION}),
            authors=oracles,
            tags={"p": frozenset({self._keys.public})},
            since=int(time.time()) - VERIFIED_EPOCHS * self._committee.epoch_ms // 1000 - 1,
        )
        try:
            async for event in self._relays.subscribe([wanted]):
                try:
                    sampled = verification.parse(event)
                except BadInput:
                    continue  # one oracle's malformed event; the others' go on
                if event.pubkey in oracles and sampled.committee == self._market.committee_digest:
                    for sample in sampled.samples:
                        self._take(sample, sampled.epoch)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def request(self, id_: str) -> Request:
        """The job's request, from relays. Raises NotFound, BadInput."""
        if id_ not in self._requests:
            events = await self._relays.fetch([Filter(ids=frozenset({id_}))])
            if not events:
                raise NotFound("request", f"no relay has {id_[:8]}")
            self._requests[id_] = job.parse(events[0])
            while len(self._requests) > _KEPT_REQUESTS:
                self._requests.pop(next(iter(self._requests)))
        return self._requests[id_]

    def snapshot(self, epoch: int) -> str | None:
        """SHA-256 of that epoch's snapshot, if it is known."""
        found = [one for one in self._market.epochs_after(epoch - 1) if one.body.epoch == epoch]
        return found[0].snapshot if found else None

    async def _loaded(self, kind: JobKind, manifest: Manifest, task: str) -> tuple[Worker, str]:
        digest = manifest.digest()
        if digest not in self._served or task not in self._served[digest].tasks:
            raise NotAllowed("task", f"{task} is not held here")
        return self._workers[digest], loaded_name(digest, task)

    def _take(self, sample: Sample, epoch: int) -> None:
        if self._keys.public not in sample.verifiers or sample.key in self._known:
            return
        if len(self._running) >= MAX_WAITING or not self._in_time(epoch):
            return
        self._known[sample.key] = epoch
        while len(self._known) > 4 * MAX_WAITING:
            self._known.pop(next(iter(self._known)))
        task = asyncio.create_task(self._guarded(sample, epoch))
        self._running[sample.key] = task
        task.add_done_callback(lambda _: self._running.pop(sample.key, None))

    def _in_time(self, epoch: int) -> bool:
        return self._epoch() <= epoch + VERIFIED_EPOCHS

    def _epoch(self) -> int:
        return self._committee.epoch_at(int(time.time() * 1000))

    async def _guarded(self, sample: Sample, epoch: int) -> None:
        try:
            await self._verify(sample, epoch)
        except (NodewireError, OSError) as error:
            log.info("sample %s is not verified: %s", sample.key[:8], error)

    async def _verify(self, sample: Sample, epoch: int) -> None:
        if sample.verifiers[0] != self._keys.public and await self._certified(sample, epoch, sample.verifiers[0], 2):
            return
        request = await self.request(sample.request)
        if self._keys.public in (request.customer, *request.plan.members()):
            raise NotAllowed("sample", "of a job that this node has a part in")
        await self._check_drawn(sample, epoch, request)
        try:
            computed = await self._compute(sample, epoch, request)
        except (NotFound, BadInput):
            await self._report(sample, epoch, "withheld", "", 0)
            raise
        self._keep(computed)
        root = ChunkRoot(
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
            root=computed.root(),
        )
        await self._commit([root], epoch + VERIFIED_EPOCHS)
        certified = await self._certified(sample, epoch, self._keys.public, VERIFIED_EPOCHS)
        if certified is not None:
            await self._report(sample, epoch, "computed", root.root, certified)

    async def _check_drawn(self, sample: Sample, epoch: int, request: Request) -> None:
        """One oracle's word costs this node no work: the root must be certified, and the beacon must have drawn it.

        Raises:
            NotAllowed: it is not so.
            NotFound: the epoch's certificate or beacon did not come in time.
        """
        while (found := await self._read(epoch)) is None:
            if not self._in_time(epoch):
                raise NotFound("epoch", f"{epoch} is not certified, or has no beacon")
            await asyncio.sleep(self._committee.epoch_ms / 8000)
        beacon, commitments = found
        wanted = (sample.request, sample.task, sample.chunk, sample.attempt, sample.root)
        certified = any(
            (*chunk.key, chunk.root) == wanted
            for committed in commitments
            if committed.provider == sample.provider and committed.commitment is not None
            for chunk in committed.commitment.chunks
        )
        if not certified or not is_drawn(beacon, sample.key, request.plan.verification.rate_ppm):
            raise NotAllowed("sample", f"no beacon drew {sample.key[:8]}")

    async def _read(self, epoch: int) -> tuple[str, tuple[Committed, ...]] | None:
        """The epoch's beacon, and the commitments that it certifies; None as long as they are not to be had."""
        for one in self._market.epochs_after(epoch - 1):
            if one.body.epoch == epoch:
                try:
                    return one.beacon, await self._market.commitments(one.body)
                except NodewireError as error:
                    log.info("epoch %d: %s", epoch, error)
        return None

    async def _compute(self, sample: Sample, epoch: int, request: Request) -> Opening:
        served = self._served.get(request.plan.manifest)
        if served is None:
            raise NotAllowed("manifest", "not held here")
        async with self._computing:
            while True:
                if not self._in_time(epoch):
                    raise Busy("worker", "too late to be certified")
                try:
                    served.take()
                    break
                except Busy:  # jobs that pay come first
                    await asyncio.sleep(self._committee.epoch_ms / 8000)
            try:
                leaves = await self._inquiry.recompute(sample, epoch, last=True)
            finally:
                served.give()
        return opening(
            self._keys,
            served.manifest,
            leaves,
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
        )

    async def _certified(self, sample: Sample, epoch: int, verifier: str, epochs: int) -> int | None:
        """The first of the `epochs` epochs after the draw whose certificate holds a root of `verifier` for the sample;
        None when they are over."""
        following = epoch + 1
        while following <= epoch + epochs and self._epoch() <= epoch + epochs + 2:
            for one in self._market.epochs_after(following - 1):
                if one.body.epoch > epoch + epochs:
                    return None
                try:
                    found = await self._market.commitments(one.body)
                except NodewireError as error:
                    log.info("epoch %d: %s", one.body.epoch, error)
                    break  # tried again
                wanted = (sample.request, sample.task, sample.chunk, sample.attempt)
                if any(committed.provider == verifier and _holds(committed, wanted) for committed in found):
                    return one.body.epoch
                following = one.body.epoch + 1
            await asyncio.sleep(self._committee.epoch_ms / 8000)
        return None

    async def _report(
        self, sample: Sample, drawn: int, outcome: Literal["computed", "withheld"], root: str, epoch: int
    ) -> None:
        report = Report(
            committee=self._market.committee_digest,
            drawn=drawn,
            provider=sample.provider,
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
            outcome=outcome,
            root=root,
            epoch=epoch,
        )
        await self._publish(verification.build_report(self._keys, report, created_at=int(time.time())))
        log.info("sample %s of %s: %s", sample.key[:8], sample.provider[:8], outcome)


def _holds(committed: Committed, wanted: tuple[str, str, int, int]) -> bool:
    return committed.commitment is not None and any(chunk.key == wanted for chunk in committed.commitment.chunks)
