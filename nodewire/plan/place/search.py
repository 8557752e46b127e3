"""A ring of low latency among many nodes: a search by moves, finished by the exact planner on the few that matter.

Around each of some seeds, near the anchor or fast, a neighbourhood of nodes is looked at. In it a ring grows by what
adds least latency per task of room, and then changes as long as that helps: a node is dropped, added, or swapped for
another; a node goes to another place, a piece of the ring is turned around. A move is judged as if tasks were equal, by
the tour plus a greedy fill, fastest first, which is exact where they are. The tasks are then dealt out exactly along
the ring, and the nodes of the ring with some of its neighbours go through the exact planner. Nothing is guaranteed but
that the ring is feasible; `bench.place` says how far from the optimum it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from nodewire.errors import NoProvider
from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Ring
from nodewire.plan.place.ring import Costs, along, costs, exact

_SEEDS = 6
_NEIGHBOURS = 40
_POLISHED = 10
"""Nodes in an exact run on a part: a hundredth of a second or two."""
_TRUSTED = (1.0, 0.85, 0.7, 0.5)
_TURNED = 60
"""Longer rings are not turned around in pieces."""


def best_ring(
    pool: Pool,
    chain: Chain,
    nodes: Sequence[int] | None = None,
    *,
    batch: int = 1,
    items: int = 1,
    anchor: int = CUSTOMER,
    stage_ms: float = inf,
    reserved_bytes: int = 0,
) -> Ring:
    """The ring of least turn: exact for up to 12 nodes, else what the search finds. Arguments are those of `costs`.

    Raises NoProvider: no ring was found that has room for all tasks.
    """
    chosen = range(len(pool.nodes)) if nodes is None else nodes

    def of(some: Sequence[int]) -> Costs:
        return costs(
            pool,
            chain,
            some,
            batch=batch,
            items=items,
            anchor=anchor,
            stage_ms=stage_ms,
            reserved_bytes=reserved_bytes,
        )

    if len(chosen) <= _NEIGHBOURS:
        found = of(chosen)
        return exact(found) if found.is_small else searched(found)
    rings = []
    for some in _neighbourhoods(pool, chain, chosen, anchor, items):
        try:
            rings.append(searched(of(some)))
        except NoProvider:
            continue
    if not rings:
        raise NoProvider("nodes", "no ring was found that has room for all tasks")
    return min(rings, key=lambda ring: ring.turn_ms)


def _neighbourhoods(pool: Pool, chain: Chain, nodes: Sequence[int], anchor: int, items: int) -> Iterable[Sequence[int]]:
    """Around some nodes that are near the anchor, large or fast, those to which they are near; unlike each other."""
    needed = chain.summed_bytes(items)[-1]
    alone = {i: chain.summed_ms(pool.nodes[i])[-1] for i in nodes}
    share = {i: min(pool.nodes[i].memory_bytes / needed, 1.0) if needed else 1.0 for i in nodes}
    by_worth = sorted(nodes, key=lambda i: (2 * pool.link_ms(anchor, i) + alone[i], i))
    taken: set[int] = set()
    seeds = 0
    for seed in by_worth:
        if seeds == _SEEDS:
            return
        if seed in taken:
            continue
        near = sorted(
            (i for i in nodes if share[i] > 0),
            key=lambda i: ((2 * pool.link_ms(seed, i)) / share[i] + alone[i], i),
        )
        room, count = 0.0, 0
        while count < len(near) and (count < _NEIGHBOURS or room < 1.5):
            room += share[near[count]]
            count += 1
        taken |= set(near[: count // 3])
        seeds += 1
        yield near[:count]


class _Moves:
    """Rings as tuples of rows, and what a move makes of them: equal tasks, the mean of what passes between them."""

    def __init__(self, found: Costs, trusted: float = 1.0) -> None:
        """`trusted`: the part of every node's room that is counted on; less if unequal tasks must fit into it."""
        self.anchor = len(found.nodes)
        self.tasks: int = found.summed.shape[1] - 1
        self.edge: list[list[float]] = found.edge.mean(axis=2).tolist()
        self.unit_ms: list[float] = (found.summed[:, -1] / self.tasks).tolist()
        windows = range(self.tasks + 1) - found.first
        self.room = [int(_room(row, self.tasks) * trusted) for row in windows.tolist()]
        by_speed = sorted(range(self.anchor), key=lambda i: (self.unit_ms[i], i))
        self.rank = {row: rank for rank, row in enumerate(by_speed)}

    def fill_ms(self, rows: Iterable[int]) -> float:
        """The least compute with at least one task each; infinite if they have no room, or are more than the tasks."""
        some = sorted(rows, key=self.rank.__getitem__)
        left = self.tasks - len(some)
        if left < 0:
            return inf
        total = 0.0
        for row in some:
            more = min(self.room[row] - 1, left)
            if more < 0:
                return inf
            total += (1 + more) * self.unit_ms[row]
            left -= more
        return total if left == 0 else inf

    def tour_ms(self, ring: Sequence[int]) -> float:
        return sum(self.edge[a][b] for a, b in pairwise((self.anchor, *ring, self.anchor)))

    def alone(self, row: int) -> float:
        """As if it had room for all."""
        return self.tour_ms((row,)) + self.unit_ms[row] * self.tasks

    def ms(self, ring: Sequence[int]) -> float:
        return self.fill_ms(ring) + self.tour_ms(ring)

    def with_node(self, ring: Sequence[int], row: int) -> tuple[int, ...]:
        """The ring with a node where it adds least."""
        way, edge = (self.anchor, *ring, self.anchor), self.edge
        place = min(
            range(len(ring) + 1), key=lambda k: edge[way[k]][row] + edge[row][way[k + 1]] - edge[way[k]][way[k + 1]]
        )
        return (*ring[:place], row, *ring[place:])

    def ordered(self, ring: tuple[int, ...]) -> tuple[int, ...]:
        """The same nodes, in an order that neither turning a piece around nor moving a node improves."""
        if not 1 < len(ring) <= _TURNED:
            return ring
        best, least = ring, self.tour_ms(ring)
        improved = True
        while improved:
            improved = False
            for i in range(len(best)):
                others = best[:i] + best[i + 1 :]
                moved = self.with_node(others, best[i])
                ways = [moved, *(best[:i] + best[i : j + 1][::-1] + best[j + 1 :] for j in range(i + 1, len(best)))]
                way = min(ways, key=self.tour_ms)
                if (ms := self.tour_ms(way)) < least - 1e-9:
                    best, least, improved = way, ms, True
        return best


