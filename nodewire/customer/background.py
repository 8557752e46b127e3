"""What runs beside a job at its customer; the first of it that fails is what ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from nodewire.errors import LinkLost, NodewireError


class Background:
    """`failure` is the first error, and `failed` is set with it."""

    def __init__(self) -> None:
        self.failure: NodewireError | None = None
        self.failed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def fail(self, error: NodewireError) -> None:
        if self.failure is None:
            self.failure = error
            self.failed.set()

    async def end(self) -> None:
        """Cancel everything and wait until it has ended."""
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error if isinstance(error, NodewireError) else LinkLost("job", repr(error)[:200]))
