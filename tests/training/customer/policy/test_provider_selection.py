"""Who trains a shard: whoever had it before, else whose useful results cost least; a request names nobody twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nodewire.training.customer.machine import unresponsive
from nodewire.training.customer.machine.events import (
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultReceipt,
    ResultTimeout,
    RoundQuorum,
    ShardLoss,
    StepCompletion,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.policy import step_counts
from nodewire.training.customer.policy.expected_cost import Record, record_of
from nodewire.training.customer.policy.provider_selection import NOBODY, Exclusion, Need, Speeds, deal, grouped
from nodewire.training.protocol.round import MAX_ASSIGNED
from nodewire.training.protocol.trainer_ad import Trainer
from tests.training.customer.market.test_carried_state import BLOB, after, row

NEED = Need(8840, "mlp", 10**6, 1_000, 5)


def ad(**changes) -> Trainer:
    fields = {
        "name": "a",
        "kinds": (8840,),
        "families": ("mlp",),
        "msat_per_pflop": 0,
        "least_msat": 10,
        "gflops": 10,
        "memory_bytes": 10**6,
        "most_bytes": 1_000,
        "concurrency": 2,
        "lnurl": "https://a.example",
    }
    return Trainer(**{**fields, **changes})


def dealt(market, needs=None, *, busy=(), before=None, record=None, took=None, late=(), exclusion=NOBODY):
    needs = needs or {0: NEED, 1: NEED}
    of_each = {public: (us,) for public, us in (took or {}).items()}
    return deal(
        needs,
        market,
        busy=Counter(busy),
        before=before or {},
        record=record or Record(),
        speeds=Speeds(took or {}, step_counts.step_us(market, of_each, 10**9), late),
        exclusion=exclusion,
    )


def record(failures=(), good=(), worth=0) -> Record:
    """Of who has failed and who has delivered, once for each time that it is named."""
    return Record(Counter(good), Counter(failures), worth)


def test_the_cheapest_gets_what_it_has_room_for_and_the_faster_of_equals_comes_first():
    market = {"dear": ad(least_msat=20), "slow": ad(), "fast": ad(gflops=99)}
    needs = dict.fromkeys(range(5), NEED)
    assert dealt(market, needs) == {0: "fast", 1: "fast", 2: "slow", 3: "slow", 4: "dear"}
    assert dealt(market, busy=("fast", "fast", "slow")) == {0: "slow", 1: "dear"}


def test_a_failure_costs_what_it_costs_and_not_any_price():
    market = {"dear": ad(least_msat=20, concurrency=1), "cheap": ad(concurrency=1)}
    one = {0: NEED}
    assert dealt(market, one, record=record(failures=("cheap",))) == {0: "cheap"}  # 10 and what is lost beside 20
    assert dealt(market, one, record=record(failures=("cheap", "cheap"))) == {0: "cheap"}
    assert dealt(market, one, record=record(failures=("cheap",) * 3)) == {0: "dear"}
    assert dealt(market, one, record=record(failures=("cheap",) * 3, good=("cheap",) * 9)) == {0: "cheap"}
    market["dear"] = ad(least_msat=1_000_000, concurrency=1)
    assert dealt(market, one, record=record(failures=("cheap",) * 99)) == {0: "cheap"}
    assert dealt(market, record=record(failures=("cheap",) * 99)) == {0: "cheap", 1: "dear"}


def test_a_failed_try_costs_the_time_of_all_so_who_is_almost_free_does_not_fail_for_ever():
    market = {"fair": ad(least_msat=100), "free": ad(least_msat=1)}
    one = {0: NEED}
    assert dealt(market, one, record=record(worth=100)) == {0: "free"}
    assert dealt(market, one, record=record(worth=100, failures=("free",))) == {0: "free"}
    assert dealt(market, one, record=record(worth=100, failures=("free",) * 3)) == {0: "fair"}
    assert dealt(market, one, record=record(worth=1_000, failures=("free",))) == {0: "fair"}
    market["fair"] = ad(least_msat=10_000)  # more than the budget has for it
    assert dealt(market, one, record=record(worth=100, failures=("free",) * 99)) == {0: "free"}


def test_who_has_proved_itself_may_be_a_little_dearer_than_a_stranger():
    market = {"known": ad(least_msat=11), "stranger": ad()}
    assert dealt(market, {0: NEED}, record=record(good=("known",) * 9)) == {0: "known"}
    market["known"] = ad(least_msat=13)
    assert dealt(market, {0: NEED}, record=record(good=("known",) * 9)) == {0: "stranger"}


def test_speed_counts_among_equals_by_what_was_measured_and_where_the_deadline_would_be_missed():
    market = {"boasts": ad(gflops=1_000), "quick": ad(gflops=10)}
    one = {0: NEED}
    assert dealt(market, one) == {0: "boasts"}
    assert dealt(market, one, took={"boasts": 100_000, "quick": 90_000}) == {0: "quick"}
    market["boasts"] = ad(gflops=1_000, least_msat=9)
    assert dealt(market, one, took={"boasts": 900_000, "quick": 9_000}) == {0: "boasts"}  # in time
    assert dealt(market, one, late=("boasts",)) == {0: "quick"}
    assert dealt(market, one, late=("boasts",), before={0: "boasts"}) == {0: "quick"}
    assert dealt(market, one, late=("boasts", "quick")) == {0: "boasts"}


def test_who_has_not_answered_is_asked_only_where_the_others_get_nothing_and_nobody_will_be_free():
    market = {"dead": ad(), "dear": ad(least_msat=99, concurrency=1)}
    dead = frozenset({"dead"})
    assert dealt(market, before={0: "dead"}) == {0: "dead", 1: "dead"}
    assert dealt(market, before={0: "dead"}, exclusion=Exclusion(silent=dead)) == {0: "dear"}
    assert dealt(market, busy=("dear",), exclusion=Exclusion(silent=dead, is_last_resort=False)) == {}
    assert dealt(market, busy=("dear",), exclusion=Exclusion(silent=dead)) == {0: "dead", 1: "dead"}
    assert dealt(market, busy=("dear",), exclusion=Exclusion(failed=frozenset({"dead"}), silent=dead)) == {}


def round_of(number: int, *events, state, asked=("ada", "bea")):
    """`events` of a round that these were asked for, in which bea's result comes, and its step."""
    request = f"r{number}"
    rows = tuple(row(index, provider) for index, provider in enumerate(asked))
    came = [
        ResultArrival(request, "bea", "{}", 5),
        ResultReceipt(request, "bea"),
        ResultJudgement(request, "bea", True, ""),
    ]
    return after(
        RequestPublication(number, request, "{}", rows),
        *events,
        *came,
        RoundQuorum(number),
        StepCompletion(number, 5, BLOB),
        state=state,
    )


