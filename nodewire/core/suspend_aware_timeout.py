"""A bound on a wait that does not count time in which this process stood still.

After a machine was asleep, or had no processor to give, every timer is due at once, and an event loop may serve it
before it reads what came meanwhile: a peer that answered in time would be taken for one that is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_STEPS = 8


@asynccontextmanager
async def timeout_awake(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but a standstill of whatever length costs an eighth of `seconds` at most.

    Raises TimeoutError.
    """
    loop = asyncio.get_running_loop()
    step_s = seconds / _STEPS
    timer: asyncio.TimerHandle

    def step(left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(step_s, step, left - 1)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(step_s, step, _STEPS - 1)
        try:
            yield
        finally:
            timer.cancel()
