"""The daemon's side of a worker: start it, call it, notice when it dies. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nodewire.core import extras
from nodewire.errors import NotAllowed, TimedOut, WorkerFailed, from_dict
from nodewire.gguf import model as gguf
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire.worker.calls import NO_TURN, Calls
from nodewire.worker.ipc.arena import aligned
from nodewire.worker.joined_frames import JoinedBytes, JoinedFrames
from nodewire.worker.session import CallRules, ProcessSession
from nodewire.worker.spawn import SpawnedWorker, spawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.kind import Limits, Params, Turn
    from nodewire.worker.counters import Figures

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


class WorkerProcess:
    """A capped process that hosts the tasks loaded into it. Implements `nodewire.kind.SharedWorker`; made by `start`.

    Calls of one task and session are computed in the order in which they were made; between others `queue` decides, so
    no more go to the process than it is at, but short ones. They wait here, up to the queue's bounds, and callers wait
    for room in it. A caller that gives up (cancellation) takes its call out, or loses its answer. When the process
    dies, every waiting and every later call raises WorkerFailed at once; starting another is the daemon's decision.
    """

    def __init__(
        self,
        spawned: SpawnedWorker,
        hello: Hello,
        readable: Sequence[Path],
        call_timeout_s: float,
        load_timeout_s: float,
        batch: int,
    ) -> None:
        self.hello = hello
        self._batch = batch
        self._batching: dict[str, int] = {}
        """Tasks whose calls may be computed together, and in how many dimensions they may differ."""
        self._blocks: dict[str, int] = {}
        """By task, how many positions are computed at once; longer frames are cut."""
        self._spawned = spawned
        self._readable = readable
        self._call_timeout_s, self._load_timeout_s = call_timeout_s, load_timeout_s
        self._joined_bytes = JoinedBytes()
        self._calls = Calls(spawned, batch, self._overdue)
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
        batch: int = 1,
    ) -> Self:
        """Start a worker around the module `entry`; ready to load when this returns.

        `readable`: folders or files that programs and weights are loaded from. A call that runs longer than
        `call_timeout_s` (`load_timeout_s` for loads), its wait behind others not counted, costs the process its life.
        `batch`: how many calls of one task are computed as one, where its actor can: their last bits may differ then.

        Raises:
            BadConfig: PyTorch is not installed; or the entry cannot be imported or has no `load`.
            TimedOut: not ready within `start_timeout_s`.
            WorkerFailed: it died while starting.
            NotFound: of a draft's file a shard is missing.

        """
        extras.check("torch")
        roots = [_resolved(path) for path in readable]
        seen = [*roots, *map(_resolved, _beside(limits))]
        spawned = await spawn(entry, limits, seen, aligned(arena_bytes))
        try:
            async with asyncio.timeout(start_timeout_s):
                hello = await _greeting(spawned)
        except BaseException as error:
            await _discard(spawned)
            if isinstance(error, TimeoutError):
                raise TimedOut("worker", f"not ready within {start_timeout_s:g} s") from error
            raise
        return cls(spawned, hello, roots, call_timeout_s, load_timeout_s, batch)

    async def load(
        self, task: str, engine: str, program: Path, weights: Sequence[Path], slots: int = 0
    ) -> Mapping[str, int]:
        """Load `task` from files below `readable`; what it took of the cap, and how long.

        Raises also NotAllowed: a file lies elsewhere, or the task is loaded already.
        """
        files = [_resolved(path) for path in (program, *weights)]
        for path in files:
            if not any(path.is_relative_to(root) for root in self._readable):
                raise NotAllowed("path", f"{path.name} is not below the folders that this worker reads")
        names = [str(path) for path in files]
        fields: dict[str, Any] = {"op": "load", "task": task, "engine": engine, "program": names[0]}
        fields |= {"weights": names[1:], "slots": slots}
        result, _ = await self._calls.ask(fields, self._load_timeout_s)
        if result["batches"] and self._batch > 1:
            self._batching[task] = int(result["batches"])
        if result["block"]:
            self._blocks[task] = int(result["block"])
        return {"memory_bytes": int(result["memory_bytes"]), "load_ms": int(result["load_ms"])}

    async def unload(self, task: str) -> None:
        """Free what `task` takes, and its sessions. Raises NotFound: it is not loaded."""
        await self._calls.ask({"op": "unload", "task": task}, self._call_timeout_s)
        self._batching.pop(task, None)
        self._blocks.pop(task, None)

    async def open(
        self, task: str, session: str, params: Params, codings: Codings = OWN, turn: Turn = NO_TURN
    ) -> ProcessSession:
        is_joined = len(turn.together) > 1
        rules = CallRules(
            limit_s=self._call_timeout_s,
            batches=self._batching.get(task, 0),
            block=self._blocks.get(task, 0),
            joined_frames=JoinedFrames(self._joined_bytes, turn.together, turn.customer) if is_joined else None,
        )
        opened = ProcessSession(self._calls, task, session, turn, codings, rules)
        await opened.open(params)
        return opened

    @property
    def figures(self) -> Figures:
        return self._calls.figures

    @property
    def waiting(self) -> tuple[int, int]:
        """Calls in the queue, and their bytes."""
        return self._calls.waiting

    async def stop(self) -> None:
        """Hang up, and wait until the process has ended; kill it if it will not."""
        self._spawned.channel.close()
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
        return self._calls.failure is None and self._spawned.process.returncode is None

    def _overdue(self, limit_s: float) -> None:
        self._calls.fail(WorkerFailed("worker", f"a call took longer than {limit_s:g} s"))
        self.kill()

    async def _listen(self) -> None:
        channel = self._spawned.channel
        channel.listen(self._calls.handle_answer)
        await channel.ended.wait()
        if channel.broken is not None:
            reason = f"{type(channel.broken).__name__}: {channel.broken}"
            self._calls.fail(WorkerFailed("worker", f"broke the protocol: {reason}"[:200]))
            self.kill()
        self._calls.fail(WorkerFailed("worker", _cause(await self.ended())))


async def _greeting(spawned: SpawnedWorker) -> Hello:
    greeting = await spawned.channel.first()
    if greeting is None:
        raise WorkerFailed("worker", f"{_cause(await spawned.process.wait())} while starting")
    if "error" in greeting:
        raise from_dict(greeting["error"])
    return Hello(**greeting["hello"])


async def _discard(spawned: SpawnedWorker) -> None:
    with contextlib.suppress(ProcessLookupError):
        spawned.process.kill()
    spawned.channel.close()
    await spawned.log_output()
    await spawned.process.wait()


def _beside(limits: Limits) -> list[Path]:
    """What a worker reads besides what is loaded: a folder or a file each, and of a file in shards all of them."""
    paths = [Path(one) for one in (limits.compiled, limits.draft) if one]
    return [one for path in paths for one in (gguf.files_of(path) if path.is_file() else [path])]


def _resolved(path: Path) -> Path:
    return path.resolve()


def _cause(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
