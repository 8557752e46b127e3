"""Turns on an event loop: long work (`nodewire.core.slices`) leaves the loop to other tasks after each slice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from nodewire.core.slices import Sliced

T = TypeVar("T")

SLICE_S = 0.01
"""After so long other tasks have their turn."""
_MARKS_TO_A_LOOK = 8
"""The work goes on for so many before the clock is read: between two lie some tens of microseconds."""


class LoopTurn:
    """One task's turn, which is over after a slice."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + SLICE_S

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._until_s

    async def give_up(self) -> None:
        """Let other tasks go first; then a new turn begins."""
        await asyncio.sleep(0)
        self._until_s = self._loop.time() + SLICE_S


async def in_slices(work: Sliced[T], turn: LoopTurn | None = None) -> T:
    """The result of `work`. `turn`: what the caller has left of its own turn."""
    turn = turn or LoopTurn()
    while True:
        try:
            for _ in range(_MARKS_TO_A_LOOK):
                next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if turn.is_over:
            await turn.give_up()