def _room(windows: Sequence[int], tasks: int) -> int:
    """How many tasks of mean size fit; exact where they are equal."""
    if windows[-1] == tasks:
        return tasks
    full = [window for end, window in enumerate(windows) if window < end]
    return sum(full) // len(full) if full else tasks


def searched(found: Costs) -> Ring:
    for trusted in _TRUSTED:
        moves = _Moves(found, trusted)
        starts = sorted(range(moves.anchor), key=lambda row: (moves.ms((row,)), moves.alone(row), row))
        grown = {_grown(moves, start) for start in starts[:_SEEDS]}
        climbed = {_climbed(moves, way) for way in grown if way is not None}
        dealt = [ring for order in sorted(climbed) if (ring := _dealt(found, moves, order)) is not None]
        if dealt:
            break
    else:
        dealt = [_of_all(found, moves)]
    best = min(dealt, key=lambda ring: ring.turn_ms)
    while (polished := _polished(found, moves, best)).turn_ms < best.turn_ms - 1e-9:
        best = polished
    return best


def _of_all(found: Costs, moves: _Moves) -> Ring:
    """Where room is so scarce that no smaller ring was found: a ring of all nodes that can hold anything."""
    ring: tuple[int, ...] = ()
    for row in range(moves.anchor):
        if (found.first[row] < range(moves.tasks + 1)).any():
            ring = moves.with_node(ring, row)
    while ring:
        if (dealt := along(found, moves.ordered(ring))) is not None:
            return dealt
        ring = tuple(row for row in ring if row != min(ring, key=lambda row: (moves.room[row], row)))
    raise NoProvider("nodes", "no ring was found that has room for all tasks")