@pytest.mark.parametrize("begins", [False, True])
def test_who_answers_nothing_is_passed_over_for_ever_more_rounds_until_it_is_heard_of(begins):
    state, asked = after(TrainingStart(99, (BLOB, BLOB), BLOB, 1)), []
    for number in range(16):
        if unresponsive.passed_over(state):
            state = round_of(number, state=state, asked=("bea",))
            continue
        asked.append(number)
        events = [WorkStart(f"r{number}", "ada"), ResultTimeout(f"r{number}", "ada", "no word for 25 s")]
        state = round_of(number, *(events if begins else [ShardLoss(f"r{number}", "ada", "no answer")]), state=state)
    assert asked == [0, 2, 6, 14]
    assert unresponsive.passed_over(state) == {"ada"}
    heard = apply(WorkStart("r14", "ada"), state)
    assert unresponsive.passed_over(heard) == frozenset()
    assert apply(WorkStart("r14", "ada"), heard) is heard
    assert apply(WorkStart("r6", "ada"), state) is state  # said before it was silent
    came = after(
        RequestPublication(16, "r16", "{}", (row(0, "ada"),)), ResultArrival("r16", "ada", "{}", 5), state=heard
    )
    assert came.silent == {}


def test_shards_of_one_round_that_are_not_answered_are_one_silence():
    state = after(TrainingStart(9, (BLOB, BLOB), BLOB, 1))
    for number in range(2):
        state = after(RequestPublication(0, f"r{number}", "{}", (row(number, "ada"),)), state=state)
    for number in range(2):
        state = apply(ShardLoss(f"r{number}", "ada", "no answer"), state)
    assert state.silent["ada"].until == 2
    refused = after(RequestPublication(0, "r2", "{}", (row(0, "bea"),)), ShardLoss("r2", "bea", "busy"), state=state)
    assert unresponsive.passed_over(refused) == {"ada"}


