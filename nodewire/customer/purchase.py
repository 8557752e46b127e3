"""One job as its buyer sees it: plan, request, inputs out, outputs in, and what is settled at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from nodewire.customer import controls, ending, requesting
from nodewire.customer.answers import Answers, Refused
from nodewire.customer.background import Background
from nodewire.customer.claims import Claims
from nodewire.customer.payments import JobPayments, most_units
from nodewire.customer.planning import PATIENCE_EPOCHS, Draw, draw
from nodewire.customer.session import LocalMailbox, Session, signing_of
from nodewire.customer.shares import Shares
from nodewire.customer.ticketing import Tickets
from nodewire.customer.timing import Handed, Timing
from nodewire.errors import BadFrame, LinkLost, NoProvider, NotAllowed, TimedOut
from nodewire.kind import JobKind, Params
from nodewire.nostr.event import Event
from nodewire.pay.debts import Debt
from nodewire.plan.assign import Busy
from nodewire.protocol import job
from nodewire.protocol.chunk import chunk_of
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import LOCAL, MAX_BUSY, MAX_REDRAWS, Plan, Terms
from nodewire.protocol.takeover import Takeover
from nodewire.wire.handover import Handover
from nodewire.wire.mailbox import JobMailbox
from nodewire.wire.membership import Membership

EPOCH_S = 30.0
"""How long a customer waits for a certified epoch."""
SILENCE_S = 4.0
GRACE_S = 10.0
"""How long a job waits for a provider that is lost to be replaced."""
PRESENCE_S = 2.0
"""Within which a provider that a driver has replaced must be reached and say that it is there, to be believed."""


class Purchase:
    """Buys one job: `async with Purchase(...) as bought: async for frame in bought.outputs(): ...`.

    `inputs` are the frames for the manifest's edges from the customer; outputs are the frames on its edges to the
    customer. After the last output the block's end pays what is still due and publishes receipts.
    """

    def __init__(
        self,
        session: Session,
        kind: JobKind,
        manifest_address: str,
        manifest: Manifest,
        terms: Terms,
        params: Params,
        inputs: Sequence[Frame[Array]],
        accept: Callable[[Frame[Array]], None] = lambda frame: None,
        *,
        patience: int = PATIENCE_EPOCHS,
    ) -> None:
        """`accept` raises a typed error for an output that is not worth its money. `patience`: for how many further
        epochs a plan is tried when a task has no provider."""
        self.manifest = manifest
        self.timing = Timing()
        self.receipts: list[Event] = []
        self.shares: Shares | None = None
        self._session = session
        self._kind = kind
        self._address = manifest_address
        self._terms = _without_share(terms, session.market.committee.verify_share_ppm)
        self._params = kind.check(manifest, params)
        self._inputs = inputs
        self._tickets = Tickets(session.keys, self._params, inputs)
        self._accept = accept
        self._patience = patience
        self._busy: list[Busy] = []
        # Of the newest plan; another is drawn when a provider is busy.
        self._draw: Draw | None = None
        self._request: Event | None = None
        self._payments: JobPayments | None = None
        self._claims: Claims | None = None
        self._answers: Answers | None = None
        self._handover: Handover | None = None
        self._open: JobMailbox | None = None
        self._local: LocalMailbox | None = None
        self._background = Background()
        self._sharing: asyncio.Task[None] | None = None
        self._lost_s = 0.0
        self._asked_after: set[str] = set()
        self._deadline: asyncio.Timeout | None = None
        self._last_chunk = -1
        self._done = False

    @property
    def plan(self) -> Plan:
        assert self._draw is not None
        return self._draw.plan

    @property
    def request(self) -> Event:
        assert self._request is not None
        return self._request

    @property
    def holders(self) -> dict[str, int]:
        """How many live nodes held each task when the plan was drawn."""
        assert self._draw is not None
        return self._draw.holders

    @property
    def blamed(self) -> set[str]:
        """Providers that left, or for whose fault the job ended: the next one does better without them."""
        gone = self._handover.gone if self._handover is not None else set()
        gone |= self._payments.disowned if self._payments is not None else set()
        blamed = self._answers.blamed if self._answers is not None else set()
        members = self._draw.plan.members() if self._draw is not None else ()
        failure = self._background.failure
        return gone | blamed | ({failure.field} & set(members) if failure is not None else set())

    @property
    def wronged(self) -> set[str]:
        """Those of them that were replaced and say that they were there: who else may be to blame is blamed, too."""
        return self._payments.wronged if self._payments is not None else set()

    @property
    def is_underway(self) -> bool:
        """Whether a request was published."""
        return self._request is not None

    @property
    def spent_msat(self) -> int:
        """Paid so far, to providers and for verification."""
        shares = sum(debt.amount_msat for debt in self.shares.paid.values()) if self.shares is not None else 0
        paid = self._payments.paid.values() if self._payments is not None else ()
        return shares + sum(one.due.amount_msat for one in paid)

    @property
    def booked(self) -> list[Debt]:
        """What the ledger has of it: chunks of its providers, and verification shares."""
        return self._session.payer.debts_of(self.request.id)

    @property
    def ticket(self) -> job.Ticket:
        return self._tickets.of(self.request.id)

    @property
    def answers(self) -> Answers:
        """What the providers have said."""
        assert self._answers is not None
        return self._answers

    @property
    def _mailbox(self) -> JobMailbox:
        assert self._open is not None
        return self._open

    @property
    def payments(self) -> JobPayments:
        assert self._payments is not None
        return self._payments

    async def __aenter__(self) -> Purchase:
        try:
            await self._begin()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._done:
                await self._settle()
            elif self._open is not None:
                self._cancel()
                if self.timing.outputs:
                    await ending.pay_what_came(self.payments)
        finally:
            await self._end()

    async def outputs(self) -> AsyncIterator[Frame[Array]]:
        """The frames on the edges to the customer, until one on each is marked as the end.

        Raises:
            TimedOut: the plan's deadline passed without an output.
            LinkLost: a provider's link broke.
            NodewireError: a provider reported the error.
        """
        open_edges = {edge.name for edge in self.manifest.edges if edge.target == CUSTOMER}
        deadline_s = self.plan.first_result_ms / 1000
        # A neighbour that falls silent is noticed, and replaced, in this time: then it is not too late.
        grace_s = SILENCE_S if self.manifest.mode == "generate" else 0.0
        while open_edges:
            try:
                frame = await self._next(deadline_s)
            except Refused as refusal:
                await self._redraw(refusal)
                continue
            self.timing.output()
            deadline_s = self.plan.next_result_ms / 1000 + grace_s
            self._accept(frame)
            chunk = chunk_of(self.manifest, frame.seq)
            if frame.meta.get("chunk", 0) != chunk:  # what has come may be paid: it is counted here
                raise BadFrame("chunk", f"{frame.meta.get('chunk')!r} on frame {frame.seq}, which is of chunk {chunk}")
            self._last_chunk = max(self._last_chunk, chunk)
            await self.payments.delivered(chunk)
            if frame.meta.get("end") is True:
                open_edges.discard(frame.edge)
                self._done = not open_edges
            yield frame

    async def _next(self, deadline_s: float) -> Frame[Array]:
        """The next frame for the customer itself; those for tasks that run here are handed to them.

        A handover gets the time of a first output: the standby computes what came before once more.
        """
        try:
            async with asyncio.timeout(deadline_s) as timeout:
                self._deadline = timeout
                frame = await self._arrived()
                while self._local is not None and self._local.take(frame):
                    frame = await self._arrived()
                return frame
        except TimeoutError as error:
            # Providers wait for payments that cannot be made: then that is the reason, not their silence.
            late = TimedOut("output", f"none came within {deadline_s:.0f} s")
            unpaid = self._claims.unpaid if self._claims is not None else {}
            raise next(iter(unpaid.values()), late) from error

    def _give_time(self) -> None:
        if self._deadline is not None and self._deadline.when() is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.plan.first_result_ms / 1000)

    async def _arrived(self) -> Frame[Array]:
        """The next frame of the job, or what ended it."""
        getting = asyncio.ensure_future(self._mailbox.get())
        failing = asyncio.ensure_future(self._background.failed.wait())
        try:
            done, _ = await asyncio.wait((getting, failing), return_when=asyncio.FIRST_COMPLETED)
            if getting in done:
                return getting.result()
            assert self._background.failure is not None
            raise self._background.failure
        finally:
            for task in (getting, failing):
                task.cancel()

    async def _redraw(self, refusal: Refused) -> None:
        """Begin anew without the provider that has no free slot.

        Raises:
            NoProvider: as many plans as there may be were refused, or output has already come.
        """
        self._busy.append(Busy(refusal.feedback, refusal.provider))
        self._cancel()
        await self._end()
        if self.timing.outputs or len(self._busy) >= min(MAX_BUSY, MAX_REDRAWS):
            raise NoProvider("plan", f"{len(self._busy)} providers were busy")
        await self._begin()

    async def _begin(self) -> None:
        """Draw a plan, publish the request, send the tickets and the inputs."""
        self._session.settler.begin()
        if self._terms.driver == "local":
            await self._session.prepare(self._kind, self.manifest)
        drawn = self._draw = await draw(
            self._session.market,
            self.manifest,
            self._terms,
            self._session.keys.public,
            busy=self._busy,
            k=len(self._busy),
            timeout_s=EPOCH_S,
            patience=self._patience,
        )
        self.timing.planned = time.monotonic()
        plan, session = drawn.plan, self._session
        self._request = await requesting.signed(
            session.keys,
            drawn,
            manifest_address=self._address,
            relays=session.relays,
            ticket=self._tickets.seal(),
        )
        self._payments = JobPayments(
            self._request.id,
            plan,
            self.manifest,
            drawn.ads,
            session.payer,
            session.relays,
            session.network,
            most_units=most_units(self.manifest, self._inputs),
            private_endpoints=session.private_endpoints,
        )
        self.shares = Shares(
            self._request.id,
            plan,
            session.payer,
            session.holder,
            relays=session.relays,
            network=session.network,
            private_endpoints=session.private_endpoints,
        )
        if session.announce is not None:
            await session.announce(self)
        session.settler.requests(self._request.id)
        self._asked_after = set()
        background = self._background = Background()
        self._claims = Claims(self._payments, self._here, background)
        self._answers = Answers(
            session.keys,
            self._request.id,
            plan,
            self._here,
            self._claims,
            background,
            network=session.network,
            grace_s=GRACE_S if self.manifest.mode == "generate" else 0.0,
        )
        member = Membership(
            session.keys,
            self._request.id,
            plan,
            self.manifest,
            session.node,
            {public: ad.wire for public, ad in drawn.ads.items()},
            grace_s=GRACE_S,
            tape=session.spool,
            noticed=self._noticed_loss,
        )
        self._open = member.mailbox
        self._handover = member.handover(
            open_chunk=self._payments.open_chunk, changed=self._took_over, publish=self._publish
        )
        neighbours = set(self._mailbox.neighbours)
        if any(a.provider == LOCAL for a in plan.tasks):
            neighbours |= set(plan.providers())  # the driver tells everybody when a chunk ends
        for provider in sorted(neighbours):
            background.spawn(member.link(provider))
        background.spawn(self._answers.follow(session.pool))
        signing = signing_of(session.keys, self._request.id, self.manifest, plan, self._handover)
        background.spawn(
            controls.follow(self._request.id, self._open, self._handover, self._payments, signing, background)
        )
        self._sharing = asyncio.create_task(self.shares.follow(self._payments))
        background.spawn(member.follow_losses(self._handover))
        await session.pool.publish(self._request, timeout_s=10.0)
        for provider in plan.members():
            background.spawn(self._tickets.send(self._request.id, provider, self._answers.heard, session.pool))
        for frame in self._inputs:
            await self._mailbox.put(frame)
        if any(a.provider == LOCAL for a in plan.tasks):
            local = self._local = LocalMailbox(self._mailbox, self.manifest, plan)
            background.spawn(
                session.serve_locally(
                    self._kind,
                    self._request.id,
                    self.manifest,
                    plan,
                    self._params,
                    local,
                    self._payments.closed,
                    self._handover,
                    signing,
                )
            )

    def _noticed_loss(self) -> None:
        self._lost_s = time.time()
        self._give_time()

    async def _took_over(self, takeover: Takeover) -> None:
        now_s = time.time()
        lost_s = self._lost_s if now_s - self._lost_s < GRACE_S else now_s
        self.timing.takeovers.append(Handed(takeover.attempt, lost_s, now_s))
        self._give_time()
        assert self._handover is not None
        left = {left for _, left, _, _ in takeover.replaced}
        doubted = left - self._asked_after - self._handover.missed  # whom this node missed itself it need not ask
        self._asked_after |= doubted
        await self.payments.took_over(takeover, doubted)
        for provider in sorted(doubted):
            self._background.spawn(self._ask_after(provider, takeover))

    async def _ask_after(self, provider: str, takeover: Takeover) -> None:
        """See whether a provider that others say is gone is there all the same. The work goes on meanwhile.

        Raises:
            LinkLost: it is. Nobody can know who lies, or what between them is broken: the job is over.
        """
        assert self._draw is not None
        wire = self._draw.ads[provider].wire
        there = await self._session.node.holds(provider, wire, self.request.id, PRESENCE_S)
        await self.payments.found(provider, there=there)
        if there:
            raise LinkLost(takeover.signer, f"had {provider[:8]} replaced, which is there and holds the job")

    async def _publish(self, event: Event) -> None:
        await self._session.pool.publish(event, timeout_s=10.0)

    def _here(self) -> set[str]:
        """The providers that work on the job now."""
        assert self._handover is not None
        return set(self._handover.assigned.values()) - {LOCAL}

    async def _settle(self) -> None:
        assert self.shares is not None and self._sharing is not None
        await ending.settle(self.payments, self.shares, self._sharing, self.answers, self._last_chunk)
        self.receipts += await ending.give_receipts(
            self._session.keys, self.request.id, self.plan, self.payments, self.answers, self._publish
        )

    def _cancel(self) -> None:
        self._mailbox.cancel(NotAllowed("job", "cancelled by the customer"))
        assert self._draw is not None
        ads = self._draw.ads
        self._session.withdraw(self.request.id, {p: ads[p].wire for p in self._here() | self.payments.wronged})

    async def _end(self) -> None:
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)
        await self._background.end()
        if self._open is not None:
            self._open.close()
            self._open = None
            if self._payments is not None:
                self._session.settler.over(self.request.id, self._payments)
            self._session.spool.remove(self.request.id)


def _without_share(terms: Terms, share_ppm: int) -> Terms:
    """The terms that providers get: their budget is what the verification share leaves of the customer's."""
    if terms.verify != "sampled":
        return terms
    left_msat = terms.max_total_msat * 1_000_000 // (1_000_000 + share_ppm)
    return terms.model_copy(update={"max_total_msat": left_msat})
