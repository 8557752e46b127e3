"""What has been asked of a worker's process: what waits for it, what it has, and how the answers come back.

The process computes one call after the other, so it has the one that it is at, and perhaps some short ones; everything
else waits here, where it can be overtaken and taken out (`queue`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodewire.errors import NodewireError, NotFound, TooLarge, WorkerFailed, from_dict
from nodewire.kind import Turn
from nodewire.protocol.tensors.frame import MAX_TENSORS, Array, Frame
from nodewire.protocol.tensors.position_split import count
from nodewire.worker.counters import Figures
from nodewire.worker.ipc import message
from nodewire.worker.ipc.arena import ALIGN, Slabs
from nodewire.worker.queue import CallEstimates, Entry, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from nodewire.protocol.model.edge_codec import Codings
    from nodewire.worker.spawn import SpawnedWorker

NO_TURN = Turn()
AHEAD_US = 2_000
MOST_AHEAD = 8
TOGETHER_US = 1_000_000
"""Calls that are computed together may turn out not to fit: one after the other they take no longer than this."""


@dataclass(eq=False, slots=True)
class Call:
    entry: Entry
    fields: dict[str, Any]
    done: asyncio.Future[Any]
    limit_s: float
    frames: Sequence[Frame[Array]] = ()
    slab: int | None = None
    answered: list[Frame[Array]] = field(default_factory=list)
    sent_us: int = 0
    expected_us: int = 0
    together: Sequence[Call] = ()
    """What is computed with it, itself among them, once they have gone; only in the first of them."""


class Calls:
    """Of one process. `overdue` is told when a call takes longer than its limit, `failure` is why none is answered."""

    def __init__(self, spawned: SpawnedWorker, batch: int, overdue: Callable[[float], None]) -> None:
        self.failure: WorkerFailed | None = None
        self.figures = Figures()
        self.arena_bytes = len(spawned.inward) // ALIGN * ALIGN
        self._spawned = spawned
        self._most_together = batch
        self._overdue = overdue
        self._queue, self._expected = Queue(), CallEstimates()
        self._slabs = Slabs(len(spawned.inward))
        self._room = asyncio.Event()
        self._next: list[Entry] = []
        """Taken out of the queue, and waiting for room in the arena."""
        self._calls: dict[int, Call] = {}
        """What the process has, the oldest first: it is at that one."""
        self._freed: list[int] = []
        """Slabs of the outward arena that the worker has not been told of."""
        self._last_id = 0
        self._answered_us = 0
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> tuple[int, int]:
        """Calls in the queue, and their bytes."""
        return self._queue.calls, self._queue.nbytes

    def drop(self, task: str, session: str) -> None:
        """What waits of a session raises NotFound: it is over."""
        for entry in self._queue.drop(task, session):
            if not entry.what.done.done():
                entry.what.done.set_exception(NotFound("session", "closed"))
        self._room.set()

    async def ask(
        self,
        fields: dict[str, Any],
        limit_s: float,
        turn: Turn = NO_TURN,
        frames: Sequence[Frame[Array]] = (),
        like: Hashable = None,
        block: int = 0,
    ) -> tuple[Any, list[Frame[Array]]]:
        """Have a call computed when its turn comes: what the worker answers, and the frames that it makes.

        Calls that are alike may be computed together, as far as they have no more rows than a `block`, unless that is
        0.

        Raises:
            TooLarge: the frames have more bytes than the arena.
            Busy: too many calls of the session wait.
            NodewireError: what the worker answers; WorkerFailed: it has died.

        """
        self._check_alive()
        nbytes = message.layout([array.nbytes for frame in frames for array in frame.tensors])[1]
        if nbytes > self._slabs.size:
            raise TooLarge("frame", f"{nbytes} bytes, the arena has {self._slabs.size}")
        session = str(fields.get("session", ""))
        entry = Entry(fields["task"], session, turn.customer, turn.remaining_us, nbytes, like)
        call = entry.what = Call(entry, fields, asyncio.get_running_loop().create_future(), limit_s, frames)
        if not self._goes_at_once(entry):
            entry.rows, entry.block = sum(map(count, frames)), block
            while not self._queue.has_room(turn.customer, nbytes):
                self._room.clear()
                await self._room.wait()
                self._check_alive()
            self._queue.offer(entry, _now_us())
            self._send_next()
        try:
            return await call.done, call.answered
        finally:
            if call.done.cancelled():  # whoever gave up wants no answer
                self._queue.cancel(entry)
                self._room.set()
            call.frames, call.answered = (), []  # not to be kept until a collector finds what refers to each other

    def _goes_at_once(self, entry: Entry) -> bool:
        """Send the call now if the process is idle and nothing waits, as in a decoder's ring; False if it must queue.

        The queue is told afterwards.
        """
        if self._calls or self._next or not self._queue.is_free(entry):
            return False
        call: Call = entry.what
        computes, fields = bool(call.frames), self._ready(entry)
        if fields is None:
            return False
        self._post([(call, fields)])
        if not call.done.done():  # else it made no message
            call.expected_us = self._expected.us(entry.task, entry.nbytes) or 0 if computes else 0
            self._queue.passed(entry, _now_us(), call.expected_us)
            self.figures.took(0, 0)
        return True

    def handle_answer(self, answer: dict[str, Any]) -> None:
        """An answer of the process. Raises KeyError, BadFrame and others: it is none."""
        number = answer["id"]
        call = self._calls[number]
        if "frame" in answer:
            call.answered.append(message.take_frame(answer["frame"], self._spawned.outward, _copied))
            if (slab := answer["frame"]["slab"]) is not None:
                self._freed.append(slab)
        if "ok" not in answer and "error" not in answer:
            self._tell_freed()  # it may wait for them
            return
        del self._calls[number]
        self._free(call.slab)
        now_us = _now_us()
        took_us, self._answered_us = now_us - max(call.sent_us, self._answered_us), now_us
        for one in call.together:
            if one.fields["op"] == "receive":
                self.figures.computing.add(took_us // len(call.together))
        if not call.done.done():
            if "error" in answer:
                call.done.set_exception(from_dict(answer["error"]))
            else:
                call.done.set_result(answer["ok"])
        if self._calls or self._next or self._queue.calls:
            self._account(call, took_us)
            self._send_next()
        else:  # who waits for the answer goes first
            asyncio.get_running_loop().call_soon(self._account, call, took_us)
        if self._calls and self._freed:
            self._tell_freed()

    def _account(self, call: Call, took_us: int) -> None:
        """Note what a call that was answered took, with those that were computed with it."""
        self._watch()
        for one in call.together:
            self._queue.done(one.entry, took_us // len(call.together))
            if one.fields["op"] == "receive":
                self._expected.seen(one.entry.task, one.entry.nbytes, took_us // len(call.together))

    def _tell_freed(self) -> None:
        self._spawned.channel.write(message.pack({"op": "free", "slabs": self._freed}))
        self._freed = []

    def fail(self, failure: WorkerFailed) -> None:
        """Every call that waits, and every later one, ends with the first failure."""
        self.failure = self.failure or failure
        left = list(self._calls.values()) + [entry.what for entry in self._queue.clear()]
        left += [entry.what for entry in self._next]
        self._calls, self._next = {}, []
        self._watch()
        for call in left:
            if not call.done.done():
                call.done.set_exception(WorkerFailed(self.failure.field, self.failure.reason))
        self._room.set()

    def _send_next(self) -> None:
        """Send what the worker may have now."""
        while self.failure is None:
            if not self._next:
                first = self._queue.first()
                if first is None or not self._may_go(first):
                    return
                now_us = _now_us()
                self._next = self._queue.pop(first, now_us, first.what.expected_us, self._together(first))
                for entry in self._next:
                    self.figures.took(now_us - entry.entered_us, self._queue.calls)
                self.figures.together(len(self._next))
                self._room.set()
            going = []
            while self._next:
                fields = self._ready(self._next[0])
                if fields is None:
                    break
                entry = self._next.pop(0)
                if fields:
                    going.append((entry.what, fields))
            self._post(going)
            if self._next:
                return

    def _may_go(self, entry: Entry) -> bool:
        """A worker that computes gets what will take little time besides, so that it need not wait for the next call.

        A more urgent one that comes meanwhile waits no longer for it than AHEAD_US.
        """
        call: Call = entry.what
        expected_us = self._expected.us(entry.task, entry.nbytes) if call.frames else None
        call.expected_us = expected_us or 0
        if not self._calls or entry.like is not None:  # what can be computed together waits for each other
            return not self._calls
        ahead_us = sum(one.expected_us for one in list(self._calls.values())[1:])
        return expected_us is not None and ahead_us + expected_us <= AHEAD_US and len(self._calls) < MOST_AHEAD

    def _together(self, entry: Entry) -> int:
        """How many calls like this one may be computed at once: of those whose like has not been seen, one."""
        took_us = self._expected.us(entry.task, entry.nbytes)
        return 1 if took_us is None else max(1, min(self._most_together, TOGETHER_US // max(took_us, 1)))

    def _ready(self, entry: Entry) -> dict[str, Any] | None:
        """What goes to the worker of a call: nothing if nobody waits for it, None while the arena has no room."""
        call: Call = entry.what
        if call.done.done():
            self._queue.done(entry, 0)
            return {}
        if not call.frames:
            return call.fields
        placed = self._placed(call, entry.nbytes)
        return None if placed is None else {**call.fields, "frames": placed}

    def _post(self, going: Sequence[tuple[Call, dict[str, Any]]]) -> None:
        """Send calls to be computed together; those that make no message fail, or go by themselves."""
        if not going:
            return
        numbered = [{"id": self._last_id + k, **fields} for k, (_, fields) in enumerate(going, start=1)]
        first = numbered[0]
        if len(going) > 1:
            first["with"] = [{key: one[key] for key in ("id", "session", "frames")} for one in numbered[1:]]
        if self._freed:
            first["free"] = self._freed
        try:
            body = message.pack(first)
        except NodewireError as error:
            if len(going) > 1:
                for one in going:
                    self._post([one])
                return
            ((call, _),) = going
            self._queue.done(call.entry, 0)
            self._free(call.slab)
            call.done.set_exception(error)
            return
        self._freed = []
        self._last_id += len(going)
        calls = [call for call, _ in going]
        calls[0].together = calls
        now_us, is_idle = _now_us(), not self._calls
        for said, call in zip(numbered, calls, strict=True):
            call.sent_us, call.frames = now_us, ()
            self._calls[said["id"]] = call
        self._spawned.channel.write(body)
        if is_idle:
            self._watch()

    def _placed(self, call: Call, nbytes: int) -> list[dict[str, Any]] | None:
        """Copy the tensors into the inward arena: the frames' wire form, or None while there is no room."""
        offsets, _ = message.layout([array.nbytes for frame in call.frames for array in frame.tensors])
        if nbytes and (slab := self._slabs.allocate(nbytes)) is None:
            return None
        call.slab = slab if nbytes else None
        at, frames = iter(offsets), []
        for frame in call.frames:
            tensors = []
            for array in frame.tensors:
                start = (call.slab or 0) + next(at)
                self._spawned.inward[start : start + array.nbytes] = array.data
                tensors.append((array.dtype, array.shape, start))
            frames.append(message.put_frame(frame, call.slab, tensors))
        return frames

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise WorkerFailed(self.failure.field, self.failure.reason)

    def _free(self, slab: int | None) -> None:
        if slab is not None:
            self._slabs.free(slab)
            self._room.set()

    def _watch(self) -> None:
        """Time the call that the worker is at: the oldest."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._calls:
            limit_s = next(iter(self._calls.values())).limit_s
            self._watchdog = asyncio.get_running_loop().call_later(limit_s, self._overdue, limit_s)


def check_frame(frame: Frame[Array], most_bytes: int) -> None:
    """Raises BadFrame, TooLarge: a frame contradicts itself, or is more than an arena has."""
    if len(frame.tensors) > MAX_TENSORS:
        raise TooLarge("frame", f"{len(frame.tensors)} tensors, at most {MAX_TENSORS}")
    for array in frame.tensors:
        array.check(most_bytes)


def likeness(frames: Sequence[Frame[Array]], codings: Codings, dims: int) -> Hashable:
    """What calls have in common that differ in their first `dims` dimensions alone."""
    shapes = sorted((f.edge, tuple((array.dtype, tuple(array.shape[dims:])) for array in f.tensors)) for f in frames)
    return tuple(shapes), tuple(sorted(codings.items()))


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def _copied(array: Array) -> Array:
    # The worker may write to its arena at any time; what the daemon checks and sends on must be its own.
    return Array(array.dtype, array.shape, bytes(array.data))
