"""A quick guess at what a set of nodes makes as one ring, good enough to compare thousands of sets.

Tasks count as if they were alike (their mean), a stage's step as base + slope * batch. For every number of sessions n
in a ladder: each node has room for so many tasks, and may take so many that it keeps up; the fastest are filled first;
and the rate is n over the turn (`prediction`), at most what the slowest uplink carries. Sets of one size are guessed at
together, in numpy: arrays are [sets, nodes, sizes of the ladder] or begin so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nodewire.plan.place.model import CUSTOMER, Chain, Node, Pool, Workload
from nodewire.plan.place.ring_search.arrays import Floats, Ints, link_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_BUSY = 0.9
_STEPS = 4
_AT_ONCE = 200_000
"""Numbers in an array."""
_LEAST_MS = 1e-9


class Estimator:
    """Guesses for one pool, chain and workload; remembers the sets that it has seen."""

    def __init__(self, pool: Pool, chain: Chain, workload: Workload, anchor: int = CUSTOMER) -> None:
        tasks = len(chain.tasks)
        self._tasks, self._output = tasks, workload.output
        self._positions = (1 + workload.prompt / workload.output) / 1_000
        self._sizes = np.array([size for size in SIZES if size <= workload.most_items])
        held, each = chain.summed_bytes(0)[-1] / tasks, (chain.summed_bytes(1)[-1] - chain.summed_bytes(0)[-1]) / tasks
        sent = sum(chain.boundaries[1:]) / tasks
        self._anchor = len(pool.nodes)
        """Its row and column of `_link`, beside those of the node that it may be."""
        way = (*range(len(pool.nodes)), anchor)
        self._link = link_ms(pool, way, way)
        self._sending = sent / np.array([node.up for node in pool.nodes])
        memory = np.array([[float(node.memory_bytes)] for node in pool.nodes])
        needed = held + self._sizes * each
        self._room = np.where(needed > 0, np.floor(memory / np.maximum(needed, 1e-9)), tasks)
        steps = np.array([_step(chain, node) for node in pool.nodes])
        self._base, self._slope = steps[:, 0], steps[:, 1]
        self._chunk = min(workload.chunk, workload.prompt)
        self._chunks = workload.prompt / max(self._chunk, 1)
        self._per_s: dict[frozenset[int], float] = {frozenset(): 0.0}

    def per_s(self, nodes: frozenset[int]) -> float:
        """Output positions a second; 0 where they have no room."""
        if nodes not in self._per_s:
            self.learn([nodes])
        return self._per_s[nodes]

    def learn(self, some: Iterable[frozenset[int]]) -> None:
        """Guess at all of them together, which is quicker than one by one."""
        by_count: dict[int, list[frozenset[int]]] = {}
        for nodes in dict.fromkeys(some):
            if nodes not in self._per_s:
                by_count.setdefault(len(nodes), []).append(nodes)
        for count, sets in by_count.items():
            step = max(1, _AT_ONCE // (count * max(self._sizes.size, 1)))
            for begin in range(0, len(sets), step):
                now = sets[begin : begin + step]
                self._per_s |= zip(now, self._guessed(np.array([sorted(nodes) for nodes in now])).tolist(), strict=True)

    def _guessed(self, sets: Ints) -> Floats:
        """[sets, k] -> [sets]."""
        found = np.zeros(len(sets))
        if sets.shape[1] > self._tasks or not self._sizes.size:
            return found
        sets = np.take_along_axis(sets, np.lexsort((self._slope[sets], self._base[sets]), axis=1), axis=1)
        room = self._room[sets]
        able = (room.sum(axis=1) >= self._tasks) & (room.min(axis=1) >= 1)
        some = np.flatnonzero(able.any(axis=1))
        if some.size:
            rates = self._rates(sets[some], room[some], self._tours_ms(sets[some]))
            found[some] = np.where(able[some], rates, 0.0).max(axis=1)
        return found

    def _tours_ms(self, sets: Ints) -> Floats:
        """About the least way from the anchor around to it: cheapest insertion, then nodes moved."""
        far_first = np.argsort(-self._link[self._anchor][sets], axis=1, kind="stable")
        order = np.take_along_axis(sets, far_first, axis=1)
        way = np.full((len(sets), 2), self._anchor)
        for place in range(order.shape[1]):
            way = self._inserted(way, order[:, place])
        for _ in range(2):
            for node in way[:, 1:-1].copy().T:
                way = self._inserted(way[way != node[:, None]].reshape(len(way), -1), node)
        tours: Floats = self._link[way[:, :-1], way[:, 1:]].sum(axis=1)
        return tours

    def _inserted(self, way: Ints, node: Ints) -> Ints:
        a, b, new = way[:, :-1], way[:, 1:], node[:, None]
        place = (self._link[a, new] + self._link[new, b] - self._link[a, b]).argmin(axis=1)[:, None] + 1
        columns = np.arange(way.shape[1] + 1)
        before = np.take_along_axis(way, np.minimum(columns, place - 1), axis=1)
        after = np.take_along_axis(way, np.maximum(columns - 1, place), axis=1)
        return np.where(columns < place, before, np.where(columns == place, new, after))

    def _rates(self, sets: Ints, room: Floats, tours_ms: Floats) -> Floats:
        """[sets, sizes]: by fixed point, from no load on."""
        base, sending = self._base[sets][..., None], self._sending[sets][..., None]
        slope = self._slope[sets][..., None] * self._positions
        one = base + self._slope[sets][..., None]
        most = _BUSY / np.maximum(sending.max(axis=1) * self._positions, 1e-12)
        left = self._tasks - sets.shape[1]
        rate = np.zeros((len(sets), self._sizes.size))
        best = np.zeros_like(rate)
        for _ in range(_STEPS):
            load = rate[:, None, :]
            with np.errstate(divide="ignore", invalid="ignore"):
                able = np.where(load * slope == 0, self._tasks, np.floor(_BUSY / (load * slope)))
            more = np.maximum(np.minimum(room, able) - 1, 0)
            before = more.cumsum(axis=1) - more
            taken = 1 + np.clip(left - before, 0, more)
            idle = taken * base
            step = np.where(base > 0, idle / np.maximum(1 - load * slope * taken, 1 - _BUSY), taken * one)
            busy = np.minimum(load * self._positions * sending, _BUSY)
            turn = step * (1 + np.minimum(load * self._positions * idle, 1.0) / 2)
            turn += sending * (1 + busy * self._chunk / 3 / (1 - busy))
            turn_ms = tours_ms[:, None] + turn.sum(axis=1)
            computed = idle + self._chunk * taken * slope / self._positions
            prefill_ms = turn_ms + self._chunks * np.maximum(self._chunk * sending, computed).max(axis=1)
            able_rate = 1_000 * self._sizes / np.maximum(turn_ms + prefill_ms / self._output, _LEAST_MS)
            able_rate = np.minimum(most, able_rate)
            keeps_up = more.sum(axis=1) >= left
            best = np.where(keeps_up, np.maximum(best, np.minimum(rate, able_rate)), best)
            nearer = np.where(rate == 0, able_rate, (rate + able_rate) / 2)
            rate = np.where(keeps_up, nearer, rate * 0.7)  # else it cannot keep up at this rate: somewhere below
        return best


def _step(chain: Chain, node: Node) -> tuple[float, float]:
    """A task's mean time on a node: base and slope by batch."""
    last = max(2, *(batch for task in chain.tasks for batch, _ in task.on.get(node.kind, task.ms)))
    one, many = (chain.summed_ms(node, batch)[-1] / len(chain.tasks) for batch in (1, last))
    slope = (many - one) / max(1, last - 1)
    return one - slope, slope
