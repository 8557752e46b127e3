"""Where to cut a chain of nodes: fewest tasks under a memory target, then fewest bytes between them, then most even.

Dynamic programming over the boundaries that few tensors cross: one at most if that will do, else two, three or four.
What a task takes follows from the chain without walking it: its weights, each counted once; the most that is live while
one of its nodes runs; what it was sent, which stays to the end. Two bounds of that decide nearly every task; in between
it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from nodewire.errors import OverMemory

MAX_CROSSING = 4
"""Tensors that may cross a boundary; wider boundaries are not considered."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the chain: the weights it uses, by name and bytes, and what is live while it runs.

    `live_bytes` of the chain's own values; `free_bytes` at most of values that each task makes for itself, inputs among
    them.
    """

    name: str
    weights: Mapping[str, int]
    live_bytes: int
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """A tensor that crosses a boundary, its bytes, and the step that uses it last; whether it lies within another."""

    name: str
    nbytes: int
    last: int
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """What is cut. `crossing[k]` passes from the first k steps to the rest; None where no cut may be.

    `floor_bytes` is the most that is live in a task, beside what it was sent, before its own first step;
    `given_bytes` at most what the model's own inputs take.
    """

    steps: tuple[Step, ...]
    crossing: tuple[tuple[BoundaryTensor, ...] | None, ...]
    floor_bytes: int = 0
    given_bytes: int = 0


Measure = Callable[[int, int], int]
"""What a task of the steps from the first up to the second takes, room for what waits included, in bytes."""
Waiting = Callable[[int], int]
"""Room for what waits, in bytes, at a task that is sent so many bytes a call."""


def cut(
    line: Chain,
    limit_bytes: int,
    measure: Measure | None = None,
    waiting: Waiting = lambda _: 0,
    refused: Collection[tuple[int, int]] = (),
) -> tuple[tuple[int, int], ...]:
    """Each task's steps as (first, end), in order; none of those in `refused`.

    Raises:
        OverMemory: no cut keeps every task under `limit_bytes`; names the largest node.

    """
    for width in range(1, MAX_CROSSING + 1):
        found = _Table(line, limit_bytes, measure, waiting, refused, width).fill()
        if found is not None:
            return found
    worst = max(line.steps, key=_alone)
    raise OverMemory(worst.name, f"takes {_alone(worst)} bytes, {limit_bytes} given")


def next_boundary(line: Chain, end: int) -> int:
    """The nearest boundary after `end` where a cut may be."""
    n = len(line.steps)
    return next((k for k in range(end + 1, n) if line.crossing[k] is not None), n)


def most_bytes(line: Chain, first: int, end: int, waiting: Waiting) -> int:
    """What a task of these steps takes at most."""
    steps = line.steps[first:end]
    sent = sum(one.nbytes for one in line.crossing[first] or ()) if first else 0
    weights = {name: size for step in steps for name, size in step.weights.items()}
    live = max(line.floor_bytes, max(step.live_bytes + step.free_bytes for step in steps))
    return sum(weights.values()) + live + sent + waiting(sent + line.given_bytes)


def _alone(step: Step) -> int:
    return sum(step.weights.values()) + step.live_bytes + step.free_bytes


class _Table:
    """The best way to each boundary, and what a task between any two takes."""

    def __init__(
        self,
        line: Chain,
        limit: int,
        measure: Measure | None,
        waiting: Waiting,
        refused: Collection[tuple[int, int]],
        width: int,
    ) -> None:
        n = len(line.steps)
        self._refused = refused
        self._line, self._limit, self._measure, self._floor = line, limit, measure, line.floor_bytes
        inner = (k for k in range(1, n) if (c := line.crossing[k]) is not None and len(c) <= width)
        self._at = np.array([0, *inner, n], dtype=np.int64)
        count = len(self._at)
        crossing = [sorted(line.crossing[k] or (), key=lambda one: one.last) if 0 < k < n else [] for k in self._at]
        self._bytes = np.zeros((count, width), dtype=np.int64)
        self._after = np.full((count, width), n, dtype=np.int64)
        self._views = np.zeros(count, dtype=np.int64)
        for k, tensors in enumerate(crossing):
            for j, one in enumerate(tensors):
                self._bytes[k, j], self._after[k, j] = one.nbytes, one.last + 1
            self._views[k] = sum(one.nbytes for one in tensors if one.is_view)
        self._held = self._bytes.cumsum(axis=1)  # of a boundary's tensors, those let go first come first
        self._sent = self._held[:, -1]
        self._least_room, self._room = (
            np.array([waiting(int(sent) + given) for sent in self._sent], dtype=np.int64)
            for given in (0, line.given_bytes)
        )
        self._own = np.array([step.live_bytes for step in line.steps], dtype=np.int64)
        self._free = np.array([step.free_bytes for step in line.steps], dtype=np.int64)
        self._tasks = np.full(count, n + 1, dtype=np.int64)
        self._crossed = np.zeros(count, dtype=np.int64)
        self._largest = np.zeros(count, dtype=np.int64)
        self._before = np.zeros(count, dtype=np.int64)
        self._tasks[0] = 0

    def fill(self) -> tuple[tuple[int, int], ...] | None:
        weights = np.zeros(len(self._at), dtype=np.int64)  # of a task from each boundary to the present one
        block_of: dict[str, int] = {}
        for end in range(1, len(self._at)):
            for step in self._line.steps[self._at[end - 1] : self._at[end]]:
                for name, size in step.weights.items():
                    weights[block_of.get(name, 0) : end] += size
                    block_of[name] = end
            self._reach(end, weights)
        if self._tasks[-1] > len(self._line.steps):
            return None
        found: list[tuple[int, int]] = []
        end = len(self._at) - 1
        while end:
            start = int(self._before[end])
            found.append((int(self._at[start]), int(self._at[end])))
            end = start
        return tuple(reversed(found))

    def _reach(self, end: int, weights: np.ndarray) -> None:
        """Find the best last task up to the boundary `end`."""
        first = int((weights[:end] > self._limit).sum())  # a task that begins earlier holds no less
        if first == end:
            return
        starts = np.arange(first, end)
        held = weights[first:end]
        own = self._live(starts, end, self._own)
        live = np.maximum(self._live(starts, end, self._own + self._free), self._floor + self._sent[first:end])
        most = held + live + self._room[first:end]
        passing = np.where(self._after[starts] > self._at[end], self._bytes[starts], 0).sum(axis=1)
        surely = held + np.maximum(own - passing - self._views[first:end], 0) + self._least_room[first:end]
        reached = self._tasks[first:end] <= len(self._line.steps)
        best: tuple[int, int, int] | None = None
        order = np.lexsort((most, self._crossed[first:end], self._tasks[first:end]))
        for k in order[reached[order] & (surely[order] <= self._limit)]:
            start = first + int(k)
            key = (int(self._tasks[start]), int(self._crossed[start]), max(int(self._largest[start]), int(most[k])))
            if best is not None and key[:2] > best[:2]:
                break
            if (best is None or key < best) and self._fits(start, end, int(most[k])):
                best = key
                self._before[end] = start
        if best is not None:
            crossing = int(self._sent[end])
            self._tasks[end], self._crossed[end], self._largest[end] = best[0] + 1, best[1] + crossing, best[2]

    def _live(self, starts: np.ndarray, end: int, live: np.ndarray) -> np.ndarray:
        """The most that is live in a task from each start to `end`: what it was sent counts on after its last use."""
        low, high = int(self._at[starts[0]]), int(self._at[end])
        top = np.maximum.accumulate(live[low:high][::-1])[::-1]
        found: np.ndarray = top[self._at[starts] - low]
        for held, after in zip(self._held[starts].T, self._after[starts].T, strict=True):
            inside = after < high
            found = np.maximum(found, np.where(inside, top[np.where(inside, after - low, 0)] + held, 0))
        return found

    def _fits(self, start: int, end: int, most: int) -> bool:
        task = int(self._at[start]), int(self._at[end])
        if task in self._refused:
            return False
        return most <= self._limit or (self._measure is not None and self._measure(*task) <= self._limit)
