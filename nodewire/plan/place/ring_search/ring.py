"""The ring of least latency, exactly: contiguous tasks on at most 12 nodes, each used once or not at all.

Held and Karp's dynamic programme over sets of nodes, with the number of tasks done as a third coordinate:

    best[S, j, k] = least ms from the anchor until the tasks [0, k) are done by the nodes S, j the last of them
                  = min over i in S - j and h < k of  best[S - j, i, h] + edge(i, j, bytes[h]) + ms_j[h:k]

where the tasks [h, k) must fit into j's memory, and may take j at most `stage_ms`. Tasks may be unequal in bytes and
in time, and in what they send on; edges may differ by direction. What is inside the minimum over h separates into a
term of h and one of k, so that it is a minimum over a window: O(2^n n (n + log T) T) in numpy, sets of one node first.
A pair (S, j) is given up if, whatever follows, it cannot end below a ring that is known already (`_least_left`), which
leaves a small part of them.

Held, Karp: A dynamic programming approach to sequencing problems. SIAM 1962.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from nodewire.errors import NoProvider
from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Ring, Stage
from nodewire.plan.place.ring_search.arrays import Floats, Ints, byte_ms, link_ms, summed_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

EXACT_NODES = 12
EXACT_CELLS = 16_000_000
"""Above so many states (128 MB) the search is used, although the nodes are few."""
_FAR = 1e300
_SLACK = 1e-9
"""Part of a ring's time by which sums in another order may differ."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a ring is looked for in: some nodes of a pool (default: all).

    Each has room for `items` at once of the tasks that it takes, and may take it `stage_ms` at most, from the `anchor`
    around to it. `reserved_bytes` of the anchor's node are taken already.
    """

    pool: Pool
    chain: Chain
    nodes: tuple[int, ...] | None = None
    items: int = 1
    anchor: int = CUSTOMER
    reserved_bytes: int = 0
    stage_ms: float = inf

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(range(len(self.pool.nodes))) if self.nodes is None else self.nodes

    def among(self, nodes: Sequence[int]) -> Instance:
        return replace(self, nodes=tuple(nodes))

    def room_bytes(self, node: int) -> int:
        return self.pool.nodes[node].memory_bytes - (self.reserved_bytes if node == self.anchor else 0)


@dataclass(frozen=True, slots=True)
class Costs:
    """A ring's costs for `nodes` (indices of a pool): what both the exact and the searching planner read.

    `summed` [n, T+1]: ms of the tasks before each. `first` [n, T+1]: the least h for which [h, k) fits; k: none does.
    `link` and `byte` [n+1, n+1]: ms between two nodes, of a frame and of each byte in it; the last row and column the
    anchor. `sizes` [T+1]: the bytes of a frame that passes before each task, or after the last.
    """

    nodes: tuple[int, ...]
    summed: Floats
    first: Ints
    link: Floats
    byte: Floats
    sizes: Floats

    @property
    def is_small(self) -> bool:
        n, tasks = len(self.nodes), self.summed.shape[1]
        return n <= EXACT_NODES and (n * tasks) << n <= EXACT_CELLS

    @property
    def has_room(self) -> bool:
        """False: they cannot hold all tasks, whoever takes which."""
        most = (np.arange(self.first.shape[1]) - self.first).max(axis=1)
        return bool(most.sum() >= self.first.shape[1] - 1)

    def select(self, rows: Sequence[int]) -> Costs:
        """Of these rows' nodes only."""
        some, way = list(rows), [*rows, len(self.nodes)]
        nodes = tuple(self.nodes[row] for row in rows)
        between = np.ix_(way, way)
        return Costs(nodes, self.summed[some], self.first[some], self.link[between], self.byte[between], self.sizes)

    def edge(self, a: int, b: int) -> Floats:
        """[T+1]: ms between two rows if the frame passes before task k."""
        found: Floats = self.link[a, b] + self.byte[a, b] * self.sizes
        return found

    def edges(self) -> Floats:
        """[n+1, n+1, T+1]; much memory for many nodes."""
        found: Floats = self.link[:, :, None] + self.byte[:, :, None] * self.sizes
        return found

    def mean_edges(self) -> Floats:
        found: Floats = self.link + self.byte * self.sizes.mean()
        return found


