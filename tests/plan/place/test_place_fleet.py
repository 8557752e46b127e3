"""Rings over one pool: everything held, within memory, and the figures that are predicted for it make sense."""

import functools
from itertools import pairwise
from random import Random

import pytest

from bench.sim.pools import LLAMA_8B, LLAMA_70B_INT4, lasting
from nodewire.errors import NoProvider
from nodewire.plan.place import fleet, regions
from nodewire.plan.place.model import Chain, Node, Pool, Task, Workload, turn_ms
from nodewire.plan.place.planners import OURS, PLANNERS, predicted
from nodewire.plan.place.prediction import Predictor
from nodewire.plan.place.ring_search.estimate import Estimator

WORKLOAD = Workload(per_s=0.2)


@pytest.fixture(scope="module")
def scene():
    return lasting(14, 4, LLAMA_70B_INT4), LLAMA_70B_INT4.chain()


@pytest.fixture(scope="module")
def planned(scene):
    """By objective, the fleet; planned once."""
    return functools.cache(lambda objective: fleet.plan(*scene, WORKLOAD, objective))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_fleet_holds_every_task_within_memory_and_is_the_same_each_time(scene, planned, objective):
    pool, chain = scene
    placement = planned(objective)
    assert placement.is_complete(len(chain.tasks))
    predictor = Predictor(pool, chain, WORKLOAD)
    assert all(predictor.items(stage) >= 1 for stage in placement.stages)
    assert len({stage.node for stage in placement.stages}) == len(placement.stages)
    for ring in placement.rings:
        assert ring.stages[0].first == 0 and ring.stages[-1].end == len(chain.tasks)
        assert all(a.end == b.first for a, b in pairwise(ring.stages))
    assert placement == fleet.plan(pool, chain, WORKLOAD, objective)


def test_each_objective_gets_more_of_its_own(planned):
    quick, much = planned("latency"), planned("throughput")
    assert quick.turn_ms <= much.turn_ms
    assert much.tokens_per_s >= quick.tokens_per_s


def test_what_is_predicted_of_ours_is_ahead_of_what_is_predicted_of_chance(scene):
    pool, chain = scene
    workload = Workload()
    rates = {
        name: predicted(pool, chain, workload, plan(pool, chain, workload, "throughput", Random(1)))[1]
        for name, plan in PLANNERS.items()
    }
    assert rates[OURS] > rates["random"] > 0


@pytest.mark.parametrize("ms", [((1, 1.0),), ((1, 1.0), (1_024, 8.0))], ids=["a rate", "a table"])
def test_a_guess_is_near_what_is_predicted_and_the_same_among_many(ms):
    """Of a manifest only the time of one position is known: many then take as many times as long."""
    tasks = tuple(Task(f"t{i}", 460 * 10**6, ms, 10**6, 16_384) for i in range(40))
    pool, chain, workload = lasting(14, 4, LLAMA_70B_INT4), Chain(tasks, 16_384), Workload()
    rings = [ring.stages for ring in fleet.plan(pool, chain, workload, "throughput").rings]
    predictor, sets = Predictor(pool, chain, workload), [frozenset(s.node for s in ring) for ring in rings]
    many = Estimator(pool, chain, workload)
    many.learn([*sets, frozenset(range(14)), frozenset((0, 1))])
    for ring, nodes in zip(rings, sets, strict=True):
        guessed = Estimator(pool, chain, workload).per_s(nodes)
        assert guessed == pytest.approx(many.per_s(nodes))
        assert 0.5 < guessed / predictor.tokens_per_s(ring) < 2


def test_where_sessions_take_no_memory_rings_are_looked_for_once_and_not_by_their_number(monkeypatch):
    """As of a manifest, whose tasks' bytes have their caches in them."""
    every, asked = fleet.best_ring, []
    monkeypatch.setattr(fleet, "best_ring", lambda instance: asked.append(instance.items) or every(instance))
    pool = lasting(14, 4, LLAMA_70B_INT4)
    counts = []
    for item_bytes in (0, 1):
        tasks = tuple(Task(f"t{i}", 460 * 10**6, ((1, 1.0),), item_bytes) for i in range(80))
        asked.clear()
        found = fleet.plan(pool, Chain(tasks, 100), Workload(), "throughput")
        counts.append(len(asked))
        assert found.is_complete(80)
    assert 5 * counts[0] < counts[1]


def test_the_same_ring_goes_around_the_way_on_which_its_slowest_line_has_no_prompts():
    """From `slow` on, what is sent is one position for each prompt, if it is the last."""
    slow, fast = Node("slow", 50, up=50.0, at=(0.0, 0.0, 1.0)), Node("fast", 50, at=(5.0, 0.0, 1.0))
    chain = Chain(tuple(Task(f"t{i}", 10, out_bytes=1_000) for i in range(8)), 1_000)
    for nodes in ((slow, fast), (fast, slow)):
        found = fleet.plan(Pool(nodes), chain, Workload(), "throughput")
        assert [nodes[stage.node].name for stage in found.rings[0].stages] == ["fast", "slow"]


def test_a_model_that_one_node_holds_is_served_by_many_alone():
    pool, chain = lasting(8, 1, LLAMA_8B), LLAMA_8B.chain()
    placement = fleet.plan(pool, chain, Workload(), "throughput")
    assert len(placement.rings) >= 3


def test_a_pool_without_room_is_refused():
    with pytest.raises(NoProvider):
        fleet.plan(Pool((Node("n", 10),)), Chain((Task("t", 11),)), Workload(), "throughput")


def test_an_idle_ring_turns_as_fast_as_its_parts_add_up(scene, planned):
    pool, chain = scene
    ring = planned("throughput").rings[0]
    predictor = Predictor(pool, chain, WORKLOAD)
    assert predictor.turn_ms(ring.stages, 0.0) == pytest.approx(turn_ms(pool, chain, ring.stages))
    rates = [predictor.tokens_per_s(ring.stages, items) for items in (1, 4, 16)]
    assert rates == sorted(rates)
    assert rates[0] < 1_000 / turn_ms(pool, chain, ring.stages)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_large_pools_are_planned_in_parts(objective, monkeypatch):
    monkeypatch.setattr(fleet, "_WHOLE", 20)
    for module in (fleet, regions):
        monkeypatch.setattr(module, "REGION", 16)
    pool, chain = lasting(40, 2, LLAMA_8B), LLAMA_8B.chain()
    workload = Workload(per_s=1.0, most_items=4)
    placement = fleet.plan(pool, chain, workload, objective)
    assert placement.is_complete(len(chain.tasks))
    predictor = Predictor(pool, chain, workload)
    assert all(predictor.items(stage) >= 1 for stage in placement.stages)
    assert len({stage.node for stage in placement.stages}) == len(placement.stages)
    whole = [ring for ring in placement.rings if ring.stages[-1].end == len(chain.tasks)]
    assert len(whole) == len(placement.rings) > 6
    assert all(turn_ms(pool, chain, ring.stages) == pytest.approx(ring.turn_ms) for ring in placement.rings)
