"""How an oracle looks into a sample: it has nodes show openings, and computes chunks again in a worker of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from nodewire.errors import NodewireError, NotAllowed, NotFound
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
from nodewire.wire.node import Node
from nodewire.wire.pull import Want, pull_document
from nodewire.worker.lasting import maker

_MAX_TAKEOVERS = 64


class Recomputing(Protocol):
    """How a chunk is computed again from pulled and checked inputs, as verifiers do it."""

    async def __call__(
        self,
        *,
        sample: Sample,
        request: Request,
        manifest: Manifest,
        takeover: Takeover | None,
        keys: Keys,
        node: Node,
        market: Market,
        addresses: Mapping[str, Sequence[str]],
        worker: Worker,
        loaded: str,
    ) -> tuple[Leaf, ...]: ...


class Inquiry:
    """Implements `court.Evidence` over the wire.

    Args:
        recomputing: None, as `limits`, if nothing is computed here.
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
        recomputing: Recomputing | None,
    ) -> None:
        self._keys, self._market, self._relays, self._docket = keys, market, relays, docket
        self._node, self._kinds, self._limits, self._readable = node, job_kinds, limits, readable
        self._recomputing = recomputing

    @property
    def can_recompute(self) -> bool:
        return self._limits is not None and self._recomputing is not None

    async def opening(self, sample: Sample, epoch: int, node: str) -> Opening:
        """`node`'s opening of the sample's chunk, of whatever content.

        Raises:
            NotFound: nothing says where the node is.
            LinkLost, TimedOut, NotAllowed, BadInput ...: it is silent, refuses, or sends something else.
        """
        addresses = await self._addresses(self._request(sample), sample, epoch)
        if not addresses.get(node):
            raise NotFound("wire", f"no ad says where {node[:8]} is")
        want = Want(
            what="opening",
            request=sample.request,
            task=sample.task,
            attempt=sample.attempt,
            first=sample.chunk,
            last=sample.chunk,
            epoch=epoch,
        )
        shown = await pull_document(self._node, node, addresses[node], want)
        return await asyncio.to_thread(Opening.unpack, shown)

    async def recompute(self, sample: Sample, epoch: int) -> tuple[Leaf, ...]:
        """The chunk's leaves, from inputs that were checked, in a worker process that ends afterwards.

        Raises:
            NotFound: the inputs are withheld, or not certified.
            NotAllowed: this oracle has no worker, or no installed package computes such a job.
            BadTask, OverMemory, WorkerFailed ...: the task is refused or fails here.
        """
        request = self._request(sample)
        manifest = await self._market.manifest(request.manifest_address, request.plan.manifest)
        kind = self._kinds.get(manifest.kind)
        if self._limits is None or self._recomputing is None or kind is None:
            raise NotAllowed("worker", f"jobs of kind {manifest.kind} are not computed here")
        newest = await self._takeover(request, manifest)
        addresses = await self._addresses(request, sample, epoch)
        task = manifest.task(sample.task)
        program, *weights = [
            await self._market.fetch_blob(ref.sha256, ref.bytes) for ref in (task.program, *task.weights)
        ]
        async with AsyncExitStack() as stack:
            worker = maker(stack, self._limits, self._readable)(kind.worker_entry)
            await worker.load(sample.task, task.engine, program, weights)
            return await self._recomputing(
                sample=sample,
                request=request,
                manifest=manifest,
                takeover=newest,
                keys=self._keys,
                node=self._node,
                market=self._market,
                addresses=addresses,
                worker=worker,
                loaded=sample.task,
            )

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
