"""Ends a task and waits until it has ended: what it uses may be closed after that, and not before."""

from __future__ import annotations

import asyncio
from typing import Any


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait for it. Its result, or its error, is for whoever awaits the task itself.

    A task group hears of a cancellation one turn of the loop before its children do.
    """
    task.cancel()
    await asyncio.wait([task])
