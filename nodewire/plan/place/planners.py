"""Every planner behind one interface: ours and the baselines; and what is predicted of anybody's placement."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from nodewire.plan.place import fleet
from nodewire.plan.place.baselines import chance as _chance
from nodewire.plan.place.baselines import parallax, petals
from nodewire.plan.place.model import CUSTOMER, Chain, Objective, Placement, Pool, Workload
from nodewire.plan.place.prediction import Predictor
from nodewire.plan.place.route import route

Planner = Callable[[Pool, Chain, Workload, Objective, Random], Placement]
"""Where randomness is part of the method, it comes from the generator that is handed in."""
OURS = "nodewire"


def _ours(pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random) -> Placement:
    return fleet.plan(pool, chain, workload, objective)


def _petals(pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random) -> Placement:
    return petals.petals(pool, chain, workload, chance)


def _parallax(pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random) -> Placement:
    return parallax.parallax(pool, chain)


def _parallax_full(pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random) -> Placement:
    return parallax.parallax(pool, chain, parameters=parallax.MORE_PARAMETERS)


def _random(pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random) -> Placement:
    return _chance.at_random(pool, chain, workload, chance)


PLANNERS: dict[str, Planner] = {
    OURS: _ours,
    "petals": _petals,
    "parallax": _parallax,
    "parallax, 80 % for weights": _parallax_full,
    "random": _random,
}


def predicted(
    pool: Pool, chain: Chain, workload: Workload, placement: Placement, anchor: int = CUSTOMER
) -> tuple[float, float]:
    """Turn (ms) of the quickest way through a placement, and the tokens a second of all ways; infinite and 0: no way.

    Without rings of the planner's own, ways are taken off one after the other, the quickest first, each with as many
    sessions as its fullest node has room for. What a node on several ways computes is then counted on each: this
    flatters placements that share nodes, as the baselines' do.
    """
    predictor = Predictor(pool, chain, workload)
    if placement.rings:
        rate = sum(predictor.tokens_per_s(ring.stages, None, anchor) for ring in placement.rings)
        return min(predictor.turn_ms(ring.stages, 0.0, anchor) for ring in placement.rings), rate
    free = {stage: predictor.items(stage) for stage in placement.stages}
    quickest, rate = float("inf"), 0.0
    while True:
        held = [stage for stage, items in free.items() if items > 0]
        way = route(pool, chain, held, lambda stage: predictor.table(stage)[0][1], anchor=anchor)
        if way is None:
            return quickest, rate
        used = [next(one for one in held if one.node == stage.node) for stage in way]
        items = min(free[stage] for stage in used)
        quickest = min(quickest, predictor.turn_ms(way, 0.0, anchor))
        rate += predictor.tokens_per_s(way, items, anchor)
        for stage in used:
            free[stage] -= items
