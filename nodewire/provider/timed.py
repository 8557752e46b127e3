"""A worker whose calls are timed: what a job's result says of them."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodewire.kind import Params, Worker
from nodewire.protocol.codec import OWN, Codings
from nodewire.protocol.frame import Array, Frame

_NEWEST = 8
"""Calls of a task, by whose median it is known how quick it is now."""


class Timed:
    """Implements nodewire.kind.Worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._us: list[int] = []
        self._newest: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_NEWEST))

    async def load(self, task: str, engine: str, program: Path, weights: Sequence[Path]) -> Mapping[str, int]:
        return await self._worker.load(task, engine, program, weights)

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> None:
        await self._worker.open(task, session, params, codings)

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]:
        started = time.perf_counter_ns()
        frames = await self._worker.receive(task, session, frame)
        took_us = (time.perf_counter_ns() - started) // 1000
        self._us.append(took_us)
        self._newest[task].append(took_us)
        return frames

    async def close(self, task: str, session: str) -> None:
        await self._worker.close(task, session)

    def turn_us(self) -> int:
        """What one call of each task takes now, together."""
        return sum(int(statistics.median(newest)) for newest in self._newest.values())

    def microseconds(self) -> tuple[int, int]:
        """Median and total of the calls so far."""
        return (int(statistics.median(self._us)), sum(self._us)) if self._us else (0, 0)
