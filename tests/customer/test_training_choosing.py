"""Who trains a shard: whoever had it before, else the cheapest with room; a request names nobody twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nodewire.customer.training import pacing
from nodewire.customer.training.choosing import Need, deal, grouped
from nodewire.protocol.trainer import Trainer

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


def dealt(market, needs=None, busy=(), before=None, excluded=(), failures=(), took=None):
    needs = needs or {0: NEED, 1: NEED}
    return deal(
        needs,
        market,
        busy=Counter(busy),
        before=before or {},
        excluded=frozenset(excluded),
        failures=Counter(failures),
        measured_us=took or {},
        each_us=pacing.step_us(market, {public: (us,) for public, us in (took or {}).items()}, 10**9),
    )


def test_the_cheapest_gets_what_it_has_room_for_and_the_faster_of_equals_comes_first():
    market = {"dear": ad(least_msat=20), "slow": ad(), "fast": ad(gflops=99)}
    needs = dict.fromkeys(range(5), NEED)
    assert dealt(market, needs) == {0: "fast", 1: "fast", 2: "slow", 3: "slow", 4: "dear"}
    assert dealt(market, busy=("fast", "fast", "slow")) == {0: "slow", 1: "dear"}


def test_who_has_failed_comes_after_everybody_else():
    market = {"dear": ad(least_msat=20), "cheap": ad()}
    assert dealt(market, failures=("cheap",)) == {0: "dear", 1: "dear"}
    assert dealt(market, failures=("cheap", "cheap", "dear")) == {0: "dear", 1: "dear"}


def test_a_shard_stays_where_it_was_unless_that_provider_failed_it_or_is_gone():
    market = {"dear": ad(least_msat=14, concurrency=1), "cheap": ad()}
    assert dealt(market, before={1: "dear"}) == {0: "cheap", 1: "dear"}
    assert dealt(market, before={1: "dear"}, excluded={"dear"}) == {0: "cheap", 1: "cheap"}
    assert dealt(market, before={1: "dear"}, failures=("dear",)) == {0: "cheap", 1: "cheap"}
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
