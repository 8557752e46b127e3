"""A worker that outlives its processes: one that has died is replaced, with everything loaded again, for the next job.

A process that a hostile task or a full memory killed takes its sessions with it; what it must not take is the
specialization, which the provider's beats go on announcing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from nodewire.kind import Limits, Params, SharedWorker, TaskSession, Turn
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire.worker.calls import NO_TURN
from nodewire.worker.client import CALL_S, Hello, WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.worker.counters import Figures

_log = logging.getLogger("nodewire.worker")


class SingleProcess(SharedWorker, Protocol):
    """A worker process: once it is not `alive`, every call raises WorkerFailed."""

    @property
    def alive(self) -> bool: ...

    @property
    def hello(self) -> Hello: ...

    @property
    def figures(self) -> Figures: ...

    @property
    def waiting(self) -> tuple[int, int]: ...

    async def unload(self, task: str) -> None: ...

    async def stop(self) -> None: ...


Start = Callable[[], Awaitable[SingleProcess]]
"""Starts an empty worker process."""


class LastingWorker:
    """Implements nodewire.kind.SharedWorker over one process after the other."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._process: SingleProcess | None = None
        self._loaded: dict[str, tuple[str, Path, Sequence[Path], int]] = {}
        self._starting: asyncio.Task[SingleProcess] | None = None
        self.starts = 0
        """Processes that have been started and had everything loaded."""

    async def ready(self) -> None:
        """Have a process before anything is loaded: starting one takes seconds of computing. Raises as its start."""
        await self._living()

    async def revived(self) -> None:
        """Have a process where there was one: one that died is replaced now. Raises as its start."""
        if self._process is not None:
            await self._living()

    async def load(
        self, task: str, engine: str, program: Path, weights: Sequence[Path], slots: int = 0
    ) -> Mapping[str, int]:
        """As the port; what was loaded once is loaded again into every later process."""
        took = await (await self._living()).load(task, engine, program, weights, slots)
        self._loaded[task] = engine, program, weights, slots
        return took

    async def unload(self, task: str) -> None:
        """Free what `task` takes; later processes do not load it again."""
        if self._loaded.pop(task, None) is not None and self._process is not None and self._process.alive:
            await self._process.unload(task)

    async def open(
        self, task: str, session: str, params: Params, codings: Codings = OWN, turn: Turn = NO_TURN
    ) -> TaskSession:
        """As the port; the first session after a death waits until everything is loaded again.

        A session ends with the process that has it, though another lives.
        """
        return await (await self._living()).open(task, session, params, codings, turn)

    @property
    def process(self) -> SingleProcess | None:
        """The one that there is, alive or not."""
        return self._process

    @property
    def figures(self) -> Figures | None:
        """Of the process that there is."""
        return self._process.figures if self._process is not None else None

    async def _living(self) -> SingleProcess:
        """The process there is, or a new one.

        Who gives up waiting does not end its start: it is slow where many start at once, and would never come to its
        end if each that waits began it anew.
        """
        if self._process is None or not self._process.alive:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.create_task(self._started())
            return await asyncio.shield(self._starting)
        return self._process

    async def _started(self) -> SingleProcess:
        if self._process is not None:
            _log.warning("the worker has died; another loads its %d tasks", len(self._loaded))
        process = await self._start()
        try:
            for task, (engine, program, weights, slots) in list(self._loaded.items()):
                if task in self._loaded:  # not unloaded meanwhile
                    await process.load(task, engine, program, weights, slots)
        except BaseException:
            await process.stop()
            raise
        self._process = process
        self.starts += 1
        return process

    async def stop(self) -> None:
        """End the process that there is, or is to be."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            with suppress(asyncio.CancelledError):
                await self._starting
        if self._process is not None:
            await self._process.stop()


def maker(
    stack: AsyncExitStack, limits: Limits, readable: Path, call_timeout_s: float = CALL_S, batch: int = 1
) -> Callable[[str], LastingWorker]:
    """What makes a worker around a kind's entry module.

    It is capped by `limits`, reads below `readable`, and is stopped with `stack`. Its process starts when something is
    loaded.
    """

    def make(entry: str) -> LastingWorker:
        worker = LastingWorker(
            lambda: WorkerProcess.start(entry, limits, readable=[readable], call_timeout_s=call_timeout_s, batch=batch)
        )
        stack.push_async_callback(worker.stop)
        return worker

    return make
