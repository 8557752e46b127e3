"""The tasks that run beside one job, at any role. The first fault of one of them ends the job.

A fault is always typed. An exception that nobody typed is this machine's own fault (`NodeFailed`): a full disk, a
broken database, a lack of memory, or an error of this software, which is logged with its traceback.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from nodewire.errors import NodeFailed, NodewireError, first_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger("nodewire.job")


class JobTaskGroup:
    """`fault` is the first one; `ended` is set with it, or by the owner when the job is over."""

    def __init__(self) -> None:
        self.fault: NodewireError | None = None
        self.ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the job. Whatever it raises becomes the job's fault; the task itself raises nothing."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - what it is ends the job
                self.fail(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled before it began leaves it open
        return task

    def fail(self, error: BaseException) -> None:
        """End the job by this error, unless an earlier one has ended it."""
        fault = typed_fault(error)
        if self.fault is None:
            self.fault = fault
        self.ended.set()

    def cancel(self) -> list[asyncio.Task[None]]:
        """Stop the tasks that still run; the caller waits for them."""
        left = list(self._tasks)
        for task in left:
            task.cancel()
        return left

    async def end(self) -> None:
        """Stop the tasks that still run, and wait until they have ended."""
        await asyncio.gather(*self.cancel(), return_exceptions=True)


def typed_fault(error: BaseException) -> NodewireError:
    """The error as one of the table: itself, the first typed one of a group, or this machine's own fault."""
    first = first_of(error)
    if isinstance(first, NodewireError):
        return first
    if isinstance(first, sqlite3.OperationalError):
        return NodeFailed("database", str(first)[:200])
    if isinstance(first, OSError):
        return NodeFailed("machine", (first.strerror or str(first))[:200])
    if isinstance(first, MemoryError):
        return NodeFailed("memory", "there is none left")
    log.error("a task beside a job failed by an error of this software", exc_info=first)
    return NodeFailed("software", repr(first)[:200])
