"""What lies between a pool's nodes, and what a chain's tasks take on them, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nodewire.plan.place.model import CUSTOMER, Chain, Node, Pool, interpolated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Some = Sequence[int] | Ints
"""Indices of a pool's nodes, or CUSTOMER."""


def link_ms(pool: Pool, sources: Some, targets: Some) -> Floats:
    """[sources, targets], as `Pool.link_ms`."""
    if pool.rtt_ms:
        rows = [pool.rtt_ms[a] for a in sources]
        found = np.array([[row[b] for b in targets] for row in rows]).reshape(len(sources), len(targets)) / 2
    else:
        (ax, ay, ah), (bx, by, bh) = (
            np.array([pool.at(i) for i in some]).reshape(-1, 3).T for some in (sources, targets)
        )
        found = (np.hypot(np.subtract.outer(ax, bx), np.subtract.outer(ay, by)) + np.add.outer(ah, bh)) / 2
    found[np.equal.outer(sources, targets)] = 0.0
    return found


def byte_ms(pool: Pool, sources: Some, targets: Some) -> Floats:
    """[sources, targets], as `Pool.byte_ms`."""
    up = [np.inf if a == CUSTOMER else pool.nodes[a].up for a in sources]
    down = [np.inf if b == CUSTOMER else pool.nodes[b].down for b in targets]
    found = 1.0 / np.minimum(np.minimum.outer(up, down), 1e12)
    found[np.equal.outer(sources, targets)] = 0.0
    return found


def summed_ms(chain: Chain, nodes: Sequence[Node]) -> Floats:
    """[nodes, T+1]: by number of tasks from the first on, their time for one item, as `Chain.summed_ms`."""
    each = np.array([0.0, *(interpolated(task.ms, 1) for task in chain.tasks)])
    found: Floats = (each / np.array([[node.speed] for node in nodes])).cumsum(axis=1)
    known: dict[tuple[str, float], list[float]] = {}
    for row, node in enumerate(nodes):
        if node.kind in chain.measured:
            key = node.kind, node.speed
            if key not in known:
                known[key] = chain.summed_ms(node)
            found[row] = known[key]
    return found
