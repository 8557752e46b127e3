"""A job that a liar breaks off: what of its customer's budget, and of its neighbour's next jobs, it can burn."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import attempt, provider_events
from nodewire.customer.job.provider_events import Answers
from nodewire.errors import Busy, LinkLost, NotAllowed
from nodewire.protocol.job.chunk import AHEAD
from nodewire.protocol.job.feedback import Feedback
from nodewire.wire.job_member import Membership
from tests.attacks.inside.job.test_inside_double_pay import DRIVER, HONEST, PRICE_MSAT, closed, job
from tests.attacks.inside.job.test_inside_false_absence import Market
from tests.attacks.market.test_hostile_providers import ME, REQUEST


async def test_what_a_driver_closes_that_cannot_be_takes_nothing_of_the_next_jobs_budget():
    """Nobody can ask for it: neither for units that a chunk does not have nor for chunks far ahead."""
    payments, _ = job()
    await closed(payments, 0)
    await payments.closed(1, 10**6)
    await payments.closed(10**6, 1)
    await payments.close()
    assert payments.unpaid_msat() == PRICE_MSAT * 2


@pytest.mark.parametrize(("chunk", "units"), [(10**6, 1), (0, 10**6)])
async def test_a_driver_that_closes_what_cannot_be_is_not_believed_that_the_budget_is_used_up(chunk, units):
    payments, _ = job()
    await payments.delivered(0)
    most = 8 + 1 + 2 * AHEAD
    terms = payments._plan.terms.model_copy(update={"max_total_msat": most * 2 * PRICE_MSAT})
    payments._plan = payments._plan.model_copy(update={"terms": terms})
    await payments.closed(chunk, units)
    assert not payments.may_be_used_up()


async def test_who_says_that_its_neighbours_worker_died_keeps_it_from_no_later_job(monkeypatch):
    monkeypatch.setattr(provider_events, "WORD_S", 0.1)
    monkeypatch.setattr(attempt, "WORD_S", 0.3)
    background, plan = JobTaskGroup(), job()[0]._plan
    said = Answers(ME, REQUEST, plan, SimpleNamespace(), SimpleNamespace(), background, network="bcrt", chunks=4)
    async with Market() as market:
        market.running.answers, market.running.background = said, background
        word = Feedback("ee" * 32, DRIVER.public, REQUEST, ME.public, "error", "node-failed", by=HONEST.public)
        said._feedback(word)
        await asyncio.wait_for(background.ended.wait(), 3)
        assert background.fault is not None
        assert await market.running.find_absent(background.fault) == {DRIVER.public}
        assert market.running.blamed() == {DRIVER.public, HONEST.public}


@pytest.mark.parametrize("error", [Busy("links", "1024 are open"), NotAllowed("npub", "not admitted")])
async def test_a_member_that_turns_a_link_away_ends_the_job_and_is_not_taken_for_gone(error):
    member = object.__new__(Membership)
    member._doubted, member._returns = set(), Counter()
    member._addresses, member._kept = {HONEST.public: ["127.0.0.1:1"]}, {HONEST.public: SimpleNamespace()}
    member.lost_here, member._request = set(), REQUEST
    ended = []
    member.mailbox = SimpleNamespace(cancel=ended.append)
    await member._look_after(HONEST.public, error)
    assert not member.lost_here
    (why,) = ended
    assert isinstance(why, LinkLost)
    assert why.field == HONEST.public
