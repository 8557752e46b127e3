"""How a node looks into a sample: it has others show openings, and computes the chunk again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import NodewireError, NotAllowed, NotFound, TimedOut
from nodewire.kind import JobKind, Worker
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.verification.arithmetic import has_reference
from nodewire.verify.finality import final_roots
from nodewire.verify.own_frames import shown_leaves
from nodewire.verify.recomputation import ComputedLeaves, Inputs, gather, pull_opening, recompute

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.job.chunk import Leaf, Opening
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.verification.sample import Sample
    from nodewire.wire.node import Node

_log = logging.getLogger(__name__)
_KEPT_OVERRUNS = 1_024
_REST = 4
"""For how many times as long as a task took in vain it is not tried again. So a fifth of a worker's time is lost on it
at most, and a machine that was busy once, or had yet to load the task, is not blind to it for ever."""

Loaded = Callable[[JobKind, Manifest, str], Awaitable[tuple[Worker, str]]]
"""A worker that has loaded the task of the manifest, and the task's name there. Raises BadTask, OverMemory ..."""


class Draws(Protocol):
    """What is known of the jobs that epochs drew samples of."""

    async def request(self, id_: str) -> Request:
        """The job's request. Raises NotFound."""

    def snapshot(self, epoch: int) -> str | None:
        """SHA-256 of that epoch's snapshot, if it is known."""


class Overloaded(TimedOut):
    """What others wait for was not computed here in time: nobody else is to blame for it."""


class Overrun(NamedTuple):
    """A chunk missed its time here: `size` bytes of inputs took over `took_s`. It counts until `until_s`."""

    size: int
    took_s: float
    until_s: float


