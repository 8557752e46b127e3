"""A quick guess at what a set of nodes makes as one ring, good enough to compare thousands of sets.

Tasks count as if they were alike (their mean), a stage's step as base + slope * batch. For every number of sessions n
in a ladder: each node has room for so many tasks, and may take so many that it keeps up; the fastest are filled first;
and the rate is n over the turn (`predict`), at most what the slowest uplink carries.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import floor

from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Workload

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_BUSY = 0.9
_STEPS = 4


class Estimator:
    """Guesses for one pool, chain and workload; remembers the sets that it has seen."""

    def __init__(self, pool: Pool, chain: Chain, workload: Workload, anchor: int = CUSTOMER) -> None:
        self._anchor = anchor
        tasks = len(chain.tasks)
        self._tasks, self._output = tasks, workload.output
        self._positions = (1 + workload.prompt / workload.output) / 1_000
        self._sizes = [size for size in SIZES if size <= workload.most_items]
        held, each = chain.summed_bytes(0)[-1] / tasks, (chain.summed_bytes(1)[-1] - chain.summed_bytes(0)[-1]) / tasks
        sent = sum(chain.boundaries[1:]) / tasks
        indices = range(len(pool.nodes))
        self._link = [[pool.link_ms(a, b) for b in (*indices, CUSTOMER)] for a in (*indices, CUSTOMER)]
        self._sending = [sent / node.up for node in pool.nodes]
        self._room = [[floor(node.memory_bytes / (held + size * each)) for size in self._sizes] for node in pool.nodes]
        self._base, self._slope = [], []
        for node in pool.nodes:
            last = max(batch for task in chain.tasks for batch, _ in task.on.get(node.kind, task.ms))
            one, many = chain.summed_ms(node, 1)[-1] / tasks, chain.summed_ms(node, last)[-1] / tasks
            slope = (many - one) / max(1, last - 1)
            self._slope.append(slope)
            self._base.append(one - slope)
        chunk = min(workload.chunk, workload.prompt)
        self._chunk, self._chunks = chunk, workload.prompt / chunk
        self._per_s: dict[frozenset[int], float] = {frozenset(): 0.0}

    def per_s(self, nodes: frozenset[int]) -> float:
        """Output positions a second; 0 where they have no room."""
        if nodes not in self._per_s:
            self._per_s[nodes] = self._guessed(nodes)
        return self._per_s[nodes]

    def tour_ms(self, nodes: Iterable[int]) -> float:
        """About the least way from the anchor around to it: cheapest insertion, then nodes moved."""
        link = self._link
        way = [self._anchor, self._anchor]
        for node in sorted(nodes, key=lambda node: -link[self._anchor][node]):
            _insert(link, way, node)
        for _ in range(2):
            for node in way[1:-1]:
                way.remove(node)
                _insert(link, way, node)
        return sum(link[a][b] for a, b in pairwise(way))

    def _guessed(self, nodes: frozenset[int]) -> float:
        some = sorted(nodes, key=lambda node: (self._base[node], node))
        if len(some) > self._tasks:
            return 0.0
        base = [self._base[node] for node in some]
        slope = [self._slope[node] * self._positions for node in some]
        sending = [self._sending[node] for node in some]
        most = _BUSY / max(max(sending) * self._positions, 1e-12)
        tour: float | None = None
        best = 0.0
        for index, size in enumerate(self._sizes):
            room = [self._room[node][index] for node in some]
            if sum(room) < self._tasks or min(room) < 1:
                break
            if tour is None:
                tour = self.tour_ms(nodes)
            best = max(best, self._rate(size, room, base, slope, sending, tour, most))
        return best

    def _rate(
        self,
        size: int,
        room: list[int],
        base: list[float],
        slope: list[float],
        sending: list[float],
        tour_ms: float,
        most: float,
    ) -> float:
        count = len(room)
        rate = best = 0.0
        for _ in range(_STEPS):
            left = self._tasks - count
            turn, slowest = tour_ms, 0.0
            for i in range(count):
                able = floor(_BUSY / (rate * slope[i])) if rate and slope[i] else self._tasks
                taken = 1 + max(0, min(room[i] - 1, able - 1, left))
                left -= taken - 1
                idle = taken * base[i]
                step = idle / max(1 - rate * slope[i] * taken, 1 - _BUSY)
                busy = min(rate * self._positions * sending[i], _BUSY)
                turn += step * (1 + min(rate * self._positions * idle, 1.0) / 2)
                turn += sending[i] * (1 + busy * self._chunk / 3 / (1 - busy))
                slowest = max(
                    slowest, self._chunk * sending[i], idle + self._chunk * taken * slope[i] / self._positions
                )
            if left > 0:  # it cannot keep up at this rate: somewhere below
                rate *= 0.7
                continue
            prefill = turn + self._chunks * slowest
            able_rate = min(most, 1_000 * size / (turn + prefill / self._output))
            best = max(best, min(rate, able_rate))
            rate = able_rate if not rate else (rate + able_rate) / 2
        return best


def _insert(link: list[list[float]], way: list[int], node: int) -> None:
    place = min(
        range(1, len(way)), key=lambda k: link[way[k - 1]][node] + link[node][way[k]] - link[way[k - 1]][way[k]]
    )
    way.insert(place, node)
