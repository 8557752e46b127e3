"""A provider that follows demand: to where it is missed, and not to and fro."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.plan.place import follow as placing
from nodewire.plan.place.follow import FollowState, Holder, Model, Settings, Window, follow, holders, model
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks
from tests.plan.markets import ring

A = Model("a" * 64, tuple(f"t{i}" for i in range(6)), (10,) * 6, (1_000,) * 6)
B = Model("b" * 64, ("u0", "u1"), (30, 30), (2_000, 2_000))
QUICK = Settings(rest=5, patience=2)


def holder(name: str, first: int, end: int, digest: str = A.digest, rate: float = 100.0) -> Holder:
    return Holder(name, {(digest, number): rate for number in range(first, end)})


def run(others, state=None, *, epochs=range(1, 40), models=(A,), memory=20, rules=QUICK):
    state = state or FollowState()
    seen = []
    for epoch in epochs:
        state = follow(models, others, memory, state, epoch, Random(epoch), rules)
        seen.append(state.held)
    return state, seen


def test_the_first_choice_is_the_window_that_is_served_worst():
    state, _ = run([holder("x", 0, 4), holder("y", 5, 6, rate=50.0)], epochs=[1])
    assert state.held == Window(A.digest, 4, 6)


def test_of_several_models_the_one_that_nobody_serves_goes_first():
    state, _ = run([holder("x", 0, 6)], models=(A, B), memory=60, epochs=[1])
    assert state.held == Window(B.digest, 0, 2)


def test_it_stays_where_it_would_leave_a_hole():
    others = [holder("x", 0, 4), holder("z", 0, 4), holder("y", 0, 4)]
    _, seen = run(others, FollowState(Window(A.digest, 4, 6), epoch=0))
    assert set(seen) == {Window(A.digest, 4, 6)}


def test_it_moves_to_what_lost_its_holder_but_only_after_patience_and_rest():
    others = [holder("x", 0, 2), holder("w", 0, 2), holder("y", 2, 4)]
    state, seen = run(others, FollowState(Window(A.digest, 0, 2), since=0, epoch=0))
    assert seen[:3] == [Window(A.digest, 0, 2)] * 3
    assert state.held == Window(A.digest, 4, 6)
    assert state.since == QUICK.rest


def test_who_is_a_thousand_times_as_fast_as_others_leaves_what_they_hold_for_what_nobody_does():
    fast = replace(A, us=(16,) * 6)
    others = [holder("x", 0, 2, rate=50.0), holder("y", 2, 4, rate=50.0)]
    state, _ = run(others, FollowState(Window(A.digest, 0, 2), since=0, epoch=0), models=(fast,))
    assert state.held == Window(A.digest, 4, 6)


def test_who_holds_tasks_that_are_no_neighbours_is_not_thought_to_move_on():
    three = Model("c" * 64, ("left", "right", "join"), (10,) * 3, (1_000,) * 3)
    others = [Holder("x", {(three.digest, 0): 50.0, (three.digest, 2): 50.0})]
    state, _ = run(others, FollowState(Window(three.digest, 0, 1), since=0, epoch=0), models=(three,), memory=15)
    assert state.held == Window(three.digest, 1, 2)


def test_a_balanced_market_is_left_alone():
    others = [holder("x", 0, 2), holder("y", 2, 4), holder("w", 4, 6), holder("v", 2, 4), holder("u", 4, 6)]
    _, seen = run(others, FollowState(Window(A.digest, 0, 2), epoch=0))
    assert set(seen) == {Window(A.digest, 0, 2)}


def test_providers_that_follow_together_come_to_rest_with_everything_held():
    windows = {name: FollowState() for name in ("p", "q", "r")}
    moves = 0
    for epoch in range(1, 80):
        for name, state in windows.items():
            others = [
                holder(other, held.held.first, held.held.end, rate=500.0)
                for other, held in windows.items()
                if other != name and held.held is not None
            ]
            new = follow((A,), others, 20, state, epoch, Random(f"{name}{epoch}"), QUICK)
            moves += new.held != state.held
            windows[name] = new
    assert {state.held.first for state in windows.values()} == {0, 2, 4}
    assert moves <= 6


class Watched(dict):
    """Counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key):
        Watched.looks += 1
        return super().__getitem__(key)


def test_however_many_strangers_announce_however_much_the_ripple_looks_at_no_more_than_its_bound(monkeypatch):
    most = 1_000_000
    monkeypatch.setattr(placing, "_MOST_LOOKS", most)
    large = Model("dd" * 32, tuple(f"t{n}" for n in range(1_024)), (1,) * 1_024, (100,) * 1_024)
    chance = Random(7)
    crowd = [holder(f"{n:064x}", at := chance.randrange(724), at + 300, large.digest) for n in range(400)]
    market = placing._Market([large], crowd)
    market.service = Watched(market.service)
    before = {name: dict(served) for name, served in market.others.items()}
    Watched.looks = 0
    market._ripple(Random(1))
    assert 0 < Watched.looks < 2 * most
    assert sum(market.others[name] != served for name, served in before.items()) <= 1 + most // (725 * 300)


def test_an_epoch_counts_once():
    state = FollowState(Window(A.digest, 0, 2), wanted=1, epoch=9)
    assert follow((A,), [], 20, state, 9, Random(0), QUICK) is state


def test_what_is_gone_from_the_models_is_given_up():
    state, _ = run([], FollowState(Window("c" * 64, 0, 2), epoch=0), epochs=[1])
    assert state.held == Window(A.digest, 0, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4), st.floats(1, 1e4)), max_size=6),
    st.integers(0, 100),
)
def test_what_is_held_always_fits_and_is_the_same_each_time(sizes, memory, spans, seed):
    one = Model("d" * 64, tuple(map(str, range(len(sizes)))), tuple(sizes), (100,) * len(sizes))
    others = [
        holder(f"o{i}", min(first, len(sizes) - 1), min(first + n, len(sizes)), one.digest, rate)
        for i, (first, n, rate) in enumerate(spans)
    ]
    state, seen = run(others, models=(one,), memory=memory, epochs=range(1, 9), rules=replace(QUICK, rest=1))
    again = run(others, models=(one,), memory=memory, epochs=range(1, 9), rules=replace(QUICK, rest=1))
    assert (state, seen) == again
    for window in seen:
        if window is not None:
            assert 0 < sum(sizes[window.first : window.end]) <= memory
    assert (seen[0] is None) == (memory < min(sizes))


def test_a_view_is_what_the_snapshot_certifies(snapshot_of):
    manifest = ring(3)
    mine = model(manifest, {"stage.0": 500, "stage.1": 500, "stage.2": 500})
    offers = tuple(TaskOffer(task=f"stage.{i}", price_msat=1, us_per_position=2_000) for i in (0, 1))
    held = HeldTasks(manifest=manifest.digest(), free=1, tasks=offers)
    found = holders(snapshot_of([("e" * 64, (held,), 500_000), ("f" * 64, (held,), 0)]), (mine,), "f" * 64)
    assert found == (Holder("e" * 64, {(mine.digest, 0): 250.0, (mine.digest, 1): 250.0}),)
