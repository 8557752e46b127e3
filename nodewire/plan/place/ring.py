"""The ring of least latency, exactly: contiguous tasks on at most 12 nodes, each used once or not at all.

Held and Karp's dynamic programme over sets of nodes, with the number of tasks done as a third coordinate:

    best[S, j, k] = least ms from the anchor until the tasks [0, k) are done by the nodes S, j the last of them
                  = min over i in S - j and h < k of  best[S - j, i, h] + edge(i, j, bytes[h]) + ms_j[h:k]

where the tasks [h, k) must fit into j's memory, and may take j at most `stage_ms`. Tasks may be unequal in bytes and in
time, and in what they send on; edges may differ by direction. What is inside the minimum over h separates into a term
of h and one of k, so that it is a minimum over a window. O(2^n n (n + log T) T), in numpy.

Held, Karp: A dynamic programming approach to sequencing problems. SIAM 1962.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from nodewire.errors import NoProvider
from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Ring, Stage

EXACT_NODES = 12
EXACT_CELLS = 16_000_000
"""Above so many states (128 MB) the search is used, although the nodes are few."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Costs:
    """A ring's costs for `nodes` (indices of a pool): what both the exact and the searching planner read.

    `summed` [n, T+1]: ms of the tasks before each. `first` [n, T+1]: the least h for which [h, k) fits; k: none does.
    `edge` [n+1, n+1, T+1]: ms between two nodes if the frame passes before task k; the last row and column the anchor.
    """

    nodes: tuple[int, ...]
    summed: Floats
    first: Ints
    edge: Floats

    @property
    def is_small(self) -> bool:
        n, tasks = len(self.nodes), self.summed.shape[1]
        return n <= EXACT_NODES and (n * tasks) << n <= EXACT_CELLS


def costs(
    pool: Pool,
    chain: Chain,
    nodes: Sequence[int] | None = None,
    *,
    batch: int = 1,
    items: int = 1,
    anchor: int = CUSTOMER,
    stage_ms: float = inf,
    reserved_bytes: int = 0,
) -> Costs:
    """The costs of `nodes` (default: all) for frames of `batch` items on nodes that must have room for `items`.

    `stage_ms`: the most that a stage may take. `reserved_bytes` of the anchor's node are taken already.
    """
    chosen = tuple(range(len(pool.nodes))) if nodes is None else tuple(nodes)
    summed = np.array([chain.summed_ms(pool.nodes[i], batch) for i in chosen])
    held = np.array(chain.summed_bytes(items), dtype=np.float64)
    room = np.array([pool.nodes[i].memory_bytes - (reserved_bytes if i == anchor else 0) for i in chosen])
    ends = np.arange(held.size)
    first = np.empty(summed.shape, dtype=np.int64)
    for row in range(len(chosen)):
        fits = np.searchsorted(held, held - room[row], side="left")
        if stage_ms < inf:
            fits = np.maximum(fits, np.searchsorted(summed[row], summed[row] - stage_ms * (1 + 1e-12), side="left"))
        first[row] = np.minimum(fits, ends)
    way = (*chosen, anchor)
    link = np.array([[pool.link_ms(a, b) for b in way] for a in way])
    byte = np.array([[pool.byte_ms(a, b) for b in way] for a in way])
    sizes = np.array(chain.boundaries, dtype=np.float64) * batch
    return Costs(chosen, summed, first, link[:, :, None] + byte[:, :, None] * sizes)


def exact(found: Costs) -> Ring:
    """The ring of least turn.

    Raises NoProvider: the nodes have no room for all tasks, however they are dealt out.
    """
    n, size = found.summed.shape
    best = np.full((1 << n, n, size), inf)
    sets = np.arange(1 << n)
    counts = np.array([s.bit_count() for s in range(1 << n)])
    windows = [_Window(found.first[j]) for j in range(n)]
    for j in range(n):
        fits = found.first[j] == 0
        fits[0] = False
        best[1 << j, j, fits] = found.edge[n, j, 0] + found.summed[j, fits]
    for count in range(1, n):
        some = sets[counts == count]
        for j in range(n):
            before = some[(some >> j) & 1 == 0]
            if before.size:
                reached = (best[before] + found.edge[:n, j]).min(axis=1)
                best[before | 1 << j, j] = windows[j].least(reached - found.summed[j]) + found.summed[j]
    closed = best[:, :, -1] + found.edge[:n, n, -1]
    at = int(closed.argmin())
    chosen, last = divmod(at, n)
    if closed[chosen, last] == inf:
        raise NoProvider("nodes", "together they have no room for all tasks")
    return Ring(_back(found, best, chosen, last), float(closed[chosen, last]), is_optimal=True)


def _back(found: Costs, best: Floats, chosen: int, last: int) -> tuple[Stage, ...]:
    """The stages that led to `best[chosen, last, -1]`, found again from the last on."""
    n, size = found.summed.shape
    stages, end = [], size - 1
    while chosen != 1 << last:
        before = chosen & ~(1 << last)
        first = int(found.first[last, end])
        ways = best[before, :, first:end] + found.edge[:n, last, first:end] - found.summed[last, first:end]
        i, h = divmod(int(ways.argmin()), end - first)
        stages.append(Stage(found.nodes[last], first + h, end))
        chosen, last, end = before, i, first + h
    stages.append(Stage(found.nodes[last], 0, end))
    return tuple(reversed(stages))


class _Window:
    """For every k the minimum over [first[k], k), by a sparse table (Bender, Farach-Colton 2000)."""

    def __init__(self, first: Ints) -> None:
        ends = np.arange(first.size)
        self._none = first >= ends
        length = np.maximum(ends - first, 1)
        self._level = np.floor(np.log2(length)).astype(np.int64)
        self._left = np.minimum(first, ends - self._none)
        self._right = np.maximum(ends - (1 << self._level), 0)

    def least(self, values: Floats) -> Floats:
        """`values` [sets, T+1] -> [sets, T+1]; infinite where the window is empty."""
        found = np.full(values.shape, inf)
        table, level = values, 0
        while True:
            here = (self._level == level) & ~self._none
            found[:, here] = np.minimum(table[:, self._left[here]], table[:, self._right[here]])
            level += 1
            if level > self._level.max():
                return found
            half = 1 << (level - 1)
            table = np.minimum(table[:, : table.shape[1] - half], table[:, half:])


def along(found: Costs, order: Sequence[int]) -> Ring | None:
    """The best deal of the tasks to rows of `found` in a given order, each at least one; None if there is none.

    Exact for that order, O(n T log T).
    """
    anchor = len(found.nodes)
    reached = np.full((1, found.summed.shape[1]), inf)
    reached[0, 0] = found.edge[anchor, order[0], 0]
    tables = []
    for place, j in enumerate(order):
        if place:
            reached = reached + found.edge[order[place - 1], j]
        tables.append(reached)
        reached = _Window(found.first[j]).least(reached - found.summed[j]) + found.summed[j]
    total = float(reached[0, -1] + found.edge[order[-1], anchor, -1])
    if total == inf:
        return None
    stages, end = [], found.summed.shape[1] - 1
    for table, j in zip(reversed(tables), reversed(order), strict=True):
        first = int(found.first[j, end])
        start = first + int((table[0, first:end] - found.summed[j, first:end]).argmin())
        stages.append(Stage(found.nodes[j], start, end))
        end = start
    return Ring(tuple(reversed(stages)), total)
