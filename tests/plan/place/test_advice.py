"""Advice for manifests: rings with their drivers, graphs, and the baselines beside it."""

from random import Random

import pytest

from nodewire.errors import NoProvider
from nodewire.plan.place import advice as _advise
from nodewire.plan.place.advice import TORCHSPLIT, advise, model, moves
from nodewire.plan.place.model import Node, Pool, Workload
from nodewire.plan.place.planners import OURS, PLANNERS
from tests.plan.markets import diamond, ring

MB = 10**6


def machines(count: int) -> Pool:
    sizes = (250, 350, 800)
    nodes = [Node(f"m{i}", sizes[i % 3] * MB, 50.0 + 30 * i, at=(7.0 * (i % 3), 4.0 * i, 1.0)) for i in range(count)]
    return Pool(tuple(nodes))


def check(pool, what, found):
    """Everything held at least once; ours within memory."""
    for one in found:
        assert {task for tasks in one.held for task in tasks} | {0} == set(range(len(what.dag.tasks)))
    for node, tasks in zip(pool.nodes, found[0].held, strict=True):
        assert sum(what.dag.tasks[task].memory_bytes for task in tasks) <= node.memory_bytes


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("manifest", [ring(7), diamond()], ids=["ring", "graph"])
@pytest.mark.parametrize("count", [4, 15])
def test_ours_holds_everything_and_no_baseline_is_predicted_to_be_better(objective, manifest, count):
    pool, what = machines(count), model(manifest)
    found = advise(pool, what, Workload(), objective, Random(1))
    check(pool, what, found)
    assert found[0].planner == OURS
    assert {one.planner for one in found} <= {*PLANNERS, TORCHSPLIT}
    assert (TORCHSPLIT in {one.planner for one in found}) == (not what.is_ring and count >= len(what.dag.tasks))
    for other in found[1:]:
        if objective == "latency":
            assert found[0].turn_ms <= other.turn_ms + 1e-6
        elif not what.is_ring:  # shared nodes of a ring's baselines are counted more than once
            assert found[0].per_s >= other.per_s * 0.999
    assert found == advise(pool, what, Workload(), objective, Random(1))


def test_a_driver_is_placed_beside_its_ring_or_left_to_the_customer():
    far = Pool((Node("near", 300 * MB, at=(0.0, 0.0, 1.0)), Node("far", 900 * MB, at=(200.0, 0.0, 1.0))))
    placed = advise(far, model(ring(5)), Workload(), "latency", Random(1))[0]
    assert placed.held == ((), (0, 1, 2, 3, 4, 5))
    local = advise(far, model(ring(5)), Workload(), "latency", Random(1), is_local=True)[0]
    assert 0 not in local.held[1]
    assert local.turn_ms > placed.turn_ms + 100
    assert placed.is_optimal and local.is_optimal


def test_measured_times_go_before_rates():
    pool = Pool((Node("slow", 900 * MB, 1.0, kind="slow"), Node("fast", 900 * MB, 2.0, kind="fast")))
    measured = {f"stage.{i}": {"slow": ((1, 0.001),)} for i in range(3)}
    found = advise(pool, model(ring(3), measured), Workload(), "latency", Random(1), is_local=True)[0]
    assert found.held == ((1, 2, 3), ())


def test_of_very_many_who_hold_something_only_what_nobody_holds_is_moved(monkeypatch):
    monkeypatch.setattr(_advise, "REPLANNED", 1)
    pool, what = Pool(tuple(Node(f"n{i}", 400 * MB, at=(10.0 * i, 0.0, 1.0)) for i in range(4))), model(ring(6))
    poor = ((0, 1, 2), (), (), (3, 4, 5, 6))
    assert moves(pool, what, Workload(), "latency", poor) == ((), (), (), ())
    monkeypatch.setattr(_advise, "REPLANNED", 4)
    assert moves(pool, what, Workload(), "latency", poor)[1]
    monkeypatch.setattr(_advise, "REPLANNED", 1)
    found = moves(pool, what, Workload(), "latency", ((0, 1, 2), (3, 4, 5), (), ()))
    assert {task for tasks in found for task in tasks} == {6}


def test_machines_without_room_are_told_so():
    with pytest.raises(NoProvider):
        advise(Pool((Node("n", 10),)), model(ring(3)), Workload(), "latency", Random(1))
    with pytest.raises(NoProvider):
        advise(Pool((Node("n", 10),)), model(diamond()), Workload(), "throughput", Random(1))
