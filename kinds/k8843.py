"""Kind 8843 -> 6843: split inference. nips/11-job-requests.md.

Any manifest is served by one loop: a frame that arrives on an edge goes to the task at its end, and what the task
makes of it goes out on the task's edges. A manifest's mode decides what a chunk is. `generate`: as many positions
as its `chunk` says, closed by the driver, which alone knows how many were accepted. `embed` and `run`: one call, closed
by each node itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kinds.k8843_decoder import DecoderTask, chunk_said, units_of
from kinds.k8843_inboxes import InboxBacklog, Inboxes
from kinds.k8843_parameters import GENERATION, checked
from nodewire.errors import BadFrame, BadInput, NodewireError, NotAllowed
from nodewire.protocol.job.chunk import chunk_of, first_seq
from nodewire.protocol.job.frame_refusal import driven, refusal
from nodewire.protocol.kinds import INFERENCE
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.tensors.position_split import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.kind import Desk, Job, Mailbox, Params, TaskSession, Worker

MERGED_POSITIONS = 512
"""Of a decoder's earlier inputs that are computed at once."""


class SplitInference:
    request = INFERENCE
    worker_entry = "kinds.k8843_worker"

    def __init__(self) -> None:
        self._waiting = InboxBacklog()

    def check(self, manifest: Manifest, params: Params) -> Params:
        return checked(manifest, params)

    def merged(self, manifest: Manifest, task: str, frames: Sequence[Frame[Array]]) -> Sequence[Frame[Array]]:
        """A stage's hidden states of adjoining positions, many to a frame; none for a graph, which has no past."""
        engine = manifest.task(task).engine
        if engine != "decoder.stage":
            return () if engine == "graph" else frames
        merged: list[Frame[Array]] = []
        run: list[Frame[Array]] = []
        for frame in frames:
            if run and not (_adjoin(run[-1], frame) and sum(map(count, run)) + count(frame) <= MERGED_POSITIONS):
                merged.append(_joined(run))
                run = []
            run.append(frame)
        return [*merged, _joined(run)] if run else merged

    async def serve(self, job: Job, mailbox: Mailbox, worker: Worker, desk: Desk) -> None:
        closing = _ChunkCloser(job, desk)
        inboxes = Inboxes(self._waiting, job.manifest, closing.ended)
        sessions: dict[str, TaskSession] = {}
        try:
            for task in job.tasks:
                sessions[task] = await worker.open(task, job.request, _params_of(job, task), job.codings)
            async with asyncio.TaskGroup() as group:
                acts = [self._act(task, job, inboxes, mailbox, sessions[task], desk, closing) for task in job.tasks]
                running = [group.create_task(act) for act in acts]
                mailbox.deliver_to(inboxes)
                await closing.ended.wait()
                inboxes.check()
                for act in running:
                    act.cancel()
        finally:
            inboxes.clear()
            await asyncio.shield(asyncio.ensure_future(_close(sessions.values())))

    async def _act(
        self,
        task: str,
        job: Job,
        inboxes: Inboxes,
        mailbox: Mailbox,
        session: TaskSession,
        desk: Desk,
        closing: _ChunkCloser,
    ) -> None:
        generates = job.manifest.mode == "generate"
        decoder = DecoderTask(task, job, inboxes, desk) if generates else None
        closes = not generates or task == job.manifest.driver.name
        while not closing.ended.is_set():  # returns of guesses may come after the last token
            frame = await inboxes.get(task)
            if decoder is not None and decoder.is_inner(frame):
                outs = await self._on_inner_edge(frame, task, job, session, decoder)
            else:
                frame = await self._admitted(frame, task, job, inboxes, desk)
                if decoder is not None:
                    decoder.begun(frame)
                outs = await self._computed(frame, task, job, session, decoder)
                if decoder is not None:
                    await decoder.admit_prompt(outs)
            for out in outs:
                desk.produced(task, chunk_said(out), out)
            if not closes:
                for out in outs:
                    await mailbox.put(out)
                continue
            await closing.before(outs)
            for out in outs:
                await mailbox.put(out)
                await closing.after(out)
            closing.returned(frame)

    async def _computed(
        self, frame: Frame[Array], task: str, job: Job, session: TaskSession, decoder: DecoderTask | None
    ) -> Sequence[Frame[Array]]:
        try:
            outs = await session.receive(frame)
        except (BadInput, NotAllowed) as error:
            raise _refusal(error, job.manifest, task, frame) from error
        return outs if decoder is None else decoder.outs(frame, outs)

    async def _on_inner_edge(
        self, frame: Frame[Array], task: str, job: Job, session: TaskSession, decoder: DecoderTask
    ) -> Sequence[Frame[Array]]:
        """What is made of a frame among which there may be guesses."""
        given, passed = await decoder.given(frame)
        made = [out for one in given for out in await self._computed(one, task, job, session, decoder)]
        return [*passed, *made]

    async def _admitted(self, frame: Frame[Array], task: str, job: Job, inboxes: Inboxes, desk: Desk) -> Frame[Array]:
        """The frame; or, while it waits, one of an earlier call that has come meanwhile on another edge.

        A task with several inputs may be sent calls on one that wait for the payment of a call which waits for another.
        """
        if job.manifest.mode == "generate":
            await _admit(frame, job.manifest, desk)
            return frame
        while True:
            admitting = asyncio.ensure_future(_admit(frame, job.manifest, desk))
            earlier: asyncio.Future[None] | None = None
            try:
                await asyncio.sleep(0)
                if not admitting.done():
                    earlier = asyncio.ensure_future(inboxes.earlier(task, frame.seq))
                    await asyncio.wait((admitting, earlier), return_when=asyncio.FIRST_COMPLETED)
                if admitting.done():
                    admitting.result()
                    return frame
            finally:
                for waiting in (admitting, earlier):
                    if waiting is not None:
                        waiting.cancel()
            inboxes.put_back(task, frame)
            frame = await inboxes.get(task)


