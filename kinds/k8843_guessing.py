"""A task of a generation whose driver guesses: what is computed of a frame, and what it is called. Part of kind 8843.

Frames that are void are answered with ones without rows, uncomputed. A driver compares what comes back with what it has
sent. One that enters the job is led to where its customer is: it gets the returns of accepted positions one by one, as
if nobody had guessed, and its own frames go out under numbers and epochs above all that were in use before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kinds.k8843_waiting import Inboxes
from nodewire.errors import BadFrame, LinkLost
from nodewire.kind import Desk, Job
from nodewire.protocol.cells import Row, check_grown, grown, left, way
from nodewire.protocol.chunk import chunk_of
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.guesses import AGAIN, MAX_LIVE, Step, is_computed, rows_of, step_of, without_rows
from nodewire.protocol.manifest import CUSTOMER
from nodewire.protocol.refusal import driven

KEEP_S = 1.5
"""Within which a driver that enters has the next return, of what the one before it had sent to the ring. What a stage
had sent comes again at once, and what was under way follows as quickly as the ring computes."""


class Guessing:
    """Of one task. Its frames come in through `given`; what the task makes goes out through `outs`."""

    def __init__(self, task: str, job: Job, inboxes: Inboxes, desk: Desk) -> None:
        self._task = task
        self._job = job
        self._inboxes = inboxes
        self._desk = desk
        self._inner = {edge.name for edge in job.manifest.edges if CUSTOMER not in (edge.source, edge.target)}
        self._outputs = [edge for edge in job.manifest.outputs(task) if edge.name in self._inner]
        self._drives = task == job.manifest.driver.name
        self._admitted = -1
        """The newest chunk that is."""
        self._sent: dict[int, Step] = {}
        """By number, the driver's frames that have not come back."""
        self._epoch = 0
        """The newest that the driver has sent."""
        self._led: Led | None = None
        self._asked = False

    def concerns(self, frame: Frame[Array]) -> bool:
        """Whether there may be guesses on the frame's edge."""
        return frame.edge in self._inner

    async def begun(self, frame: Frame[Array]) -> Frame[Array]:
        """A prompt, as the task is given it: a driver that enters answers it as one that never guesses."""
        self._desk.received(self._task, frame)
        if self._drives and await self._leading() is not None:
            return replace(frame, meta={**frame.meta, "replay": True})
        return frame

    async def given(self, frame: Frame[Array]) -> tuple[Sequence[Frame[Array]], Sequence[Frame[Array]]]:
        """What the task is to compute of a frame, and what goes out without that.

        Raises:
            BadFrame: the frame cannot follow those before it, or is no answer to what was sent.
            LinkLost: this node drives in place of another, of which the customer had no token yet, or whose word of
                what it kept is lost.
            PaymentRequired, OverBudget, BadFrame: as Desk.admit; the last names an edge of the driver's.
        """
        if self._drives:
            return await self._returned(frame), []
        self._desk.received(self._task, frame)
        if not is_computed(frame) or not await self._is_admitted(frame):
            return [], [self._empty(edge.name, frame) for edge in self._outputs]
        return [frame], []

    def outs(self, frame: Frame[Array], outs: Sequence[Frame[Array]]) -> Sequence[Frame[Array]]:
        """What the task has made of a frame as it goes out: a stage's has the epoch of what it was made of, and says if
        that was sent again."""
        if self._drives:
            if self._led is not None:
                outs = [self._led.sent(out) if out.edge in self._inner else out for out in outs]
            for out in outs:
                if out.edge in self._inner:
                    self._epoch = epoch_of(out)
                    self._sent[out.seq] = step_of(out, self._job.lookahead)
            return outs
        said = {name: frame.meta[name] for name in ("epoch", AGAIN) if frame.meta.get(name)}
        return [replace(out, meta={**out.meta, **said}) for out in outs] if said else outs

    async def _returned(self, frame: Frame[Array]) -> list[Frame[Array]]:
        """What the driver is given of a return. Raises as `given`."""
        led = await self._leading()
        try:
            step = step_of(frame, self._job.lookahead)
        except BadFrame as error:
            raise BadFrame(frame.edge, str(error)) from error
        if led is not None and frame.seq < led.base:
            try:
                found = led.returned(frame, step)
            except BadFrame as error:
                raise BadFrame(frame.edge, str(error)) from error
            if led.lacks_keep:
                await self._keep_comes()
            for one in found:
                self._desk.received(self._task, one)
                if (chunk := chunk_said(one)) > self._admitted:
                    await self._desk.admit(chunk)
                    self._admitted = chunk
            return found
        sent = self._sent.pop(frame.seq, None)
        if sent is None or not step.answers(sent):
            raise BadFrame(frame.edge, f"frame {frame.seq} is not the one that was sent")
        if not is_computed(frame) and step.epoch == self._epoch:
            raise BadFrame(frame.edge, f"frame {frame.seq} was not computed, and nothing makes it void")
        self._desk.received(self._task, frame)
        if not is_computed(frame) or not await self._is_admitted(frame):
            frame = without_rows(frame.edge, frame, frame.tensors[0].dtype)
        return [frame if led is None else led.own(frame)]

    async def _keep_comes(self) -> None:
        """The driver before this one has kept what its customer heard of: wait for the next return. Raises LinkLost."""
        try:
            async with asyncio.timeout(KEEP_S):
                await self._inboxes.more(self._task)
        except TimeoutError:
            raise LinkLost("driver", "gone with its word of what it kept of a tree") from None

    async def _leading(self) -> Led | None:
        if not self._asked:
            self._asked = True
            resumed = await self._desk.resumed(self._task)
            if resumed is not None:
                self._led = Led(self._job, *resumed)
        return self._led

    async def _is_admitted(self, frame: Frame[Array]) -> bool:
        """Wait until the frame may be computed; False if it is void before that. Its chunk may never come to be."""
        if self._inboxes.void(frame):
            return False
        chunk = chunk_said(frame)
        if chunk <= self._admitted:
            return True
        units = max(1, -(-frame.tensors[0].shape[1] // self._job.manifest.chunk)) if frame.seq == 0 else 1
        admitting = asyncio.ensure_future(self._desk.admit(chunk, units))
        voided = asyncio.ensure_future(self._inboxes.voided(self._task, frame))
        try:
            await asyncio.wait((admitting, voided), return_when=asyncio.FIRST_COMPLETED)
            if not admitting.done():
                return False
            admitting.result()
        except BadFrame as error:
            raise BadFrame(driven(self._job.manifest), str(error)) from error
        finally:
            admitting.cancel()
            voided.cancel()
        self._admitted = chunk
        return True

    def _empty(self, edge: str, frame: Frame[Array]) -> Frame[Array]:
        coding = self._job.codings.get(edge)
        declared = next(one for one in self._outputs if one.name == edge).tensors
        return without_rows(edge, frame, coding[0][1] if coding else declared[0].dtype)


class Led:
    """A driver that takes over from another. Its own numbers go on where its customer is: frame `had` is its first that
    the ring has not seen, and goes out as `base`. As long as that is of chunks that are closed, it guesses nothing.

    What the other has accepted of a tree it has kept before its customer heard of it, so that comes back with a keep,
    unless it is lost with who sent it.
    """

    def __init__(self, job: Job, base: int, had: int, chunk: int) -> None:
        """As `Resumed`."""
        if had == 0:
            raise LinkLost("driver", "gone before its customer had a token: there is nothing to go on from")
        self.base = base
        self._manifest = job.manifest
        self._lookahead = job.lookahead
        self._had = had
        self._alone = max(had, (chunk - 1) * job.manifest.chunk)
        """Frames below this have one row, and no guess."""
        self._end = 0
        """Of the prompt."""
        self._next = 0
        self._waiting: list[bytes] = []
        """Rows of the run from the return of number `next` on."""
        self._places: dict[Row, int] = {}
        """The live cells and their positions."""
        self._epoch = 0
        self._reach = 0
        """Behind the last position that a row has come back for."""

    @property
    def lacks_keep(self) -> bool:
        """Whether rows of all positions that count have come back, and not all of them have been kept."""
        return self._next < self._had <= self._reach - self._end + 1

    def returned(self, frame: Frame[Array], step: Step) -> list[Frame[Array]]:
        """What the driver is given of a return of what another has sent, plain: the rows that it can rely on, each the
        first that is in the run for its position. Raises BadFrame: the return cannot follow those before it.
        """
        if self._next >= self._had:
            return []
        self._end = self._end or step.pos + step.rows
        found = []
        for pos, row in self._joined(step, list(rows_of(frame.tensors[0]))):
            if pos != self._end - 1 + self._next or self._next >= self._had:
                continue
            array = Array(frame.tensors[0].dtype, (1, 1, frame.tensors[0].shape[2]), row)
            meta: dict[str, int | str | bytes | bool | None] = {"pos": pos, "tokens": 1}
            meta["chunk"] = chunk_of(self._manifest, self._next)
            if self._next + 1 < self._alone:
                meta["replay"] = True
            found.append(Frame(frame.edge, self._next, (array,), meta))
            self._next += 1
        return found

    def _joined(self, step: Step, rows: list[bytes]) -> list[tuple[int, bytes]]:
        """The rows that a return puts in the run, and their positions; cells are noted."""
        live = list(self._places)
        kept = way(live, step.keep)
        joined = [(self._places[row], row.data or b"") for row in kept]
        for row in kept:
            row.in_run = True
        if not step.keep and step.epoch > self._epoch:
            live = []
        live, self._epoch = left(live, kept), step.epoch
        self._places = {row: self._places[row] for row in live}
        if step.parents is None:
            if rows:
                self._places = {}
                self._reach = max(self._reach, step.pos + len(rows))
            return [*joined, *enumerate(rows, step.pos)]
        check_grown(live, step.parents, self._lookahead)
        if len(live) + len(rows) > MAX_LIVE:
            raise BadFrame("parents", f"{len(live) + len(rows)} live cells, at most {MAX_LIVE}")
        for row in grown(step, live, rows):
            before = self._places.get(row.parent) if row.parent is not None else None
            self._places[row] = step.pos if before is None else before + 1
            self._reach = max(self._reach, self._places[row] + 1)
        return joined

    def own(self, frame: Frame[Array]) -> Frame[Array]:
        """A return of what the driver itself has sent, with its own number and epoch."""
        meta = {name: value for name, value in frame.meta.items() if name != "epoch"}
        if epoch := epoch_of(frame) - self.base:
            meta["epoch"] = epoch
        seq = frame.seq - self.base + self._had
        if seq + 1 < self._alone:
            meta["replay"] = True
        return replace(frame, seq=seq, meta=meta)

    def sent(self, out: Frame[Array]) -> Frame[Array]:
        """What the driver sends, as the ring knows it."""
        if out.seq < self._had:
            return out
        return replace(out, seq=out.seq - self._had + self.base, meta={**out.meta, "epoch": epoch_of(out) + self.base})


def chunk_said(frame: Frame[Array]) -> int:
    """The chunk that a frame says it is of. Raises BadFrame."""
    chunk = frame.meta.get("chunk", 0)
    if type(chunk) is not int or not 0 <= chunk < 2**31:
        raise BadFrame("chunk", "not a chunk number")
    return chunk


def epoch_of(frame: Frame[Array]) -> int:
    epoch = frame.meta.get("epoch", 0)
    return epoch if type(epoch) is int else 0
