"""What a move makes of a ring, many at a time: a node less, more, or another; a node elsewhere, a piece turned around.

Judged as if tasks were equal, by the tour plus a greedy fill, fastest first, which is exact where they are. Rings are
tuples of rows of their `Costs`. Moves of a kind are judged together, in numpy.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nodewire.plan.place.ring_search.arrays import Floats, Ints
    from nodewire.plan.place.ring_search.ring import Costs

_LEAST = 1e-9
_TURNED = 60
"""Longer rings are not turned around in pieces."""
Way = tuple[int, ...]


class Moves:
    """All of the rings over some costs."""

    def __init__(self, found: Costs, trusted: float = 1.0) -> None:
        """`trusted`: the part of every node's room that is counted on; less if unequal tasks must fit into it."""
        self.anchor = len(found.nodes)
        self.tasks: int = found.summed.shape[1] - 1
        self.edge: Floats = found.mean_edges()
        self.unit_ms: Floats = found.summed[:, -1] / self.tasks
        self.room: Ints = (_rooms(found.first) * trusted).astype(np.int64)
        by_speed = np.lexsort((np.arange(self.anchor), self.unit_ms))
        self.rank = np.empty_like(by_speed)
        self.rank[by_speed] = np.arange(self.anchor)

    def ms(self, ring: Way) -> float:
        return _Fill(self, np.array(ring, dtype=np.int64)).ms() + self.tour_ms(ring)

    def tour_ms(self, ring: Way) -> float:
        way = np.array((self.anchor, *ring, self.anchor))
        return float(self.edge[way[:-1], way[1:]].sum())

    def starts(self, count: int) -> list[int]:
        """The rows with which to begin: those that are best alone, or would be with room for all."""
        rows = np.arange(self.anchor)
        there_and_back = self.edge[self.anchor, rows] + self.edge[rows, self.anchor]
        alone = there_and_back + self.unit_ms * self.tasks
        alone_ms = np.where(self.room >= self.tasks, alone, inf)
        return [int(row) for row in np.lexsort((rows, alone, alone_ms))[:count]]

    def others(self, ring: Way) -> Ints:
        """The rows that are in no ring and can hold something."""
        able = self.room > 0
        able[list(ring)] = False
        return np.flatnonzero(able)

    def with_node(self, ring: Way, row: int) -> Way:
        """The ring with a node where it adds least."""
        way = np.array((self.anchor, *ring, self.anchor))
        place = int(self._inserted_ms(way, np.array([row]))[:, 0].argmin())
        return (*ring[:place], row, *ring[place:])

    def better(self, ring: Way, least_ms: float) -> Way | None:
        """The first ring below `least_ms` with a node less, a node more, or another node; None if there is none."""
        others = self.others(ring)
        if len(ring) > 1 and (at := self._first(self._without_ms(ring), least_ms)) is not None:
            return ring[:at] + ring[at + 1 :]
        if others.size:
            if (at := self._first(self.with_ms(ring, others), least_ms)) is not None:
                return self.with_node(ring, int(others[at]))
            if (at := self._first(self.swapped_ms(ring, others).ravel(), least_ms)) is not None:
                i, other = divmod(at, others.size)
                return self.with_node(ring[:i] + ring[i + 1 :], int(others[other]))
        return None

    def _first(self, ms: Floats, least_ms: float) -> int | None:
        below = np.flatnonzero(ms < least_ms - _LEAST)
        return int(below[0]) if below.size else None

    def _without_ms(self, ring: Way) -> Floats:
        """[k]: the ring without one of its nodes."""
        way = np.array((self.anchor, *ring, self.anchor))
        fill = _Fill(self, way[1:-1])
        return fill.without_ms() + self._tours_ms(way[None]) - self._saved_ms(way)

    def with_ms(self, ring: Way, others: Ints) -> Floats:
        """[others]: the ring with one of them."""
        way = np.array((self.anchor, *ring, self.anchor))
        least: Floats = self._inserted_ms(way, others).min(axis=0)
        return _Fill(self, way[1:-1]).with_ms(others) + self._tours_ms(way[None]) + least

    def swapped_ms(self, ring: Way, others: Ints) -> Floats:
        """[k, others]: the ring with one of them in place of one of its nodes, where it adds least.

        That is between two that stay neighbours, three of which are enough to know, or where the node was.
        """
        way, places = np.array((self.anchor, *ring, self.anchor)), np.arange(len(ring))[:, None]
        added = self._inserted_ms(way, others)
        nearest = np.argpartition(added, min(2, len(ring)), axis=0)[:3] if len(ring) > 2 else np.indices(added.shape)[0]
        a, b = way[:-2, None], way[2:, None]
        least = self.edge[a, others] + self.edge[others, b] - self.edge[a, b]
        for place in nearest:
            stays = (place != places) & (place != places + 1)
            least = np.where(stays, np.minimum(least, added[place, np.arange(others.size)]), least)
        tours = self._tours_ms(way[None]) - self._saved_ms(way)
        found: Floats = _Fill(self, way[1:-1]).swapped_ms(others) + tours[:, None] + least
        return found

    def ordered(self, ring: Way) -> Way:
        """The same nodes, in an order that neither turning a piece around nor moving a node improves."""
        if not 1 < len(ring) <= _TURNED:
            return ring
        gains, ways = self._turned(ring)
        begin, improved = 0, False
        while True:
            better = np.flatnonzero(gains[begin:] < -_LEAST)
            if better.size:
                at = begin + int(better[0])
                ring = self._turn(ring, at, int(ways[at]))
                gains, ways = self._turned(ring)
                begin, improved = at + 1, True
            elif improved:
                begin, improved = 0, False
            else:
                return ring

    def _turn(self, ring: Way, i: int, way: int) -> Way:
        """`way` i: node i goes where it adds least; j > i: the piece from i to j is turned around."""
        if way == i:
            return self.with_node(ring[:i] + ring[i + 1 :], ring[i])
        return ring[:i] + ring[i : way + 1][::-1] + ring[way + 1 :]

    def _turned(self, ring: Way) -> tuple[Floats, Ints]:
        """By place in the ring, what its best change adds (ms; negative: it is better), and which that is (`_turn`)."""
        count, edge = len(ring), self.edge
        way = np.array((self.anchor, *ring, self.anchor))
        forth, back = edge[way[:-1], way[1:]], edge[way[1:], way[:-1]]
        sums = np.append(0.0, np.cumsum(back - forth))
        i, j = np.arange(count)[:, None], np.arange(count)[None]
        ends = edge[way[i], way[j + 1]] + edge[way[i + 1], way[j + 2]] - forth[i] - forth[j + 1]
        change = np.where(i < j, ends + sums[j + 1] - sums[i + 1], inf)
        rests = _rests(ring, self.anchor)
        places = edge[rests[:, :-1], way[1:-1, None]] + edge[way[1:-1, None], rests[:, 1:]]
        least = (places - edge[rests[:, :-1], rests[:, 1:]]).min(axis=1)
        np.fill_diagonal(change, least + edge[way[:-2], way[2:]] - forth[:-1] - forth[1:])
        ways = change.argmin(axis=1)
        return change[np.arange(count), ways], ways

    def _tours_ms(self, ways: Ints) -> Floats:
        total: Floats = self.edge[ways[:, :-1], ways[:, 1:]].sum(axis=1)
        return total

    def _inserted_ms(self, way: Ints, rows: Ints) -> Floats:
        """[places, rows]: what a row adds to the tour of a way (anchors at both ends) between two neighbours."""
        a, b = way[:-1, None], way[1:, None]
        added: Floats = self.edge[a, rows] + self.edge[rows, b] - self.edge[a, b]
        return added

    def _saved_ms(self, way: Ints) -> Floats:
        """[k]: what the tour is shorter without a node."""
        saved: Floats = self.edge[way[:-2], way[1:-1]] + self.edge[way[1:-1], way[2:]] - self.edge[way[:-2], way[2:]]
        return saved


