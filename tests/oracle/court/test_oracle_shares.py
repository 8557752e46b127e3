"""A pass counts where its chunk's verification share came in; everything else counts in any case."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.errors import LinkLost
from nodewire.oracle.court import shares as module
from nodewire.oracle.court.shares import ASKED_AFTER_EPOCHS, Shares
from nodewire.oracle.daemon import Oracle
from nodewire.oracle.journal import Journal
from nodewire.oracle.setup import Seat
from nodewire.pay.bond.settlement import drawn_at_ms
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import Verification
from nodewire.protocol.verification import verdict
from tests.oracle.committee.test_oracle_accounts import COMMITTEE, SEATS, certified
from tests.oracle.court.test_oracle_docket import request
from tests.oracle.test_oracle_daemon import WallClock
from tests.protocol.committee.actors import committee

SHARING, _ = committee(verify_share_ppm=150_000)
SHARE_MSAT = 1
"""15 % of the request's 1 msat, rounded up."""


class Market:
    """Relays with one request, and a holder to whom `came` in when it was asked for the nth time."""

    def __init__(self, *came, asked=None):
        self.asked, self.came, self.questions = asked or request(), list(came), []

    async def fetch(self, filters):
        return [self.asked]

    async def share_msat(self, *about):
        self.questions.append(about)
        came = self.came.pop(0) if self.came else 0
        if isinstance(came, Exception):
            raise came
        return came


def said(outcome="pass"):
    return verdict.parse(certified(3, outcome=outcome)).verdict


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    found = []

    async def sleep(delay_s):
        found.append(delay_s)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    return found


async def test_a_pass_counts_whose_share_came_in(pauses):
    market = Market(SHARE_MSAT)
    assert await Shares(SHARING, market, market).counts(said())
    asked = job.parse(market.asked)
    assert market.questions == [(asked.id, asked.customer, 3, drawn_at_ms(said().epoch, SHARING))]


async def test_a_holder_that_is_away_is_asked_again(pauses):
    market = Market(LinkLost("holder", "away"), LinkLost("holder", "away"), SHARE_MSAT)
    assert await Shares(SHARING, market, market).counts(said())
    epoch_s = SHARING.epoch_ms / 1000
    assert pauses == [0, epoch_s, 2 * epoch_s]


async def test_a_pass_whose_share_had_not_come_at_the_draw_never_counts():
    """Else who deals with itself would pay the shares of what was drawn alone: one in 1 / rate."""
    market = Market(0, SHARE_MSAT)
    assert not await Shares(SHARING, market, market).counts(said())
    assert len(market.questions) == 1


async def test_a_pass_whose_holder_stays_away_does_not_count():
    market = Market(*[LinkLost("holder", "away")] * len(ASKED_AFTER_EPOCHS))
    assert not await Shares(SHARING, market, market).counts(said())
    assert len(market.questions) == len(ASKED_AFTER_EPOCHS)


async def test_a_plan_that_says_that_nothing_is_due_is_not_believed():
    market = Market()
    assert job.parse(market.asked).plan.verification == Verification(policy="sampled", rate_ppm=1_000_000, share_ppm=0)
    assert not await Shares(SHARING, market, market).counts(said())


async def test_what_costs_nothing_gives_no_reputation():
    free = job.parse(request())
    free = free.plan.model_copy(update={"chunk_msat": 0})
    market = Market(10**9)
    assert not await module.is_share_paid(market, SimpleNamespace(plan=free, id="", customer=""), 0, 1, SHARING)
    assert await module.is_share_paid(market, SimpleNamespace(plan=free, id="", customer=""), 0, 1, COMMITTEE)
    assert not market.questions


@pytest.mark.parametrize("outcome", ["withheld", "unsure"])
async def test_what_speaks_against_a_provider_counts_in_any_case(outcome):
    market = Market()
    assert await Shares(SHARING, market, market).counts(said(outcome))
    assert not market.questions


async def test_without_a_holder_to_ask_passes_are_left_to_others_unless_nothing_is_owed():
    market = Market()
    assert not await Shares(SHARING, market, None).counts(said())
    assert await Shares(COMMITTEE, market, None).counts(said())


async def test_an_oracle_lists_what_counts_and_looks_into_it_once_however_often_it_is_published(tmp_path):
    free, asked = asyncio.Event(), []

    async def counts(one):
        asked.append(one.chunk)
        await free.wait()
        return one.chunk == 1

    seat = Seat(SEATS[0].keys, SEATS[0].share)
    oracle = Oracle(seat, COMMITTEE, None, None, Journal(tmp_path / "journal.db"), _Now(), counts=counts)
    oracle._state = oracle._begun(oracle._now_ms())
    applying = asyncio.create_task(oracle._apply())
    for _ in range(3):
        for chunk in (1, 2):
            oracle._verdict_came(certified(chunk))
    oracle._verdict_came(certified(3, voters=SEATS[:2]))  # proves nothing
    await asyncio.sleep(0.01)
    assert sorted(asked) == [1, 2]
    free.set()
    while not oracle.state.judged:
        await asyncio.sleep(0)
    assert list(oracle.state.judged) == [verdict.parse(certified(1)).verdict.key]
    oracle._verdict_came(certified(1))
    await asyncio.sleep(0.01)
    assert len(asked) == 2
    applying.cancel()


class _Now(WallClock):
    def time_s(self):
        return COMMITTEE.close_ms(3) / 1000
