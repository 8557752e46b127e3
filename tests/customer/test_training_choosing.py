"""Who trains a shard: whoever had it before, else the cheapest with room; a request names nobody twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nodewire.customer.training.choosing import Need, deal, grouped
from nodewire.errors import NoProvider
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


def dealt(market, needs=None, busy=(), before=None, excluded=None, failures=()):
    needs = needs or {0: NEED, 1: NEED}
    return deal(
        needs,
        market,
        busy=Counter(busy),
        before=before or {},
        excluded={index: frozenset((excluded or {}).get(index, ())) for index in needs},
        failures=Counter(failures),
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
    market = {"dear": ad(least_msat=20, concurrency=1), "cheap": ad()}
    assert dealt(market, before={1: "dear"}) == {0: "cheap", 1: "dear"}
    assert dealt(market, before={1: "dear"}, excluded={1: {"dear"}}) == {0: "cheap", 1: "cheap"}
    assert dealt(market, before={1: "gone"}) == {0: "cheap", 1: "cheap"}


@pytest.mark.parametrize(
    "changes", [{"kind": 8841}, {"family": "cnn"}, {"memory_bytes": 10**6 + 1}, {"blob_bytes": 1_001}]
)
def test_who_cannot_do_it_is_not_asked(changes):
    with pytest.raises(NoProvider, match="shard 0"):
        dealt({"a": ad()}, {0: replace(NEED, **changes)})


def test_requests_name_nobody_twice_and_one_round_before_for_all():
    assert grouped({0: "ada", 1: "bea"}, {}) == [(None, [0, 1])]
    assert grouped({0: "ada", 1: "ada", 2: "bea"}, {}) == [(None, [0, 2]), (None, [1])]
    assert grouped({0: "ada", 1: "bea", 2: "cyd"}, {"ada": "r1", "cyd": "r1"}) == [("r1", [0, 2]), (None, [1])]