class _ChunkCloser:
    """Tells the desk when this node's part of a chunk is complete.

    Of calls it is complete by each output, of a generation by what its driver takes and puts out.
    """

    def __init__(self, job: Job, desk: Desk) -> None:
        self.ended = asyncio.Event()
        self._job = job
        self._desk = desk
        self._generates = job.manifest.mode == "generate"
        self._units = 1
        """Of the prompt."""
        self._to_customer = {edge.name for edge in job.manifest.edges if edge.target == CUSTOMER}
        self._outputs = {edge.name for task in job.tasks for edge in job.manifest.outputs(task)}
        self._seen: dict[int, set[str]] = {}
        self._last: int | None = None
        self._done: set[int] = set()
        self._lacks = -1
        """The frame by which the stages keep the last rows that count; what its return keeps counts here, too."""

    async def before(self, outs: Sequence[Frame[Array]]) -> None:
        """Outputs are about to go: of the driver's, a token that is its chunk's last completes that."""
        if not self._generates:
            return
        ends = any(out.meta.get("end") is True for out in outs)
        for out in outs:
            if out.edge not in self._to_customer:
                if out.seq == 0:
                    self._units = units_of(out, self._job.manifest)
                elif ends:
                    self._lacks = out.seq
                continue
            chunk = chunk_said(out)
            if out.meta.get("end") is not True and chunk_of(self._job.manifest, out.seq + 1) > chunk:
                await self._desk.completed(chunk, self._units_of(chunk), end=False)

    async def after(self, out: Frame[Array]) -> None:
        end = out.meta.get("end") is True
        if self._generates:
            if out.edge in self._to_customer and end:
                await self._end(chunk_said(out), out.seq)
            return
        chunk = chunk_said(out)
        seen = self._seen.setdefault(chunk, set())
        seen.add(out.edge)
        if end:
            self._last = chunk
        if seen == self._outputs:
            del self._seen[chunk]
            self._done.add(chunk)
            last = self._last is not None and len(self._done) == self._last + 1
            await self._desk.completed(chunk, 1, end=last)
            if last:
                self.ended.set()

    async def _end(self, chunk: int, seq: int) -> None:
        """The last token goes out: whose rows may be guesses, or yet to come, has to know which of them count."""
        units, first = self._units_of(chunk), first_seq(self._job.manifest, chunk)
        if chunk == 0 or seq - first + 1 == self._job.manifest.chunk:
            await self._desk.completed(chunk, units, end=True)
        else:
            await self._desk.completed(chunk, units, end=True, positions=seq - first + 1)
        if self._lacks < 0:
            self.ended.set()

    def returned(self, frame: Frame[Array]) -> None:
        """A frame has been taken: the driver has everything with the return that it lacked."""
        if self._generates and frame.seq == self._lacks:
            self.ended.set()

    def _units_of(self, chunk: int) -> int:
        return self._units if chunk == 0 else 1


