"""One request that is under way at its customer: the job's mailbox, and all that runs beside it until the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import control_messages
from nodewire.customer.job.liveness import ProviderLiveness
from nodewire.customer.job.provider_events import WORD_S, Answers
from nodewire.customer.job.session import LocalMailbox, Session, signing_of
from nodewire.customer.payments.claims import Claims
from nodewire.customer.payments.job_payments import JobPayments, most_chunks, most_units
from nodewire.customer.payments.rejected_frames import FrameRejection, is_one_word, rejection_of
from nodewire.customer.payments.verification_share import Shares
from nodewire.errors import BadFrame, LinkLost, NodeFailed, NodewireError, NotAllowed, TimedOut
from nodewire.protocol.job.chunk import AHEAD, chunk_of
from nodewire.protocol.job.feedback import Feedback
from nodewire.protocol.job.plan import LOCAL
from nodewire.protocol.job.tab import Tab
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.generation_tape import GenerationTape
from nodewire.wire.job.routes import routes_of
from nodewire.wire.job_member import Membership

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nodewire.customer.job.durations import JobTimes
    from nodewire.customer.job.order import JobOrder
    from nodewire.customer.job.tickets import Tickets
    from nodewire.customer.planning.planner import Draw
    from nodewire.nostr.event import Event
    from nodewire.protocol.tensors.frame import Array, Frame


class JobAttempt:
    """`await start()` publishes the request; `await end()` in any case, also if that fails."""

    def __init__(
        self,
        session: Session,
        order: JobOrder,
        tickets: Tickets,
        drawn: Draw,
        request: Event,
        timing: JobTimes,
    ) -> None:
        manifest, purse = order.manifest, session.purse
        wires = {public: ad.wire for public, ad in drawn.ads.items()}
        self.drawn, self.request, self.plan = drawn, request, drawn.plan
        self.background = JobTaskGroup()
        generates, lookahead = manifest.mode == "generate", self.plan.terms.lookahead
        self.payments = JobPayments(
            request.id,
            self.plan,
            manifest,
            drawn.ads,
            purse,
            most_units=most_units(manifest, order.inputs),
            requested_s=request.created_at,
        )
        self.shares = Shares(request.id, self.plan, session.share_account, grows=generates)
        self._claims = Claims(self.payments, self.background)
        self.answers = Answers(
            session.keys,
            request.id,
            self.plan,
            manifest,
            self._claims,
            self.background,
            network=session.network,
            chunks=most_chunks(manifest, order.inputs),
        )
        self._tape = GenerationTape(session.spool, request.id, manifest, lookahead) if generates else None
        self._member = Membership(
            JobChannelSpec(
                request.id,
                routes_of(manifest, self.plan),
                tape=self._tape or session.spool,
            ),
            manifest,
            session.node,
            wires,
            on_loss=self._give_time,
        )
        self._mailbox = self._member.mailbox
        local = any(a.provider == LOCAL for a in self.plan.tasks)
        self._local = LocalMailbox(self._mailbox, manifest, self.plan) if local else None
        self.payments.on_charge = self._sign_tab
        self._session, self._order, self._manifest = session, order, manifest
        self._tickets, self._timing = tickets, timing
        self.sharing: asyncio.Task[None] | None = None
        """What pays the verification shares as chunks come."""
        self._delivered = -1
        self._moved = asyncio.Event()
        """Set with every chunk that is delivered."""
        self._deadline: asyncio.Timeout | None = None
        """Of the output that is waited for now, if one is."""
        self._patient_until = 0.0
        """No output is late before that (the loop's time)."""
        self._liveness = ProviderLiveness(session.node, wires)
        self._named: set[str] = set()
        """Who is said to be why the job ended."""
        self.is_open = True

    async def start(self) -> None:
        """Publish the request, and send tickets and inputs from now on. Raises as `Pool.publish`."""
        session, spawn = self._session, self.background.spawn
        session.settler.requests(self.request.id)
        neighbours = set(self._mailbox.neighbours)
        if self._local is not None:
            # the driver tells everybody when a chunk ends
            neighbours |= {*self.plan.providers()}
        for provider in sorted(neighbours):
            spawn(self._member.link(provider))
        spawn(self.answers.follow(session.pool))
        signing = signing_of(session.keys, self.request.id, self._manifest, self.plan)
        driver = self.plan.node_of(self._manifest.driver.name)
        following = control_messages.follow(
            self.request.id, self._mailbox, driver, self.payments, signing, self.background
        )
        spawn(self._unless_told(following))
        self.sharing = asyncio.create_task(self.shares.follow(self.payments))
        spawn(self._member.follow_losses())
        await self.publish(self.request)
        for provider in self.plan.providers():
            spawn(self._tickets.send(self.request.id, provider, self.answers.heard, session.pool))
        spawn(self._unless_told(self._send()))
        if self._local is not None:
            serving = session.serve_locally(
                self._order,
                self.request.id,
                self.plan,
                self._local,
                self.payments.closed,
                signing,
                self._tape,
            )
            spawn(self._unless_told(serving))

    async def next(self, deadline_s: float) -> Frame[Array]:
        """The next frame for the customer itself; those for tasks that run here are handed to them.

        A link that is lost gets the time of a first output.

        Raises:
            TimedOut: none came in time.
            NodewireError: what ended the job.

        """
        try:
            until = max(asyncio.get_running_loop().time() + deadline_s, self._patient_until)
            async with asyncio.timeout_at(until) as self._deadline:
                frame = await self._arrived()
                while self._local is not None and self._local.accept(frame):
                    frame = await self._arrived()
                return frame
        except TimeoutError as error:
            # Providers wait for payments that cannot be made: then that is the reason, not their silence.
            late = TimedOut("output", f"none came within {deadline_s:.0f} s")
            raise next(iter(self._claims.unpaid.values()), late) from error
        except NodewireError as error:
            if not (isinstance(error, BadFrame) or is_one_word(error)):
                raise
            self._deadline = None
            if (meant := await self._meant(error)) is None:
                raise
            raise meant from error
        finally:
            self._deadline = None

    def rejection_of(self, error: BadFrame, edge: str) -> FrameRejection | None:
        """What it means that a frame on `edge` is of no use here; None if it is no provider's."""
        return rejection_of(error, edge, self._manifest, {a.task: a.provider for a in self.plan.tasks})

    async def _meant(self, error: NodewireError) -> NodewireError | None:
        """What has ended the job as who ended it signs it, for a neighbour may only be passing it on.

        None if it is the error itself; `by` whom is known then.
        """
        if isinstance(error, FrameRejection):
            return None
        if not error.by:
            return self.rejection_of(error, error.field) if isinstance(error, BadFrame) else None
        with suppress(TimeoutError):
            async with asyncio.timeout(WORD_S):
                await self.background.ended.wait()
        said = Feedback("", error.by, self.request.id, self.plan.customer, "error", error.code)
        meant = self.background.fault or self.answers.reported(said)
        if isinstance(meant, FrameRejection) or meant.code != error.code or not meant.by:
            return meant
        error.by = meant.by
        return None

    async def _unless_told(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside the job. What a neighbour has told this node is told to `next`, too."""
        try:
            await work
        except NodewireError as error:
            if is_one_word(error):
                return
            if not isinstance(error, BadFrame) or (meant := self.rejection_of(error, error.field)) is None:
                raise
            raise meant from error

    def delivered(self, chunk: int) -> None:
        """All outputs of the chunk have come."""
        self._delivered = max(self._delivered, chunk)
        self._moved.set()

    async def _send(self) -> None:
        """Send the inputs of every call, of later ones as those before them come back. Raises as `JobMailbox.put`.

        Nobody works further ahead of its payment, so nothing is later for it; and no task has more to keep for a
        neighbour that is slower than the room which every task has. No output is late while its inputs are on the way.
        """
        for frame in self._order.inputs:
            while chunk_of(self._manifest, frame.seq) > self._delivered + AHEAD:
                self._moved.clear()
                await self._moved.wait()
            await self._mailbox.put(frame)
            self._give_time()

    @property
    def lost_here(self) -> set[str]:
        """Providers that this node itself found to be gone."""
        return self._member.lost_here

    def blamed(self) -> set[str]:
        """Providers that are gone, or for whose fault the job ended."""
        failure = self.background.fault
        named = {failure.field} & set(self.plan.providers()) if failure is not None else set()
        return self.lost_here | self.answers.blamed | named | self._named

    async def find_absent(self, error: NodewireError | None) -> set[str]:
        """Providers whose absence ended the job with `error`.

        What others say of one of them is not believed before this node has asked it. Where nobody is named, all are.
        """
        found = self.lost_here | self.answers.failed
        if isinstance(error, NodeFailed):
            found |= await self._failed(error)
        elif isinstance(error, LinkLost | TimedOut):
            self._named = {error.field} & set(self.plan.providers())
            asked = sorted((self._named or set(self.plan.providers())) - found)
            found |= await self._liveness.absent(asked)
            if not found:  # either lies who says it or who is named, or the way between them is broken
                self._named |= {error.by} & set(self.plan.providers())
        if found:
            named = ", ".join(sorted(provider[:8] for provider in found))
            self._session.log.info("job %s: %s gone", self.request.id[:8], named)
        return found

    async def _failed(self, error: NodeFailed) -> set[str]:
        """Providers whose own fault ended the job.

        A neighbour may only pass it on, so their own word is waited for; what it says of another is no such word.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(WORD_S if error.by else 0):
                await self.answers.own_word()
        return self.answers.failed or {error.by} - {""} or self.answers.blamed

    def spent_msat(self) -> int:
        """Paid so far, to providers and for verification."""
        shares = sum(debt.amount_msat for debt in self.shares.paid.values())
        return shares + sum(one.due.amount_msat for one in self.payments.paid.values())

    def _sign_tab(self, provider: str, chunk: int, total_msat: int) -> None:
        """Say to a provider what it is owed; the driver passes it on to those that this node has no link to."""
        tab = Tab.sign(self._session.keys, request=self.request.id, payee=provider, chunk=chunk, total_msat=total_msat)
        driver = self.plan.node_of(self._manifest.driver.name) if self._manifest.mode == "generate" else ""
        neighbours = {*self._mailbox.neighbours} if self._local is None else {*self.plan.providers()}
        peer = provider if provider in neighbours else driver
        if peer in neighbours:
            self.background.spawn(self._tell_tab(peer, tab))

    async def _tell_tab(self, peer: str, tab: Tab) -> None:
        try:
            await self._mailbox.control(peer, tab.control())
        except NodewireError as error:  # it is gone, or the job is over: the ledger has the debt
            self._session.log.info("job %s: the tab for %s: %s", self.request.id[:8], tab.payee[:8], error)

    async def publish(self, event: Event) -> None:
        await self._session.pool.publish(event, timeout_s=10.0)

    def cancel(self) -> None:
        """Give the job up, and have all its providers know."""
        self.answers.withdrawn = True
        self._mailbox.cancel(NotAllowed("job", "cancelled by the customer"))
        ads = self.drawn.ads
        self._session.withdraw(self.request.id, {p: ads[p].wire for p in self.plan.providers()})

    async def end(self) -> None:
        """Stop all that runs. What providers still claim is the session's settler's from now on."""
        if self.sharing is not None:
            self.sharing.cancel()
            await asyncio.gather(self.sharing, return_exceptions=True)
        await self.background.end()
        await self._liveness.close()
        self._member.close()
        if self.is_open:
            self.is_open = False
            self._mailbox.close()
            await self.payments.close()
            self._session.settler.end_job(self.request.id, self.payments)
            self._session.spool.remove(self.request.id)

    async def _arrived(self) -> Frame[Array]:
        """The next frame of the job, or what ended it."""
        getting = asyncio.ensure_future(self._mailbox.get())
        failing = asyncio.ensure_future(self.background.ended.wait())
        try:
            await self._liveness.wait_for_output(getting, failing)
            if getting.done():
                return getting.result()
            assert self.background.fault is not None
            raise self.background.fault
        finally:
            for task in (getting, failing):
                task.cancel()

    def _give_time(self) -> None:
        """Wait as long as for a first output: for the one that is waited for, or the next that will be."""
        self._patient_until = asyncio.get_running_loop().time() + self.plan.first_result_ms / 1000
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._patient_until)
