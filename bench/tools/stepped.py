"""What a coroutine takes of this thread's CPU, whatever it waits for in between."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def stepped(
    method: Callable[P, Coroutine[Any, Any, T]], tell: Callable[[float, T], None]
) -> Callable[P, Coroutine[Any, Any, T]]:
    """`method`, which tells after each call the milliseconds of CPU that it took, and what it returned."""

    @functools.wraps(method)
    async def counted(*arguments: P.args, **options: P.kwargs) -> T:
        steps = _Steps(method(*arguments, **options))
        returned: T = await steps
        tell(steps.taken_ns / 1e6, returned)
        return returned

    return counted


class _Steps:
    def __init__(self, made: Coroutine[Any, Any, Any]) -> None:
        self._made = made
        self.taken_ns = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            began_ns = time.thread_time_ns()
            try:
                waits_for = self._made.send(None) if error is None else self._made.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                self.taken_ns += time.thread_time_ns() - began_ns
            error = None
            try:
                yield waits_for
            except BaseException as raised:  # noqa: BLE001 - a cancellation, too: it is the coroutine's to handle
                error = raised
