"""Figures that make no sense, or hardly any: a typed error, or a placement that holds."""

from itertools import pairwise, product
from math import inf, isfinite, nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, NoProvider
from nodewire.plan.place.advice import Model, advise, moves
from nodewire.plan.place.dag import Dag, Link
from nodewire.plan.place.model import CUSTOMER, MOST_BYTES, MOST_MS, Node, Pool, Task, Workload

bytes_ = st.sampled_from((0, 1, 3, 100, 10**9, MOST_BYTES))
rates = st.sampled_from((1e-12, 1e-3, 1.0, 1e12))
times = st.sampled_from((0.0, 1e-9, 1.0, 1e6, MOST_MS))
places = st.tuples(st.sampled_from((-1e9, 0.0, 5.0)), st.sampled_from((0.0, 1e9)), st.sampled_from((0.0, 1e6)))
tables = st.one_of(
    st.builds(lambda ms: ((1, ms),), times),
    st.builds(lambda a, b: ((1, a), (8, b)), times, times),
)


@st.composite
def odd_pools(draw: st.DrawFn) -> Pool:
    count = draw(st.integers(1, 6))
    nodes = tuple(
        Node(f"n{i}", draw(bytes_), draw(rates), f"k{i}", up=draw(rates), down=draw(rates), at=draw(places))
        for i in range(count)
    )
    side = range(count + 1)
    rtt = tuple(tuple(draw(times) for _ in side) for _ in side) if draw(st.booleans()) else ()
    return Pool(nodes, rtt, draw(places))


@st.composite
def odd_models(draw: st.DrawFn) -> Model:
    count = draw(st.integers(1, 6))
    tasks = tuple(
        Task(
            f"t{i}",
            draw(bytes_),
            draw(tables),
            draw(st.sampled_from((0, 1, 10**9))),
            draw(st.sampled_from((0, 1, MOST_BYTES))),
            {"k0": draw(tables)} if draw(st.booleans()) else {},
        )
        for i in range(count)
    )
    between = [Link(a, b, tasks[a].out_bytes) for a, b in pairwise(range(count))]
    is_ring = count > 1 and draw(st.booleans())
    back = [Link(count - 1, 0, 1, back=True), Link(0, CUSTOMER, 1)] if is_ring else [Link(count - 1, CUSTOMER, 1)]
    return Model(Dag(tasks, (Link(CUSTOMER, 0, draw(bytes_)), *between, *back)), is_ring)


