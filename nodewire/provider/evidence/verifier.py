"""The provider as a verifier: it computes chunks again that a beacon drew it for, and commits to what it gets.

    an oracle publishes samples (8844)  ->  derived from the epoch's certificate and beacon: nothing of it is believed
    this node is drawn                  ->  the holder asked whether the verification share was paid
    it was                              ->  inputs pulled, task computed in the own worker, root committed (8854)
    a certificate holds the root        ->  oracles pull the opening and compare

It never sees what it is compared with: it has nothing to copy. The first verifier of a sample begins at once, the
others when no certificate of the next two epochs holds a root of the first's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput, Busy, LinkLost, NodewireError, NotAllowed, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.plan.sample import draw, place
from nodewire.protocol import kinds
from nodewire.protocol.committee.commitment import ChunkRoot, CommitmentEvent
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening, opening
from nodewire.protocol.job.plan import MAX_JOB_EPOCHS
from nodewire.protocol.job.request import Request
from nodewire.protocol.verification import sample as verification
from nodewire.provider.tasks.loader import loaded_name
from nodewire.verify.finality import final_roots
from nodewire.verify.inquiry import Inquiry
from nodewire.verify.recomputation import MAX_BYTES, most_input_bytes
from nodewire.verify.waiting_list import Cap, WaitingList

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from nodewire.kind import JobKind, Worker
    from nodewire.market import Market
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.verification.sample import JobSamples, Sample
    from nodewire.provider.tasks.registry import Specializations
    from nodewire.wire.node import Node

log = logging.getLogger("nodewire.provider")

VERIFIED_EPOCHS = 4
"""A root counts that is certified up to this many epochs after the draw."""
MAX_WAITING = 1_024
"""Samples at a time; further ones are left to the other verifiers."""
MAX_READING = 256
"""Draws, of one job in one epoch each, that are looked up at a time: an equal share for each oracle that says some."""
READ_EPOCHS = 2
"""For how long what a draw follows from is waited for."""

MAX_FETCHING = 16
"""Samples whose inputs are fetched, or wait here to be computed, at a time."""
MAX_OF_A_PROVIDER = 2
"""Of those, samples of one provider: one that stalls keeps nobody else's waiting."""
MAX_INPUT_BYTES = 2 * MAX_BYTES
"""Of their inputs, in memory."""


_KEPT_REQUESTS = 1_024
_LATE_EPOCHS = 12
"""By how much a certificate may come after its epoch, on a busy machine, until a verifier stops looking for it."""


@dataclass(frozen=True, slots=True)
class VerifierPorts:
    """What a verifier calls at its node."""

    commit: Callable[[Sequence[ChunkRoot], int], Awaitable[None]]
    """Takes roots into the next commitment, and the last epoch that may certify them."""
    keep: Callable[[Opening], None]
    """Takes an opening, to be shown to oracles."""
    is_paid: Callable[[Request, int, int, int], Awaitable[bool]]
    """Whether a chunk's verification share came before an epoch's draw, if it is the job's unit of that number
    (`pay.bond.bond_holder`).
        """


