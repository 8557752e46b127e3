"""The daemon's side of a worker: start it, call it, notice when it dies. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nodewire.errors import NodewireError, NotAllowed, TimedOut, TooLarge, WorkerFailed, from_dict
from nodewire.kind import Limits, Params
from nodewire.protocol.codec import OWN, Codings
from nodewire.protocol.frame import MAX_TENSORS, Array, Frame
from nodewire.worker import message
from nodewire.worker.arena import Slabs, aligned
from nodewire.worker.spawn import Spawned, spawn

ARENA_BYTES = 256 * 2**20
"""Default size of each arena, and so of the largest frame. Untouched pages cost nothing."""
CALL_S = 120.0
LONG_CALL_S = 3_600.0
"""For calls that are long by nature: a segment of a training's round, or a round computed again."""
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker says once it is ready. `sandbox`: "rlimits+landlock+seccomp" at best, "rlimits only" at worst."""

    pid: int
    sandbox: str
    baseline_bytes: int
    torch: str


@dataclass(slots=True)
class _Call:
    done: asyncio.Future[Any]
    limit_s: float
    slab: int | None = None
    frames: list[Frame[Array]] = field(default_factory=list)


class WorkerProcess:
    """A capped process that hosts the tasks loaded into it. Implements `nodewire.kind.Worker`; made by `start`.

    Calls are answered in the order in which they were made; any number may wait. A caller that gives up (cancellation)
    loses only its answer. When the process dies, every waiting and every later call raises WorkerFailed at once;
    starting another is the daemon's decision.
    """

    def __init__(
        self, spawned: Spawned, hello: Hello, readable: Sequence[Path], call_timeout_s: float, load_timeout_s: float
    ) -> None:
        self.hello = hello
        self._spawned = spawned
        self._readable = readable
        self._call_timeout_s, self._load_timeout_s = call_timeout_s, load_timeout_s
        self._slabs = Slabs(len(spawned.inward))
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._failure: WorkerFailed | None = None
        self._tasks = [asyncio.create_task(spawned.log_output()), asyncio.create_task(self._listen())]

    @classmethod
    async def start(
        cls,
        entry: str,
        limits: Limits,
        *,
        readable: Sequence[Path] = (),
        arena_bytes: int = ARENA_BYTES,
        call_timeout_s: float = CALL_S,
        load_timeout_s: float = 600.0,
        start_timeout_s: float = 120.0,
    ) -> Self:
        """Start a worker around the module `entry`; ready to load when this returns.

        `readable`: folders or files that programs and weights are loaded from. A call that runs longer than
        `call_timeout_s` (`load_timeout_s` for loads), its wait behind others not counted, costs the process its life.

        Raises:
            BadConfig: the entry cannot be imported or has no `load`.
            TimedOut: not ready within `start_timeout_s`.
            WorkerFailed: it died while starting.
        """
        roots = [_resolved(path) for path in readable]
        seen = [*roots, _resolved(Path(limits.compiled))] if limits.compiled else roots
        spawned = await spawn(entry, limits, seen, aligned(arena_bytes))
        try:
            async with asyncio.timeout(start_timeout_s):
                hello = await _greeting(spawned)
        except BaseException as error:
            await _discard(spawned)
            if isinstance(error, TimeoutError):
                raise TimedOut("worker", f"not ready within {start_timeout_s:g} s") from error
            raise
        return cls(spawned, hello, roots, call_timeout_s, load_timeout_s)

    async def load(self, task: str, engine: str, program: Path, weights: Sequence[Path]) -> Mapping[str, int]:
        """Load `task` from files below `readable`; what it took of the cap, and how long.

        Raises also NotAllowed: a file lies elsewhere, or the task is loaded already.
        """
        files = [_resolved(path) for path in (program, *weights)]
        for path in files:
            if not any(path.is_relative_to(root) for root in self._readable):
                raise NotAllowed("path", f"{path.name} is not below the folders that this worker reads")
        names = [str(path) for path in files]
        fields = {"op": "load", "task": task, "engine": engine, "program": names[0], "weights": names[1:]}
        result = (await self._call(fields, self._load_timeout_s)).done.result()
        return {"memory_bytes": int(result["memory_bytes"]), "load_ms": int(result["load_ms"])}

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> None:
        fields = {"op": "open", "task": task, "session": session, "params": dict(params), "codings": dict(codings)}
        await self._call(fields, self._call_timeout_s)

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]:
        """One frame in, the frames that it makes possible out. Raises also TooLarge: more bytes than an arena has."""
        fields = {"op": "receive", "task": task, "session": session}
        return (await self._call(fields, self._call_timeout_s, frame)).frames

    async def close(self, task: str, session: str) -> None:
        await self._call({"op": "close", "task": task, "session": session}, self._call_timeout_s)

    async def stop(self) -> None:
        """Hang up, and wait until the process has ended; kill it if it will not."""
        self._spawned.writer.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await self.ended()
        except TimeoutError:
            self.kill()
        await asyncio.gather(*self._tasks)

    def kill(self) -> None:
        """End the process now; what it was doing raises WorkerFailed."""
        with contextlib.suppress(ProcessLookupError):
            self._spawned.process.kill()

    async def ended(self) -> int:
        """Wait for the end of the process; its exit code, negative for a signal."""
        return await self._spawned.process.wait()

    @property
    def alive(self) -> bool:
        return self._failure is None and self._spawned.process.returncode is None

    async def _call(self, fields: dict[str, Any], limit_s: float, frame: Frame[Array] | None = None) -> _Call:
        call = _Call(asyncio.get_running_loop().create_future(), limit_s)
        try:
            async with self._turn:  # calls go out in the order in which they were made
                await self._send(call, fields, frame)
            await call.done
        finally:
            call.done.cancel()  # whoever gave up wants no answer; an answered call does not notice
        return call

    async def _send(self, call: _Call, fields: dict[str, Any], frame: Frame[Array] | None) -> None:
        self._check_alive()
        if frame is not None:
            call.slab, fields["frame"] = await self._place(frame)
        self._last_id += 1
        try:
            body = message.pack({"id": self._last_id, **fields})
        except NodewireError:
            self._free(call.slab)
            raise
        self._calls[self._last_id] = call
        if len(self._calls) == 1:
            self._watch()
        self._spawned.writer.write(body)
        with contextlib.suppress(ConnectionError):  # the listener says why
            await self._spawned.writer.drain()

    async def _place(self, frame: Frame[Array]) -> tuple[int | None, dict[str, Any]]:
        """Copy the tensors into the inward arena; waits for room. The slab, and the frame's wire form."""
        if len(frame.tensors) > MAX_TENSORS:
            raise TooLarge("frame", f"{len(frame.tensors)} tensors, at most {MAX_TENSORS}")
        for array in frame.tensors:
            array.check(self._slabs.size)
        offsets, total = message.layout([array.nbytes for array in frame.tensors])
        if total > self._slabs.size:
            raise TooLarge("frame", f"{total} bytes, the arena has {self._slabs.size}")
        slab = None
        while total and (slab := self._slabs.take(total)) is None:
            self._room.clear()
            await self._room.wait()
            self._check_alive()
        placed = []
        for array, offset in zip(frame.tensors, offsets, strict=True):
            start = (slab or 0) + offset
            self._spawned.inward[start : start + array.nbytes] = array.data
            placed.append((array.dtype, array.shape, start))
        return slab, message.put_frame(frame, slab, placed)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise WorkerFailed(self._failure.field, self._failure.reason)

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

    def _overdue(self, limit_s: float) -> None:
        self._fail(WorkerFailed("worker", f"a call took longer than {limit_s:g} s"))
        self.kill()

    async def _listen(self) -> None:
        try:
            while (answer := await self._spawned.read()) is not None and self._failure is None:
                self._take(answer)
        except (NodewireError, KeyError, TypeError, ValueError, AttributeError) as error:
            # only a worker that has been taken over answers so
            self._fail(WorkerFailed("worker", f"broke the protocol: {type(error).__name__}: {error}"[:200]))
            self.kill()
        self._fail(WorkerFailed("worker", _cause(await self.ended())))
        self._spawned.writer.close()

    def _take(self, answer: dict[str, Any]) -> None:
        number = answer["id"]
        call = self._calls[number]
        if "frame" in answer:
            call.frames.append(message.take_frame(answer["frame"], self._spawned.outward, _copied))
            if (slab := answer["frame"]["slab"]) is not None:
                self._spawned.writer.write(message.pack({"op": "free", "slab": slab}))
            return
        del self._calls[number]
        self._free(call.slab)
        self._watch()
        if not call.done.done():
            if "error" in answer:
                call.done.set_exception(from_dict(answer["error"]))
            else:
                call.done.set_result(answer["ok"])

    def _fail(self, failure: WorkerFailed) -> None:
        """Every call that waits, and every later one, ends with the first failure."""
        self._failure = self._failure or failure
        calls, self._calls = self._calls, {}
        self._watch()
        for call in calls.values():
            if not call.done.done():
                call.done.set_exception(WorkerFailed(self._failure.field, self._failure.reason))
        self._room.set()


async def _greeting(spawned: Spawned) -> Hello:
    greeting = await spawned.read()
    if greeting is None:
        raise WorkerFailed("worker", f"{_cause(await spawned.process.wait())} while starting")
    if "error" in greeting:
        raise from_dict(greeting["error"])
    return Hello(**greeting["hello"])


async def _discard(spawned: Spawned) -> None:
    with contextlib.suppress(ProcessLookupError):
        spawned.process.kill()
    spawned.writer.close()
    await spawned.log_output()
    await spawned.process.wait()


def _resolved(path: Path) -> Path:
    return path.resolve()


def _copied(array: Array) -> Array:
    # The worker may write to its arena at any time; what the daemon checks and sends on must be its own.
    return Array(array.dtype, array.shape, bytes(array.data))


def _cause(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
