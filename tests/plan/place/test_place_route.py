"""Ways over what is held: the quickest there is."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.plan.place.model import Chain, Node, Pool, Stage, Task, turn_ms
from nodewire.plan.place.route import compute_cost, route
from tests.plan.place.instances import chains, pools


def least(pool: Pool, chain: Chain, held: list[Stage]) -> float:
    """Over all sequences of holders, and all places at which to go on: where something held begins or ends."""
    best = float("inf")
    tasks = len(chain.tasks)
    marks = {tasks, *(stage.first for stage in held), *(stage.end for stage in held)}

    def go(done: int, way: list[Stage]) -> None:
        nonlocal best
        if done == tasks:
            best = min(best, turn_ms(pool, chain, way))
            return
        for stage in held:
            if stage.first <= done < stage.end and not (way and way[-1].node == stage.node):
                for end in marks & set(range(done + 1, stage.end + 1)):
                    go(end, [*way, Stage(stage.node, done, end)])

    go(0, [])
    return best


@settings(max_examples=60, deadline=None)
@given(st.data(), pools(most=3), chains(most=4))
def test_a_way_is_the_quickest_that_trying_everything_finds(data, pool, chain):
    tasks = len(chain.tasks)
    held = []
    for node in range(len(pool.nodes)):
        first = data.draw(st.integers(0, tasks - 1))
        held.append(Stage(node, first, data.draw(st.integers(first + 1, tasks))))
    way = route(pool, chain, held, compute_cost(pool, chain))
    best = least(pool, chain, held)
    if way is None:
        assert best == float("inf")
        return
    assert way[0].first == 0 and way[-1].end == tasks
    assert all(a.end == b.first for a, b in pairwise(way))
    assert turn_ms(pool, chain, way) <= best + 1e-6


def test_no_way_leads_past_a_task_that_nobody_holds():
    pool = Pool((Node("a", 1), Node("b", 1)))
    chain = Chain((Task("x", 1), Task("y", 1), Task("z", 1)))
    held = [Stage(0, 0, 1), Stage(1, 2, 3)]
    for order in permutations(held):
        assert route(pool, chain, order, compute_cost(pool, chain)) is None


def test_a_node_may_be_left_where_another_goes_on():
    pool = Pool((Node("slow", 3, speed=0.1), Node("fast", 2, speed=10.0)))
    chain = Chain((Task("x", 1), Task("y", 1), Task("z", 1)))
    way = route(pool, chain, [Stage(0, 0, 3), Stage(1, 1, 3)], compute_cost(pool, chain))
    assert way == (Stage(0, 0, 1), Stage(1, 1, 3))


def test_costs_are_as_they_are_given():
    pool = Pool((Node("a", 2), Node("b", 2)))
    chain = Chain((Task("x", 1), Task("y", 1)))
    held = [Stage(0, 0, 2), Stage(1, 0, 2)]
    assert route(pool, chain, held, lambda stage: float(stage.node == 0)) == (Stage(1, 0, 2),)
    assert pytest.approx(2.0) == turn_ms(pool, chain, [Stage(1, 0, 2)])