@settings(max_examples=150, deadline=None)
@given(odd_pools(), odd_models(), st.sampled_from(("latency", "throughput")), st.booleans())
def test_whatever_the_figures_everything_is_held_within_memory_or_it_is_said_that_it_cannot(
    pool, what, objective, is_local
):
    try:
        found = advise(pool, what, Workload(), objective, Random(1), is_local=is_local)
    except NoProvider:
        if what.is_ring:  # whether there is room does not depend on what for
            with pytest.raises(NoProvider):
                advise(pool, what, Workload(), "latency", Random(1), is_local=is_local)
        return
    tasks = what.dag.tasks
    ours = found[0]
    assert {t for held in ours.held for t in held} | ({0} if what.is_ring else set()) == set(range(len(tasks)))
    for node, held in zip(pool.nodes, ours.held, strict=True):
        assert sum(tasks[t].memory_bytes for t in held) <= node.memory_bytes
    assert all(isfinite(one.turn_ms) and one.turn_ms >= 0 and isfinite(one.per_s) for one in found)
    moves(pool, what, Workload(), objective, ours.held)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_one_node_holds_everything_or_nothing(objective):
    driver, stages = Task("driver", 10), [Task(f"s{i}", 10) for i in range(3)]
    links = [Link(CUSTOMER, 0, 1), *(Link(i, i + 1, 1) for i in range(3)), Link(3, 0, 1, back=True)]
    what = Model(Dag((driver, *stages), tuple(links)), is_ring=True)
    assert advise(Pool((Node("n", 40),)), what, Workload(), objective, Random(1))[0].held == ((0, 1, 2, 3),)
    with pytest.raises(NoProvider):
        advise(Pool((Node("n", 39),)), what, Workload(), objective, Random(1))
    local = advise(Pool((Node("n", 30),)), what, Workload(), objective, Random(1), is_local=True)
    assert local[0].held == ((1, 2, 3),)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_ring_that_needs_every_node_is_kept_although_tasks_of_mean_size_would_need_fewer(objective):
    pool = Pool(tuple(Node(f"n{i}", size) for i, size in enumerate((1, 3, 3))))
    tasks = (Task("driver", 0), Task("a", 0), Task("b", 0, item_bytes=1), Task("c", 3), Task("d", 0, item_bytes=1))
    links = (*(Link(i, i + 1, 0) for i in range(4)), Link(CUSTOMER, 0, 0), Link(4, 0, 1, back=True))
    found = advise(pool, Model(Dag(tasks, links), is_ring=True), Workload(), objective, Random(1))[0]
    assert {t for held in found.held for t in held} == set(range(5))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_nodes_that_nobody_reaches_are_left_alone(objective):
    """Links of 10^9 ms are links that are not there: the two that see each other have room for all."""
    far = 1e9
    rtt = [[far] * 7 for _ in range(7)]
    for a, b in product((2, 4, 6), repeat=2):
        rtt[a][b] = 5.0
    pool = Pool(tuple(Node(f"n{i}", 30) for i in range(6)), tuple(map(tuple, rtt)))
    links = (*(Link(i, i + 1, 1) for i in range(4)), Link(CUSTOMER, 0, 1), Link(4, 0, 1, back=True))
    what = Model(Dag(tuple(Task(f"t{i}", 10) for i in range(5)), links), is_ring=True)
    found = advise(pool, what, Workload(), objective, Random(1))[0]
    assert found.turn_ms < 100
    if objective == "latency":
        assert {i for i, held in enumerate(found.held) if held} == {2, 4}


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_model_that_only_many_nodes_together_hold_is_placed_on_them(objective):
    pool = Pool(tuple(Node(f"n{i}", 10, at=(float(i % 20), float(i // 20), 1.0)) for i in range(130)))
    links = (*(Link(i, i + 1, 1) for i in range(60)), Link(CUSTOMER, 0, 1), Link(60, 0, 1, back=True))
    what = Model(Dag(tuple(Task(f"t{i}", 10) for i in range(61)), links), is_ring=True)
    found = advise(pool, what, Workload(), objective, Random(1))[0]
    assert {t for held in found.held for t in held} == set(range(61))
    assert max(map(len, found.held)) == 1
    few = Pool(pool.nodes[:60])
    with pytest.raises(NoProvider):
        advise(few, what, Workload(), objective, Random(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Node("n", MOST_BYTES + 1),
        lambda: Node("n", -1),
        lambda: Node("n", 1, speed=nan),
        lambda: Node("n", 1, speed=1e-300),
        lambda: Node("n", 1, up=inf),
        lambda: Node("n", 1, at=(nan, 0.0, 0.0)),
        lambda: Node("n", 1, at=(0.0, 0.0, -1.0)),
        lambda: Node("n", 4, layouts=((6, -2),)),
        lambda: Node("n", 4, layouts=((),)),
        lambda: Task("t", 1, ((1, inf),)),
        lambda: Task("t", 1, ((1, 1e16),)),
        lambda: Task("t", 1, out_bytes=MOST_BYTES + 1),
        lambda: Pool((Node("n", 1),), ((0.0, nan), (1.0, 0.0))),
        lambda: Pool((Node("n", 1),), ((0.0, inf), (1.0, 0.0))),
        lambda: Pool((Node("n", 1),), customer=(0.0, inf, 0.0)),
        lambda: Workload(output=0),
        lambda: Workload(prompt=-1),
        lambda: Workload(most_items=0),
        lambda: Workload(per_s=nan),
    ],
)
def test_figures_that_are_none_are_refused(make):
    with pytest.raises(BadInput):
        make()
