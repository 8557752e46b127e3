"""The provider's half for inference: follows its relays, admits jobs, runs them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from nodewire.bounded_dict import BoundedDict
from nodewire.errors import BadInput, Busy, LinkLost, NodeFailed, NodewireError, NotAllowed, WorkRequired
from nodewire.job_task_group import typed_fault
from nodewire.nostr import nip59
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nip01 import Filter
from nodewire.nostr.relaying import Relaying
from nodewire.pay.dues import Due
from nodewire.pay.ledger import Ledger
from nodewire.protocol import feedback, kinds
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.job import Request, Ticket
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.round import is_ticket as is_round_ticket
from nodewire.provider.admission import Admission, AdmittedJob, feedback_for
from nodewire.provider.figures import Figures
from nodewire.provider.job import JobRun
from nodewire.provider.outage import Outage
from nodewire.provider.prefixes import Prefixes, UnpaidPrompts, whose
from nodewire.provider.proving import Proof
from nodewire.provider.serving import OneManifest, Served
from nodewire.provider.specializations import Specializations
from nodewire.provider.statements import Statements
from nodewire.provider.turns import turns
from nodewire.provider.withdrawals import Withdrawals
from nodewire.public_record import PublicRecord
from nodewire.wire.membership import Membership
from nodewire.wire.node import Node
from nodewire.wire.record import Record
from nodewire.wire.spool import Spool

log = logging.getLogger("nodewire.provider")


MAX_WAITING = 1_024
"""Requests without ticket, and tickets without request. The newest are kept: tickets are sent again and again."""
MAX_ADMITTING = 32
"""Requests whose plans are checked at once: each costs a derivation, and perhaps something from relays."""
MAX_REFUSING = 64
"""Answers to malformed requests under way; further ones are not answered."""
WAITING_S = 30.0
GRACE_S = 5.0
"""How long a job waits for a neighbour that is lost to be heard of again."""


class Provider:
    """Made with everything open; `run` serves until it is cancelled. `settled` is told what its wallet was paid."""

    def __init__(
        self,
        *,
        keys: Keys,
        relays: Relaying,
        record: PublicRecord,
        node: Node,
        ledger: Ledger,
        held: Specializations,
        admission: Admission,
        withdrawals: Withdrawals,
        spool: Spool,
        proof: Proof,
        patience_s: int,
        outage: Outage,
        prefixes: Prefixes = "own",
        beside: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """`prefixes`: for whom beginnings of prompts are kept. `beside`: what runs as long as it serves."""
        self._keys = keys
        self._relays = relays
        self._record = record
        self._node = node
        self._ledger = ledger
        self._held = held
        self._admission = admission
        self._withdrawals = withdrawals
        self._patience_s = patience_s
        self._prefixes = prefixes
        self._unpaid = UnpaidPrompts()
        self._spool = spool
        self._proof = proof
        self._outage = outage
        self._services = (*beside, self._follow, proof.run, outage.run)
        self.figures = Figures()
        self._requests = BoundedDict[str, tuple[float, Event, Request, Manifest]](MAX_WAITING)
        self._tickets = BoundedDict[tuple[str, str], tuple[float, Ticket]](MAX_WAITING)
        """By request and author: anybody can read a request and send a ticket for it, which opens nothing."""
        self._jobs: dict[str, JobRun] = {}
        self._seen = BoundedDict[str, float](4 * MAX_WAITING)
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
            self._forget_old()
            try:
                if event.kind == kinds.INFERENCE:
                    self._requested(event)
                else:
                    self._ticketed(event)
            except NodewireError as error:
                log.info("%s %s refused: %s", event.kind, event.id[:8], error)

    def _requested(self, event: Event) -> None:
        if event.id in self._seen or event.id in self._jobs:
            return
        self._seen[event.id] = time.monotonic()
        try:
            request, manifest = self._admission.glance(event, time.time())
        except NodewireError as error:
            self.figures.refused(event.kind, error)
            # Not waited for: a stranger's nonsense must not keep those behind it from being read.
            if self._keys.public in event.values("p") and len(self._refusing) < MAX_REFUSING:
                refusing = asyncio.create_task(self._refuse(event.id, event.pubkey, error))
                self._refusing.add(refusing)
                refusing.add_done_callback(self._refusing.discard)
            raise
        self._requests[request.id] = (time.monotonic(), event, request, manifest)
        self._begin_if_complete(request.id)

    def _ticketed(self, event: Event) -> None:
        rumor = nip59.unwrap(event, self._keys)
        if rumor.kind == kinds.OFFER:  # the node's own (`wire.reach`)
            return
        if rumor.kind != kinds.TICKET:
            raise BadInput("kind", f"{rumor.kind} is not a ticket")
        if is_round_ticket(rumor.content):
            return
        ticket = Ticket.parse(rumor.content)
        if ticket.request in self._jobs:
            return
        self._tickets.setdefault((ticket.request, rumor.pubkey), (time.monotonic(), ticket))
        self._begin_if_complete(ticket.request)

    def _begin_if_complete(self, id_: str) -> None:
        """A job begins when its request and its ticket are here, from the same key."""
        if id_ not in self._requests:
            return
        _, event, request, manifest = self._requests[id_]
        if (id_, request.customer) not in self._tickets:
            return
        del self._requests[id_]
        _, ticket = self._tickets.pop((id_, request.customer))
        self._spawn(self._serve(event, request, manifest, ticket))

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
            pages = served.take(params.get("positions"))
        except NodewireError as error:
            log.info("job %s refused: %s", request.id[:8], error)
            self.figures.refused(event.kind, error)
            await self._refuse(request.id, request.customer, error)
            return
        await self._run_job(AdmittedJob(event, ticket, request, manifest, params), served, pages)

    def controlled(self, peer: str, document: Mapping[str, Any]) -> None:
        """A control document about a job that is not open here: a withdrawal."""
        self._withdrawals.note(peer, document)

    async def _run_job(self, job: AdmittedJob, served: Served, pages: int) -> None:
        """Run a job whose `pages` have been taken."""
        request = job.request
        try:
            with self.figures.job(job.event.kind):
                await self._proof.begins(job)
                await self._run(request, job.manifest, served, job.params)
        except Exception as raised:
            error = typed_fault(raised)
            self._outage.note(error)
            log.warning("job %s ended: %s", request.id[:8], error)
            if isinstance(error, NodeFailed) and request.id not in self._jobs:  # a job that began has said so itself
                await self._refuse(request.id, request.customer, error)
        finally:
            served.give(pages)
            self._jobs.pop(request.id, None)
            await self._proof.ended(request.id)

    async def _run(self, request: Request, manifest: Manifest, served: Served, params: Mapping[str, Any]) -> None:
        ads = await self._record.ads(request.plan)
        nodes = await self._record.nodes(request.plan)
        judged = request.plan.verification.policy == "sampled"

        statements = Statements(self._keys, request, manifest, self._spool) if judged else None
        tape, lookahead = statements or self._spool, request.plan.terms.lookahead
        record = Record(tape, request.id, manifest, lookahead) if lookahead > 1 else None
        member = Membership(
            request.id,
            request.plan,
            manifest,
            self._node,
            {public: ad.wire for public, ad in ads.items()},
            grace_s=GRACE_S,
            tape=record or tape,
            keep_inputs=record is None,  # which is given them when they are computed
        )
        mailbox = member.mailbox
        if self._withdrawals.has(request.customer, request.id):
            mailbox.close()
            raise NotAllowed("job", "withdrawn by the customer")
        chunks: set[int] = set()

        async def commit(roots: Sequence[ChunkRoot]) -> None:
            chunks.add(roots[0].chunk)
            self.figures.chunks += 1
            await self._proof.commit(request.plan, roots)

        worker = OneManifest(served.worker, served.digest, turns(request.plan, manifest, nodes))
        run = JobRun(
            keys=self._keys,
            request=request,
            manifest=manifest,
            params=params,
            kind=served.kind,
            mailbox=mailbox,
            worker=worker,
            ledger=self._ledger,
            publish=self._publish,
            commit=commit,
            patience_s=self._patience_s,
            statements=statements,
            record=record,
            whose=whose(self._prefixes, request.customer, str(params.get("apart", ""))),
            unpaid=self._unpaid,
            cached_ppm=ads[self._keys.public].cached_ppm,
            begin=lambda: self._admission.begin(request, self._origin_of(request.customer)),
        )
        self._jobs[request.id] = run

        async def link(peer: str) -> None:
            """A job that cannot reach one of its nodes learns it at once, not when it first must."""
            try:
                await member.link(peer)
            except LinkLost as error:
                mailbox.cancel(error)
                raise

        # A producer dials its consumers; the driver everybody, since it tells all when a chunk ends.
        peers = {route.consumer for route in member.routes.values() if route.producer == self._keys.public}
        if run.drives:
            peers |= {*request.plan.providers()}
        links = [link(peer) for peer in peers - {self._keys.public, request.customer}]
        works = [*links, run.listen(), member.follow_losses()]

        async def guarded(work: Coroutine[Any, Any, None]) -> None:
            try:
                await work
            except NodewireError as error:  # the mailbox knows
                log.info("job %s: %s", request.id[:8], error)
            except Exception as error:
                run.fail(error)

        beside = [asyncio.create_task(guarded(work)) for work in works]
        try:
            await run.run()
        finally:
            member.close()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await worker.end()
            if chunks:
                earned = self._ledger.earned_msat(job=request.id) / 1000
                what = f"{', '.join(run.tasks)}, {len(chunks)} chunk{'s' * (len(chunks) > 1)}"
                log.info("job %s served: %s, %.3f sat earned", request.id[:8], what, earned)

    def settled(self, due: Due) -> None:
        """The wallet says that a chunk is paid: its job may go on."""
        if self._admission.free is not None:
            self._admission.free.paid(due.key.job)
        run = self._jobs.get(due.key.job)
        if run is not None:
            self._spawn(run.credit.paid(due.key.chunk))

    def _origin_of(self, customer: str) -> str:
        """Where the customer's link comes from; empty where it has none with this node.

        It is empty for a link by a splice, too, whose address is many customers'.
        """
        link = self._node.open_link(customer)
        return link.origin if link is not None and link.rung != "splice" else ""

    async def _publish(self, event: Event) -> None:
        await self._relays.publish(event, timeout_s=10.0)

    async def _refuse(self, request: str, customer: str, error: NodewireError) -> None:
        status, text = feedback_for(error)
        await self._tell(request, customer, status, text, error.bits if isinstance(error, WorkRequired) else 0)

    async def _tell(self, request: str, customer: str, status: feedback.Status, text: str, work: int = 0) -> None:
        now_s = int(time.time())
        said = feedback.build(self._keys, request, customer, status, created_at=now_s, text=text, work=work)
        try:
            await self._publish(said)
        except NodewireError as failure:
            log.warning("feedback: %s", failure)

    def _forget_old(self) -> None:
        horizon = time.monotonic() - WAITING_S
        for late in [key for key, entry in self._requests.items() if entry[0] < horizon]:
            del self._requests[late]
        for unused in [key for key, entry in self._tickets.items() if entry[0] < horizon]:
            del self._tickets[unused]
