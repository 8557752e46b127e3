"""One job at this provider: the desk that its kind works at. Credit, commitment, closing.

In a job that may be judged, a chunk that has been closed is committed to and asked for when its inputs' producers have
signed what they sent (`provider.statements`): beside the work, one chunk after the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

from nodewire.errors import (
    BadFrame,
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    OverBudget,
    PaymentRequired,
    TimedOut,
    WorkerFailed,
    first_of,
)
from nodewire.kind import Job, JobKind, Mailbox, Params, Worker
from nodewire.nostr.keys import Keys
from nodewire.pay.debts import Key
from nodewire.pay.dues import Due
from nodewire.pay.ledger import Ledger
from nodewire.protocol import feedback, sent
from nodewire.protocol.cached import WHOLE_PPM, due_msat
from nodewire.protocol.chunk import Leaf, chunk_of, claim, first_seq, leaf_of, opening
from nodewire.protocol.close import WITHDRAW, Close
from nodewire.protocol.codec import codings
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.guesses import is_computed
from nodewire.protocol.job import Request
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import LOCAL
from nodewire.protocol.sent import LACKING, Hashed, hashed, tensors_of
from nodewire.protocol.takeover import LOST, Takeover, assigned, hedges, present, price_msat
from nodewire.provider.credit import Credit
from nodewire.provider.prefixes import Finding
from nodewire.provider.statements import Statements
from nodewire.provider.telling import Publish, Telling
from nodewire.provider.timed import Timed
from nodewire.wire import signing
from nodewire.wire.edges import RESTART
from nodewire.wire.record import MAX_AHEAD, Record, inner_edges, restarted

NOTED, NOTED_BYTES = 16, 65_536
"""How many outputs of at most so many bytes wait to be hashed, if nobody is to sign for them."""

log = logging.getLogger("nodewire.provider")

Commit = Callable[[Sequence[ChunkRoot]], Awaitable[None]]
"""Takes the roots of a chunk; they are on disk when it returns. Only then their payment is asked for."""


class JobMailbox(Mailbox, Protocol):
    """A job's mailbox as the wire gives it: frames, and control documents between the job's nodes."""

    turn_us: Callable[[], int] | None
    """What is said to a customer that asks how long this node's part of a turn takes."""

    @property
    def failure(self) -> NodewireError | None: ...

    async def failed(self) -> NodewireError: ...

    async def control(self, peer: str, document: Mapping[str, Any]) -> None: ...

    def controls(self) -> AsyncIterator[tuple[str, Mapping[str, Any]]]: ...

    async def resumed(self, edge: str) -> int: ...

    def give_up(self) -> None: ...

    def cancel(self, error: NodewireError | None = None) -> None: ...

    def close(self) -> None: ...


class Members(Protocol):
    """The handover's side of a job (`nodewire.wire.handover`)."""

    async def heard(self, peer: str, document: Mapping[str, Any]) -> None: ...


