"""One job at this provider: the desk that its kind works at.

Here is what members say to each other, and how a job begins and ends. Beside it: `job_context` (what all know of
it), `chunks` (which are open), `output_hasher`, `statement_sender`, `chunk_biller` (what becomes of a chunk that is
closed).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from nodewire.core.job_task_group import JobTaskGroup, typed_fault
from nodewire.errors import (
    BadFrame,
    BadInput,
    LinkLost,
    NodeFailed,
    NodewireError,
    NotAllowed,
    PaymentRequired,
    TimedOut,
)
from nodewire.kind import Job, JobKind, Mailbox
from nodewire.protocol.job.chunk_close import WITHDRAW, Close
from nodewire.protocol.job.tab import Tab
from nodewire.protocol.model.edge_codec import codings
from nodewire.protocol.speculation.frame_meta import is_computed
from nodewire.protocol.verification import statement
from nodewire.protocol.verification.statement import LACKING
from nodewire.provider.inference.chunk_biller import ChunkBiller, Commit
from nodewire.provider.inference.chunks import Chunks
from nodewire.provider.inference.credit import Credit
from nodewire.provider.inference.job_publisher import JobPublisher, Publish
from nodewire.provider.inference.output_hasher import OutputHasher
from nodewire.provider.inference.statement_sender import StatementSender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.tensors.frame import Array, Frame
    from nodewire.provider.inference.job_context import JobContext
    from nodewire.provider.inference.statements import Statements
    from nodewire.provider.tasks.job_worker import JobWorker
    from nodewire.wire.job.generation_tape import GenerationTape

log = logging.getLogger("nodewire.provider")


class JobMailbox(Mailbox, Protocol):
    """A job's mailbox as the wire gives it: frames, and control documents between the job's nodes."""

    turn_us: Callable[[], int] | None
    """What is said to a customer that asks how long this node's part of a turn takes."""

    @property
    def failure(self) -> NodewireError | None: ...

    async def failed(self) -> NodewireError: ...

    async def control(self, peer: str, document: Mapping[str, Any]) -> None: ...

    def controls(self) -> AsyncIterator[tuple[str, Mapping[str, Any]]]: ...

    def cancel(self, error: NodewireError | None = None) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JobPorts:
    """What a job calls at the provider that runs it."""

    publish: Publish
    refuse: Publish
    """Publishes the error of a job that has not begun."""
    commit: Commit
    begin: Callable[[], None] = lambda: None
    """Told before the first chunk is computed; it raises Busy where that may not be."""
    waited: Callable[[float], None] = lambda took_s: None
    """Told each wait of a chunk for money, in seconds."""