def test_what_is_known_of_providers_is_what_came_of_their_shards():
    events = [TrainingStart(3, (BLOB, BLOB), BLOB), RequestPublication(0, "r0", "{}", (row(0, "ada"), row(1, "bea")))]
    events += [ResultArrival("r0", "ada", "{}", 5), ResultReceipt("r0", "ada"), ResultJudgement("r0", "ada", True, "")]
    events += [ShardLoss("r0", "bea", "no answer")]
    record = record_of(after(*events), 1_000)
    assert (record.good, record.failed, record.worth_msat) == (Counter(["ada"]), Counter(["bea"]), 166)
    held = record_of(after(*events[:4], ResultJudgement("r0", "ada", True, "", audit=True)), 1_000)
    assert held.good == Counter()


def test_a_shard_stays_where_it_was_unless_that_provider_failed_it_or_is_gone():
    market = {"dear": ad(least_msat=14, concurrency=1), "cheap": ad()}
    assert dealt(market, before={1: "dear"}) == {0: "cheap", 1: "dear"}
    assert dealt(market, before={1: "dear"}, exclusion=Exclusion(failed=frozenset({"dear"}))) == {
        0: "cheap",
        1: "cheap",
    }
    assert dealt(market, before={1: "dear"}, record=record(failures=("dear",))) == {0: "cheap", 1: "cheap"}
    assert dealt(market, before={1: "gone"}) == {0: "cheap", 1: "cheap"}


def test_a_shard_goes_to_who_is_better_by_far_and_stays_where_little_would_be_gained():
    market = {"old": ad(least_msat=20, concurrency=1), "new": ad(least_msat=13)}
    assert dealt(market, before={0: "old"}) == {0: "new", 1: "new"}
    market["new"] = ad(least_msat=14, concurrency=1)
    assert dealt(market, before={0: "old"}) == {0: "old", 1: "new"}
    one = {0: NEED}
    market = {"old": ad(), "new": ad(gflops=21), "usual": ad(least_msat=11)}
    assert dealt(market, one, before={0: "old"}) == {0: "old"}  # only a claim, and old is as fast as most
    assert dealt(market, one, before={0: "old"}, took={"old": 90, "usual": 20, "other": 20}) == {0: "new"}
    assert dealt(market, one, before={0: "old"}, took={"old": 90, "new": 60, "usual": 20, "other": 20}) == {0: "old"}
    market["new"] = ad(gflops=21, least_msat=12)  # dearer
    assert dealt(market, one, before={0: "old"}, took={"old": 90, "usual": 20, "other": 20}) == {0: "old"}


def test_as_many_shards_as_there_is_room_for_are_dealt():
    market = {"ada": ad(concurrency=1), "bea": ad(least_msat=11, concurrency=1)}
    assert dealt(market, dict.fromkeys(range(5), NEED)) == {0: "ada", 1: "bea"}
    assert dealt(market, dict.fromkeys(range(2, 5), NEED), busy=("ada",)) == {2: "bea"}
    assert dealt(market, busy=("ada", "bea")) == {}


@pytest.mark.parametrize(
    "changes", [{"kind": 8841}, {"family": "cnn"}, {"memory_bytes": 10**6 + 1}, {"blob_bytes": 1_001}]
)
def test_who_cannot_do_it_is_not_asked(changes):
    assert dealt({"a": ad()}, {0: replace(NEED, **changes)}) == {}


def test_requests_name_nobody_twice_and_one_round_before_for_all():
    assert grouped({0: "ada", 1: "bea"}, {}) == [(None, [0, 1])]
    assert grouped({0: "ada", 1: "ada", 2: "bea"}, {}) == [(None, [0, 2]), (None, [1])]
    assert grouped({0: "ada", 1: "bea", 2: "cyd"}, {"ada": "r1", "cyd": "r1"}) == [("r1", [0, 2]), (None, [1])]


def test_a_round_of_more_shards_than_a_request_may_have_is_asked_for_by_several():
    dealt = {index: f"provider {index}" for index in range(2 * MAX_ASSIGNED + 1)}
    groups = grouped(dealt, {"provider 0": "r1"})
    assert [len(indices) for _, indices in groups] == [1, MAX_ASSIGNED, MAX_ASSIGNED]
    assert sorted(index for _, indices in groups for index in indices) == list(dealt)
