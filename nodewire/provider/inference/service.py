"""The provider's half for inference: follows its relays, admits jobs, runs them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from nodewire.core.job_task_group import typed_fault
from nodewire.errors import BadInput, Busy, NodeFailed, NodewireError, WorkRequired
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.job.request import Request, Ticket
from nodewire.protocol.model.manifest import Manifest
from nodewire.provider.admission.checks import AdmittedJob, feedback_for
from nodewire.provider.admission.refusals import Refusals, is_answered
from nodewire.provider.admission.request_matcher import WAITING_S, RequestMatcher
from nodewire.provider.inference.job_factory import JobFactory, JobResources
from nodewire.provider.job_counters import Figures
from nodewire.training.protocol.round import is_ticket as is_round_ticket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from nodewire.nostr.event_transport import EventTransport
    from nodewire.pay.accounts.dues import Due
    from nodewire.provider.inference.job import JobRun
    from nodewire.provider.outage import Outage
    from nodewire.provider.tasks.loader import ServedManifest
    from nodewire.provider.tasks.registry import Specializations

log = logging.getLogger("nodewire.provider")


MAX_ADMITTING = 32
"""Requests whose plans are checked at once: each costs a derivation, and perhaps something from relays."""
MAX_REFUSING = 64
"""Answers to requests that a glance refused, under way; further ones are not answered."""


class Provider:
    """Made with everything open; `run` serves until it is cancelled. `settled` is told what its wallet was paid."""

    def __init__(
        self,
        resources: JobResources,
        *,
        relays: EventTransport,
        held: Specializations,
        outage: Outage,
        services: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """`services`: what runs as long as it serves."""
        self._keys = resources.keys
        self._relays = relays
        self._held = held
        self._admission = resources.admission
        self._withdrawals = resources.withdrawals
        self._proof = resources.proof
        self._ledger = resources.ledger
        self._outage = outage
        self._services = (*services, self._follow, self._proof.run, outage.run)
        self.figures = Figures()
        self._refusals = Refusals(self._publish, self.figures)
        self._factory = JobFactory(resources, publish=self._publish, refuse=self._refusals.tell, figures=self.figures)
        self._matcher = RequestMatcher[tuple[Event, Request, Manifest]]()
        self._jobs: dict[str, JobRun] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()
        self._admitting = 0

    @property
    def in_flight(self) -> dict[int, int]:
        """Jobs that are open here, by kind."""
        return {kinds.INFERENCE: len(self._jobs)}

    async def announced(self) -> None:
        """Wait until what is offered stands in a published ad."""
        await self._held.announced()

    async def run(self) -> None:
        """Serve until cancelled."""

        async def serve(service: Callable[[], Awaitable[None]]) -> None:
            await service()

        async with asyncio.TaskGroup() as group:
            for service in self._services:
                group.create_task(serve(service))

    async def _follow(self) -> None:
        mine = {"p": frozenset({self._keys.public})}
        since = int(time.time()) - int(WAITING_S)
        wanted = [
            Filter(kinds=frozenset({kinds.INFERENCE}), tags=mine, since=since),
            Filter(kinds=frozenset({nip59.EPHEMERAL_GIFT_WRAP}), tags=mine),
        ]
        async for event in self._relays.subscribe(wanted):
            self._matcher.forget_old()
            try:
                if event.kind == kinds.INFERENCE:
                    self._requested(event)
                else:
                    self._ticketed(event)
            except NodewireError as error:
                log.info("%s %s refused: %s", event.kind, event.id[:8], error)

    def _requested(self, event: Event) -> None:
        if not self._matcher.is_new(event.id) or event.id in self._jobs:
            return
        try:
            request, manifest = self._admission.glance(event, time.time())
        except NodewireError as error:
            self.figures.refused(event.kind, error)
            # Not waited for: a stranger's nonsense must not keep those behind it from being read.
            if is_answered(event, error, self._keys.public) and len(self._refusing) < MAX_REFUSING:
                refusing = asyncio.create_task(self._refuse(event.id, event.pubkey, error))
                self._refusing.add(refusing)
                refusing.add_done_callback(self._refusing.discard)
            raise
        self._begin(self._matcher.add_request(request.id, request.customer, (event, request, manifest)))

    def _ticketed(self, event: Event) -> None:
        rumor = nip59.unwrap(event, self._keys)
        if rumor.kind == kinds.OFFER:  # the node's own (`wire.nat`)
            return
        if rumor.kind != kinds.TICKET:
            raise BadInput("kind", f"{rumor.kind} is not a ticket")
        if is_round_ticket(rumor.content):
            return
        request = Ticket.parse(rumor.content).request
        if request not in self._jobs:
            self._begin(self._matcher.add_ticket(request, rumor.pubkey, rumor.content))

    def _begin(self, found: tuple[tuple[Event, Request, Manifest], str] | None) -> None:
        """Begin a job whose request and ticket are here."""
        if found is not None:
            (event, request, manifest), ticket = found
            self._spawn(self._serve(event, request, manifest, Ticket.parse(ticket)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _serve(self, event: Event, request: Request, manifest: Manifest, ticket: Ticket) -> None:
        try:
            self._outage.check_admission()
            served = self._held.find(request.plan.manifest, request.plan.tasks_of(self._keys.public))
            if ticket.seal() != request.ticket:
                raise BadInput("ticket", "not the one that the request has sealed")
            params = served.kind.check(manifest, ticket.params)
            if self._admitting >= MAX_ADMITTING:
                raise Busy("requests", f"{MAX_ADMITTING} are being checked")
            self._admitting += 1
            try:
                await self._admission.check(request, manifest)
            finally:
                self._admitting -= 1
            pages = served.allocate(params.get("positions"))
        except Exception as raised:  # noqa: BLE001 - a kind may be anybody's
            error = typed_fault(raised)
            log.info("job %s refused: %s", request.id[:8], error)
            self.figures.refused(event.kind, error)
            await self._refuse(request.id, request.customer, error)
            return
        await self._run_job(AdmittedJob(event, ticket, request, manifest, params), served, pages)

    def controlled(self, peer: str, document: Mapping[str, Any]) -> None:
        """A control document about a job that is not open here: a withdrawal."""
        self._withdrawals.note(peer, document)

    async def _run_job(self, job: AdmittedJob, served: ServedManifest, pages: int) -> None:
        """Run a job whose `pages` have been taken."""
        request = job.request
        try:
            self._admission.opened(request)
            with self.figures.job(job.event.kind):
                await self._proof.begins(job)
                opened = await self._factory.open(job, served)
                self._jobs[request.id] = opened.run
                await opened.serve()
        except Exception as raised:  # noqa: BLE001 - a kind may be anybody's
            error = typed_fault(raised)
            self._outage.note(error)
            log.warning("job %s ended: %s", request.id[:8], error)
            if isinstance(error, NodeFailed | Busy) and request.id not in self._jobs:  # else it said so itself
                await self._refuse(request.id, request.customer, error)
        finally:
            served.give(pages)
            self._jobs.pop(request.id, None)
            self._admission.ended(request)
            await self._proof.ended(request.id)

    def settled(self, due: Due) -> None:
        """The wallet says that a chunk is paid: its job may go on."""
        if self._admission.free is not None:
            self._admission.free.paid(due.key.job)
        run = self._jobs.get(due.key.job)
        if run is not None:
            self._spawn(run.credit.paid(due.key.chunk))
        if self._ledger.is_covered(due.customer):
            for other in self._jobs.values():
                if other.request.customer == due.customer:
                    self._spawn(other.credit.cover())

    async def _publish(self, event: Event) -> None:
        await self._relays.publish(event, timeout_s=10.0)

    async def _refuse(self, request: str, customer: str, error: NodewireError) -> None:
        status, text = feedback_for(error)
        work = error.bits if isinstance(error, WorkRequired) else 0
        now_s = int(time.time())
        await self._refusals.tell(
            feedback.build(
                self._keys, request, customer, status, created_at=now_s, remarks=feedback.Remarks(text=text, work=work)
            )
        )
