"""An event loop whose time is the work done in it: as if the process had a machine of its own, however busy this is.

Time is the CPU that the process has used, and what the loop would have slept while nothing was to do. So what waits for
work waits as long as the work takes, and a bench's figures do not depend on its neighbours.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_BESIDE_S = 0.001
"""How long the loop looks out for threads that work beside it."""


class _Sleepless(selectors.DefaultSelector):
    """Does not sleep: it says how long it would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s = 0.0
        self.beside = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.beside or timeout is None:
            return super().select(_BESIDE_S if timeout is None else min(timeout, _BESIDE_S))
        ready = super().select(0)
        if not ready and timeout > 0:
            self.slept_s += timeout
        return ready


class OwnMachine(asyncio.SelectorEventLoop):
    """The loop. Threads that it starts count as work, too."""

    def __init__(self) -> None:
        self._sleepless = _Sleepless()
        super().__init__(self._sleepless)

    def time(self) -> float:
        return time.process_time() + self._sleepless.slept_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self._sleepless.beside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._is_done)
        return future

    def _is_done(self, _: object) -> None:
        self._sleepless.beside -= 1


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on such a loop, in a thread that has no other."""
    with asyncio.Runner(loop_factory=OwnMachine) as runner:
        return runner.run(main)