class JobVerifier:
    """`await run()` until cancelled."""

    def __init__(
        self,
        *,
        keys: Keys,
        market: Market,
        relays: Relays,
        node: Node,
        job_kinds: Mapping[int, JobKind],
        held: Specializations,
        ports: VerifierPorts,
    ) -> None:
        self._keys = keys
        self._market = market
        self._committee = market.committee
        self._relays = relays
        self._held = held
        self._commit = ports.commit
        self._keep = ports.keep
        self._is_paid = ports.is_paid
        self._requests = BoundedDict[str, Request](_KEPT_REQUESTS)
        self._inquiry = Inquiry(market, relays, self, node, job_kinds, self._loaded)
        self._known = BoundedDict[str, int](4 * MAX_WAITING)
        """By sample key, its epoch: what was taken up."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._read = BoundedDict[tuple[int, str], None](4 * MAX_WAITING)
        """Draws (epoch, request) that have been derived."""
        self._reading: dict[tuple[int, str], tuple[str, asyncio.Task[None]]] = {}
        """Those that are being: the oracle that spoke of them, and the task."""
        self._oracles = frozenset(oracle.pubkey for oracle in self._committee.oracles)
        self._inputs = WaitingList()
        self._computing = asyncio.Lock()

    async def run(self) -> None:
        """Follow the draws until cancelled. Raises LinkLost: no relay tells of them any more."""
        wanted = Filter(
            kinds=frozenset({kinds.VERIFICATION}),
            authors=self._oracles,
            tags={"p": frozenset({self._keys.public})},
            since=int(time.time()) - VERIFIED_EPOCHS * self._committee.epoch_ms // 1000 - 1,
        )
        try:
            async for event in self._relays.subscribe([wanted]):
                try:
                    sampled = verification.parse(event)
                except BadInput:
                    continue  # one oracle's malformed event; the others' go on
                if event.pubkey in self._oracles and sampled.committee == self._market.committee_digest:
                    self._heard(event.pubkey, sampled)
            raise LinkLost("relays", "every relay has ended the subscription")
        finally:
            tasks = [*self._running.values(), *(task for _, task in self._reading.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def request(self, id_: str) -> Request:
        """The job's request, from relays. Raises NotFound, BadInput."""
        if id_ not in self._requests:
            events = await self._relays.fetch([Filter(ids=frozenset({id_}))])
            if not events:
                raise NotFound("request", f"no relay has {id_[:8]}")
            self._requests[id_] = job.parse(events[0])
        return self._requests[id_]

    def snapshot(self, epoch: int) -> str | None:
        """SHA-256 of that epoch's snapshot, if it is known."""
        found = [one for one in self._market.epochs_after(epoch - 1) if one.body.epoch == epoch]
        return found[0].snapshot if found else None

    async def _loaded(self, kind: JobKind, manifest: Manifest, task: str) -> tuple[Worker, str]:
        digest = manifest.digest()
        return self._held.find(digest, {task}).worker, loaded_name(digest, task)

    def _heard(self, oracle: str, sampled: JobSamples) -> None:
        """An oracle says what an epoch drew of a job, and this node with it: see whether that is so."""
        place = sampled.epoch, sampled.request
        if place in self._read or place in self._reading:
            return
        if not any(self._keys.public in sample.verifiers for sample in sampled.samples):
            return
        if sampled.epoch > self._epoch() or not self._in_time(sampled.epoch):
            return
        if sum(by == oracle for by, _ in self._reading.values()) >= max(1, MAX_READING // len(self._oracles)):
            return
        what = f"draw of epoch {sampled.epoch} on {sampled.request[:8]}"
        task = asyncio.create_task(self._guarded(self._derive(sampled), what))
        self._reading[place] = oracle, task
        task.add_done_callback(lambda _: self._reading.pop(place, None))

    async def _derive(self, sampled: JobSamples) -> None:
        """Take up what the epoch truly drew of the job for this node.

        Raises:
            BadInput: nothing was drawn there.
            NotFound ...: what it follows from is not to be had in time.

        """
        until = self._epoch() + READ_EPOCHS
        while True:
            try:
                drawn = await self._drawn(sampled)
                break
            except BadInput:
                raise
            except NodewireError:
                if self._epoch() >= until:
                    raise
            await asyncio.sleep(self._committee.epoch_ms / 8000)
        self._read[sampled.epoch, sampled.request] = None
        for sample in drawn:
            self._take(sample, sampled.epoch)

    async def _drawn(self, sampled: JobSamples) -> tuple[Sample, ...]:
        """What the epoch drew of the job, by its certificate, its beacon and its snapshot."""
        known = [one for one in self._market.epochs_after(sampled.epoch - 1) if one.body.epoch == sampled.epoch]
        if not known:
            raise NotFound("epoch", f"{sampled.epoch} is not known to be certified")
        if known[0].body.digest() != sampled.certificate:
            raise BadInput("certificate", f"not that of epoch {sampled.epoch}")
        commitments = await self._market.commitments(known[0].body)
        held = (chunk for one in commitments if one.commitment is not None for chunk in one.commitment.chunks)
        if not any(chunk.request == sampled.request for chunk in held):
            raise BadInput("request", f"epoch {sampled.epoch} certifies nothing of it")
        request = await self.request(sampled.request)
        plan = request.plan
        if plan.verification.policy != "sampled" or not plan.epoch <= sampled.epoch <= plan.epoch + MAX_JOB_EPOCHS:
            raise BadInput("request", "not to be sampled")
        final = await final_roots(request.id, plan, self._market, self._relays)
        earlier = [one for one in final.roots.values() if one.epoch < sampled.epoch]
        seen = {place(one.provider, one.root.request, one.root.task, one.root.chunk) for one in earlier}
        snapshot = await self._market.snapshot(known[0].snapshot)
        return draw(self._committee, known[0].beacon, commitments, {request.id: request}, snapshot, seen=seen)

    def _take(self, sample: Sample, epoch: int) -> None:
        if self._keys.public not in sample.verifiers or sample.key in self._known:
            return
        if len(self._running) >= MAX_WAITING:
            return
        self._known[sample.key] = epoch
        task = asyncio.create_task(self._guarded(self._verify(sample, epoch), f"sample {sample.key[:8]}"))
        self._running[sample.key] = task
        task.add_done_callback(lambda _: self._running.pop(sample.key, None))

    def _in_time(self, epoch: int) -> bool:
        return self._epoch() <= epoch + VERIFIED_EPOCHS

    def _epoch(self) -> int:
        return self._committee.epoch_at(int(time.time() * 1000))

    async def _guarded(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except (NodewireError, OSError) as error:
            log.info("%s is not verified: %s", what, error)
        except Exception:
            log.exception("%s is not verified, by a fault of this software", what)

    async def _verify(self, sample: Sample, epoch: int) -> None:
        if sample.verifiers[0] != self._keys.public and await self._certified(sample, epoch, sample.verifiers[0], 2):
            return
        request = await self.request(sample.request)
        if self._keys.public in (request.customer, *request.plan.providers()):
            raise NotAllowed("sample", "of a job that this node has a part in")
        await self._check_share(sample, epoch, request)
        computed = await self._compute(sample, epoch, request)
        self._keep(computed)
        root = ChunkRoot(
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
            root=computed.root(),
        )
        await self._commit([root], epoch + VERIFIED_EPOCHS)
        log.info("sample %s of %s: computed", sample.key[:8], sample.provider[:8])

    async def _check_share(self, sample: Sample, epoch: int, request: Request) -> None:
        """Nobody computes for a customer who does not pay for it: the oracles judge such work without verifiers.

        Raises:
            NotAllowed: the share of the chunk had not come in when the epoch could draw it.

        """
        manifest = self._held.manifest(request.plan.manifest)
        number = 1 + sample.chunk if manifest is not None and manifest.mode == "generate" else 1
        try:
            if not await self._is_paid(request, sample.chunk, epoch, number):
                raise NotAllowed("share", "the customer had not paid it when it was drawn")
        except NotAllowed:
            raise
        except (NodewireError, OSError) as error:  # a holder that is away has the share all the same
            log.info("share of sample %s: %s", sample.key[:8], error)

    async def _compute(self, sample: Sample, epoch: int, request: Request) -> Opening:
        served = self._held.find(request.plan.manifest, {sample.task})
        room = Cap("bytes", MAX_INPUT_BYTES, most_input_bytes(served.manifest, sample.task))
        async with self._inputs.turn(0, [room, Cap("inputs", MAX_FETCHING), Cap(sample.provider, MAX_OF_A_PROVIDER)]):
            left_s = (self._committee.close_ms(epoch + VERIFIED_EPOCHS) / 1000) - time.time()
            inputs = await self._inquiry.inputs(sample, epoch, last=True, within_s=max(0.0, left_s))
            async with self._computing:
                while True:
                    if not self._in_time(epoch):
                        raise Busy("worker", "too late to be certified")
                    try:
                        pages = served.allocate()
                        break
                    except Busy:  # jobs that pay come first
                        await asyncio.sleep(self._committee.epoch_ms / 8000)
                try:
                    computed = await self._inquiry.recompute(inputs)
                finally:
                    served.give(pages)
        return opening(
            self._keys,
            served.manifest,
            computed.leaves,
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
        )

    async def _certified(self, sample: Sample, epoch: int, verifier: str, epochs: int) -> int | None:
        """The first of the `epochs` epochs after the draw whose certificate holds a root of `verifier` for the sample.

        None when they are over.
        """
        following = epoch + 1
        while following <= epoch + epochs and self._epoch() <= epoch + epochs + _LATE_EPOCHS:
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


def _holds(committed: CommitmentEvent, wanted: tuple[str, str, int, int]) -> bool:
    return committed.commitment is not None and any(chunk.key == wanted for chunk in committed.commitment.chunks)
