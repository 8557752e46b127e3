"""Large pools in parts: nodes near each other, few enough for a fleet to be planned in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nodewire.plan.place.model import CUSTOMER, Chain, Placement, Pool, Ring, Stage
from nodewire.plan.place.ring_search.arrays import Floats, link_ms, summed_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

REGION, SMALL = 48, 24
"""Nodes of a part."""
_AT_ONCE = 256


def regions(pool: Pool, anchor: int = CUSTOMER, size: int = REGION) -> list[tuple[int, ...]]:
    """All nodes, each in one part: the one nearest to the anchor that is left, with those nearest to it."""
    left = np.arange(len(pool.nodes))
    left = left[np.lexsort((left, link_ms(pool, [anchor], left)[0]))]
    found = []
    while left.size:
        near = np.lexsort((left, link_ms(pool, left[:1], left)[0]))[:size]
        found.append(tuple(sorted(left[near].tolist())))
        left = np.delete(left, near)
    return found


def nearest(pool: Pool, chain: Chain, count: int, anchor: int = CUSTOMER) -> tuple[int, ...]:
    """So many nodes from which a ring would be quickest: near the anchor, fast, with room for much of the chain."""
    needed = max(chain.summed_bytes(1)[-1], 1)
    nodes = range(len(pool.nodes))
    share = [max(min(node.memory_bytes / needed, 1.0), 1e-9) for node in pool.nodes]
    alone = 2 * link_ms(pool, [anchor], nodes)[0] / share + summed_ms(chain, pool.nodes)[:, -1]
    return tuple(sorted(np.lexsort((nodes, alone))[:count].tolist()))


def neighbourly(pool: Pool, nodes: Sequence[int], count: int) -> Floats:
    """By node, the ms to the `count` nearest others, added up."""
    found = []
    for begin in range(0, len(nodes), _AT_ONCE):
        some = nodes[begin : begin + _AT_ONCE]
        ms = link_ms(pool, some, range(len(pool.nodes)))
        ms[np.arange(len(some)), some] = np.inf
        found.append(np.partition(ms, count - 1, axis=1)[:, :count].sum(axis=1))
    return np.concatenate(found)


def part(pool: Pool, nodes: Sequence[int], anchor: int = CUSTOMER) -> Pool:
    """A pool of these nodes only; its customer is where the anchor is."""
    rtt: tuple[tuple[float, ...], ...] = ()
    if pool.rtt_ms:
        way = (*nodes, anchor)
        rtt = tuple(tuple(0.0 if a == b else pool.rtt_ms[a][b] for b in way) for a in way)
    at = pool.customer if anchor == CUSTOMER else pool.nodes[anchor].at
    return Pool(tuple(pool.nodes[i] for i in nodes), rtt, at)


def joined(parts: Sequence[tuple[Sequence[int], Placement]]) -> Placement:
    """Parts' placements as one, with the whole pool's indices."""
    stages: list[Stage] = []
    rings: list[Ring] = []
    for nodes, placement in parts:
        stages += [replace(stage, node=nodes[stage.node]) for stage in placement.stages]
        rings += [
            replace(ring, stages=tuple(replace(stage, node=nodes[stage.node]) for stage in ring.stages))
            for ring in placement.rings
        ]
    return Placement(
        tuple(sorted(stages, key=lambda stage: stage.node)),
        tuple(rings),
        tokens_per_s=sum(placement.tokens_per_s for _, placement in parts),
        turn_ms=min((placement.turn_ms for _, placement in parts), default=0.0),
    )