class _Fill:
    """The least compute of a ring's nodes with at least one task each, and of others that differ by one node.

    Beyond the first of each, n tasks on the fastest nodes take `_ms(n)`, linear between the sums of their room. Without
    node p that is the same as long as they are on faster ones, and else the time of as many more as p has room for,
    less what p takes. What a node more takes are those that are left by faster ones, as far as it has room.
    """

    def __init__(self, moves: Moves, rows: Ints) -> None:
        self._moves = moves
        self._rows = rows
        order = np.argsort(moves.rank[rows])
        by_speed = rows[order]
        room = moves.room[by_speed] - 1
        self._ranks = moves.rank[by_speed]
        self._sums = np.append(0, room.cumsum())
        self._costs = np.append(0.0, (room * moves.unit_ms[by_speed]).cumsum())
        self._first_ms = float(moves.unit_ms[rows].sum())
        self._own = moves.room[rows] - 1
        self._before = np.empty_like(self._own)
        self._before[order] = self._sums[:-1]
        self._is_able = bool(self._own.min(initial=0) >= 0)

    def ms(self) -> float:
        left = self._moves.tasks - self._rows.size
        if not self._is_able or not 0 <= left <= self._sums[-1]:
            return inf
        return self._first_ms + float(self._ms(np.array([left]))[0])

    def without_ms(self) -> Floats:
        """Milliseconds without each of the rows, [k]."""
        left = self._moves.tasks - (self._rows.size - 1)
        unit = self._moves.unit_ms[self._rows]
        return self._able(self._first_ms - unit + self._without(left), left, self._sums[-1] - self._own)

    def with_ms(self, others: Ints) -> Floats:
        """Milliseconds with each of the others beside the rows, [others]."""
        left = self._moves.tasks - (self._rows.size + 1)
        room, unit = self._moves.room[others] - 1, self._moves.unit_ms[others]
        taken = np.clip(left - self._faster(others), 0, room)
        ms = self._first_ms + unit + taken * unit + self._ms(left - taken)
        return self._able(ms, left, self._sums[-1] + room)

    def swapped_ms(self, others: Ints) -> Floats:
        """Milliseconds with each of the others in place of each row, [k, others]."""
        left = self._moves.tasks - self._rows.size
        room, unit = self._moves.room[others] - 1, self._moves.unit_ms[others]
        rows = self._rows[:, None]
        is_faster = self._moves.rank[rows] < self._moves.rank[others]
        faster = self._faster(others) - np.where(is_faster, self._own[:, None], 0)
        taken = np.clip(left - faster, 0, room)
        ms = self._first_ms - self._moves.unit_ms[rows] + unit + taken * unit + self._without(left - taken)
        return self._able(ms, left, self._sums[-1] - self._own[:, None] + room)

    def _ms(self, count: Floats | Ints) -> Floats:
        found: Floats = np.interp(count, self._sums, self._costs)
        return found

    def _without(self, count: Ints | int) -> Floats:
        """[k] or [k, others]: as `_ms`, without each of the nodes."""
        own, before, unit = self._own, self._before, self._moves.unit_ms[self._rows]
        if np.ndim(count):
            own, before, unit = own[:, None], before[:, None], unit[:, None]
        found: Floats = np.where(count <= before, self._ms(count + 0 * own), self._ms(count + own) - own * unit)
        return found

    def _faster(self, others: Ints) -> Ints:
        """The room, beyond the first task, of the nodes that are faster than each of the others."""
        found: Ints = self._sums[np.searchsorted(self._ranks, self._moves.rank[others])]
        return found

    def _able(self, ms: Floats, left: int, room: Ints) -> Floats:
        return np.where((room >= left) & (left >= 0) & self._is_able, ms, inf)


def _rests(ring: Way, anchor: int) -> Ints:
    """[k, k + 1]: the ring without each of its nodes, anchors at both ends."""
    way = np.array((anchor, *ring, anchor))
    columns = np.arange(len(ring) + 1)
    return way[columns + (columns > np.arange(len(ring))[:, None])]


def _rooms(first: Ints) -> Ints:
    """By row, how many tasks of mean size fit; exact where they are equal."""
    ends = np.arange(first.shape[1])
    windows = ends - first
    full = windows < ends
    counts = full.sum(axis=1)
    mean = np.where(counts > 0, (windows * full).sum(axis=1) // np.maximum(counts, 1), ends[-1])
    found: Ints = np.where(windows[:, -1] == ends[-1], ends[-1], mean)
    return found
