"""Hedged stages in a plan: two prices, a hedge without any other part, and nobody left without a standby for it."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput, BadPlan, OverBudget
from nodewire.protocol.hedging import MAX_HEDGED
from nodewire.protocol.plan import Plan, Terms
from nodewire.protocol.takeover import Takeover, hedges, price_msat
from tests.plan.markets import World, diamond, generous, ring
from tests.protocol_committee.actors import keys

STAGES = tuple(f"stage.{i}" for i in range(4))
WORLDS = [World(ring(4), nodes=nodes, seed=seed) for nodes, seed in ((6, 1), (8, 2), (12, 3), (24, 4), (24, 5))]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("hedge", [STAGES, STAGES[1:2], STAGES[::2]])
def test_a_hedge_has_no_other_part_and_deprives_nobody(world, hedge):
    plain, plan = world.assign(terms=generous()), world.assign(terms=generous(hedge=hedge))
    assert [a.provider for a in plan.tasks] == [a.provider for a in plain.tasks]
    assert {a.task for a in plain.tasks if a.standby} == {a.task for a in plan.tasks if a.standby}
    assert plan.hedges.keys() <= set(hedge)
    for task, one in plan.hedges.items():
        parts = [(a.task, who) for a in plan.tasks for who in (a.provider, a.standby) if who == one]
        assert parts == [(task, one)] and plan.assignment(task).standby == one
    twice = sum(plan.assignment(task).price_msat for task in plan.hedges)
    assert plan.chunk_msat == plain.chunk_msat + twice
    for one in plan.providers():
        own = sum(a.price_msat for a in plan.tasks if one in (a.provider, plan.hedges.get(a.task)))
        assert price_msat(plan, None, one, 0) == own
    assert Plan.from_document(plan.document()) == plan


def test_some_plan_has_a_hedge_for_every_stage():
    assert any(world.assign(terms=generous(hedge=STAGES)).hedges.keys() == set(STAGES) for world in WORLDS)


def test_a_hedge_that_entered_is_paid_once_for_each_chunk():
    plans = [world.assign(terms=generous(hedge=STAGES)) for world in WORLDS]
    plan, task, left = next(
        (plan, task, plan.assignment(task).provider)
        for plan in plans
        for task in plan.hedges
        if all(a.standby for a in plan.tasks if a.provider == plan.assignment(task).provider)
    )
    hedge = plan.hedges[task]
    entered = Takeover.issue(keys("customer"), request="ab" * 32, plan=plan, gone={left}, chunk=3)
    assert hedge not in hedges(plan, entered).values() and hedges(plan, None) == plan.hedges
    price = plan.assignment(task).price_msat
    assert [price_msat(plan, entered, hedge, chunk) for chunk in (0, 2, 3, 9)] == [price] * 4


def test_both_prices_stay_within_the_budget():
    world = WORLDS[3]
    plan = world.assign(terms=generous(hedge=STAGES))
    most = generous(hedge=STAGES, max_chunk_msat=plan.chunk_msat)
    assert world.assign(terms=most).chunk_msat <= plan.chunk_msat
    with pytest.raises(OverBudget):
        world.assign(terms=generous(hedge=STAGES, max_chunk_msat=world.assign(terms=generous()).chunk_msat // 2))


@pytest.mark.parametrize("hedge", [("driver",), ("stage.9",), ("stage.1", "stage.1")])
def test_what_cannot_be_hedged_is_refused(hedge):
    with pytest.raises(BadPlan) as refused:
        WORLDS[0].assign(terms=generous(hedge=hedge))
    assert refused.value.field == "terms.hedge"


def test_where_guesses_travel_nobody_stands_by_and_nothing_is_hedged():
    for world in WORLDS:
        plain, plan = world.assign(terms=generous()), world.assign(terms=generous(lookahead=8))
        assert any(a.standby for a in plain.tasks) and {a.standby for a in plan.tasks} == {None}
        assert [a.provider for a in plan.tasks] == [a.provider for a in plain.tasks]
        with pytest.raises(BadInput):
            Plan.from_document({**plain.document(), "terms": plan.terms.document()})
    with pytest.raises(BadPlan) as refused:
        WORLDS[3].assign(terms=generous(lookahead=8, hedge=STAGES))
    assert refused.value.field == "terms.hedge"


def test_neither_are_calls_nor_ones_own_tasks():
    with pytest.raises(BadPlan):
        World(diamond()).assign(terms=generous(hedge=("left",)))
    with pytest.raises(BadPlan):
        WORLDS[0].assign(terms=generous(hedge=("stage.0",), driver="ends"))


def test_terms_without_hedges_are_the_document_that_they_were():
    assert "hedge" not in generous().document()
    with pytest.raises(BadInput):
        Terms.from_document({**generous().document(), "hedge": [f"s{i}" for i in range(MAX_HEDGED + 1)]})


def test_a_plan_that_charges_for_no_hedge_is_none():
    plan = WORLDS[3].assign(terms=generous(hedge=STAGES))
    with pytest.raises(BadInput):
        Plan.from_document({**plan.document(), "chunk_msat": sum(a.price_msat for a in plan.tasks)})
