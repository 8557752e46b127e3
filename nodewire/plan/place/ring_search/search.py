"""A ring of low latency among many nodes: a search by moves, finished by the exact planner on the few that matter.

Around each of some seeds, near the anchor or fast, a neighbourhood of nodes is looked at. In it a ring grows by what
adds least latency per task of room, and then changes by `moves` as long as that helps. The tasks are then dealt out
exactly along the ring, and the nodes of the best with some of their neighbours go through the exact planner. Nothing
is guaranteed but that the ring is feasible; `bench.sim.place` says how far from the optimum it was.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from nodewire.errors import NoProvider
from nodewire.plan.place.ring_search.arrays import link_ms, summed_ms
from nodewire.plan.place.ring_search.moves import Moves, Way
from nodewire.plan.place.ring_search.ring import Costs, Instance, along, costs, exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.plan.place.model import Ring

_SEEDS = 6
_NEIGHBOURS = 40
_FINISHED = 2
"""Of the rings of as many neighbourhoods, these go through the exact planner."""
_LONG = 60
"""Nodes in a ring of which only the best is changed, not one from every start: a move takes milliseconds to judge."""
_POLISHED = 10
"""Nodes in an exact run on a part."""
_TRUSTED = (1.0, 0.85, 0.7, 0.5)


def best_ring(instance: Instance) -> Ring:
    """The ring of least turn: exact for up to 12 nodes, else what the search finds.

    Raises NoProvider: no ring was found that has room for all tasks.
    """
    if len(instance.rows) <= _NEIGHBOURS:
        found = costs(instance)
        return exact(found) if found.is_small else searched(found)
    rings: list[tuple[float, int, Ring, Costs, Moves]] = []
    for some in _neighbourhoods(instance):
        found = costs(instance.among(some))
        try:
            ring, moves = _climbs(found)
        except NoProvider:
            continue
        rings.append((ring.turn_ms, len(rings), ring, found, moves))
    if not rings:
        raise NoProvider("nodes", "no ring was found that has room for all tasks")
    best = sorted(rings, key=lambda one: one[:2])[:_FINISHED]
    return min((_finished(found, moves, ring) for *_, ring, found, moves in best), key=lambda ring: ring.turn_ms)


def searched(found: Costs) -> Ring:
    """What the search finds.

    Raises NoProvider: no ring that has room for all tasks.
    """
    ring, moves = _climbs(found)
    return _finished(found, moves, ring)


def _neighbourhoods(instance: Instance) -> Iterable[Sequence[int]]:
    """Around some nodes that are near the anchor, large or fast, those to which they are near; unlike each other."""
    pool, nodes = instance.pool, np.array(instance.rows)
    needed = instance.chain.summed_bytes(instance.items)[-1]
    alone = summed_ms(instance.chain, [pool.nodes[i] for i in nodes])[:, -1]
    share = np.array([min(instance.room_bytes(i) / needed, 1.0) if needed else 1.0 for i in nodes.tolist()])
    able = np.flatnonzero(share > 0)
    from_anchor = link_ms(pool, [instance.anchor], nodes)[0]
    taken = np.zeros(nodes.size, dtype=bool)
    seeds = 0
    for seed in np.lexsort((nodes, 2 * from_anchor + alone)):
        if seeds == _SEEDS:
            return
        if taken[seed]:
            continue
        far = 2 * link_ms(pool, [nodes[seed]], nodes[able])[0] / share[able] + alone[able]
        near = able[np.lexsort((nodes[able], far))]
        room = share[near].cumsum()
        count = max(_NEIGHBOURS, int(np.searchsorted(room, 1.5)) + 1)
        taken[near[: min(count, near.size) // 3]] = True
        seeds += 1
        yield nodes[near[:count]].tolist()


def _climbs(found: Costs) -> tuple[Ring, Moves]:
    """The best of some rings, each the end of as many moves as helped."""
    if not found.has_room:
        raise NoProvider("nodes", "together they have no room for all tasks")
    for trusted in _TRUSTED:
        moves = Moves(found, trusted)
        grown = {way for start in moves.starts(_SEEDS) if (way := _grown(moves, start)) is not None}
        if grown and min(map(len, grown)) > _LONG:
            grown = set(sorted(grown, key=lambda way: (moves.ms(way), way))[:1])
        climbed = {_climbed(moves, way) for way in grown}
        dealt = [ring for order in sorted(climbed) if (ring := _dealt(found, moves, order)) is not None]
        if dealt:
            return min(dealt, key=lambda ring: ring.turn_ms), moves
    return _of_all(found, moves), moves


def _of_all(found: Costs, moves: Moves) -> Ring:
    """Where room is so scarce that no smaller ring was found: a ring of all nodes that can hold anything."""
    ring: Way = ()
    for row in range(moves.anchor):
        if (found.first[row] < range(moves.tasks + 1)).any():
            ring = moves.with_node(ring, row)
    while ring:
        if (dealt := along(found, moves.ordered(ring))) is not None:
            return dealt
        ring = tuple(row for row in ring if row != min(ring, key=lambda row: (moves.room[row], row)))
    raise NoProvider("nodes", "no ring was found that has room for all tasks")


def _grown(moves: Moves, start: int) -> Way | None:
    """A ring with room for all, from one node on: what adds least per task of room comes next."""
    ring: Way = (start,) if moves.room[start] > 0 else ()
    near = np.minimum(moves.edge[moves.anchor], moves.edge[start] if ring else inf)[:-1]
    room = np.minimum(moves.room, moves.tasks)
    able = room > 0
    able[start] = False
    held = int(moves.room[list(ring)].sum())
    while not ring or held < moves.tasks:
        if not able.any() or len(ring) >= moves.tasks:
            return None
        per_task = np.where(able, (2 * near + moves.unit_ms * room) / np.maximum(room, 1), inf)
        row = int(per_task.argmin())
        able[row] = False
        near = np.minimum(near, moves.edge[row, :-1])
        held += int(moves.room[row])
        ring = moves.with_node(ring, row)
    return ring


def _climbed(moves: Moves, ring: Way) -> Way:
    ring = moves.ordered(ring)
    least = moves.ms(ring)
    while (better := moves.better(ring, least)) is not None:
        ring = moves.ordered(better)
        least = min(moves.ms(better), moves.ms(ring))
    return ring


def _dealt(found: Costs, moves: Moves, order: Way) -> Ring | None:
    """The tasks along the ring; where unequal ones do not fit as equal ones would, with a node more at a time."""
    ring = along(found, order)
    left = moves.others(order).tolist()
    while ring is None and left and len(order) < moves.tasks:
        longer = min((moves.with_node(order, row) for row in left), key=lambda way: (moves.tour_ms(way), way))
        left = [row for row in left if row not in longer]
        order = longer
        ring = along(found, order)
    return ring


def _finished(found: Costs, moves: Moves, ring: Ring) -> Ring:
    while (polished := _polished(found, moves, ring)).turn_ms < ring.turn_ms - 1e-9:
        ring = polished
    return ring


def _polished(found: Costs, moves: Moves, ring: Ring) -> Ring:
    """The exact ring of its nodes and of those with which it would be best, if they are few enough."""
    row_of = {node: row for row, node in enumerate(found.nodes)}
    order = tuple(row_of[stage.node] for stage in ring.stages)
    if len(order) >= _POLISHED:
        return ring
    others = moves.others(order)
    swapped = np.minimum(moves.with_ms(order, others), moves.swapped_ms(order, others).min(axis=0))
    best = others[np.lexsort((others, swapped))][: _POLISHED - len(order)]
    part = found.select([*order, *best.tolist()])
    if not part.is_small:
        return ring
    return replace(exact(part, ring.turn_ms), is_optimal=False)