def _grown(moves: _Moves, start: int) -> tuple[int, ...] | None:
    """A ring with room for all, from one node on: what adds least per task of room comes next."""
    ring: tuple[int, ...] = (start,) if moves.room[start] > 0 else ()
    left = [row for row in range(moves.anchor) if row != start and moves.room[row] > 0]
    while moves.fill_ms(ring) == inf:
        if not left or len(ring) >= moves.tasks:
            return None
        here = (*ring, moves.anchor)

        def per_task(row: int, here: tuple[int, ...] = here) -> float:
            room = min(moves.room[row], moves.tasks)
            return (2 * min(moves.edge[other][row] for other in here) + moves.unit_ms[row] * room) / room

        row = min(left, key=per_task)
        left.remove(row)
        ring = moves.with_node(ring, row)
    return ring


def _climbed(moves: _Moves, ring: tuple[int, ...]) -> tuple[int, ...]:
    ring = moves.ordered(ring)
    least = moves.ms(ring)
    while True:
        others = [row for row in range(moves.anchor) if row not in ring and moves.room[row] > 0]
        for move in _moved(moves, ring, others, least):
            if (ms := moves.ms(move)) < least - 1e-9:
                ring = moves.ordered(move)
                least = min(ms, moves.ms(ring))
                break
        else:
            return ring


def _moved(moves: _Moves, ring: tuple[int, ...], others: Sequence[int], least: float) -> Iterable[tuple[int, ...]]:
    """Rings with a node less, a node more, or another node, as far as their compute alone is less than `least`."""
    without = [(ring[:i] + ring[i + 1 :]) for i in range(len(ring))]
    for rest in without:
        if rest and moves.fill_ms(rest) < least:
            yield rest
    for row in others:
        if moves.fill_ms((*ring, row)) < least:
            yield moves.with_node(ring, row)
    for rest in without:
        for row in others:
            if moves.fill_ms((*rest, row)) < least:
                yield moves.with_node(rest, row)


def _dealt(found: Costs, moves: _Moves, order: tuple[int, ...]) -> Ring | None:
    """The tasks along the ring; where unequal ones do not fit as equal ones would, with a node more at a time."""
    ring = along(found, order)
    left = [row for row in range(moves.anchor) if row not in order and moves.room[row] > 0]
    while ring is None and left and len(order) < moves.tasks:
        longer = min((moves.with_node(order, row) for row in left), key=lambda way: (moves.tour_ms(way), way))
        left = [row for row in left if row not in longer]
        order = longer
        ring = along(found, order)
    return ring


def _polished(found: Costs, moves: _Moves, ring: Ring) -> Ring:
    """The exact ring of its nodes and of those with which it would be best, if they are few enough."""
    row_of = {node: row for row, node in enumerate(found.nodes)}
    order = tuple(row_of[stage.node] for stage in ring.stages)
    if len(order) >= _POLISHED:
        return ring
    others = [row for row in range(moves.anchor) if row not in order and moves.room[row] > 0]

    def swapped(row: int) -> float:
        rests = [order[:i] + order[i + 1 :] for i in range(len(order))]
        return min(moves.ms(moves.with_node(rest, row)) for rest in (order, *rests))

    rows = [*order, *sorted(others, key=lambda row: (swapped(row), row))[: _POLISHED - len(order)]]
    part = Costs(
        tuple(found.nodes[row] for row in rows),
        found.summed[rows],
        found.first[rows],
        found.edge[[*rows, moves.anchor]][:, [*rows, moves.anchor]],
    )
    if not part.is_small:
        return ring
    best = exact(part)
    return Ring(best.stages, best.turn_ms)
