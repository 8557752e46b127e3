"""The baselines do what the papers and programmes that they are named after say."""

from random import Random

import pytest

from nodewire.plan.place.baselines import parallax as _parallax
from nodewire.plan.place.baselines.chance import at_random
from nodewire.plan.place.baselines.parallax import parallax, water_filled
from nodewire.plan.place.baselines.petals import petals
from nodewire.plan.place.model import Chain, Node, Pool, Task, Workload


def chain(layers: int) -> Chain:
    return Chain(tuple(Task(f"t{k}", 10, ((1, 1.0), (1_024, 100.0)), out_bytes=1) for k in range(layers)))


def pool(*sizes: int) -> Pool:
    return Pool(tuple(Node(f"n{i}", size, up=1e9, down=1e9) for i, size in enumerate(sizes)))


def test_petals_servers_fill_the_worst_served_window_first():
    placement = petals(pool(20, 20, 20, 20), chain(4), Workload(), Random(0))
    assert sorted(stage.first for stage in placement.stages) == [0, 0, 2, 2]


def test_petals_servers_move_on_where_the_swarm_gains():
    """A strong server that came second sits on what the first two hold; the ripple takes it where it is missed."""
    for seed in range(6):
        placement = petals(pool(40, 20, 20, 10, 30), chain(4), Workload(), Random(seed))
        held = [sum(s.first <= k < s.end for s in placement.stages) for k in range(4)]
        assert min(held) >= 2


def test_parallax_interleaves_pipelines():
    """The example of its own documentation: 70 layers, two pipelines of 40, 20 and 10."""
    placement = parallax(pool(800, 800, 400, 400, 200, 200), chain(70))
    by_start = sorted((stage.first, stage.end) for stage in placement.stages)
    assert by_start == [(0, 40), (0, 40), (40, 60), (40, 60), (60, 70), (60, 70)]


def test_parallax_turns_to_its_greedy_allocator_where_states_are_too_many(monkeypatch):
    monkeypatch.setattr(_parallax, "MOST_STATES", 0)
    placement = parallax(pool(*[200] * 12), chain(30))
    assert placement.is_complete(30)
    assert sum(stage.first == 0 for stage in placement.stages) >= 3


def test_water_filling_goes_by_power_under_caps():
    assert water_filled([10, 10, 10], [1.0, 1.0, 2.0], 12) == [3, 3, 6]
    assert water_filled([2, 10, 10], [5.0, 1.0, 1.0], 12) == [2, 5, 5]


@pytest.mark.parametrize("seed", range(4))
def test_chance_holds_everything(seed):
    placement = at_random(pool(30, 20, 50, 10), chain(9), Workload(), Random(seed))
    assert placement.is_complete(9)
