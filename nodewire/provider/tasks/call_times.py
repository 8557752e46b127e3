"""How long the calls of one job take: what its result says of them."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque

_NEWEST = 8
"""Calls of a task, by whose median it is known how quick it is now."""


class CallTimes:
    """In microseconds."""

    def __init__(self) -> None:
        self._us: list[int] = []
        self._by_task: defaultdict[str, int] = defaultdict(int)
        self._newest: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_NEWEST))

    def add(self, task: str, us: int) -> None:
        self._us.append(us)
        self._by_task[task] += us
        self._newest[task].append(us)

    def turn_us(self) -> int:
        """The time of a turn: one call of each task, by its newest calls' median, added up."""
        return sum(int(statistics.median(newest)) for newest in self._newest.values())

    def total_us(self, task: str) -> int:
        """The sum of a task's calls so far."""
        return self._by_task.get(task, 0)

    def median_and_total_us(self) -> tuple[int, int]:
        """The median and the sum of all calls so far; 0 and 0 without one."""
        return (int(statistics.median(self._us)), sum(self._us)) if self._us else (0, 0)
