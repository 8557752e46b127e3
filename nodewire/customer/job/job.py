"""One job as its buyer sees it: plan, request, inputs out, outputs in, and what is settled at its end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodewire.core.job_task_group import typed_fault
from nodewire.customer.job import request as requesting
from nodewire.customer.job import settlement
from nodewire.customer.job.attempt import JobAttempt
from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.estimate import Estimate, estimate
from nodewire.customer.job.order import JobOrder
from nodewire.customer.job.provider_events import Answers, MoreWork, ProviderRefusal
from nodewire.customer.job.tickets import Tickets
from nodewire.customer.payments.job_payments import JobPayments, least_msat
from nodewire.customer.payments.verification_share import Shares
from nodewire.customer.planning.planner import MAX_POW_BITS, PATIENCE_EPOCHS, Draw
from nodewire.errors import BadFrame, NodewireError, NoProvider
from nodewire.plan.assign import Busy
from nodewire.protocol.job.chunk import chunk_of
from nodewire.protocol.job.plan import MAX_BUSY, MAX_REDRAWS, Plan, Terms
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nodewire.customer.job.order import JobOrder
    from nodewire.customer.job.session import Session
    from nodewire.customer.payments.verification_share import Shares
    from nodewire.kind import Params
    from nodewire.nostr.event import Event
    from nodewire.pay.accounts.debts import Debt
    from nodewire.plan.codec import Wish
    from nodewire.protocol.job import request as job
    from nodewire.protocol.tensors.frame import Array, Frame

SILENCE_S = 4.0
MAX_WORKED = 4
"""How often a request is made again with more work."""


class Purchase:
    """Buys one job: `async with Purchase(...) as bought: async for output in bought.outputs(): ...`.

    Outputs are what `accept` makes of the frames on the manifest's edges to the customer. After the last output the
    block's end pays what is still due and publishes receipts.
    """

    def __init__(
        self,
        session: Session,
        order: JobOrder,
        terms: Terms,
        accept: Callable[[Frame[Array]], Any] = lambda frame: frame,
        *,
        patience: int = PATIENCE_EPOCHS,
        wish: Wish | None = None,
    ) -> None:
        """`accept` makes of a frame what `outputs` gives.

        It raises BadFrame for one that is not worth its money. `patience`: for how many further epochs a plan is tried
        when a task has no provider. `wish`: for edges that the terms do not name.
        """
        self.manifest = order.manifest
        self.timing = JobTimes()
        self.receipts: list[Event] = []
        self.is_second = False
        """Whether it is to overtake another job of the same generation, which goes on."""
        self._session = session
        self._order = replace(order, params=order.kind.check(order.manifest, order.params))
        self.most_units = _most_units(order.manifest, self._order.params)
        self._budget_msat = terms.max_total_msat
        self._terms = session.planner.terms(terms, self.most_units)
        self._tickets = Tickets(session.keys, self._order.params, order.inputs)
        self._accept = accept
        self._patience = patience
        self._wish = wish
        self._busy: list[Busy] = []
        self._bits: list[int] = []
        """Of work, that providers have asked for beyond their ads."""
        self._running: JobAttempt | None = None
        """The newest request; another is made when a provider is busy."""
        self._earlier: list[JobAttempt] = []
        """Those before it. Nothing had come of them, but what their drivers closed is paid."""
        self._last_chunk = -1
        self._done = False
        self._gone: set[str] = set()
        self._paying: asyncio.Task[None] | None = None

    @property
    def inputs(self) -> Sequence[Frame[Array]]:
        return self._order.inputs

    @property
    def plan(self) -> Plan:
        return self.running.plan

    @property
    def running(self) -> JobAttempt:
        assert self._running is not None
        return self._running

    @property
    def request(self) -> Event:
        return self.running.request

    @property
    def holders(self) -> dict[str, int]:
        """How many live nodes held each task when the plan was drawn."""
        return self.running.drawn.holders

    @property
    def estimate(self) -> Estimate:
        """What the job comes to, by its newest plan."""
        return self._estimate(self.plan)

    async def quote(self) -> tuple[Draw, Estimate]:
        """The plan that the market would give now, and what the job would come to by it. Nothing is bought.

        Raises:
            NoQuorum, NoProvider, OverBudget: as `Planner.draw`.

        """
        drawn = await self._session.planner.draw(
            self.manifest, self._terms, busy=(), wish=self._wish, patience=self._patience
        )
        return drawn, self._estimate(drawn.plan)

    def _estimate(self, plan: Plan) -> Estimate:
        tokens = self._order.params.get("max_tokens")
        context = self.manifest.context or 0
        max_tokens = tokens if isinstance(tokens, int) else context
        return estimate(plan, self.manifest, self.inputs, max_tokens=max_tokens, budget_msat=self._budget_msat)

    @property
    def blamed(self) -> set[str]:
        """Providers that are gone, or for whose fault the job ended: the next one does better without them."""
        return self._running.blamed() | self._gone if self._running is not None else set()

    @property
    def is_underway(self) -> bool:
        """Whether a request was published."""
        return self._running is not None

    @property
    def spent_msat(self) -> int:
        """Paid so far, to providers and for verification, and what is owed of jobs that broke off.

        Whoever waits with its claim is paid, too.
        """
        if self._running is None:
            return 0
        broke_off = self._earlier if self._paying is None else (*self._earlier, self._running)
        spent = sum(one.spent_msat() for one in (*self._earlier, self._running))
        return spent + sum(one.payments.unpaid_msat() for one in broke_off)

    @property
    def cached_tokens(self) -> int:
        """Of the prompt's positions, those that every stage had found and not computed, as far as claims say it."""
        if self._running is None or self.manifest.mode != "generate":
            return 0
        stages = {task.name for task in self.manifest.tasks if task.engine == "decoder.stage"}
        paid = self.payments.paid
        by = {a.provider: paid.get((a.provider, 0)) for a in self.plan.tasks if a.task in stages}
        return self.manifest.chunk * min((one.due.cached if one else 0 for one in by.values()), default=0)

    @property
    def booked(self) -> list[Debt]:
        """What the ledger has of it: chunks of its providers, and verification shares."""
        return self._session.payer.debts_of(self.request.id)

    @property
    def lenders(self) -> set[str]:
        """Its providers whose tabs may stand when it is over."""
        return {public for public in self.plan.providers() if not self._session.payer.is_due(public)}

    @property
    def ticket(self) -> job.Ticket:
        return self._tickets.make_ticket(self.request.id)

    @property
    def answers(self) -> Answers:
        """What the providers have said."""
        return self.running.answers

    @property
    def payments(self) -> JobPayments:
        return self.running.payments

    @property
    def shares(self) -> Shares:
        return self.running.shares

    async def __aenter__(self) -> Purchase:
        try:
            await self._begin()
        except BaseException as error:
            if self._running is not None and self._running.is_open:  # relays may have taken the request all the same
                self.running.cancel()
            await self._end(error, pays=True)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        breaks_off = self._running is not None and self._running.is_open and not (error is None and self._done)
        try:
            if error is None and self._done:
                await self._settle()
            elif breaks_off:
                self.running.cancel()
        finally:
            await self._end(error, pays=breaks_off)

    async def outputs(self) -> AsyncIterator[Any]:
        """The outputs on the edges to the customer, until one on each is marked as the end.

        Raises:
            TimedOut: the plan's deadline passed without an output.
            LinkLost: a provider's link broke.
            FrameRejection: a provider's frame is not what it must be, as this customer or another provider says.
            NodewireError: a provider reported the error.

        """
        open_edges = {edge.name for edge in self.manifest.edges if edge.target == CUSTOMER}
        whole = _Whole(1 if self.manifest.mode == "generate" else len(open_edges))
        deadline_s = self.plan.first_result_ms / 1000
        # A neighbour that falls silent is noticed in this time: then it is not too late.
        grace_s = SILENCE_S if self.manifest.mode == "generate" else 0.0
        while open_edges:
            try:
                frame = await self.running.next(deadline_s)
            except ProviderRefusal as refusal:
                await self._redraw(refusal)
                continue
            except MoreWork as more:
                await self._work(more)
                continue
            self.timing.output()
            if self.manifest.mode != "run":  # of which every call begins anew, with what the customer sends
                deadline_s = self.plan.next_result_ms / 1000 + grace_s
            chunk, output = self._checked(frame)
            self._last_chunk = max(self._last_chunk, chunk)
            if whole.with_one_of(chunk):
                await self.payments.delivered(chunk)
                self.running.delivered(chunk)
            if frame.meta.get("end") is True:
                open_edges.discard(frame.edge)
                self._done = not open_edges
            yield output

    def _checked(self, frame: Frame[Array]) -> tuple[int, Any]:
        """A frame's chunk, and the output that it is.

        Raises FrameRejection: it is no output, or says another chunk; its producer knew before it sent it.
        """
        chunk = chunk_of(self.manifest, frame.seq)
        try:
            output = self._accept(frame)
            if frame.meta.get("chunk", 0) != chunk:  # what has come may be paid: it is counted here
                raise BadFrame("chunk", f"{frame.meta.get('chunk')!r} on frame {frame.seq}, which is of chunk {chunk}")
        except BadFrame as error:
            if (meant := self.running.rejection_of(error, frame.edge)) is None:
                raise
            raise meant from error
        return chunk, output

    def _has_begun(self) -> bool:
        """Whether anything has come, or is owed: such a job is not requested again, but ends and is paid."""
        return bool(self.timing.outputs) or self.payments.count_owed() > 0

    async def _redraw(self, refusal: ProviderRefusal) -> None:
        """Begin anew without the provider that has no free slot.

        Raises:
            ProviderRefusal: the job has begun.
            NoProvider: as many plans as there may be were refused.

        """
        if self._has_begun():
            raise refusal
        self._busy.append(Busy(refusal.feedback, refusal.provider))
        if refusal.is_out:  # other jobs of this customer avoid it, too; a full one may have room for them
            self._session.planner.note_failed([refusal.provider])
        self.running.cancel()
        await self._end()
        if len(self._busy) >= min(MAX_BUSY, MAX_REDRAWS):
            raise NoProvider("plan", f"{len(self._busy)} providers were busy")
        await self._begin()

    async def _work(self, more: MoreWork) -> None:
        """Begin anew with the work that a provider asks for.

        Raises MoreWork: it asks for too much, too often, or too late.
        """
        done = max(self._bits, default=0)
        if self._has_begun() or len(self._bits) >= MAX_WORKED or not done < more.bits <= MAX_POW_BITS:
            raise more
        self._bits.append(more.bits)
        self.running.cancel()
        await self._end()
        await self._begin()

    async def _begin(self) -> None:
        """Draw a plan, publish the request, send the tickets and the inputs."""
        self._session.settler.begin()
        refused = [*self._earlier, *([self._running] if self._running is not None else [])]
        cost_msat = sum(one.spent_msat() + one.payments.unpaid_msat() for one in refused)
        left_msat = max(0, self._terms.max_total_msat - cost_msat)
        terms = self._terms.model_copy(update={"max_total_msat": left_msat})
        async with self._session.payer.funds() as funds:
            await self._session.prepare(self._order.kind, self.manifest, self._terms.local(self.manifest))
            drawn = await self._session.planner.draw(
                self.manifest, terms, busy=self._busy, wish=self._wish, patience=self._patience
            )
            await funds.check(least_msat(drawn.plan, self.manifest, self.inputs))
        self.timing.planned = time.monotonic()
        self._earlier = refused
        request = await requesting.signed(
            self._session.keys,
            drawn,
            manifest_address=self._order.address,
            relays=self._session.relays,
            ticket=self._tickets.seal(),
            bits=max(drawn.pow_bits, *self._bits, 0),
        )
        self._running = JobAttempt(
            self._session,
            self._order,
            self._tickets,
            drawn,
            request,
            self.timing,
        )
        if self._session.announce is not None:
            await self._session.announce(self)
        await self._running.start()

    async def _settle(self) -> None:
        running = self.running
        assert running.sharing is not None
        payments, shares = running.payments, running.shares
        silent = await settlement.settle(payments, shares, running.sharing, running.answers, self._last_chunk)
        self._session.planner.note_failed(silent)  # so nobody is waited for each time
        self.receipts += await settlement.give_receipts(
            self._session.keys, self.request.id, self.plan, running.payments, running.answers, running.publish
        )

    async def _end(self, error: BaseException | None = None, *, pays: bool = False) -> None:
        """`error`: what ended the job, if it broke off. `pays`: for what came, beside whatever is bought next."""
        if self._running is None:
            return
        try:
            if error is None or isinstance(error, NodewireError):
                self._gone = await self._running.find_absent(error)
                self._session.planner.note_failed(self._gone)
            if pays:
                self._paying = self._session.run_in_background(self._pay(self._running))
        finally:
            if self._paying is None:
                await self._running.end()

    async def _pay(self, running: JobAttempt) -> None:
        """Pay a job that broke off for what came. Who is gone is not waited for; what is not paid is owed."""
        try:
            try:
                await settlement.pay_what_came(running.payments, running.lost_here | self._gone)
            finally:
                await running.end()
        except Exception as error:  # noqa: BLE001 - the job's end must not hide how it ended
            self._session.log.warning("job %s: what came is not paid: %s", running.request.id[:8], typed_fault(error))

    async def paid(self) -> None:
        """Return when a job that broke off is paid for what came, as far as that goes."""
        if self._paying is not None:
            await asyncio.wait([self._paying])


class _Whole:
    """Which chunks have come on every one of `edges` edges: only then a chunk is worth its money."""

    def __init__(self, edges: int) -> None:
        self._edges = edges
        self._came: dict[int, int] = {}

    def with_one_of(self, chunk: int) -> bool:
        """Whether a chunk is whole now that one more output of it has come."""
        came = self._came.pop(chunk, 0) + 1
        if came < self._edges:
            self._came[chunk] = came
        return came >= self._edges


def _most_units(manifest: Manifest, params: Params) -> int:
    """The most units that a job counts, its prompt included. A job whose calls have no context counts 1."""
    if manifest.mode != "generate":
        return 1
    positions = params.get("positions")
    return 1 - (-(positions if isinstance(positions, int) else manifest.context) // manifest.chunk)
