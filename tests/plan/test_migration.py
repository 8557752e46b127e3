"""When another ring is worth going to: by what is left, by what was seen, and by what it costs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nodewire.plan.migration import LEAST_SAVED_S, QUICKER, CurrentRing, RemainingWork, expected

HERE = CurrentRing(turn_us=100_000, chunk_msat=1_000, step_s=0.5, best_s=0.1, started_s=1.0)
AHEAD = RemainingWork(positions=128, left=640, chunk=64)


def test_a_ring_that_has_become_slow_is_left_for_one_as_it_was():
    move = expected(HERE, 100_000, 1_000, AHEAD)
    assert move.step_s == 0.1
    # It starts after 1 s and 128 positions at a tenth of a step, and catches up as much again and a quarter.
    assert move.overtaking == 6
    assert move.saved_s == (640 - 6) * (0.5 - 0.1)
    assert move.total_msat == (2 + 10) * 1_000
    assert move.extra_msat == 2_000


def test_a_ring_that_is_as_it_was_is_left_only_for_one_that_is_much_quicker():
    still = replace(HERE, step_s=0.1)
    assert expected(still, 100_000, 1_000, AHEAD) is None
    assert expected(still, int(100_000 / QUICKER) + 1, 1_000, AHEAD) is None
    assert expected(still, 50_000, 1_000, AHEAD) is not None


def test_who_has_almost_ended_stays():
    assert expected(HERE, 100_000, 1_000, replace(AHEAD, left=15)) is None
    assert expected(HERE, 100_000, 1_000, replace(AHEAD, left=5)) is None


def test_a_dearer_ring_costs_what_it_is_dearer():
    assert expected(HERE, 100_000, 5_000, AHEAD).extra_msat == 12 * 5_000 - 10 * 1_000


@given(
    st.floats(0.001, 10), st.floats(0.001, 10), st.integers(1, 10**9), st.integers(1, 10**9),
    st.integers(1, 10**6), st.integers(0, 10**6),
)  # fmt: skip
def test_what_is_expected_is_worth_it(step_s, best_s, here_us, there_us, positions, left):
    here = CurrentRing(here_us, 1_000, max(step_s, best_s), best_s, 1.0)
    move = expected(here, there_us, 2_000, RemainingWork(positions, left, 64))
    if move is not None:
        assert move.saved_s >= LEAST_SAVED_S
        assert here.step_s >= QUICKER * move.step_s
        assert 0 <= move.overtaking < left
        assert move.total_msat >= move.extra_msat >= 0
