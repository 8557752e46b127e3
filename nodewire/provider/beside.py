"""What is done beside a job's work. A fault there ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from nodewire.errors import NodewireError


class Beside:
    def __init__(self) -> None:
        self.fault: NodewireError | None = None
        """What went wrong first."""
        self.ended = asyncio.Event()
        """Set when the job is over, or something went wrong."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except NodewireError as error:
                self.fail(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of one that was cancelled before it began
        return task

    def fail(self, error: NodewireError) -> None:
        self.fault = self.fault or error
        self.ended.set()

    def cancel(self) -> list[asyncio.Task[None]]:
        """Stop what is still done; to be waited for."""
        left = list(self._tasks)
        for task in left:
            task.cancel()
        return left
