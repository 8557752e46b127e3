"""The planners with the way in which each sends sessions over what it placed."""

from __future__ import annotations

from random import Random

from bench.sim import routers
from bench.sim.admission import Router
from nodewire.plan.place.model import Chain, Objective, Placement, Pool, Workload
from nodewire.plan.place.planners import OURS, PLANNERS
from nodewire.plan.place.prediction import Predictor


def placed(
    name: str, pool: Pool, chain: Chain, workload: Workload, objective: Objective, seed: int
) -> tuple[Placement, Router]:
    """A planner's placement, and its own routing: Petals' client, Parallax's scheduler, chance, or ours."""
    placement = PLANNERS[name](pool, chain, workload, objective, Random(seed))
    if name == OURS and objective == "throughput":
        return placement, routers.along_rings(placement.rings, Predictor(pool, chain, workload))
    if name == OURS:
        return placement, routers.soonest(placement.rings)
    if name == "petals":
        return placement, routers.petals
    if name.startswith("parallax"):
        return placement, routers.parallax
    return placement, routers.at_random(Random(seed))
