"""A way through what is held: the quickest over a graph of (place where something held begins or ends, node)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Stage

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
    reached: dict[Stage, float] = {}
    steps: list[dict[Stage, tuple[Stage | None, bool]]] = []
    for begin, end in pairwise(marks):
        size = chain.boundaries[begin] * batch
        here: dict[Stage, float] = {}
        came: dict[Stage, tuple[Stage | None, bool]] = {}
        for stage in held:
            if not stage.first <= begin < stage.end:
                continue
            best, source, stays = inf, None, False
            if not steps:
                best = pool.link_ms(anchor, stage.node) + pool.byte_ms(anchor, stage.node) * size
            for other, ms in reached.items():
                is_same = other is stage
                total = ms if is_same else ms + pool.link_ms(other.node, stage.node)
                total += 0.0 if is_same else pool.byte_ms(other.node, stage.node) * size
                if total < best:
                    best, source, stays = total, other, is_same
            if best < inf:
                here[stage] = best + cost(Stage(stage.node, begin, end))
                came[stage] = (source, stays)
        reached = here
        steps.append(came)
    size = chain.boundaries[tasks] * batch
    ends = {
        stage: ms + pool.link_ms(stage.node, anchor) + pool.byte_ms(stage.node, anchor) * size
        for stage, ms in reached.items()
    }
    if not ends or min(ends.values()) == inf:
        return None
    return _way(marks, steps, min(ends, key=ends.__getitem__))


def _way(
    marks: Sequence[int], steps: Sequence[dict[Stage, tuple[Stage | None, bool]]], last: Stage
) -> tuple[Stage, ...]:
    way: list[Stage] = []
    end = marks[-1]
    at: Stage | None = last
    for index in range(len(steps) - 1, -1, -1):
        assert at is not None
        source, stays = steps[index][at]
        if not stays:
            way.append(Stage(at.node, marks[index], end))
            end = marks[index]
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
