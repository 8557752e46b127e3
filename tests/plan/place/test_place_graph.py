"""Graphs of tasks: latency of branches that run at once, and time shared between tasks of one node."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, NoProvider
from nodewire.plan.place import dag as _dag
from nodewire.plan.place.dag import Dag, Link, fits, latency_ms, least_latency
from nodewire.plan.place.model import CUSTOMER, Node, Pool, Task, turn_ms
from nodewire.plan.place.ring_search.ring import Instance, costs, exact
from nodewire.plan.place.share import divided, share
from tests.plan.place.instances import pools, times


def diamond(left_ms: float = 10.0, right_ms: float = 10.0) -> Dag:
    tasks = (
        Task("in", 1, ((1, 1.0),)),
        Task("left", 1, ((1, left_ms),)),
        Task("right", 1, ((1, right_ms),)),
        Task("out", 1, ((1, 1.0),)),
    )
    links = ((CUSTOMER, 0), (0, 1), (0, 2), (1, 3), (2, 3), (3, CUSTOMER))
    return Dag(tasks, tuple(Link(a, b, 0) for a, b in links))


def test_branches_on_two_nodes_run_at_once():
    pool = Pool((Node("a", 9, at=(0.0, 0.0, 1.0)), Node("b", 9, at=(0.0, 0.0, 1.0))), customer=(0.0, 0.0, 1.0))
    held, ms, is_optimal = least_latency(pool, diamond())
    assert is_optimal
    assert held[1] != held[2]
    assert ms == pytest.approx(1 + 1 + (1 + 10) + 1 + 1)
    assert latency_ms(pool, diamond(), (0, 0, 0, 0)) == pytest.approx(1 + 22 + 1)


def test_a_ring_ends_where_its_driver_is():
    tasks = (Task("driver", 1, ((1, 1.0),)), Task("stage", 1, ((1, 5.0),)))
    ring = Dag(tasks, (Link(CUSTOMER, 0, 0), Link(0, 1, 0), Link(1, 0, 0, back=True), Link(0, CUSTOMER, 0)))
    pool = Pool((Node("a", 1), Node("b", 1, at=(8.0, 0.0, 0.0))))
    assert latency_ms(pool, ring, (0, 1)) == pytest.approx(1 + 4 + 5 + 4)


@settings(max_examples=40, deadline=None)
@given(pools(most=3), st.lists(st.tuples(st.integers(1, 10), times), min_size=1, max_size=4))
def test_a_chain_as_a_graph_takes_as_long_as_the_chain(pool, sizes):
    tasks = tuple(Task(f"t{i}", size, ((1, ms),), out_bytes=3) for i, (size, ms) in enumerate(sizes))
    links = [Link(i, i + 1, 3) for i in range(len(tasks) - 1)]
    line = Dag(tasks, (Link(CUSTOMER, 0, 5), *links, Link(len(tasks) - 1, CUSTOMER, 3)))
    assert line.chain().boundaries == (5, *[3] * len(tasks))
    try:
        ring = exact(costs(Instance(pool, line.chain())))
    except NoProvider:
        return
    held = _dag.in_order([(s.node, s.first, s.end) for s in ring.stages], len(tasks))
    assert latency_ms(pool, line, held) == pytest.approx(turn_ms(pool, line.chain(), ring.stages))
    assert least_latency(pool, line)[1] <= ring.turn_ms + 1e-6


def test_the_search_ends_near_what_trying_everything_finds(monkeypatch):
    pool = Pool(tuple(Node(f"n{i}", 2, speed=1.0 + i, at=(3.0 * i, 0.0, 1.0)) for i in range(4)))
    least = min(latency_ms(pool, diamond(9, 4), h) for h in product(range(4), repeat=4) if fits(pool, diamond(), h))
    monkeypatch.setattr(_dag, "_BY_TRYING", 0)
    held, ms, is_optimal = least_latency(pool, diamond(9, 4), [(0, 0, 1, 1)])
    assert not is_optimal
    assert fits(pool, diamond(), held)
    assert least <= ms <= 1.1 * least


def test_what_does_not_fit_or_runs_backwards_is_refused():
    with pytest.raises(NoProvider):
        least_latency(Pool((Node("a", 3),)), diamond())
    with pytest.raises(BadInput):
        Dag(diamond().tasks, (Link(2, 1, 0),))


def best_shares(nodes: list[Node], tasks: list[Task]) -> float:
    """Over all ways to hold, of the best division of time."""
    pairs = [(i, t) for i in range(len(nodes)) for t in range(len(tasks))]
    best = 0.0
    for bits in product((0, 1), repeat=len(pairs)):
        held = {pair for pair, bit in zip(pairs, bits, strict=True) if bit}
        used = [sum(tasks[t].memory_bytes for i, t in held if i == n) for n in range(len(nodes))]
        if all(size <= node.memory_bytes for size, node in zip(used, nodes, strict=True)):
            best = max(best, divided(nodes, tasks, held).per_s)
    return best


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from((1.0, 2.0))), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.5, 9.0)), min_size=1, max_size=3),
)
def test_time_is_shared_as_well_as_trying_everything_does(machines, work):
    nodes = [Node(f"n{i}", size, speed) for i, (size, speed) in enumerate(machines)]
    tasks = [Task(f"t{i}", size, ((1, ms),)) for i, (size, ms) in enumerate(work)]
    best = best_shares(nodes, tasks)
    if best == 0:
        with pytest.raises(NoProvider):
            share(nodes, tasks)
        return
    found = share(nodes, tasks)
    assert found.per_s == pytest.approx(best, rel=1e-3)
    assert found.per_s <= found.bound * (1 + 1e-9)
    for node, held in zip(nodes, found.held, strict=True):
        assert sum(tasks[t].memory_bytes for t in held) <= node.memory_bytes
        assert sum(held.values()) <= 1 + 1e-5


def test_many_pairs_are_held_greedily_within_memory():
    nodes = [Node(f"n{i}", 10 + 7 * (i % 3), 1.0 + i % 4) for i in range(20)]
    tasks = [Task(f"t{i}", 3 + i % 5, ((1, 1.0 + i % 3),)) for i in range(30)]
    found = share(nodes, tasks)
    assert not found.is_optimal
    assert 0.6 * found.bound < found.per_s <= found.bound
    assert found == share(nodes, tasks)


def test_tasks_whose_costs_are_worlds_apart_are_shared_alike():
    """A manifest may count next to no FLOPs for one task: ten orders of magnitude are no lack of room."""
    nodes = [Node(f"n{i}", megabytes * 10**6, 50.0) for i, megabytes in enumerate((60, 30, 100, 20))]
    for light in (1e-6, 1e-3, 1.0):
        tasks = [Task("light", 5_600_000, ((1, light),)), Task("heavy", 23_300_000, ((1, 1e6 * light),))]
        found = share(nodes, tasks)
        assert {task for held in found.held for task in held} == {0, 1}
        assert found.per_s == pytest.approx(3 * 50 * 1_000 / (1e6 * light), rel=1e-3)


def test_no_task_is_left_out_so_that_others_are_served_faster_by_nobody_at_all():
    """Room is so scarce that only one way of packing holds all."""
    sizes = (50, 30, 30, 20, 20, 20, 30)
    tasks = [Task(f"t{i}", size, ((1, 1.0 + i),)) for i, size in enumerate(sizes)]
    few = [Node("a", 100, 9.0), Node("b", 60), Node("c", 40, 2.0)]
    for nodes in (few, [*few, *(Node(f"tiny{i}", 1, 99.0) for i in range(60))]):
        found = share(nodes, tasks)
        assert {task for held in found.held for task in held} == set(range(len(sizes)))
        assert found.per_s > 0
    with pytest.raises(NoProvider):
        share([Node("a", 100), Node("b", 60), Node("c", 39)], tasks)
