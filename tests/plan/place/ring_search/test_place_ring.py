"""The ring planners: the exact one is exact, the searching one feasible, both deterministic."""

import pytest
from hypothesis import given, settings

from bench.sim.place import unequal
from nodewire.errors import BadInput, NoProvider
from nodewire.plan.place.model import CUSTOMER, Chain, Node, Pool, Stage, Task, turn_ms
from nodewire.plan.place.ring_search import ring
from nodewire.plan.place.ring_search.ring import Instance, along, costs, exact
from nodewire.plan.place.ring_search.search import best_ring, searched
from tests.plan.place.instances import chains, every_ring, fits, least_turn_ms, pools

few = settings(max_examples=60, deadline=None)


@few
@given(pools(), chains())
def test_the_exact_ring_is_what_trying_everything_finds(pool, chain):
    least = least_turn_ms(pool, chain)
    if least is None:
        with pytest.raises(NoProvider):
            exact(costs(Instance(pool, chain)))
        return
    best = exact(costs(Instance(pool, chain)))
    assert best.is_optimal
    assert best.turn_ms == pytest.approx(least)
    assert turn_ms(pool, chain, best.stages) == pytest.approx(least)
    assert all(fits(pool, chain, stage) for stage in best.stages)


@few
@given(pools(), chains())
def test_a_stage_takes_no_longer_than_allowed(pool, chain):
    def slowest(stages):
        return max(sum(t.ms_on(pool.nodes[s.node]) for t in chain.tasks[s.first : s.end]) for s in stages)

    rings = sorted((slowest(stages), turn_ms(pool, chain, stages)) for stages in every_ring(pool, chain))
    if rings:
        limit = rings[len(rings) // 2][0]
        best = exact(costs(Instance(pool, chain, stage_ms=limit)))
        assert slowest(best.stages) <= limit * (1 + 1e-9)
        assert best.turn_ms == pytest.approx(min(turn for stage, turn in rings if stage <= limit))


@few
@given(pools(), chains())
def test_the_search_finds_a_ring_that_holds_every_task_within_memory(pool, chain):
    try:
        found = searched(costs(Instance(pool, chain)))
    except NoProvider:
        return
    assert turn_ms(pool, chain, found.stages) == pytest.approx(found.turn_ms)
    assert all(fits(pool, chain, stage) for stage in found.stages)
    assert found.turn_ms >= least_turn_ms(pool, chain) - 1e-6


def test_few_pairs_of_a_set_and_its_last_node_are_looked_at(monkeypatch):
    every, looked = ring._longer, 0

    def counted(*arguments):
        nonlocal looked
        looked += arguments[-1].sets.size
        return every(*arguments)

    monkeypatch.setattr(ring, "_longer", counted)
    for seed in range(1, 6):
        found = costs(Instance(*unequal(11, 48, seed)))
        best = exact(found)
        assert exact(found, best.turn_ms) == best
    assert looked < 0.4 * 2 * 5 * 11 * 2**10


def test_the_search_is_near_the_optimum_and_says_the_same_each_time():
    pool, chain = unequal(10, 24, seed=3)
    best, found = exact(costs(Instance(pool, chain))), searched(costs(Instance(pool, chain)))
    assert best.turn_ms <= found.turn_ms < 1.2 * best.turn_ms
    assert searched(costs(Instance(pool, chain))) == found


def test_the_deal_along_the_best_order_is_the_best_deal():
    pool, chain = unequal(8, 20, seed=5)
    found = costs(Instance(pool, chain))
    best = exact(found)
    assert along(found, [stage.node for stage in best.stages]).stages == best.stages


def test_hundreds_of_nodes_are_searched():
    pool, chain = unequal(300, 40, seed=1)
    found = best_ring(Instance(pool, chain))
    assert turn_ms(pool, chain, found.stages) == pytest.approx(found.turn_ms)
    assert found == best_ring(Instance(pool, chain))


def test_a_ring_closes_where_its_driver_is():
    near, far = Node("near", 100, at=(0.0, 0.0, 0.0)), Node("far", 100, at=(100.0, 0.0, 0.0))
    pool = Pool((near, far), customer=(0.0, 0.0, 0.0))
    chain = Chain((Task("a", 60), Task("b", 60)))
    assert exact(costs(Instance(pool, chain))).turn_ms == pytest.approx(100 + 2)
    with pytest.raises(NoProvider):
        exact(costs(Instance(pool, chain, anchor=1, reserved_bytes=80)))
    assert exact(costs(Instance(pool, Chain(chain.tasks[:1]), anchor=1))).stages == (Stage(1, 0, 1),)


def test_of_deals_that_are_as_quick_the_even_one_is_taken():
    """Its longest stage is the shortest: under load that is what counts."""
    pool = Pool((Node("a", 60, at=(0.0, 0.0, 1.0)), Node("b", 90, at=(5.0, 0.0, 1.0))))
    chain = Chain(tuple(Task(f"t{k}", 10) for k in range(10)))
    found = costs(Instance(pool, chain))
    assert [stage.end - stage.first for stage in exact(found).stages] == [5, 5]
    assert [stage.end - stage.first for stage in along(found, (1, 0)).stages] == [5, 5]


def test_fewer_and_fatter_stages_are_taken_where_memory_allows():
    pool = Pool(tuple(Node(f"n{i}", 40, at=(5.0 * i, 0.0, 1.0)) for i in range(5)))
    chain = Chain(tuple(Task(f"t{k}", 10) for k in range(8)))
    assert [stage.end - stage.first for stage in exact(costs(Instance(pool, chain))).stages] == [4, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Node("n", 1, speed=0.0),
        lambda: Node("n", 10, layouts=((6, 6),)),
        lambda: Task("t", 1, ((2, 1.0), (1, 1.0))),
        lambda: Task("t", 1, ((1, float("nan")),)),
        lambda: Task("t", -1),
        lambda: Chain(()),
        lambda: Pool(()),
        lambda: Pool((Node("n", 1), Node("n", 1))),
        lambda: Pool((Node("n", 1),), ((0.0,),)),
        lambda: Pool((Node("n", 1),), ((0.0, -1.0), (1.0, 0.0))),
        lambda: turn_ms(Pool((Node("n", 1),)), Chain((Task("t", 1),)), [Stage(0, 0, 2)]),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(BadInput):
        make()


def test_a_table_is_straight_between_its_entries_and_beyond():
    task = Task("t", 0, ((1, 2.0), (4, 5.0)), on={"fast": ((2, 1.0),)})
    node = Node("n", 0, speed=2.0)
    assert [task.ms_on(node, batch) for batch in (1, 2, 4, 8)] == [1.0, 1.5, 2.5, 4.5]
    fast = Node("m", 0, kind="fast", speed=9.0)
    assert [task.ms_on(fast, batch) for batch in (1, 2, 4)] == [1.0, 1.0, 2.0]


def test_the_customer_is_the_last_row():
    pool = Pool((Node("n", 1),), ((0.0, 8.0), (6.0, 0.0)))
    assert (pool.link_ms(0, CUSTOMER), pool.link_ms(CUSTOMER, 0)) == (4.0, 3.0)