def costs(instance: Instance) -> Costs:
    pool, chain, chosen = instance.pool, instance.chain, instance.rows
    held = np.array(chain.summed_bytes(instance.items), dtype=np.float64)
    rooms = [min(instance.room_bytes(i), held[-1]) for i in chosen]
    first = np.array([np.searchsorted(held, held - room, side="left") for room in rooms])
    summed = summed_ms(chain, [pool.nodes[i] for i in chosen])
    if instance.stage_ms < inf:
        begins = summed - instance.stage_ms * (1 + _SLACK)
        first = np.maximum(first, [np.searchsorted(*both, side="left") for both in zip(summed, begins, strict=True)])
    way = (*chosen, instance.anchor)
    return Costs(
        chosen,
        summed,
        np.minimum(first, np.arange(held.size)),
        link_ms(pool, way, way),
        byte_ms(pool, way, way),
        np.array(chain.boundaries, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """The pairs (S, j) with so many nodes in S that may still lead to the best ring, by S.

    They are S as bits, j, and `ms` [pairs, T+1].
    """

    sets: Ints
    last: Ints
    ms: Floats

    def kept(self, those: Ints) -> _Level:
        return _Level(self.sets[those], self.last[those], self.ms[those])


def exact(found: Costs, most_ms: float = inf) -> Ring:
    """The ring of least turn. `most_ms`: the turn of a ring that is known.

    Raises NoProvider: the nodes have no room for all tasks, however they are dealt out.
    """
    n, edge = len(found.nodes), found.edges()
    left_ms = _least_left(found)
    windows = [_Window(row) for row in found.first]
    levels = [_alone(found)]
    while True:
        level = levels[-1]
        closed = level.ms[:, -1] + edge[level.last, n, -1]
        most_ms = min(most_ms, float(closed.min(initial=inf)))
        ends = (level.ms + left_ms[level.last]).min(axis=1, initial=inf)
        levels[-1] = level = level.kept(np.flatnonzero((ends <= most_ms * (1 + _SLACK)) & (ends < inf)))
        if len(levels) == n or not level.sets.size:
            break
        levels.append(_longer(found, edge, windows, level))
    best, at, count = inf, 0, 0
    for number, level in enumerate(levels):
        closed = level.ms[:, -1] + edge[level.last, n, -1]
        if closed.size and closed.min() < best:
            best, at, count = float(closed.min()), int(closed.argmin()), number
    if best == inf:
        raise NoProvider("nodes", "together they have no room for all tasks")
    return Ring(_back(found, levels[: count + 1], at), best, is_optimal=True)


def _alone(found: Costs) -> _Level:
    n = len(found.nodes)
    begun = found.link[n, :n] + found.byte[n, :n] * found.sizes[0]
    ms = np.where(found.first == 0, begun[:, None] + found.summed, inf)
    ms[:, 0] = inf
    return _Level(1 << np.arange(n), np.arange(n), ms)


def _longer(found: Costs, edge: Floats, windows: Sequence[_Window], level: _Level) -> _Level:
    """All pairs with one node more."""
    made: list[_Level] = []
    for j, window in enumerate(windows):
        rows = np.flatnonzero((level.sets >> j) & 1 == 0)
        if rows.size:
            sets = level.sets[rows]
            begins = np.flatnonzero(np.diff(sets, prepend=-1))
            ways = level.ms[rows] + edge[level.last[rows], j]
            reached = np.minimum.reduceat(ways, begins, axis=0)
            ms = window.least(reached - found.summed[j]) + found.summed[j]
            made.append(_Level(sets[begins] | 1 << j, np.full(begins.size, j), ms))
    if not made:
        return level.kept(np.array([], dtype=np.int64))
    sets = np.concatenate([one.sets for one in made])
    joined = _Level(sets, np.concatenate([one.last for one in made]), np.concatenate([one.ms for one in made]))
    return joined.kept(np.argsort(sets, kind="stable"))


def _least_left(found: Costs) -> Floats:
    """[n, T+1]: with k tasks done, j the last node, at least so many ms until the anchor has the end.

    Counted are j's quickest way to another node, as few more such ways as room demands, the quickest way home, and the
    compute: of every task on its fastest node, or as many as fit on the fastest node, then on the next.
    """
    n = len(found.nodes)
    between = found.link[:n, :n] + found.byte[:n, :n] * found.sizes.min()
    between[np.arange(n), np.arange(n)] = inf
    out = between.min(axis=1)
    home = found.link[:n, n] + found.byte[:n, n] * found.sizes[-1]
    stages = _least_stages(found)
    if stages[0] == inf:
        return np.full(found.first.shape, inf)
    more = np.where(stages > 1, (stages - 1) * min(out.min(), _FAR), 0.0)
    left: Floats = out[:, None] + more + home.min() + _least_compute(found)
    left[:, -1] = home
    return left


def _least_stages(found: Costs) -> Floats:
    """[T+1]: stages for the tasks from k on, were every node there many times; infinite: they fit on none."""
    size = found.first.shape[1]
    furthest = np.max([np.searchsorted(row, np.arange(size), side="right") - 1 for row in found.first], axis=0)
    stages = np.zeros(size)
    for k in range(size - 2, -1, -1):
        stages[k] = 1 + stages[furthest[k]] if furthest[k] > k else inf
    return stages


def _least_compute(found: Costs) -> Floats:
    """[T+1]: ms for the tasks from k on."""
    size = found.first.shape[1]
    each = np.diff(found.summed, axis=1)
    fastest = np.append(each.min(axis=0)[::-1].cumsum()[::-1], 0.0)
    capacity = (np.arange(size) - found.first).max(axis=1)
    floor = np.minimum.accumulate(each[:, ::-1], axis=1)[:, ::-1]
    order = np.argsort(floor, axis=0)
    room = capacity[order]
    before = room.cumsum(axis=0) - room
    taken = np.clip(np.arange(size - 1, 0, -1) - before, 0, room)
    filled = np.append((taken * np.take_along_axis(floor, order, axis=0)).sum(axis=0), 0.0)
    most: Floats = np.maximum(fastest, filled)
    return most


def _back(found: Costs, levels: Sequence[_Level], at: int) -> tuple[Stage, ...]:
    """The stages that led to pair `at` of the last level, found again from the last on."""
    stages, end = [], found.summed.shape[1] - 1
    for level, before in zip(reversed(levels), [*reversed(levels[:-1]), None], strict=True):
        last = int(level.last[at])
        if before is None:
            stages.append(Stage(found.nodes[last], 0, end))
            break
        first = int(found.first[last, end])
        rows = np.flatnonzero(before.sets == level.sets[at] & ~(1 << last))
        edge = np.array([found.edge(i, last)[first:end] for i in before.last[rows]])
        ways = before.ms[rows, first:end] + edge - found.summed[last, first:end]
        row, begin = _evenly(ways, first, end, len(levels) - len(stages))
        stages.append(Stage(found.nodes[last], begin, end))
        at, end = int(rows[row]), begin
    return tuple(reversed(stages))


def _evenly(ways: Floats, first: int, end: int, stages: int) -> tuple[int, int]:
    """Of `ways` [rows, end - first] to begin the last of so many stages at `first` or later a least one.

    It is given by its row and begin. Of equals it is the one that takes its share of the tasks, since under load the
    longest stage counts.
    """
    least = ways.min()
    rows, begins = np.nonzero(ways <= least + _SLACK * (1 + abs(least)))
    at = np.abs((end - first - begins) * stages - end).argmin()
    return int(rows[at]), first + int(begins[at])


class _Window:
    """For every k the minimum over [first[k], k), by a sparse table (Bender, Farach-Colton 2000)."""

    def __init__(self, first: Ints) -> None:
        ends = np.arange(first.size)
        some = np.flatnonzero(first < ends)
        length = ends[some] - first[some]
        level = np.frexp(length)[1] - 1
        self._steps: list[tuple[Ints, Ints, Ints]] = []
        """By level, the ends of windows of 2^level to less than twice that, and the two halves that cover each."""
        for number in range(int(level.max(initial=-1)) + 1):
            here = some[level == number]
            self._steps.append((here, first[here], here - (1 << number)))

    def least(self, values: Floats) -> Floats:
        """`values` [sets, T+1] -> [sets, T+1]; infinite where the window is empty."""
        found = np.full(values.shape, inf)
        table = values
        for number, (here, left, right) in enumerate(self._steps):
            if number:
                half = 1 << (number - 1)
                table = np.minimum(table[:, :-half], table[:, half:])
            if here.size:
                found[:, here] = np.minimum(table[:, left], table[:, right])
        return found


def along(found: Costs, order: Sequence[int]) -> Ring | None:
    """The best deal of the tasks to rows of `found` in a given order, each at least one; None if there is none.

    Exact for that order, O(n T log T).
    """
    anchor = len(found.nodes)
    reached = np.full((1, found.summed.shape[1]), inf)
    reached[0, 0] = found.edge(anchor, order[0])[0]
    tables = []
    for place, j in enumerate(order):
        if place:
            reached = reached + found.edge(order[place - 1], j)
        tables.append(reached)
        reached = _Window(found.first[j]).least(reached - found.summed[j]) + found.summed[j]
    total = float(reached[0, -1] + found.edge(order[-1], anchor)[-1])
    if total == inf:
        return None
    stages: list[Stage] = []
    end = found.summed.shape[1] - 1
    for table, j in zip(reversed(tables), reversed(order), strict=True):
        first = int(found.first[j, end])
        ways = table[:, first:end] - found.summed[j, first:end]
        _, begin = _evenly(ways, first, end, len(order) - len(stages))
        stages.append(Stage(found.nodes[j], begin, end))
        end = begin
    return Ring(tuple(reversed(stages)), total)