class Inquiry:
    """Pulls over `node`; computes with what `loaded` gives, None if nothing is computed here."""

    def __init__(
        self,
        market: Market,
        relays: Relays,
        draws: Draws,
        node: Node,
        job_kinds: Mapping[int, JobKind],
        loaded: Loaded | None,
        reference: Loaded | None = None,
    ) -> None:
        """`reference` loads a task that computes in float32: rounded results are held against it."""
        self._market, self._relays, self._draws = market, relays, draws
        self._node, self._kinds, self._loaded = node, job_kinds, loaded
        self._reference = reference
        self._overruns = BoundedDict[tuple[str, str], Overrun](_KEPT_OVERRUNS)
        """By manifest and task, the last one. What a manifest says of its operations is not asked: its author could
        have every sample of it refused."""

    @property
    def can_recompute(self) -> bool:
        return self._loaded is not None

    async def opening(self, sample: Sample, epoch: int, node: str) -> Opening:
        """`node`'s opening of the sample's chunk, of whatever content.

        Raises:
            NotFound: nothing says where the node is.
            LinkLost, TimedOut, NotAllowed, BadInput ...: it is silent, refuses, or sends something else.

        """
        request = await self._draws.request(sample.request)
        addresses = await self._addresses(request, sample, epoch)
        if not addresses.get(node):
            raise NotFound("wire", f"no ad says where {node[:8]} is")
        manifest = await self._market.manifest(request.manifest_address, request.plan.manifest)
        return await pull_opening(self._node, node, addresses[node], sample, manifest)

    async def frames(self, sample: Sample, epoch: int, opening: Opening) -> tuple[Leaf, ...]:
        """The leaves of the provider's own frames, which hash to those of its `opening`.

        Raises:
            BadHash: they do not.
            NotFound, TooLarge, LinkLost ...: they are not to be had.

        """
        request = await self._draws.request(sample.request)
        addresses = await self._addresses(request, sample, epoch)
        if not addresses.get(sample.provider):
            raise NotFound("wire", f"no ad says where {sample.provider[:8]} is")
        manifest = await self._market.manifest(request.manifest_address, request.plan.manifest)
        return await shown_leaves(self._node, addresses[sample.provider], sample, manifest, opening)

    async def inputs(self, sample: Sample, epoch: int, *, last: bool = False, within_s: float | None = None) -> Inputs:
        """All that the sampled task was given, checked. It takes no computing here.

        Raises:
            TimedOut: there are none after `within_s`.
            Equivocated: an input's producer signed something else than it committed to.
            Withheld: the provider does not show its part of the inputs.
            NotFound: others' inputs are not to be had, or not certified.
            TimedOut, RelayRefused: relays do not say what was certified.

        """
        request = await self._draws.request(sample.request)
        manifest = await self._market.manifest(request.manifest_address, request.plan.manifest)
        try:
            async with asyncio.timeout(within_s) as limit:
                final = await final_roots(request.id, request.plan, self._market, self._relays)
                return await gather(
                    sample=sample,
                    request=request,
                    manifest=manifest,
                    final=final,
                    node=self._node,
                    addresses=await self._addresses(request, sample, epoch),
                    patience_s=self._market.committee.epoch_ms / 1000,
                    last=last,
                )
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimedOut("the inputs", f"not shown in the {within_s:.1f} s that were left") from error

    async def recompute(
        self,
        inputs: Inputs,
        *,
        judged: Opening | None = None,
        beside: Opening | None = None,
        within_s: float | None = None,
    ) -> ComputedLeaves:
        """The chunk, computed here; `judged` and `beside` as in `verify.recomputation`.

        Raises:
            Overloaded: there are none after `within_s`, or as much of the same task was not done in that time just
                before. The worker is not kept busy with those: other oracles may be faster.
            NotAllowed: nothing is computed here, or no installed package computes such a job.
            BadTask, OverMemory, WorkerFailed ...: the task is refused or fails here.

        """
        manifest, task = inputs.manifest, inputs.sample.task
        kind = self._kinds.get(manifest.kind)
        if self._loaded is None or kind is None:
            raise NotAllowed("worker", f"jobs of kind {manifest.kind} are not computed here")
        place = inputs.digest, task
        if within_s is not None:
            self._refuse_overrun(place, inputs.size, within_s)
        step, own = "loading the task here", None
        try:
            async with asyncio.timeout(within_s) as limit:
                worker, name = await self._loaded(kind, manifest, task)
                step = "computing here"
                own = await recompute(inputs, kind=kind, worker=worker, loaded=name, judged=judged, beside=beside)
                self._overruns.pop(place, None)
                return replace(own, reference=await self._wide(inputs, kind))
        except TimeoutError as error:
            if not limit.expired() or within_s is None:
                raise
            if own is not None:
                _log.info("sample %s is judged without a float32 reference: no time is left", inputs.sample.key[:8])
                return own
            self._overruns[place] = Overrun(inputs.size, within_s, time.monotonic() + _REST * within_s)
            raise Overloaded(step, f"not done in the {within_s:.1f} s that were left") from error

    def _refuse_overrun(self, place: tuple[str, str], size: int, within_s: float) -> None:
        """Raises Overloaded: no more than `size` bytes of the task took longer here than that, a short time ago."""
        last = self._overruns.get(place)
        if last is not None and size >= last.size and within_s <= last.took_s and time.monotonic() < last.until_s:
            reason = f"{last.size} bytes took more than {last.took_s:.1f} s, {within_s:.1f} s are left"
            raise Overloaded("computing here", reason)

    async def _wide(self, inputs: Inputs, kind: JobKind) -> tuple[Leaf, ...]:
        """The chunk's leaves in float32; empty where the task has no such form, or not here."""
        manifest, task = inputs.manifest, inputs.sample.task
        if self._reference is None or not has_reference(manifest, task):
            return ()
        try:
            worker, name = await self._reference(kind, manifest, task)
            return (await recompute(inputs, kind=kind, worker=worker, loaded=name)).leaves
        except NodewireError as error:
            _log.info("sample %s is judged without a float32 reference: %s", inputs.sample.key[:8], error)
            return ()

    async def _addresses(self, request: Request, sample: Sample, epoch: int) -> Mapping[str, Sequence[str]]:
        """Where the nodes of the plan and the verifiers are, by what they said last: who crashed may have moved."""
        pubkeys = {*request.plan.providers(), *sample.verifiers}
        found: dict[str, Sequence[str]] = {}
        newest = [one.snapshot for one in self._market.epochs_after(epoch)[-1:]]
        for sha256 in (request.plan.snapshot, self._draws.snapshot(epoch), *newest):
            if sha256 is not None:
                try:
                    ads = (await self._market.snapshot(sha256)).ads(pubkeys)
                except NotFound:
                    continue
                found |= {pubkey: ad.wire for pubkey, ad in ads.items() if ad.wire}
        return found