class JobRun:
    """Runs this provider's tasks of one job, from its first frame to its last payment. A desk for the job's kind."""

    def __init__(
        self,
        context: JobContext,
        *,
        kind: JobKind,
        mailbox: JobMailbox,
        worker: JobWorker,
        ledger: Ledger,
        ports: JobPorts,
        statements: Statements | None = None,
        tape: GenerationTape | None = None,
    ) -> None:
        """`statements`: of a job that may be judged. `tape`: a generation's."""
        self._context = context
        self.credit = Credit(patience_s=context.patience_s, waited=ports.waited)
        self._kind = kind
        self._mailbox = mailbox
        request, manifest = context.request, context.manifest
        self._worker = worker
        mailbox.turn_us = worker.times.turn_us
        self._ledger = ledger
        self._telling = JobPublisher(context, ports.publish, ports.refuse)
        self._may_begin = ports.begin
        self._is_withdrawn = False
        narrowed = codings(manifest, request.plan.terms.codecs)
        self._job = Job(request.id, manifest, context.tasks, context.params, narrowed, request.plan.terms.lookahead)
        self._statements = statements
        self._tape = tape
        self._task_group = task_group = JobTaskGroup()
        self._stating = StatementSender(statements, mailbox.control, task_group) if statements is not None else None
        self._hashing = OutputHasher(context, self._stating, task_group)
        self._settling = ChunkBiller(
            context,
            ledger,
            self.credit,
            commit=ports.commit,
            telling=self._telling,
            stating=self._stating,
            prompts=worker.prompts,
            task_group=task_group,
        )
        self._chunks = Chunks(
            context,
            tape,
            self.credit,
            begin=self._begin,
            hashing=self._hashing,
            settling=self._settling,
            task_group=task_group,
        )
        if tape is not None:
            tape.attend(context.inner_edges, self._plain, self._chunks.on_rows_whole)
        self._frames = 0
        """Put out; what was not computed is none."""

    @property
    def request(self) -> Request:
        return self._context.request

    @property
    def tasks(self) -> tuple[str, ...]:
        """Which of the job's are this provider's."""
        return self._context.tasks

    @property
    def drives(self) -> bool:
        return self._context.drives

    def open_chunk(self) -> int:
        """The first chunk that has not been closed."""
        return self._chunks.first_open()

    async def run(self) -> None:
        """Serve until the job has ended and everything due is paid; publishes feedback and the result.

        Raises:
            NodewireError: the job failed here; feedback says so.

        """
        broke = own = True  # if it is cancelled, or this software is at fault
        tasks: list[asyncio.Task[Any]] = []
        try:
            serving = asyncio.create_task(self._kind.serve(self._job, self._mailbox, self._worker, self))
            watching = asyncio.create_task(self._watch())
            tasks += serving, watching, asyncio.create_task(self._task_group.ended.wait())
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            if serving.done() and (error := serving.exception()) is not None:
                raise error
            await self._task_group.ended.wait()
            if (broken := self._chunks.broken or self._task_group.fault) is not None:
                raise broken
            serving.cancel()
            await self._telling.result(self._settling.roots, self._frames, self._worker.times.median_and_total_us())
            await self.credit.all_paid(None if self._context.generates else self._mailbox.failed)
            broke = False
            await self._telling.say("success")
        except Exception as raised:
            error = typed_fault(raised)
            own = isinstance(error, NodeFailed) and not error.by
            broke = broke and self._broke_by(error)
            self._mailbox.cancel(error)
            self._mailbox.close()  # what comes from now on is the node's to answer
            try:
                await self._settle_failed(error)
            finally:  # whatever else fails here: its customer and the job's other nodes must not wait for this node
                if self._telling.has_begun or not self._is_withdrawn:
                    await self._telling.failed(error)
            if error is raised:
                raise
            raise error from raised
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._task_group.cancel(), return_exceptions=True)
            self._mailbox.close()
            self._book_end(broke=broke, own=own)

    def fail(self, error: Exception) -> None:
        """End the job by an error of a task that runs beside it."""
        self._task_group.fail(error)

    async def _settle_failed(self, error: NodewireError) -> None:
        """Claim the complete chunks of a job that failed by `error`, as far as this node still can."""
        try:
            await self._chunks.claim_unclosed()
            await self._settling.stop(error)
        except Exception as also:  # noqa: BLE001 - the job has failed by something else already
            log.error("job %s: what is complete cannot be claimed: %s", self.request.id[:8], typed_fault(also))

    def _book_end(self, *, broke: bool, own: bool) -> None:
        """Keep in the ledger how the job ended."""
        try:
            if not broke:
                self._ledger.went_through(self.request.id)
            elif own:
                self._ledger.interrupted(self.request.id)
            else:
                self._ledger.broke_off(self.request.id, time.time())
        except Exception as error:  # noqa: BLE001 - the job has ended already
            log.error("job %s: its end is not in the ledger: %s", self.request.id[:8], typed_fault(error))

    def _broke_by(self, error: NodewireError) -> bool:
        """Whether the job broke off, and is not just unpaid: it has waited for money while others had ended it, too."""
        return not isinstance(error, PaymentRequired) or bool(error.by) or self._mailbox.failure is not None

    async def _watch(self) -> None:
        """End a job that stands still, for it holds a slot; and a generation that computes a chunk without end.

        Nobody who never guesses may take as long. Raises TimedOut.
        """
        limit_s = self.request.plan.first_result_ms / 1000 + self._context.patience_s
        frames, chunk, spells = -1, 0, 0
        while frames != self._frames and spells <= self._job.manifest.chunk:
            frames = self._frames
            spells = spells + 1 if self._context.generates and chunk == self.open_chunk() else 0
            chunk = self.open_chunk()
            await asyncio.sleep(limit_s)
        raise TimedOut("frames", f"none for {limit_s:.0f} s, or not enough for chunk {chunk}")

    async def admit(self, chunk: int, units: int = 1) -> None:
        await self._chunks.admit(chunk, units)

    def _begin(self) -> None:
        self._may_begin()
        self._task_group.spawn(self._telling.begun())

    def produced(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        self._frames += is_computed(frame)
        if self._tape is None or frame.edge not in self._tape.inner:  # else it may be a guess
            self._hashing.note(task, chunk, frame)

    def received(self, task: str, frame: Frame[Array]) -> None:
        assert self._tape is not None
        if frame.edge in self._tape.inner:
            self._tape.record_frame(frame.edge, frame)
        else:  # the customer's, for who computes it again
            self._tape.write(self.request.id, frame.edge, 0, frame)

    def _plain(self, edge: str, chunk: int, frame: Frame[Array]) -> None:
        """What came or went on an inner edge is final."""
        task = next(one.source for one in self._job.manifest.edges if one.name == edge)
        if task in self.tasks:
            self._hashing.note(task, chunk, frame)

    async def completed(self, chunk: int, units: int, end: bool, positions: int | None = None) -> None:
        close = None
        if self._context.generates:
            close = Close.sign(
                self._context.keys,
                request=self.request.id,
                attempt=0,
                chunk=chunk,
                units=units,
                end=end,
                positions=positions,
            )
            # One who has just died does not keep the others from hearing it.
            await asyncio.gather(*(self._tell(peer, close) for peer in self._context.others))
        await self._chunks.on_signed(chunk, (units, end, close), positions)

    async def _tell(self, peer: str, said: Close | Tab) -> None:
        try:
            await self._mailbox.control(peer, said.control())
        except (LinkLost, NotAllowed) as error:  # it is gone, or the job is over
            log.info("job %s: a document for %s: %s", self.request.id[:8], peer[:8], error)

    async def listen(self) -> None:
        """Follow the job's control documents until it ends; raises what ended it."""
        async for peer, document in self._mailbox.controls():
            try:
                await self.on_control(peer, document)
            except (BadInput, NotAllowed) as error:  # one member's bad word makes nobody deaf to the driver's
                log.info("job %s: %s by %s ignored: %s", self.request.id[:8], document.get("t"), peer[:8], error)

    async def on_control(self, peer: str, document: Mapping[str, Any]) -> None:
        """A node of the job sent a control document. Raises BadInput, NotAllowed: one that means nothing."""
        if document.get("t") == WITHDRAW and peer == self.request.customer:
            self._is_withdrawn = True
            self._mailbox.cancel(NotAllowed("job", "withdrawn by the customer"))
        elif (close := Close.from_control(document)) is not None:
            await self.on_close(close)
        elif (tab := Tab.from_control(document)) is not None:
            await self.on_tab(tab)
        elif self._statements is not None and (said := statement.from_control(document)) is not None:
            for one in said:
                self._statements.add(one)
        elif self._stating is not None and document.get("t") == LACKING:
            await self._hashing.all()
            self._stating.again(peer, document)

    async def on_tab(self, tab: Tab) -> None:
        """The customer says what it owes a provider of the job; the driver passes it on.

        Raises:
            BadFrame, BadSignature: it is not this job's, or not signed by its customer.
            BadInput: it is behind what was signed before, or for more than is due.

        """
        tab.check(self.request.customer, self.request.id)
        if tab.payee == self._context.me:
            text = orjson.dumps(tab.document()).decode()
            self._ledger.acknowledge(self.request.id, self.request.customer, tab.chunk, tab.total_msat, text)
        elif self._context.drives and tab.payee in self._context.others:
            self._task_group.spawn(self._tell(tab.payee, tab))

    async def on_close(self, close: Close) -> None:
        """The driver says that a chunk is over; whoever passed it on.

        Raises:
            BadFrame, BadSignature: it is not this job's, not signed by its driver, or counts what was computed here as
                something else.

        """
        if close.request != self.request.id or close.attempt or not self._context.generates:
            raise BadFrame("close", "of another job or attempt")
        close.check(self._context.driver)
        await self._chunks.on_close(close)
