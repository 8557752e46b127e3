"""One job as its buyer sees it: plan, request, tickets, streaming, payments, receipts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

from nodewire import errors
from nodewire.customer import requesting
from nodewire.customer.payments import JobPayments
from nodewire.customer.planning import PATIENCE_EPOCHS, Draw, draw
from nodewire.customer.receipts import ZapReceipts, receipts_for
from nodewire.customer.session import LocalMailbox, Session
from nodewire.customer.shares import Shares
from nodewire.customer.timing import Handed, Timing
from nodewire.errors import (
    TABLE,
    BadFrame,
    BadInput,
    LinkLost,
    NodewireError,
    NoProvider,
    NotAllowed,
    OverBudget,
    PaymentRequired,
    TimedOut,
    WorkerFailed,
)
from nodewire.kind import JobKind, Params
from nodewire.nostr import nip44, nip57, nip59
from nodewire.nostr.event import Event
from nodewire.nostr.nip01 import Filter
from nodewire.plan.assign import Busy
from nodewire.protocol import feedback, job, kinds, receipt, result
from nodewire.protocol import takeover as takeovers
from nodewire.protocol.chunk import chunk_of
from nodewire.protocol.close import Close
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.feedback import Feedback
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import LOCAL, MAX_BUSY, MAX_REDRAWS, Plan, Terms, ends
from nodewire.protocol.takeover import Takeover
from nodewire.wire.handover import Handover
from nodewire.wire.mailbox import JobMailbox, OnLost, Route

EPOCH_S = 30.0
"""How long a customer waits for a certified epoch."""
LATE_CLAIMS_S = 0.3
"""How long after a job's failure its providers may still claim what they had completed."""
LINGER_S = 3.0
"""How long the payment of those claims may take."""
SETTLE_S = 30.0
"""How long after the last output payments and receipts may take."""
SILENCE_S = 4.0
GRACE_S = 10.0
"""How long a job waits for a provider that is lost to be replaced."""
_REPLACEABLE = frozenset({WorkerFailed.code, LinkLost.code})
_TICKET_EVERY_S = 1.0
_SPECIAL_TOKENS = 16
_PAY_AGAIN_S = (0.2, 1.0, 3.0)


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
        self.results: dict[str, result.Said] = {}
        """What each provider's result says (decrypted), by public key."""
        self.roots: dict[tuple[str, ChunkRoot], None] = {}
        """What providers said in their results that they committed to."""
        self._session = session
        self._kind = kind
        self._handover: Handover | None = None
        self.shares: Shares | None = None
        self._sharing: asyncio.Task[None] | None = None
        self._lost_s = 0.0
        self._deadline: asyncio.Timeout | None = None
        self._blamed: set[str] = set()
        self._address = manifest_address
        self._terms = terms
        self._params = kind.check(manifest, params)
        self._inputs = inputs
        self._salt = secrets.token_hex(32)
        self._contents = tuple((frame.edge, frame.seq, job.content_of(frame)) for frame in inputs)
        self._accept = accept
        self._patience = patience
        self._busy: list[Busy] = []
        self._draw: Draw | None = None
        self._request: Event | None = None
        self._payments: JobPayments | None = None
        self._open: JobMailbox | None = None
        self._local: LocalMailbox | None = None
        self._heard: set[str] = set()
        self._zap_receipts = ZapReceipts(session.network)
        self._unpaid: dict[str, NodewireError] = {}
        """Why a claim (`payment-required`, by event id) is not paid yet."""
        self._failure: NodewireError | None = None
        self._failed = asyncio.Event()
        self._said = asyncio.Condition()
        """Notified with every event of the job."""
        self._last_chunk = -1
        self._done = False
        self._tasks: set[asyncio.Task[None]] = set()

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
        members = self._draw.plan.members() if self._draw is not None else ()
        return gone | self._blamed | ({self._failure.field} & set(members) if self._failure is not None else set())

    @property
    def is_underway(self) -> bool:
        """Whether a request was published."""
        return self._request is not None

    @property
    def spent_msat(self) -> int:
        """Paid to providers so far."""
        return sum(one.due.amount_msat for one in self._payments.paid.values()) if self._payments is not None else 0

    @property
    def ticket(self) -> job.Ticket:
        return self._ticket_for(self.request.id)

    @property
    def _mailbox(self) -> JobMailbox:
        assert self._open is not None
        return self._open

    @property
    def params(self) -> Params:
        """With their defaults."""
        return self._params

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
                await self._pay_what_came()
        finally:
            await self._end()

    async def _pay_what_came(self) -> None:
        """A job that failed half-way is paid as far as it came: who leaves a chunk unpaid is refused later."""
        if self.payments.failed or not self.timing.outputs:
            return
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.sleep(LATE_CLAIMS_S)
                await self.payments.claims_settled()
        except TimeoutError:
            self._session.log.warning("what a failed job still owed could not be paid in time")

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
            except _Refused as refusal:
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
            raise next(iter(self._unpaid.values()), late) from error

    def _give_time(self) -> None:
        if self._deadline is not None and self._deadline.when() is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.plan.first_result_ms / 1000)

    async def _arrived(self) -> Frame[Array]:
        """The next frame of the job, or what ended it."""
        getting = asyncio.ensure_future(self._mailbox.get())
        failing = asyncio.ensure_future(self._failed.wait())
        try:
            done, _ = await asyncio.wait((getting, failing), return_when=asyncio.FIRST_COMPLETED)
            if getting in done:
                return getting.result()
            assert self._failure is not None
            raise self._failure
        finally:
            for task in (getting, failing):
                task.cancel()

    async def _redraw(self, refusal: _Refused) -> None:
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
            ticket=self._ticket_for("0" * 64).seal(),
        )
        self._payments = JobPayments(
            self._request.id,
            plan,
            self.manifest,
            drawn.ads,
            session.payer,
            session.relays,
            session.network,
            most_units=self._most_units(),
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
        session.settler.under_way.add(self._request.id)
        self._heard, self._failure, self._failed = set(), None, asyncio.Event()
        routes = {
            edge: Route(producer, (consumer,)) for edge, (producer, consumer) in ends(self.manifest, plan).items()
        }
        losses: asyncio.Queue[tuple[str, NodewireError]] = asyncio.Queue()

        def lost(peer: str, error: NodewireError) -> None:
            self._lost_s = time.time()
            self._give_time()
            losses.put_nowait((peer, error))

        # Only a generation goes on with a standby; a call of another model is made again.
        hands_over = self.manifest.mode == "generate"
        self._open = session.node.open_job(
            self._request.id, routes, on_lost=lost if hands_over else None, grace_s=GRACE_S, tape=session.spool
        )
        self._handover = Handover(
            session.keys,
            self._request.id,
            plan,
            self.manifest,
            self._open,
            session.node,
            {public: ad.wire for public, ad in drawn.ads.items()},
            open_chunk=self._payments.open_chunk,
            changed=self._took_over,
            publish=self._publish_takeover,
        )
        neighbours = set(self._mailbox.neighbours)
        if any(a.provider == LOCAL for a in plan.tasks):
            neighbours |= set(plan.providers())  # the driver tells everybody when a chunk ends
        for provider in sorted(neighbours):
            self._spawn(self._connect(provider, drawn.ads[provider].wire, lost if hands_over else None))
        self._spawn(self._listen(self._request.id))
        self._spawn(self._follow_controls())
        self._sharing = asyncio.create_task(self.shares.follow(self._payments))
        self._spawn(self._follow_losses(losses, self._handover))
        await session.pool.publish(self._request, timeout_s=10.0)
        for provider in plan.members():
            self._spawn(self._ticket(provider, self._request.id))
        for frame in self._inputs:
            await self._mailbox.put(frame)
        if any(a.provider == LOCAL for a in plan.tasks):
            local = self._local = LocalMailbox(self._mailbox, self.manifest, plan)
            self._spawn(
                session.serve_locally(
                    self._kind,
                    self._request.id,
                    self.manifest,
                    plan,
                    self._params,
                    local,
                    self._payments.closed,
                    self._handover,
                )
            )

    async def _connect(self, provider: str, addresses: Sequence[str], lost: OnLost | None) -> None:
        try:
            await self._session.node.link(provider, addresses)
        except NodewireError as error:
            if lost is not None:
                lost(provider, error)
            else:
                self._fail(LinkLost(provider, str(error)))

    async def _follow_losses(self, losses: asyncio.Queue[tuple[str, NodewireError]], handover: Handover) -> None:
        while True:
            await handover.lost(*await losses.get())

    async def _took_over(self, takeover: Takeover) -> None:
        now_s = time.time()
        lost_s = self._lost_s if now_s - self._lost_s < GRACE_S else now_s
        self.timing.takeovers.append(Handed(takeover.attempt, lost_s, now_s))
        self._give_time()
        await self.payments.took_over(takeover)

    async def _publish_takeover(self, takeover: Takeover) -> None:
        event = takeovers.build(self._session.keys, takeover, created_at=int(time.time()))
        await self._session.pool.publish(event, timeout_s=10.0)

    async def _ticket(self, provider: str, request: str) -> None:
        """Send the provider its ticket until it has been heard of."""
        ticket = self._ticket_for(request)
        while provider not in self._heard:
            now_s = int(time.time())
            rumor = nip59.rumor(self._session.keys.public, kinds.TICKET, created_at=now_s, content=ticket.to_json())
            wrap = nip59.wrap(rumor, self._session.keys, provider, now_s=now_s, ephemeral=True)
            try:
                await self._session.pool.publish(wrap, timeout_s=5.0)
            except NodewireError as error:
                self._session.log.debug("ticket: %s", error)
            await asyncio.sleep(_TICKET_EVERY_S)

    def _ticket_for(self, request: str) -> job.Ticket:
        return job.Ticket(request=request, params=dict(self._params), salt=self._salt, inputs=self._contents)

    def _most_units(self) -> int:
        """What chunk 0 may count at most: a prompt has no more tokens than bytes (and a few special ones)."""
        if self.manifest.mode != "generate":
            return 1
        size = sum(array.nbytes for frame in self._inputs for array in frame.tensors)
        positions = min(size + _SPECIAL_TOKENS, self.manifest.context or size + _SPECIAL_TOKENS)
        return -(-positions // self.manifest.chunk)

    async def _follow_controls(self) -> None:
        """Take note of what the driver signs off, which is what may be charged, and of takeovers."""
        handover = self._handover
        assert handover is not None
        async for peer, document in self._mailbox.controls():
            try:
                close = Close.from_control(document)
                if close is None:
                    await handover.heard(peer, document)
                    continue
                newest = handover.takeover.attempt if handover.takeover is not None else 0
                if close.request != self.request.id or close.attempt > newest:
                    raise BadFrame("close", "of another job or attempt")
                close.check(handover.driver)
            except (BadInput, NotAllowed) as error:  # one member's lie is not the driver's word
                self._session.log.warning("%s by %s was refused: %s", document.get("t"), peer[:8], error)
            else:
                await self.payments.closed(close.chunk, close.units)

    async def _listen(self, request: str) -> None:
        """Follow what the providers say about this job."""
        answers = frozenset({kinds.FEEDBACK, kinds.result_of(kinds.INFERENCE), nip57.RECEIPT})
        wanted = Filter(kinds=answers, tags={"e": frozenset({request})})
        async for event in self._session.pool.subscribe([wanted]):
            try:
                self._take(event)
                async with self._said:
                    self._said.notify_all()
            except NodewireError as error:
                self._session.log.debug("%s by %s ignored: %s", event.kind, event.pubkey[:8], error)

    def _take(self, event: Event) -> None:
        if event.pubkey not in self.plan.members():
            return
        if event.kind == kinds.FEEDBACK:
            heard = feedback.parse(event)
            if heard.request == self.request.id:
                self._feedback(heard)
        elif event.kind == kinds.result_of(kinds.INFERENCE):
            said = result.parse(event)
            self.roots.update(dict.fromkeys((event.pubkey, root) for root in said.roots))
            text = nip44.decrypt(said.ciphertext, nip44.conversation_key(self._session.keys, event.pubkey))
            self.results[event.pubkey] = result.Said.parse(text)
        else:
            self._zap_receipts.note(event)

    def _feedback(self, said: Feedback) -> None:
        self._heard.add(said.provider)
        if said.status == "payment-required":
            self._claimed(said)
        elif said.provider not in self._here():
            return  # a standby that is not ready, or who has been replaced
        elif said.status == "busy":
            self._fail(_Refused(said.provider, said.id))
        elif said.status == "error" and said.text in _REPLACEABLE and self.manifest.mode == "generate":
            self._spawn(self._fail_unless_replaced(said))
        elif said.status == "error":
            self._fail(self._reported(said))

    def _here(self) -> set[str]:
        """The providers that work on the job now."""
        assert self._handover is not None
        return set(self._handover.assigned.values()) - {LOCAL}

    async def _fail_unless_replaced(self, said: Feedback) -> None:
        await asyncio.sleep(GRACE_S)
        if said.provider in self._here():
            self._fail(self._reported(said))

    def _reported(self, said: Feedback) -> NodewireError:
        """What a provider's error means here."""
        who = said.provider[:8]
        if said.text != LinkLost.code:  # who lost a link is not who broke it
            self._blamed.add(said.provider)
        if said.text == OverBudget.code:
            budget_msat = self.plan.terms.max_total_msat
            return OverBudget(
                "max_total_msat", f"the budget of {budget_msat / 1000:g} sat is used up; what came is paid"
            )
        if said.text == PaymentRequired.code:
            reason = f"{who} waits for a payment, of this job or of an earlier one; see `nodewire wallet settle`"
            return PaymentRequired("provider", reason)
        return TABLE.get(said.text, WorkerFailed)("provider", f"{who} reports {said.text or 'an error'}")

    def _claimed(self, said: Feedback) -> None:
        try:
            if self.payments.expects(said):
                self._spawn(self._pay(said))
        except NodewireError as error:
            self._fail(error)

    async def _pay(self, said: Feedback) -> None:
        """Pay, trying again while the cause may pass; a payment that cannot be made ends the job."""
        for pause_s in (*_PAY_AGAIN_S, None):
            try:
                await self.payments.asked(said)
                self._unpaid.pop(said.id, None)
                return
            except NodewireError as error:
                self._unpaid[said.id] = error
                self._session.log.warning("payment to %s: %s", said.provider[:8], error)
                if said.provider not in self._here():
                    return  # whoever has left is owed this: it stays in the ledger
                if pause_s is None or not error.retryable:
                    await self.payments.fail(error)
                    self._fail(error)
                    return
            await asyncio.sleep(pause_s)

    async def _settle(self) -> None:
        """Wait for the last payments and the providers' receipts, then publish ours."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await self.payments.settled(self._last_chunk)
                if self.shares is not None and self._sharing is not None:
                    self._sharing.cancel()
                    await asyncio.gather(self._sharing, return_exceptions=True)
                    await self.shares.finish(self._last_chunk)
                async with self._said:
                    await self._said.wait_for(self._has_everything)
        except TimeoutError:
            self._session.log.warning("some providers asked for no payment or gave no receipt in time")
        paid = {one.provider for one in self.payments.paid.values()}
        for provider in (p for p in self.plan.members() if p in paid or p in self.plan.providers()):
            for one in receipts_for(
                provider, self.request.id, self.plan.digest(), self.payments.paid, self._zap_receipts
            ):
                event = receipt.build(self._session.keys, one, created_at=int(time.time()))
                await self._session.pool.publish(event, timeout_s=10.0)
                self.receipts.append(event)

    def _has_everything(self) -> bool:
        """Whether every provider has given its result, and a receipt for every zap."""
        here = self._here()
        return self.results.keys() >= here and all(
            self._zap_receipts.of(paid) for paid in self.payments.paid.values() if paid.provider in here
        )

    def _cancel(self) -> None:
        self._mailbox.cancel(NotAllowed("job", "cancelled by the customer"))
        assert self._draw is not None
        ads = self._draw.ads
        self._session.withdraw(self.request.id, {p: ads[p].wire for p in self._here()})

    async def _end(self) -> None:
        ending = {*self._tasks, *([self._sharing] if self._sharing is not None else [])}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()
        if self._open is not None:
            self._open.close()
            self._open = None
            if self._payments is not None:
                self._session.settler.over(self.request.id, self._payments)
            self._session.spool.remove(self.request.id)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, NodewireError) else LinkLost("job", repr(error)[:200]))

    def _fail(self, error: NodewireError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()


class _Refused(errors.Busy):
    """A provider of the plan has no free slot; `feedback` is the id of its signed word."""

    def __init__(self, provider: str, feedback: str) -> None:
        super().__init__("provider", f"{provider[:8]} has no free slot")
        self.provider = provider
        self.feedback = feedback
