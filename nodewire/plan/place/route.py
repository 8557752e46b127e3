"""A way through what is held: the quickest over a graph of (place where something held begins or ends, node)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

import numpy as np

from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Stage
from nodewire.plan.place.ring_search.arrays import Ints, byte_ms, link_ms

Cost = Callable[[Stage], float]
"""How long a stage, or the part of it that is used, takes (ms)."""


def route(
    pool: Pool, chain: Chain, held: Sequence[Stage], cost: Cost, *, batch: int = 1, anchor: int = CUSTOMER
) -> tuple[Stage, ...] | None:
    """The way of least links and costs through all tasks in their order; None if a task is held by nobody.

    A way changes nodes only where something that is held begins or ends; there a node may be entered in the middle of
    what it holds, and left where somebody else goes on. With m nodes holding
    a task, O(m^2) for every place at which something held begins or ends.
    """
    tasks = len(chain.tasks)
    marks = sorted({0, tasks, *(stage.first for stage in held), *(stage.end for stage in held)})
    nodes = np.array([stage.node for stage in held], dtype=np.int64)
    link, byte = link_ms(pool, nodes, nodes), byte_ms(pool, nodes, nodes)
    to_ms = link_ms(pool, [anchor], nodes)[0] + byte_ms(pool, [anchor], nodes)[0] * (chain.boundaries[0] * batch)
    here, ms = np.array([], dtype=np.int64), np.array([])
    steps: list[tuple[Ints, Ints]] = []
    for begin, end in pairwise(marks):
        size = chain.boundaries[begin] * batch
        there = np.array([i for i, stage in enumerate(held) if stage.first <= begin < stage.end], dtype=np.int64)
        if begin == 0:
            source, best = there, to_ms[there]
        elif here.size:
            between = np.ix_(here, there)
            ways = ms[:, None] + np.where(np.equal.outer(here, there), 0.0, link[between] + byte[between] * size)
            at = ways.argmin(axis=0)
            source, best = here[at], ways[at, np.arange(there.size)]
        if not there.size or (begin and not here.size):
            return None
        ms = best + np.array([cost(Stage(held[i].node, begin, end)) for i in there.tolist()])
        here, source = there[ms < inf], source[ms < inf]
        ms = ms[ms < inf]
        steps.append((here, source))
    back = link_ms(pool, nodes[here], [anchor])[:, 0]
    back += byte_ms(pool, nodes[here], [anchor])[:, 0] * (chain.boundaries[tasks] * batch)
    ends = ms + back
    return None if not ends.size or ends.min() == inf else _way(held, marks, steps, int(here[ends.argmin()]))


def _way(held: Sequence[Stage], marks: Sequence[int], steps: Sequence[tuple[Ints, Ints]], at: int) -> tuple[Stage, ...]:
    way: list[Stage] = []
    end = marks[-1]
    for begin, (here, sources) in zip(reversed(marks[:-1]), reversed(steps), strict=True):
        source = int(sources[np.flatnonzero(here == at)[0]])
        if source != at or begin == 0:
            way.append(Stage(held[at].node, begin, end))
            end = begin
        at = source
    return tuple(reversed(way))


def compute_cost(pool: Pool, chain: Chain, *, batch: int = 1) -> Cost:
    """The tasks' own times."""
    summed: dict[int, list[float]] = {}

    def cost(stage: Stage) -> float:
        if stage.node not in summed:
            summed[stage.node] = chain.summed_ms(pool.nodes[stage.node], batch)
        return summed[stage.node][stage.end] - summed[stage.node][stage.first]

    return cost
