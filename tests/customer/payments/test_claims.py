"""A claim that cannot be right ends its job and not the purchase: who made it is passed over by the next one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job.retry_policy import blamed, may_begin
from nodewire.customer.payments import claims as claiming
from nodewire.customer.payments.claims import Claims
from nodewire.errors import BadInvoice, LinkLost, NotAllowed, OverBudget, PaymentFailed
from nodewire.pay.lightning import lnurl
from nodewire.protocol.job.chunk_close import Close
from tests.customer.paid_job import DRIVER, HONEST, LAST, PRICE_MSAT, REQUEST, asks, closed, job


class Job:
    """A generation under way, of which chunk 0 has come and was closed."""

    def __init__(self):
        self.payments, self.payer = job()
        self.background = JobTaskGroup()
        self.claims = Claims(self.payments, self.background)
        self.purchase = SimpleNamespace(is_underway=True, blamed=set(), payments=self.payments)

    async def ended(self, *said):
        """What ends it when these are claimed."""
        await closed(self.payments, 0)
        for one in said:
            self.claims.claimed(one)
        async with asyncio.timeout(30):
            await self.background.ended.wait()
        await self.background.end()
        return self.background.fault


def other(said, **changes):
    return replace(said, due=replace(said.due, **changes))


@pytest.mark.parametrize(
    "said",
    [
        asks(HONEST, 9),
        replace(asks(HONEST, 0), created_at=int(time.time()) + 3_600),
        other(asks(HONEST, 0), amount_msat=7 * PRICE_MSAT),
        other(asks(HONEST, 0), attempt=1),
        asks(HONEST, 0, units=3),
        asks(HONEST, 0, close=Close.sign(HONEST, request=REQUEST, attempt=0, chunk=0, units=1, end=False)),
    ],
    ids=["before its time", "of the future", "another price", "another attempt", "too many units", "a false close"],
)
async def test_a_false_claim_ends_the_job_and_the_next_one_is_without_who_made_it(said):
    one = Job()
    error = await one.ended(said)
    assert error.by == HONEST.public and may_begin(error, one.purchase, failures=0, came=False)
    # One that shows no close may be honest, and its driver have signed fewer units to the customer.
    assert blamed(error, one.purchase) - {DRIVER.public} == {HONEST.public}
    assert not one.payer.paid_msat and not one.payments.failed


async def test_an_invoice_that_is_not_what_was_asked_for_is_its_providers_fault():
    one = Job()

    async def pay(*_, **__):
        raise BadInvoice("amount", "7 msat, asked for 1000 msat")

    one.payer.pay = pay
    error = await one.ended(asks(HONEST, 0))
    assert (error.code, blamed(error, one.purchase)) == ("bad-invoice", {HONEST.public})


@pytest.mark.parametrize("refusal", [NotAllowed("lnurl", "no"), OverBudget("amount", "no"), LinkLost("lnurl", "no")])
async def test_an_endpoint_that_refuses_ends_the_job_and_not_the_purchase(monkeypatch, refusal):
    monkeypatch.setattr(claiming, "_PAY_AGAIN_S", ())

    async def refuse(zap_request, amount_msat):
        raise refusal

    monkeypatch.setattr(lnurl, "over_lnurl", lambda *_, **__: refuse)
    one = Job()

    async def pay(key, amount_msat, fetch, **_):
        await fetch(None, amount_msat)

    one.payer.pay = pay
    error = await one.ended(asks(HONEST, 0))
    assert (error, error.by) == (refusal, HONEST.public) and not one.payments.failed
    assert may_begin(error, one.purchase, failures=0, came=False)


async def test_a_payment_that_the_customers_own_wallet_cannot_make_ends_the_purchase(monkeypatch):
    monkeypatch.setattr(claiming, "_PAY_AGAIN_S", ())
    one = Job()

    async def pay(*_, **__):
        raise PaymentFailed("balance", "0 msat")

    one.payer.pay = pay
    error = await one.ended(asks(HONEST, 0))
    assert not error.by and one.payments.failed
    assert not may_begin(error, one.purchase, failures=0, came=False)


async def test_of_a_driver_that_signs_two_counts_the_driver_is_blamed_and_not_who_shows_it():
    one = Job()
    close = Close.sign(DRIVER, request=REQUEST, attempt=0, chunk=0, units=3, end=False)
    error = await one.ended(asks(HONEST, 0, units=3, close=close), asks(LAST, 0, units=1))
    assert may_begin(error, one.purchase, failures=0, came=False)
    assert blamed(error, one.purchase) == {DRIVER.public}
    assert one.payer.paid_msat[HONEST.public] == 3 * PRICE_MSAT
