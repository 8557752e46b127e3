"""Nodes come and go: everything stays held while it can be, with few moves, and none without a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import NoProvider
from nodewire.plan.place.model import Placement, Stage
from nodewire.plan.place.rebalance import Arrival, Balance, Departure, Rules, Tick, step

TASKS = 6
ROOMS = (3, 2, 2, 6, 1, 4)


def plan(nodes: frozenset[int]) -> Placement:
    """The largest first, one after the other, from the start again."""
    stages, first = [], 0
    for node in sorted(nodes, key=lambda node: -ROOMS[node]):
        stages.append(Stage(node, first, min(TASKS, first + ROOMS[node])))
        first = stages[-1].end % TASKS
    placement = Placement(tuple(sorted(stages, key=lambda stage: stage.node)))
    if not placement.is_complete(TASKS):
        raise NoProvider("nodes", "no room")
    return placement


def worth(placement: Placement) -> float:
    return min(sum(1.0 for s in placement.stages if s.first <= task < s.end) for task in range(TASKS))


RULES = Rules(plan, worth, lambda node, first: min(ROOMS[node], TASKS - first), TASKS, rest_ms=1_000)


def balance(*stages: Stage) -> Balance:
    return Balance(frozenset(stage.node for stage in stages), stages)


def test_who_comes_takes_what_helps_most_and_nobody_else_moves():
    before = balance(Stage(1, 0, 2), Stage(3, 0, 6))
    after, moves = step(before, Arrival(5, 0), RULES)
    assert moves == (Stage(5, 2, 6),)
    assert set(before.stages) < set(after.stages)


def test_who_goes_while_others_hold_the_same_moves_nobody():
    before = balance(Stage(1, 4, 6), Stage(3, 0, 6))
    after, moves = step(before, Departure(1, 0), RULES)
    assert moves == ()
    assert after.stages == (Stage(3, 0, 6),)


def test_a_task_that_lost_its_last_holder_goes_to_one_whose_own_are_held_elsewhere():
    before = balance(Stage(0, 0, 3), Stage(1, 0, 2), Stage(5, 2, 6))
    after, moves = step(Balance(before.nodes | {3}, before.stages), Departure(5, 0), RULES)
    assert moves == (Stage(3, 3, 6),)
    assert after.placement().is_complete(TASKS)


def test_a_better_plan_waits_for_its_time_and_must_be_worth_it():
    held = (Stage(0, 0, 3), Stage(1, 0, 2), Stage(3, 0, 6), Stage(5, 0, 4))
    before = Balance(frozenset((0, 1, 3, 5)), held)
    assert step(before, Tick(999), RULES) == (before, ())
    after, moves = step(before, Tick(1_000), RULES)
    assert moves
    assert worth(after.placement()) > RULES.gain * worth(before.placement())
    assert step(after, Tick(1_500), RULES) == (after, ())
    assert step(after, Tick(9_000), RULES)[1] == ()


def test_with_nobody_who_could_what_is_held_stays():
    before = balance(Stage(0, 0, 3), Stage(5, 2, 6))
    after, moves = step(before, Departure(5, 0), RULES)
    assert (after.stages, moves) == ((Stage(0, 0, 3),), ())
    with pytest.raises(NoProvider):
        plan(frozenset((0,)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=20))
def test_everything_is_held_whenever_those_who_are_there_have_room(events):
    state = Balance(frozenset(), ())
    there: set[int] = set()
    for at_ms, (comes, node) in enumerate(events):
        (there.add if comes else there.discard)(node)
        state, moves = step(state, Arrival(node, at_ms) if comes else Departure(node, at_ms), RULES)
        assert state.nodes == there
        assert {stage.node for stage in state.stages} <= there
        assert all(stage.end - stage.first <= ROOMS[stage.node] for stage in state.stages)
        assert set(moves) <= set(state.stages)
        if sum(ROOMS[node] for node in there) >= TASKS:
            assert state.placement().is_complete(TASKS)
