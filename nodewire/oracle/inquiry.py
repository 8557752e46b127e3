"""How an oracle looks into a sample: it has nodes show openings, and computes chunks again in a worker of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from nodewire.errors import NodewireError, NotAllowed, NotFound, OverMemory
from nodewire.kind import JobKind, Limits, Worker
from nodewire.market import Market
from nodewire.nostr.keys import Keys
from nodewire.nostr.nip01 import Filter
from nodewire.oracle.docket import Docket, Events
from nodewire.protocol import kinds, takeover
from nodewire.protocol.chunk import Leaf, Opening
from nodewire.protocol.job import Request
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.takeover import Takeover
from nodewire.protocol.verification import Sample
from nodewire.recompute import pull_opening, recompute
from nodewire.wire.node import Node
from nodewire.worker.lasting import maker

_MAX_TAKEOVERS = 64


class Inquiry:
    """Implements `court.Evidence` over the wire.

    Args:
        limits: of the worker; None if nothing is computed here.
        readable: the folder of cached blobs, which is all that the worker may read.
    """

    def __init__(
        self,
        keys: Keys,
        market: Market,
        relays: Events,
        docket: Docket,
        node: Node,
        job_kinds: Mapping[int, JobKind],
        limits: Limits | None,
        readable: Path,
    ) -> None:
        self._keys, self._market, self._relays, self._docket = keys, market, relays, docket
        self._node, self._kinds, self._limits, self._readable = node, job_kinds, limits, readable
        self._workers = AsyncExitStack()
        self._held: dict[str, tuple[Worker, set[str]]] = {}
        """By a kind's worker entry: the worker, and the names of what it has loaded."""

    @property
    def can_recompute(self) -> bool:
        return self._limits is not None

    async def opening(self, sample: Sample, epoch: int, node: str) -> Opening:
        """`node`'s opening of the sample's chunk, of whatever content.

        Raises:
            NotFound: nothing says where the node is.
            LinkLost, TimedOut, NotAllowed, BadInput ...: it is silent, refuses, or sends something else.
        """
        addresses = await self._addresses(self._request(sample), sample, epoch)
        if not addresses.get(node):
            raise NotFound("wire", f"no ad says where {node[:8]} is")
        return await pull_opening(self._node, node, addresses[node], sample)

    async def recompute(self, sample: Sample, epoch: int, *, last: bool = False) -> tuple[Leaf, ...]:
        """The chunk's leaves, from inputs that were checked.

        Raises:
            Equivocated: an input's producer signed something else than it committed to.
            NotFound: the inputs are withheld, or not certified.
            NotAllowed: this oracle has no worker, or no installed package computes such a job.
            BadTask, OverMemory, WorkerFailed ...: the task is refused or fails here.
        """
        request = self._request(sample)
        manifest = await self._market.manifest(request.manifest_address, request.plan.manifest)
        kind = self._kinds.get(manifest.kind)
        if self._limits is None or kind is None:
            raise NotAllowed("worker", f"jobs of kind {manifest.kind} are not computed here")
        newest = await self._takeover(request, manifest)
        addresses = await self._addresses(request, sample, epoch)
        worker, loaded = await self._loaded(kind, manifest, sample.task)
        return await recompute(
            sample=sample,
            request=request,
            manifest=manifest,
            takeover=newest,
            node=self._node,
            market=self._market,
            addresses=addresses,
            worker=worker,
            loaded=loaded,
            last=last,
        )

    async def close(self) -> None:
        """End the worker."""
        await self._workers.aclose()

    async def _loaded(self, kind: JobKind, manifest: Manifest, task_name: str) -> tuple[Worker, str]:
        """A worker that holds the task, and its name there: the one there is, or a new one when that is full."""
        assert self._limits is not None
        name = f"{manifest.digest()[:16]}/{task_name}"
        held = self._held.get(kind.worker_entry)
        if held is not None and name in held[1]:
            return held[0], name
        task = manifest.task(task_name)
        program, *weights = [
            await self._market.fetch_blob(ref.sha256, ref.bytes) for ref in (task.program, *task.weights)
        ]
        if held is not None:
            try:
                await held[0].load(name, task.engine, program, weights)
            except OverMemory:
                await self._workers.aclose()
                self._held.clear()
                held = None
        if held is None:
            held = self._held[kind.worker_entry] = (
                maker(self._workers, self._limits, self._readable)(kind.worker_entry),
                set(),
            )
            await held[0].load(name, task.engine, program, weights)
        held[1].add(name)
        return held[0], name

    def _request(self, sample: Sample) -> Request:
        request = self._docket.request(sample.request)
        if request is None:
            raise NotFound("request", f"{sample.request[:8]} was not read")
        return request

    async def _addresses(self, request: Request, sample: Sample, epoch: int) -> Mapping[str, Sequence[str]]:
        """Where the nodes of the plan and the verifiers are, by what they said last."""
        pubkeys = {*request.plan.members(), *sample.verifiers}
        found: dict[str, Sequence[str]] = {}
        for sha256 in (request.plan.snapshot, self._docket.snapshot(epoch)):
            if sha256 is not None:
                try:
                    ads = (await self._market.snapshot(sha256)).ads(pubkeys)
                except NotFound:
                    continue
                found |= {pubkey: ad.wire for pubkey, ad in ads.items() if ad.wire}
        return found

    async def _takeover(self, request: Request, manifest: Manifest) -> Takeover | None:
        """The job's newest takeover that holds."""
        wanted = Filter(kinds=frozenset({kinds.TAKEOVER}), tags={"e": frozenset({request.id})}, limit=_MAX_TAKEOVERS)
        said = []
        for event in await self._relays.fetch([wanted]):
            try:
                said.append(takeover.parse(event))
            except NodewireError:
                continue
        newest: Takeover | None = None
        for one in sorted(said, key=lambda one: (one.attempt, one.signer == request.customer, one.sig)):
            try:
                one.check(request.id, request.plan, manifest, newest)
            except NodewireError:
                continue
            if one.outranks(newest, request.customer):
                newest = one
        return newest