class JobRun:
    """Runs this provider's tasks of one job, from its first frame to its last payment. A desk for the job's kind."""

    def __init__(
        self,
        *,
        keys: Keys,
        request: Request,
        manifest: Manifest,
        params: Params,
        kind: JobKind,
        mailbox: JobMailbox,
        worker: Worker,
        ledger: Ledger,
        publish: Publish,
        commit: Commit,
        patience_s: int = 30,
        takeover: Takeover | None = None,
        statements: Statements | None = None,
        record: Record | None = None,
        whose: str = "",
        cached_ppm: int = WHOLE_PPM,
    ) -> None:
        """`patience_s`: how long a payment that is due is waited for before the job is given up. `takeover`: the one by
        which this provider enters the job. `statements`: of a job that may be judged. `record`: the job's tape, if the
        plan lets its driver guess. `whose`: among whose prompts stages look for this one's beginning, nobody's if none;
        `cached_ppm`: what one that is found costs, as the ad says."""
        self.request = request
        self._takeover = takeover
        self._me = keys.public
        self._hedged = {task for task, hedge in request.plan.hedges.items() if hedge == self._me and takeover is None}
        """What this node computes, from the beginning, along with who has it: nobody consumes it before it enters."""
        self.tasks = self._mine()
        self._entered = self._first_chunks()
        first = min(self._entered.values()) if takeover is not None else 0
        self.credit = Credit(patience_s=patience_s, first=first)
        self._patience_s = patience_s
        self._keys = keys
        self._kind = kind
        self._mailbox = mailbox
        self._finding = Finding(worker, manifest, whose)
        self._cached_ppm = cached_ppm
        self._worker = Timed(self._finding)
        mailbox.turn_us = self._worker.turn_us
        self._ledger = ledger
        self._telling = Telling(keys, request, manifest, publish)
        self._commit = commit
        narrowed = codings(manifest, request.plan.terms.codecs)
        self._job = Job(request.id, manifest, self.tasks, params, narrowed, request.plan.terms.lookahead)
        self._generates = manifest.mode == "generate"
        self._noted: deque[tuple[str, int, Frame[Array]]] = deque()
        """Task, chunk and frame of outputs that are not hashed."""
        self._is_hashing = False
        self._hashing = asyncio.Lock()
        """Held by the chunk that is closed."""
        self._leaves: dict[tuple[int, str], list[Leaf]] = {}
        self._closed = set(range(first))
        self._said = -1
        """The newest chunk that this node says is over, as the driver. Rows of it may be on their way to it."""
        self._unsigned: set[int] = set()
        """Chunks of a generation that are claimed without the driver's close."""
        self._is_over = False
        """Whether the last one is closed."""
        self._closes = asyncio.Event()
        """Set with every chunk that is."""
        self._replayed = first
        """Frames of the chunks before this one come again, for a task that this node took over."""
        self._units: dict[int, int] = {}
        """By chunk, what this node's inputs of it count as."""
        self._all_units = 0
        self._roots: list[ChunkRoot] = []
        self._statements = statements
        self._record = record
        self._closing: dict[int, tuple[int, bool, int]] = {}
        """By chunk that the driver has closed, and of which rows may be lacking here: as `_finish` is given it."""
        self._late: dict[int, tuple[int, tuple[int, bool, int]]] = {}
        """By chunk that the driver has closed before it was all computed along: its last frame, and as `_finish` is
        given it."""
        self._made = -1
        """The newest frame that was put out."""
        self._finishing: list[asyncio.Task[None]] = []
        if record is not None:
            record.attend(self._inner_edges, self._plain, self._complete)
            self._record_took_over(record)
        self._unsettled: dict[int, tuple[int, dict[str, list[Leaf]], int]] = {}
        """By chunk that is closed and not asked for: its units, what its tasks put out, its close's attempt."""
        self._turn = asyncio.Lock()
        """Held by the chunk that is settled."""
        self._beside: set[asyncio.Task[None]] = set()
        self._fault: NodewireError | None = None
        """What went wrong beside the work: nothing is settled any more."""
        self._broken: NodewireError | None = None
        """What a member did wrong."""
        self._failed = False
        """Whether this node cannot go on, and settles what it did."""
        self._frames = 0
        """Put out; what was not computed is none."""
        self._text: list[str] = []
        self._ended = asyncio.Event()
        self._joining: asyncio.Queue[str] = asyncio.Queue()
        self.handover: Members | None = None
        """Who takes part in handovers for this job; it is given the control documents about them."""

    @property
    def drives(self) -> bool:
        return self._driver == self._me

    @property
    def attempt(self) -> int:
        return self._takeover.attempt if self._takeover is not None else 0

    def open_chunk(self) -> int:
        """The first chunk that has not been closed: who enters now has what follows, and hears no earlier close."""
        return max(self._said, *self._closed, -1) + 1

    def feeds(self, edge: str) -> str | None:
        """Who has now what comes of an edge of a task that this node took over; None of others."""
        found = next((one for one in self._job.manifest.edges if one.name == edge), None)
        if found is None or found.source not in self._entered:
            return None
        return assigned(self.request.plan, self._takeover).get(found.target)

    @property
    def _driver(self) -> str:
        provider = assigned(self.request.plan, self._takeover)[self._job.manifest.driver.name]
        return self.request.customer if provider == LOCAL else provider

    def _mine(self) -> tuple[str, ...]:
        now = assigned(self.request.plan, self._takeover)
        return tuple(task for task, provider in now.items() if provider == self._me or task in self._hedged)

    def _first_chunks(self) -> dict[str, int]:
        """By task that this node took over, the first chunk for which it is paid."""
        if self._takeover is None:
            return {}
        return {task: first for task, _, entered, first in self._takeover.replaced if entered == self._me}

    def _first_open(self) -> int:
        """The first chunk that had not been closed when the newest takeover was signed; 0 without one."""
        return max((first for *_, first in self._takeover.replaced), default=0) if self._takeover is not None else 0

    def _record_took_over(self, record: Record) -> None:
        is_restarted = bool(restarted(self._job.manifest, self.request.plan, self._takeover))
        record.took_over(self._first_open(), restarted=is_restarted)

    def _inner_edges(self) -> set[str]:
        """Those between tasks, of this node's tasks."""
        manifest, inner = self._job.manifest, inner_edges(self._job.manifest)
        return {
            edge.name for edge in manifest.edges if edge.name in inner and {edge.source, edge.target} & {*self.tasks}
        }

    async def took_over(self, takeover: Takeover) -> None:
        """The assignment changes: tasks come here, or are another's now. Called before frames take their new ways."""
        known = self._takeover.replaced if self._takeover is not None else ()
        before, self._takeover = set(self.tasks), takeover
        self.tasks, self._entered = self._mine(), self._first_chunks()
        if self._record is not None:
            self._record_took_over(self._record)
            fresh = {one[0] for one in takeover.replaced} - {one[0] for one in known}
            if (edge := self._record.torn(fresh - {*self.tasks})) is not None:
                self._mailbox.cancel(LinkLost(edge, "gone while a tree of guesses was sent again"))
        if self._statements is not None:
            self._statements.took_over(takeover)
        if self._failed and self._entered:  # who calls has not heard that it cannot
            await self._say_lost()
        for task in self.tasks:
            if task not in before:
                self._replayed = max(self._replayed, self._entered[task])
                self._joining.put_nowait(task)
        if not self.tasks:
            # As its customer reads it, who may not have heard yet: wait for a takeover, or begin the job anew.
            self._mailbox.cancel(
                LinkLost(takeover.signer, f"says that this node is gone, in attempt {takeover.attempt}")
            )

    async def run(self) -> None:
        """Serve until the job has ended and everything due is paid; publishes feedback and the result.

        Raises:
            NodewireError: the job failed here; feedback says so.
        """
        broke = own = True  # if it is cancelled, or this software is at fault
        await self._telling.say("processing")
        serving = asyncio.create_task(self._kind.serve(self._job, self._mailbox, self._worker, self))
        ended = asyncio.create_task(self._ended.wait())
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((serving, ended, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            if serving.done() and (error := serving.exception()) is not None:
                raise first_of(error)
            await self._ended.wait()
            if (broken := self._broken or self._fault) is not None:
                raise broken
            serving.cancel()
            text = "".join(self._text) if self.drives else ""
            await self._telling.result(self._roots, text, self._frames, self._worker.microseconds())
            await self.credit.all_paid(None if self._generates else self._mailbox.failed)
            broke = False
            await self._telling.say("success")
        except NodewireError as error:
            broke, own = broke and self._broke_by(error), isinstance(error, WorkerFailed) and not error.by
            self._failed = True
            if not await self._gives_up_alone(error):
                self._mailbox.cancel(error)
                self._mailbox.close()  # what comes from now on is the node's to answer
            await self._claim_unclosed()
            await self._stop_settling(error)
            await self._telling.failed(error, self.tasks)
            raise
        finally:
            left = (serving, ended, watching, *self._beside)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._mailbox.close()
            if not broke:
                self._ledger.went_through(self.request.id)
            elif own:
                self._ledger.interrupted(self.request.id)
            else:
                self._ledger.broke_off(self.request.id, time.time())

    def _broke_by(self, error: NodewireError) -> bool:
        """Whether the job broke off, and is not just unpaid: it has waited for money while others had ended it, too."""
        return not isinstance(error, PaymentRequired) or bool(error.by) or self._mailbox.failure is not None

    async def _gives_up_alone(self, error: NodewireError) -> bool:
        """Whether it is only this node that cannot go on, and who replaces it has been told."""
        if self.handover is None or not isinstance(error, WorkerFailed):
            return False
        self._mailbox.give_up()
        return await self._say_lost()

    async def _say_lost(self) -> bool:
        """Tell who replaces this node that it cannot go on; False if the job is over anyway."""
        to = self.request.customer if self.drives else self._driver
        try:
            await self._mailbox.control(to, {"t": LOST, "peer": self._me})
        except NodewireError:
            return False
        return True

    async def _watch(self) -> None:
        """End a job that stands still, for it holds a slot; where guesses are allowed also one that computes without
        end: nobody who never guesses may take as long for a chunk. Raises TimedOut."""
        limit_s = self.request.plan.first_result_ms / 1000 + self._patience_s
        frames, chunk, spells = -1, 0, 0
        while frames != self._frames and spells <= self._job.manifest.chunk:
            frames = self._frames
            spells = spells + 1 if self._record is not None and chunk == self.open_chunk() else 0
            chunk = self.open_chunk()
            await asyncio.sleep(limit_s)
        raise TimedOut("frames", f"none for {limit_s:.0f} s, or not enough for chunk {chunk}")

    async def admit(self, chunk: int, units: int = 1) -> None:
        if chunk < self._replayed:
            return  # paid to who did it first
        if chunk in self._closed and self._record is None:
            raise BadFrame("chunk", f"{chunk} has been closed")
        plan = self.request.plan
        while (self._all_units + units - self._units.get(chunk, 0)) * plan.chunk_msat > plan.terms.max_total_msat:
            is_guess = chunk - 1 not in self._closed or self._is_over  # which may never come true
            if self._record is not None and is_guess:
                self._closes.clear()
                await self._closes.wait()
                continue
            raise OverBudget(
                "max_total_msat", f"the job's budget is used up: what follows chunk number {chunk - 1} would cost more"
            )
        await self.credit.admit(chunk)
        self._all_units += max(0, units - self._units.get(chunk, 0))
        self._units[chunk] = max(units, self._units.get(chunk, 0))

    def produced(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        self._frames += is_computed(frame)
        if isinstance(text := frame.meta.get("text"), str):
            self._text.append(text)
        if self._record is None or frame.edge not in self._record.inner:  # else it may be a guess
            self._note(task, chunk, frame)
        self._made = max(self._made, frame.seq)
        self._finish_late()

    def _note(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        """Take note of an output for its chunk's commitment, and its statement. It is hashed when it has been sent, and
        in a generation that nobody judges with others of its positions: what is done in a row takes a fraction."""
        self._noted.append((task, chunk, frame))
        is_small = sum([array.nbytes for array in frame.tensors]) <= NOTED_BYTES
        waits = is_small and self._generates and self._statements is None
        if not waits or len(self._noted) >= NOTED:
            self._hash_soon()

    def _hash_soon(self) -> None:
        if not self._is_hashing:
            self._is_hashing = True
            asyncio.get_running_loop().call_soon(self._hash)

    def _hash(self) -> None:
        """Hash the oldest output that is noted, and the next one when others have had their turn."""
        self._is_hashing = False
        if not self._noted:
            return
        try:
            self._hashed(*self._noted.popleft())
        except NodewireError as error:
            self._fail(error)
        if self._noted:
            self._hash_soon()

    async def _all_hashed(self) -> None:
        """Hash what is noted now."""
        for _ in range(len(self._noted)):
            if self._noted:
                self._hashed(*self._noted.popleft())
            await asyncio.sleep(0)

    def received(self, task: str, frame: Frame[Array]) -> None:
        assert self._record is not None
        if frame.seq >= RESTART and not restarted(self._job.manifest, self.request.plan, self._takeover):
            raise BadFrame(frame.edge, f"seq: {frame.seq}, and the driver was not replaced")
        if frame.edge in self._record.inner:
            self._record.came(frame.edge, self.attempt, frame)
        else:  # the customer's, for who computes it again
            self._record.write(self.request.id, frame.edge, self.attempt, frame)

    def _plain(self, edge: str, chunk: int, frame: Frame[Array]) -> None:
        """What came or went on an inner edge is final."""
        task = next(one.source for one in self._job.manifest.edges if one.name == edge)
        if task in self.tasks:
            self._note(task, chunk, frame)

    def _hashed(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        if (
            chunk < self._entered.get(task, 0) and task not in self._hedged
        ):  # committed by who did it first, who may have died before it signed it
            if self._statements is not None:
                self._statements.produced(chunk, frame.edge, hashed(frame))
                self._state_whole(frame.edge)
            return
        leaf = leaf_of(self.request.plan.manifest, frame)
        self._leaves.setdefault((chunk, task), []).append(leaf)
        if self._statements is not None:
            self._statements.produced(chunk, frame.edge, Hashed(leaf.seq, tensors_of(leaf), frame.meta))
            if task in self._entered:
                self._state_whole(frame.edge)
            if not self._generates:  # a call's part is whole; who waits for it may be whom this node's close waits for
                self._state(chunk, self.attempt)

    async def resumed(self, task: str) -> tuple[int, int] | None:
        if task not in self._entered:
            return None
        base = self.attempt * RESTART
        tokens = next(one for one in self._job.manifest.outputs(task) if one.target == CUSTOMER)
        return base, await self._mailbox.resumed(tokens.name)

    async def completed(self, chunk: int, units: int, end: bool, positions: int | None = None) -> None:
        if chunk < self._replayed:
            return
        if self._generates:
            self._said = max(self._said, chunk)
            close = Close.sign(
                self._keys,
                request=self.request.id,
                attempt=self.attempt,
                chunk=chunk,
                units=units,
                end=end,
                positions=positions,
            )
            # One who has just died does not keep the others from hearing it.
            others = (one for one in present(self.request.plan, self._takeover) if one != self._me)
            await asyncio.gather(*(self._tell(peer, close) for peer in others))
        await self._finish(chunk, units, end, self.attempt, positions)

    async def _tell(self, peer: str, close: Close) -> None:
        try:
            await self._mailbox.control(peer, close.control())
        except LinkLost as error:
            log.info("job %s: close for %s: %s", self.request.id[:8], peer[:8], error)

    def _state(self, chunk: int, attempt: int, edge: str | None = None) -> None:
        """Sign what was sent in a chunk (on one edge), and tell the consumers."""
        assert self._statements is not None
        along = hedges(self.request.plan, self._takeover)
        for peer, said in self._statements.sign(chunk, attempt, edge).items():
            mine = [one for one in said if along.get(one.task) != self._me]  # what nobody was sent is kept for later
            self._spawn(signing.tell(self._mailbox.control, peer, mine))

    def _state_whole(self, edge: str) -> None:
        """Sign what this node has computed again in place of who died, and tell the consumer."""
        assert self._statements is not None
        for chunk in self._statements.whole(edge):
            self._state(chunk, self.attempt, edge)

    async def joined(self) -> str:
        return await self._joining.get()

    async def listen(self) -> None:
        """Follow the job's control documents until it ends; raises what ended it."""
        async for peer, document in self._mailbox.controls():
            try:
                await self.came(peer, document)
            except (
                BadInput,
                NotAllowed,
            ) as error:  # one member's bad word makes nobody deaf to the driver's
                log.info("job %s: %s by %s ignored: %s", self.request.id[:8], document.get("t"), peer[:8], error)

    async def came(self, peer: str, document: Mapping[str, Any]) -> None:
        """A node of the job sent a control document. Raises BadInput, NotAllowed: one that means nothing."""
        if document.get("t") == WITHDRAW and peer == self.request.customer:
            self._mailbox.cancel(NotAllowed("job", "withdrawn by the customer"))
        elif (close := Close.from_control(document)) is not None:
            await self.heard(close)
        elif self._statements is not None and (said := sent.from_control(document)) is not None:
            for one in said:
                self._statements.heard(one)
        elif self._statements is not None and document.get("t") == LACKING:
            await self._all_hashed()
            self._state_whole(edge := str(document.get("edge")))
            again = self._statements.again(peer, document.get("edge"), document.get("first"))
            self._spawn(signing.tell(self._mailbox.control, peer, again))
            self._spawn(self._statements.ask_for(edge, self._mailbox.control))
        elif self.handover is not None:
            await self.handover.heard(peer, document)

    async def heard(self, close: Close) -> None:
        """The driver says that a chunk is over; whoever passed it on.

        Raises:
            BadFrame, BadSignature: it is not this job's, not signed by its driver, or counts what was computed here as
                something else.
        """
        if close.request != self.request.id or close.attempt > self.attempt or not self._generates:
            raise BadFrame("close", "of another job or attempt")
        close.check(self._driver)
        if close.units != self._units.get(close.chunk, close.units):
            raise BadFrame("units", f"{close.units}, chunk {close.chunk} had {self._units[close.chunk]} here")
        if close.positions is not None and not (
            close.end and close.chunk and 0 < close.positions <= self._job.manifest.chunk
        ):
            raise BadFrame(
                "positions", f"{close.positions} of chunk {close.chunk}, which is not the last, or not so long"
            )
        await self._finish(close.chunk, close.units, close.end, close.attempt, close.positions)

    async def _finish(self, chunk: int, units: int, end: bool, attempt: int, positions: int | None = None) -> None:
        """This node's part of a chunk is complete: commit, and ask for its payment."""
        if chunk in self._closed or chunk in self._closing:
            return
        if self._record is None:
            await self._finish_plain(chunk, (units, end, attempt), positions)
            return
        self._record.check(chunk)
        self._closing[chunk] = units, end, attempt
        try:
            self._record.close(chunk, positions)
        except BadFrame as error:  # the driver's word contradicts what it sent
            self._broken = error
            self._ended.set()

    async def _finish_plain(self, chunk: int, close: tuple[int, bool, int], positions: int | None) -> None:
        """The same where nobody guesses. The ring waits for its providers, and for nobody who computes along."""
        manifest = self._job.manifest
        last = first_seq(manifest, chunk + 1) - 1 if positions is None else first_seq(manifest, chunk) + positions - 1
        if not self._hedged or last <= self._made:
            await self._finished(chunk, *close)
        elif chunk < chunk_of(manifest, max(self._made, 0)) + MAX_AHEAD:
            self._late.setdefault(chunk, (last, close))
        else:
            raise BadFrame("chunk", f"{chunk} is closed, frame {self._made} is the newest here")

    def _finish_late(self) -> None:
        """Finish the chunks that were closed and lack nothing any more."""
        for chunk in sorted(chunk for chunk, (last, _) in self._late.items() if last <= self._made):
            _, (units, end, attempt) = self._late.pop(chunk)
            if units == self._units.get(chunk):
                self._closed.add(chunk)
                self._finishing.append(self._spawn(self._finished(chunk, units, end, attempt)))
            else:
                log.info("job %s: chunk %d was closed with %d units", self.request.id[:8], chunk, units)

    def _complete(self, chunk: int) -> None:
        """No row of a chunk that the driver has closed is lacking."""
        self._closed.add(chunk)  # at once: its close may come twice
        self._finishing.append(self._spawn(self._finished(chunk, *self._closing.pop(chunk))))

    async def _finished(self, chunk: int, units: int, end: bool, attempt: int) -> None:
        self._closed.add(chunk)
        self._is_over = self._is_over or end
        self._closes.set()
        async with self._hashing:  # the chunks in their order
            await self._all_hashed()
            tasks = {task: self._leaves.pop((chunk, task), None) for task in self.tasks}
            made = {task: leaves for task, leaves in tasks.items() if leaves is not None}
            self._unsettled[chunk] = units, made, attempt
            if self._statements is None:
                await self._settle(chunk, end)
                return
            self._state(chunk, attempt)
            # Not waited for here: what is waited for comes by those that called this.
            self._spawn(self._settle(chunk, end))

    async def _settle(self, chunk: int, end: bool) -> None:
        """Commit to a chunk, and ask for its payment, when what it was computed from is signed."""
        async with self._turn:
            if self._fault is not None:
                return
            units, made, attempt = self._unsettled[chunk]
            if made:
                if self._statements is not None:  # what its inputs are signed by, it is judged by
                    attempt = await self._statements.complete(chunk, self._mailbox.control)
                roots = [self._root(leaves, task, chunk, attempt) for task, leaves in made.items()]
                await self._commit(roots)
                self._roots += roots
                cached = min(units, self._finding.units(made)) if self._generates and chunk == 0 else 0
                await self._ask(chunk, units, cached, claim(roots), attempt)
            del self._unsettled[chunk]
            if end:
                self._ended.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the job's work; its fault ends the job."""

        async def guarded() -> None:
            try:
                await work
            except NodewireError as error:
                self._fail(error)

        task = asyncio.create_task(guarded())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    def _fail(self, error: NodewireError) -> None:
        self._fault = self._fault or error
        self._ended.set()

    async def _stop_settling(self, error: NodewireError) -> None:
        """The job failed: what cannot be committed to without its inputs' producers' word is not asked for either."""
        if self._statements is None:
            return
        self._fault = self._fault or error
        self._statements.stop(error)
        async with self._turn:
            left, self._unsettled = self._unsettled, {}
        if chunks := sorted(chunk for chunk, (_, made, _) in left.items() if made):
            log.info("job %s: not asked for: chunks %s, whose inputs nobody signed", self.request.id[:8], chunks)

    def _root(self, leaves: Sequence[Leaf], task: str, chunk: int, attempt: int) -> ChunkRoot:
        job = self.request.id
        made = opening(self._keys, self._job.manifest, leaves, request=job, task=task, chunk=chunk, attempt=attempt)
        return ChunkRoot(request=job, task=task, chunk=chunk, attempt=attempt, root=made.root())

    async def _claim_unclosed(self) -> None:
        """The job failed: chunks whose successor had begun were complete, though the driver has not said so."""
        if not self._generates or self.drives:
            return
        left = sorted(set(self._units) - self._closed)
        complete = left[:-1] if self._record is None else list(takewhile(self._record.is_past, left))
        for chunk in complete:
            self._unsigned.add(chunk)
            await self._finish(chunk, self._units[chunk], False, self.attempt)
        await asyncio.gather(*self._finishing)

    async def _ask(self, chunk: int, units: int, cached: int, root: str, attempt: int) -> None:
        price = price_msat(self.request.plan, self._takeover, self._me, chunk)
        amount_msat = due_msat(price, units, cached, self._cached_ppm)
        if not amount_msat:
            await self.credit.paid(chunk)
            return
        key = Key(self.request.id, self._me, chunk, attempt)
        due_by_s = int(time.time() + self._patience_s)
        claim = self._telling.claim(feedback.Due(chunk, attempt, units, amount_msat, root, cached))
        # What the driver has signed for came out; of all else the customer need not have got anything.
        self._ledger.owe(
            Due(key, self.request.customer, amount_msat, due_by_s),
            under_way=not self._generates or chunk in self._unsigned,
            claim=claim.to_json(),
        )
        await self.credit.due(chunk)
        await self._telling.publish(claim)
        self._ledger.told(key)
