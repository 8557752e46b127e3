"""How many steps each makes of a round, and how long it is waited for when enough are there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.training.customer.policy import result_deadline, step_counts
from nodewire.training.protocol.round import work_gflop
from tests.training.customer.policy.test_provider_selection import ad
from tests.training.engine.recipes import recipe


def paced(**changes):
    of = recipe("decoder", steps=800)
    return of.model_copy(update={"pace": "speed", **changes})


def test_all_make_all_steps_where_the_pace_is_equal():
    assert step_counts.steps(paced(pace="equal"), ["ada", "bea"], {"ada": 1.0, "bea": 50.0}) == {"ada": 800, "bea": 800}


def test_steps_go_by_speed_and_nobody_gets_less_than_an_eighth_or_a_segment():
    each = {"ada": 10.0, "bea": 20.0, "cyd": 13.0, "dan": 1_000.0}
    assert step_counts.steps(paced(), each, each) == {"ada": 800, "bea": 400, "cyd": 615, "dan": 100}
    assert step_counts.steps(paced(), ["bea", "dan"], each) == {"bea": 800, "dan": 100}
    few = paced(steps=20)
    few = few.model_copy(update={"audit": few.audit.model_copy(update={"segment": 10})})
    assert step_counts.steps(few, ["ada", "dan"], each) == {"ada": 20, "dan": 10}
    assert step_counts.steps(few.model_copy(update={"steps": 4}), ["ada", "dan"], each) == {"ada": 4, "dan": 4}


def test_a_speed_is_what_was_measured_or_else_what_is_claimed_as_far_as_claims_hold_here():
    market = {"ada": ad(gflops=10), "bea": ad(gflops=20), "cyd": ad(gflops=20)}
    assert step_counts.step_us(market, {}, 10**9) == {"ada": 100_000, "bea": 50_000, "cyd": 50_000}
    took = {"ada": (300_000, 200_000, 9_000_000), "bea": (), "gone": (1,)}
    assert step_counts.step_us(market, took, 10**9) == {"ada": 300_000, "bea": 150_000, "cyd": 150_000}


def test_a_claim_is_believed_within_bounds_and_who_has_delivered_goes_by_what_it_did():
    liar = {"ada": ad(gflops=10), "bea": ad(gflops=10), "eve": ad(gflops=1_000_000)}
    first = step_counts.step_us(liar, {}, 10**9)
    assert first == {"ada": 100_000, "bea": 100_000, "eve": 25_000}
    assert step_counts.steps(paced(), liar, first) == {"ada": 200, "bea": 200, "eve": 800}
    after = step_counts.step_us(liar, {"ada": (100_000,), "eve": (100_000,)}, 10**9)
    assert after == {"ada": 100_000, "bea": 100_000, "eve": 100_000}  # nor is bea slow because eve has lied
    assert step_counts.step_us(liar, {"ada": (100_000,)}, 10**9)["eve"] == 25_000
    slow = liar | {"old": ad(gflops=1)}
    assert step_counts.step_us(slow, {"ada": (100_000,)}, 10**12)["old"] == 400_000


def test_who_would_miss_the_deadline_is_known_by_its_steps():
    of = paced(pace="equal", deadline=10)
    assert step_counts.late(of, {"ada": 12_000.0, "bea": 13_000.0}) == {"bea"}
    assert step_counts.late(of.model_copy(update={"pace": "speed"}), {"ada": 12_000.0, "bea": 90_000.0}) == set()
    assert step_counts.late(of.model_copy(update={"pace": "speed"}), {"ada": 12_000.0, "bea": 110_000.0}) == {"bea"}
    assert step_counts.late(of, {}) == set()


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 1e12), min_size=1),
    st.integers(1, 100_000),
    st.integers(1, 100_000),
)
def test_steps_are_always_such_as_a_provider_takes(each, steps, segment):
    of = paced(steps=steps)
    of = of.model_copy(update={"audit": of.audit.model_copy(update={"segment": segment})})
    found = step_counts.steps(of, each, each)
    assert found.keys() == each.keys()
    assert max(found.values()) == steps
    assert all(1 <= one <= steps and one >= min(steps, segment) for one in found.values())


def test_the_price_goes_by_the_steps():
    of, dear = recipe("decoder", steps=800), ad(least_msat=0, msat_per_pflop=10**6)
    whole, part = (dear.price_msat(work_gflop(of, steps)) for steps in (800, 100))
    assert part <= -(-whole // 8) + 1 < whole


@pytest.mark.parametrize(
    ("took_ms", "expected_s"),
    [((), 60), ((100,), 0.5), ((2_000,), 3), ((1_000, 2_000, 3_000), 6), ((50_000, 50_000), 60)],
)
def test_when_enough_results_are_there_the_rest_is_waited_for_less(took_ms, expected_s):
    assert result_deadline.linger_s(took_ms, 60) == expected_s
    assert result_deadline.linger_s(took_ms, 60) <= result_deadline.patience_s(took_ms, 60)


@pytest.mark.parametrize(
    ("quorum", "outer", "shards", "needed"),
    [
        ("1.0", {}, 4, 4),
        ("0.75", {}, 4, 3),
        ("0.6", {}, 4, 3),
        ("0.0", {}, 4, 1),
        ("0.5", {"aggregate": "trimmed", "tolerated": 1}, 4, 3),
        ("0.1", {"aggregate": "krum", "tolerated": 1}, 8, 5),
        ("0.1", {"aggregate": "krum", "tolerated": 1}, 3, 3),
    ],
)
def test_a_quorum_is_never_less_than_the_aggregate_can_be_made_of(quorum, outer, shards, needed):
    of = recipe("mlp", outer=outer).model_copy(update={"quorum": quorum})
    assert of.needed(shards) == needed
