"""Long work in slices, so that an event loop is never held for long.

Work of many items is a generator: it yields at marks, and returns its result. Between two marks lies a number of items
that does not grow with the whole. The work knows no clock. `loop_turn.in_slices` drives it on an event loop, where
other tasks have their turn after each slice; `whole` drives it without a pause.

A thread beside the loop is no substitute. Both need the interpreter's lock, which a thread keeps for 5 ms each time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Sliced = Generator[None, None, T]


def whole(work: Sliced[T]) -> T:
    """The result of `work`, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
