"""Petals' placement, as a baseline: servers come one by one and take the window of blocks that is served worst.

As its block selection has it: a server holds as many blocks as fit with their attention caches; of all windows it takes
the one whose throughputs, sorted, are lexicographically least, of equals the first. Later every server asks whether the
swarm would be better balanced if it moved, and all others after it (the ripple): it moves if the least throughput is
below `balance_quality` of what it would become, and if that leaves no hole. A server's throughput is what it computes a
second divided by the blocks that a request uses on average, half of them, or what its uplink carries, if that is less.

Borzunov et al.: Distributed inference and fine-tuning of large language models over the Internet. NeurIPS 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.plan.place.model import Chain, Placement, Pool, Stage, Workload

if TYPE_CHECKING:
    from random import Random

BALANCE_QUALITY = 0.75
CACHE_POSITIONS = 16_384
"""Petals' attention cache for models whose heads share keys."""
_MEASURED_POSITIONS = 1_024
_EPSILON = 1e-3
_ROUNDS = 4


def petals(pool: Pool, chain: Chain, workload: Workload, chance: Random) -> Placement:
    """The placement after all have come, in a random order, and balanced themselves; blocks are taken to be alike."""
    swarm = _Swarm(pool, chain, workload)
    order = [index for index in range(len(pool.nodes)) if swarm.sizes[index]]
    chance.shuffle(order)
    for index in order:
        swarm.join(index, swarm.best_start(swarm.sizes[index]))
    for _ in range(_ROUNDS):
        moved = False
        for index in order:
            if swarm.should_move(index, chance):
                swarm.leave(index)
                swarm.join(index, swarm.best_start(swarm.sizes[index]))
                moved = True
        if not moved:
            break
    return Placement(tuple(Stage(i, start, start + swarm.sizes[i]) for i, start in sorted(swarm.starts.items())))


def blocks(pool: Pool, chain: Chain, index: int, items: int) -> int:
    """How many of a chain's (equal) tasks a node holds with room for `items` of each."""
    return min(len(chain.tasks), pool.nodes[index].memory_bytes // max(1, chain.typical.bytes_at(items)))


class _Swarm:
    def __init__(self, pool: Pool, chain: Chain, workload: Workload) -> None:
        items = max(1, CACHE_POSITIONS // workload.context)
        self.sizes = [blocks(pool, chain, index, items) for index in range(len(pool.nodes))]
        self.rates = [self._rate(pool, chain, index) for index in range(len(pool.nodes))]
        self.throughputs = [0.0] * len(chain.tasks)
        self.starts: dict[int, int] = {}

    def _rate(self, pool: Pool, chain: Chain, index: int) -> float:
        node, task = pool.nodes[index], chain.typical
        computed = 1_000 * _MEASURED_POSITIONS / task.ms_on(node, _MEASURED_POSITIONS)
        sent = 1_000 * min(node.up, node.down) / max(1, task.out_bytes)
        return min(computed / ((self.sizes[index] + 1) / 2), sent)

    def best_start(self, size: int) -> int:
        windows = range(len(self.throughputs) - size + 1)
        return min((sorted(self.throughputs[i : i + size]), i) for i in windows)[1]

    def add(self, index: int, start: int, times: float) -> None:
        for block in range(start, start + self.sizes[index]):
            self.throughputs[block] += times * self.rates[index]

    def join(self, index: int, start: int) -> None:
        self.starts[index] = start
        self.add(index, start, 1.0)

    def leave(self, index: int) -> None:
        self.add(index, self.starts.pop(index), -1.0)

    def should_move(self, index: int, chance: Random) -> bool:
        """Whether the swarm would gain, everybody moving on after this one; nothing is changed."""
        throughputs, starts = list(self.throughputs), dict(self.starts)
        try:
            return self._gains(index, chance)
        finally:
            self.throughputs, self.starts = throughputs, starts

    def _gains(self, index: int, chance: Random) -> bool:
        before = min(self.throughputs)
        if not self._moved(index, is_first=True):
            return False
        moved, rounds = True, 0
        while moved and rounds < 10 * len(self.starts):
            order = list(self.starts)
            chance.shuffle(order)
            moved = sum(self._moved(one) for one in order) > 0
            rounds += 1
        after = min(self.throughputs)
        return after >= before and after >= _EPSILON and before / after < BALANCE_QUALITY - _EPSILON

    def _moved(self, index: int, *, is_first: bool = False) -> bool:
        """Let one go to its best place. A little more than its own is taken away first, so that it stays if it may."""
        before, old = min(self.throughputs), self.starts[index]
        self.add(index, old, -1 - _EPSILON)
        if is_first and before > _EPSILON and min(self.throughputs) <= 0:
            return False
        new = self.best_start(self.sizes[index])
        self.add(index, old, _EPSILON)
        self.starts[index] = new
        self.add(index, new, 1.0)
        return new != old
