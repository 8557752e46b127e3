"""A factory makes an admitted job's parts at this provider: mailbox, links, tape, worker, and the run that has them."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.core.job_task_group import typed_fault
from nodewire.errors import LinkLost, NodewireError, NotAllowed
from nodewire.provider.inference.job import JobPorts, JobRun
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.inference.statements import Statements
from nodewire.provider.tasks.call_priority import turns
from nodewire.provider.tasks.job_worker import JobWorker
from nodewire.provider.tasks.prefix_cache import Prefixes, whose
from nodewire.wire.job.channel_spec import PROVIDER_GRACE_S, JobChannelSpec
from nodewire.wire.job.generation_tape import GenerationTape
from nodewire.wire.job.routes import routes_of
from nodewire.wire.job_member import Membership

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.provider.admission.checks import Admission, AdmittedJob
    from nodewire.provider.admission.withdrawals import Withdrawals
    from nodewire.provider.inference.job_publisher import Publish
    from nodewire.provider.inference.proof import Proof
    from nodewire.provider.job_counters import Figures
    from nodewire.provider.tasks.loader import ServedManifest
    from nodewire.public_record import PublicRecord
    from nodewire.wire.evidence.spool import Spool
    from nodewire.wire.node import Node

log = logging.getLogger("nodewire.provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResources:
    """What all jobs at one provider use."""

    keys: Keys
    public_record: PublicRecord
    node: Node
    ledger: Ledger
    admission: Admission
    withdrawals: Withdrawals
    spool: Spool
    proof: Proof
    patience_s: int
    prefixes: Prefixes = "own"
    """For whom beginnings of prompts are kept."""


class JobFactory:
    """At one provider. `open` makes what one job needs; nothing computes before `OpenJob.serve`."""

    def __init__(self, resources: JobResources, *, publish: Publish, refuse: Publish, figures: Figures) -> None:
        self._keys = resources.keys
        self._public_record = resources.public_record
        self._node = resources.node
        self._ledger = resources.ledger
        self._admission = resources.admission
        self._withdrawals = resources.withdrawals
        self._spool = resources.spool
        self._proof = resources.proof
        self._patience_s = resources.patience_s
        self._prefixes = resources.prefixes
        self._publish = publish
        self._refuse = refuse
        self._figures = figures

    async def open(self, job: AdmittedJob, served: ServedManifest) -> OpenJob:
        """Raises: NotAllowed: the job is open here already, or its customer has withdrawn it.

        NodewireError: what its plan stands on is not to be had.
        """
        request, manifest, plan = job.request, job.manifest, job.request.plan
        ads, nodes = await self._public_record.ads(plan), await self._public_record.nodes(plan)
        is_judged = plan.verification.policy == "sampled"
        statements = Statements(self._keys, request, manifest, self._spool) if is_judged else None
        kept, generates = statements or self._spool, manifest.mode == "generate"
        tape = GenerationTape(kept, request.id, manifest, plan.terms.lookahead) if generates else None
        cached_ppm = ads[self._keys.public].cached_ppm
        context = JobContext(
            self._keys, request, manifest, job.params, patience_s=self._patience_s, cached_ppm=cached_ppm
        )
        worker = JobWorker(
            served.worker,
            manifest,
            turns(plan, manifest, nodes),
            whose=whose(self._prefixes, request.customer, str(job.params.get("apart", ""))),
        )
        chunks: set[int] = set()

        async def commit(roots: Sequence[ChunkRoot]) -> None:
            chunks.add(roots[0].chunk)
            self._figures.chunks += 1
            await self._proof.commit(plan, roots)

        channel = JobChannelSpec(
            request.id,
            routes_of(manifest, plan),
            grace_s=PROVIDER_GRACE_S,
            tape=tape or kept,
            keep_inputs=tape is None,  # which is given them when they are computed
        )
        member = Membership(channel, manifest, self._node, {public: ad.wire for public, ad in ads.items()})
        try:
            if self._withdrawals.has(request.customer, request.id):
                raise NotAllowed("job", "withdrawn by the customer")
            run = JobRun(
                context,
                kind=served.kind,
                mailbox=member.mailbox,
                worker=worker,
                ledger=self._ledger,
                ports=JobPorts(
                    publish=self._publish,
                    refuse=self._refuse,
                    commit=commit,
                    begin=lambda: self._admission.begin(request, self._origin_of(request.customer)),
                    waited=self._figures.waited,
                ),
                statements=statements,
                tape=tape,
            )
        except BaseException:
            member.mailbox.close()
            raise
        return OpenJob(context, run, member, worker, self._ledger, chunks)

    def _origin_of(self, customer: str) -> str:
        """Where the customer's link comes from; empty where it has none with this node.

        It is empty for a link by a splice, too, whose address is many customers'.
        """
        link = self._node.open_link(customer)
        return link.origin if link is not None and link.rung != "splice" else ""


class OpenJob:
    """Made by JobFactory. `chunks` are filled with those that are committed to."""

    def __init__(
        self,
        context: JobContext,
        run: JobRun,
        member: Membership,
        worker: JobWorker,
        ledger: Ledger,
        chunks: set[int],
    ) -> None:
        self.run = run
        self._chunks = chunks
        self._context = context
        self._member = member
        self._worker = worker
        self._ledger = ledger

    async def serve(self) -> None:
        """Link to the others, and run the job to its end. Raises as `JobRun.run`."""
        links = [self._link(peer) for peer in self._dialled()]
        works = [*links, self.run.listen(), self._member.follow_losses()]
        beside = [asyncio.create_task(self._guarded(work)) for work in works]
        try:
            await self.run.run()
        finally:
            self._member.close()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._worker.end()
            self._note_work()
            self._log_end()

    def _dialled(self) -> set[str]:
        """A producer dials its consumers; the driver everybody, since it tells all when a chunk ends."""
        me, request = self._context.me, self._context.request
        peers = {route.consumer for route in self._member.routes.values() if route.producer == me}
        if self._context.drives:
            peers |= {*request.plan.providers()}
        return peers - {me, request.customer}

    async def _link(self, peer: str) -> None:
        """A job that cannot reach one of its nodes learns it at once, not when it first must."""
        try:
            await self._member.link(peer)
        except LinkLost as error:
            self._member.mailbox.cancel(error)
            raise

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NodewireError as error:
            log.info("job %s: %s", self._context.request.id[:8], error)
            if self._member.mailbox.failure is None:  # else all that the job waits for knows
                self.run.fail(error)
        except Exception as error:  # noqa: BLE001 - what it is ends the job
            self.run.fail(error)

    def _note_work(self) -> None:
        """Keep in the ledger how long each task's calls took, and its part of the price."""
        context, times = self._context, self._worker.times
        price_msat = context.request.plan.standing_msat
        tasks = {task: (price_msat(task, context.me), times.total_us(task)) for task in context.tasks}
        try:
            self._ledger.work.note(context.request.id, context.manifest.name, tasks, time.time())
        except Exception as error:  # noqa: BLE001 - the job has ended already
            log.error("job %s: its work is not in the ledger: %s", context.request.id[:8], typed_fault(error))

    def _log_end(self) -> None:
        if self._chunks:
            request, count = self._context.request.id, len(self._chunks)
            earned = self._ledger.earned_msat(job=request) / 1000
            what = f"{', '.join(self._context.tasks)}, {count} chunk{'s' * (count > 1)}"
            log.info("job %s served: %s, %.3f sat earned", request[:8], what, earned)