async def _close(sessions: Iterable[TaskSession]) -> None:
    for session in sessions:
        with suppress(Exception):  # the others all the same
            await session.close()


async def _admit(frame: Frame[Array], manifest: Manifest, desk: Desk) -> None:
    """As Desk.admit. Raises BadFrame, naming the edge, or one of the driver's if the frame is not of what it closes."""
    try:
        chunk = _chunk(frame, manifest)
    except BadFrame as error:
        raise BadFrame(frame.edge, str(error)) from error
    try:
        await desk.admit(chunk)
    except BadFrame as error:
        edge = driven(manifest) if manifest.mode == "generate" else frame.edge
        raise BadFrame(edge, str(error)) from error


def _refusal(error: NodewireError, manifest: Manifest, task: str, frame: Frame[Array]) -> NodewireError:
    """What it is called that a task cannot compute a frame, or the call that it completes.

    A graph's error names the edges that may be to blame, where that is known. A parameter is the customer's, and no
    neighbour's: a schema may turn out to take too much amid a generation.
    """
    if manifest.mode == "generate" and error.code == BadInput.code and error.field in GENERATION:
        return error
    edges = {frame.edge}
    if manifest.task(task).engine == "graph":
        inputs, named = {edge.name for edge in manifest.inputs(task)}, set(error.field.split())
        edges = named if named and named <= inputs else inputs
    return refusal(error, manifest, edges)


def _chunk(frame: Frame[Array], manifest: Manifest) -> int:
    """The chunk that pays for a customer's input, or a call's, by its number.

    A neighbour's word for it is not enough: one that calls everything chunk 0 would be served without end for the price
    of one chunk. Raises BadFrame: the frame says another.
    """
    chunk = chunk_of(manifest, frame.seq)
    if chunk_said(frame) != chunk:
        raise BadFrame("chunk", f"{chunk_said(frame)} on frame {frame.seq} of {frame.edge}, which is of chunk {chunk}")
    return chunk


def _adjoin(frame: Frame[Array], after: Frame[Array]) -> bool:
    if frame.edge != after.edge or not count(frame) or not count(after):
        return False
    one, other = frame.tensors[0], after.tensors[0]
    if (one.dtype, one.shape[2]) != (other.dtype, other.shape[2]):
        return False
    pos, following = frame.meta.get("pos"), after.meta.get("pos")
    return type(pos) is int and type(following) is int and following == pos + one.shape[1]


def _joined(run: Sequence[Frame[Array]]) -> Frame[Array]:
    if len(run) == 1:
        return run[0]
    first, last = run[0], run[-1]
    dtype, (_, _, width) = first.tensors[0].dtype, first.tensors[0].shape
    data = b"".join(frame.tensors[0].data for frame in run)
    shape = (1, sum(map(count, run)), width)
    return Frame(first.edge, last.seq, (Array(dtype, shape, data),), {**last.meta, "pos": first.meta["pos"]})


def _params_of(job: Job, task: str) -> Params:
    """A session's parameters: the driver is told how far the plan lets it guess."""
    if job.lookahead == 1 or task != job.manifest.driver.name:
        return job.params
    return {**job.params, "lookahead": job.lookahead}


KIND = SplitInference()
