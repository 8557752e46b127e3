"""A job that its customer leaves, or that ends before it is through: what is still paid, and who is waited for."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import settlement
from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.job import Purchase
from nodewire.customer.job.provider_events import MoreWork, ProviderRefusal
from nodewire.customer.job.retry_policy import blamed, may_begin
from nodewire.customer.job.settlement import LATE_CLAIMS_S, LINGER_S
from nodewire.customer.payments.claims import Claims
from nodewire.errors import BadInput, LinkLost, PaymentRequired, TimedOut
from nodewire.protocol.job.chunk_close import Close
from tests.customer.paid_job import DRIVER, HONEST, LAST, PRICE_MSAT, REQUEST, asked, asks, closed, job


async def test_what_its_driver_has_closed_is_paid_though_the_customer_takes_no_more_output():
    """Its stages count on the driver's word, and give no credit to who leaves a chunk unpaid."""
    payments, payer = job()
    await closed(payments, 0)
    await payments.closed(1, 1)  # whose output stays unread
    claim = asks(HONEST, 1)
    assert payments.expects(claim)
    paying = asyncio.create_task(payments.asked(claim))
    await asyncio.sleep(0.05)
    assert not paying.done()
    await payments.close()
    await asyncio.wait_for(paying, 5)
    assert payments.count_owed() == 2
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}


async def test_what_nobody_closed_is_not_paid_when_the_customer_leaves():
    payments, payer = job()
    await closed(payments, 0)
    await payments.close()
    claim = asks(HONEST, 1)
    assert payments.expects(claim)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(payments.asked(claim), 0.1)
    with pytest.raises(BadInput):  # and nobody is ever further ahead
        payments.expects(asks(HONEST, 9))
    assert not payer.paid_msat


async def left(purchase, error):
    started = time.monotonic()
    await purchase.__aexit__(type(error), error, None)
    return time.monotonic() - started


def leaving(payments, **running):
    """A purchase whose job is under way, of which no output has come."""
    purchase = Purchase.__new__(Purchase)
    purchase._running = SimpleNamespace(is_open=True, payments=payments, missed=set(), **running)
    purchase._done, purchase._gone, purchase.timing = False, set(), JobTimes()
    planner = SimpleNamespace(missed=lambda whom: None)
    purchase._earlier = []
    purchase._session, purchase._paying = SimpleNamespace(planner=planner, beside=asyncio.create_task), None
    return purchase


async def test_what_an_earlier_request_of_the_purchase_cost_counts_as_spent():
    """A provider was busy, and what the first plan's driver closed was paid all the same."""
    payments, _ = job()
    purchase = leaving(payments, spent_msat=lambda: 5)
    purchase._earlier.append(SimpleNamespace(spent_msat=lambda: 7, payments=payments))
    assert purchase.spent_msat == 12


@pytest.mark.parametrize("outputs", [0, 1])
async def test_what_a_driver_closed_that_then_fell_silent_is_paid_though_no_output_came(outputs):
    """Its stages have done their work and count on the close. Nobody tells them that the customer got nothing."""
    payments, payer = job()
    background = JobTaskGroup()
    claims = Claims(payments, background)
    close = Close.sign(DRIVER, request=REQUEST, attempt=0, chunk=0, units=3, end=False)
    for who in (HONEST, LAST):
        claims.claimed(asks(who, 0, units=3, close=close))
    async with asyncio.timeout(30):
        while not payments.count_owed():
            await asyncio.sleep(0)

    async def gone(ended_by):
        return set()

    async def end():  # as `JobAttempt.end`
        await background.end()
        await payments.close()

    purchase = leaving(payments, find_absent=gone, end=end, cancel=lambda: None, spent_msat=lambda: 0)
    for _ in range(outputs):
        purchase.timing.output()
    await left(purchase, TimedOut("output", "none came"))
    assert purchase.spent_msat >= 3 * PRICE_MSAT  # of what is bought next
    await asyncio.wait_for(purchase.paid(), 10)
    assert payer.paid_msat == {HONEST.public: 3 * PRICE_MSAT, LAST.public: 3 * PRICE_MSAT}
    assert payments.count_owed() == 1 and background.fault is None


async def test_of_a_call_that_put_out_nothing_no_claim_is_waited_for(monkeypatch):
    """What is bought next waits for this, and nothing can be owed."""
    monkeypatch.setattr(settlement, "LATE_CLAIMS_S", 3_600.0)
    monkeypatch.setattr(settlement, "LINGER_S", 3_600.0)
    payments, payer = job(mode="embed")
    assert payments.expects(asks(HONEST, 0))
    await asyncio.wait_for(settlement.pay_what_came(payments, ()), 10)
    assert not payer.paid_msat


@pytest.mark.parametrize(
    "word", [ProviderRefusal(LAST.public, "ab" * 32), MoreWork(LAST.public, 9)], ids=["busy", "work"]
)
async def test_who_refuses_a_job_whose_driver_has_closed_a_chunk_ends_it_and_what_is_bought_next_is_without_it(word):
    payments, _ = job()
    purchase = leaving(payments, cancel=lambda: None, blamed=set)
    purchase._busy, purchase._bits = [], []
    await payments.closed(0, 1)
    with pytest.raises(type(word)) as caught:
        await (purchase._redraw(word) if isinstance(word, ProviderRefusal) else purchase._work(word))
    assert caught.value is word
    assert may_begin(word, purchase, failures=0, came=False) and blamed(word, purchase) == {LAST.public}


async def test_what_a_job_that_broke_off_owes_is_paid_beside_what_is_bought_next():
    """Who died with it is paid when that can be, and waited for by nobody."""
    payments, _ = job()
    await closed(payments, 0)
    assert payments.expects(asks(HONEST, 0))  # its wallet died with it
    error, done = LinkLost(HONEST.public, "gone: connection refused"), []

    async def gone(ended_by):
        assert ended_by is error and not done
        return {HONEST.public}

    async def end():
        done.append("end")

    purchase = leaving(payments, find_absent=gone, end=end, cancel=lambda: done.clear(), spent_msat=lambda: 7)
    purchase.timing.output()
    assert await left(purchase, error) < LATE_CLAIMS_S / 2
    assert done == []
    assert purchase.spent_msat == 7 + payments.unpaid_msat() > 7 + PRICE_MSAT  # it counts against what is bought next
    started = time.monotonic()
    await purchase.paid()
    assert time.monotonic() - started < LINGER_S / 2
    assert done == ["end"] and purchase.spent_msat == 7 + payments.unpaid_msat()  # its claim may come yet
    assert purchase._gone == {HONEST.public}
    assert not payments.failed


async def test_who_asks_for_money_of_which_none_is_this_jobs_means_an_earlier_one():
    """It has asked for nothing in this job, and waits for an old debt: others can do better."""
    payments, _ = job()
    await closed(payments, 0)
    await asked(payments, asks(DRIVER, 0))
    purchase = SimpleNamespace(is_underway=True, payments=payments)
    error = PaymentRequired("provider", "waits for a payment")
    assert not may_begin(error, purchase, failures=0, came=True)  # this customer's own
    error.by = LAST.public
    assert may_begin(error, purchase, failures=0, came=True)
    error.by = DRIVER.public
    assert not may_begin(error, purchase, failures=0, came=True)
    assert may_begin(error, purchase, failures=0, came=False)
