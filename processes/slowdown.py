"""A process's children, and how they are slowed down from outside."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

STOPPED_S, RUNNING_S = 0.15, 0.01


def children(pid: int) -> list[int]:
    """Of its main thread: a provider's workers."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def slowed(pids: Sequence[int], stopped_s: float = STOPPED_S) -> AsyncIterator[None]:
    """They get a small part of their time, as on a machine that somebody else has begun to use.

    After every 10 ms that they run they stand still for `stopped_s` seconds.
    """

    def tell(what: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    async def stutter() -> None:
        while True:
            tell(signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
            tell(signal.SIGCONT)
            await asyncio.sleep(RUNNING_S)

    stuttering = asyncio.create_task(stutter())
    try:
        yield
    finally:
        stuttering.cancel()
        await asyncio.gather(stuttering, return_exceptions=True)
        tell(signal.SIGCONT)
