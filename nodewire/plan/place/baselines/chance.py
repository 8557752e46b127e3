"""Chance as a baseline: nodes in a random order, each taking as many tasks as it holds from where the last ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.plan.place.baselines.petals import CACHE_POSITIONS, blocks
from nodewire.plan.place.model import Chain, Placement, Pool, Stage, Workload

if TYPE_CHECKING:
    from random import Random


def at_random(pool: Pool, chain: Chain, workload: Workload, chance: Random) -> Placement:
    """After the last task comes the first again. Nodes hold what Petals' servers would."""
    items = max(1, CACHE_POSITIONS // workload.context)
    order = list(range(len(pool.nodes)))
    chance.shuffle(order)
    stages, start, tasks = [], 0, len(chain.tasks)
    for index in order:
        if size := blocks(pool, chain, index, items):
            end = min(start + size, tasks)
            stages.append(Stage(index, start, end))
            start = end % tasks
    return Placement(tuple(sorted(stages, key=lambda stage: stage.node)))
