"""A close that came to a provider, and not to the customer, since the driver died. nips/15, nips/16."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import control_messages
from nodewire.customer.payments.rejected_frames import FrameRejection
from nodewire.errors import BadInput, BadSignature
from nodewire.protocol.job.chunk_close import Close
from tests.customer.paid_job import DRIVER, HONEST, LAST, PRICE_MSAT, REQUEST, Payer, asked, asks, closed, job


def close_of(chunk, keys=DRIVER, request=REQUEST, units=1):
    return Close.sign(keys, request=request, attempt=0, chunk=chunk, units=units, end=False)


@pytest.fixture
async def broken_off():
    """A job whose driver died: of its close of chunk 1 the customer heard nothing."""
    payments, payer = job()
    await closed(payments, 0)
    await payments.delivered(1)
    await payments.close()
    return payments, payer


async def test_claim_with_the_close_of_a_dead_driver_is_paid(broken_off):
    payments, payer = broken_off
    await asked(payments, asks(HONEST, 1, close=close_of(1)))
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}


async def test_claim_without_it_waits(broken_off):
    payments, payer = broken_off
    asking = asyncio.create_task(payments.asked(asks(HONEST, 1)))
    for _ in range(20):  # turns of the loop: all that does not wait for something else
        await asyncio.sleep(0)
    assert not asking.done() and not payer.paid_msat
    await asked(payments, asks(DRIVER, 1, close=close_of(1)))  # one claim shows the close for all
    await asking
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT, DRIVER.public: PRICE_MSAT}


@pytest.mark.parametrize(
    "close",
    [close_of(1, HONEST), close_of(0), close_of(1, request="cd" * 32)],
    ids=["signed by the provider itself", "of another chunk", "of another job"],
)
async def test_claim_with_another_close_is_refused(broken_off, close):
    payments, payer = broken_off
    said = close.model_copy(update={"request": REQUEST, "chunk": 1})  # as it is read from the claim's tags
    with pytest.raises(BadSignature):
        await asked(payments, asks(HONEST, 1, close=said))
    assert not payer.paid_msat


# A driver that signs two counts of one chunk


@pytest.mark.parametrize(("told", "shown"), [(1, 3), (3, 1)])
async def test_each_stage_is_paid_what_is_signed_to_it_and_the_driver_is_blamed(told, shown):
    payments, payer = job()
    await closed(payments, 0, units=told)
    for who in (HONEST, LAST):
        with pytest.raises(FrameRejection) as caught:
            await asked(payments, asks(who, 0, units=shown, close=close_of(0, units=shown)))
        assert caught.value.whom == {DRIVER.public} and not caught.value.refuser
    assert payer.paid_msat == {HONEST.public: shown * PRICE_MSAT, LAST.public: shown * PRICE_MSAT}
    assert not payments._unpaid_claims(())


async def test_against_the_driver_itself_its_first_word_stands():
    payments, payer = job()
    await closed(payments, 0)
    with pytest.raises(FrameRejection):
        await asked(payments, asks(HONEST, 0, units=3, close=close_of(0, units=3)))
    with pytest.raises(BadInput, match="closed 0 with 1"):
        await asked(payments, asks(DRIVER, 0, units=3, close=close_of(0, units=3)))
    assert payer.paid_msat == {HONEST.public: 3 * PRICE_MSAT}


@pytest.mark.parametrize(
    ("units", "close"),
    [(3, None), (3, close_of(0, HONEST, units=3)), (9, close_of(0, units=9))],
    ids=["no close", "a close of its own", "beyond what the prompt can have"],
)
async def test_nobody_is_paid_more_than_the_driver_signed_or_the_prompt_can_have(units, close):
    payments, payer = job()
    await closed(payments, 0)
    with pytest.raises(BadInput):
        await asked(payments, asks(HONEST, 0, units=units, close=close))
    assert not payer.paid_msat


async def test_who_computed_fewer_and_shows_no_close_is_paid_and_either_may_lie():
    payments, payer = job()
    await closed(payments, 0, units=3)
    with pytest.raises(FrameRejection) as caught:
        await asked(payments, asks(HONEST, 0))
    assert caught.value.whom == {DRIVER.public, HONEST.public}
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}


async def test_what_is_still_to_be_paid_counts_what_was_claimed():
    payments, _ = job()
    await closed(payments, 0)
    least_msat = payments.unpaid_msat()
    assert payments.expects(asks(HONEST, 0, units=3, close=close_of(0, units=3)))
    assert payments.unpaid_msat() == least_msat + 2 * PRICE_MSAT


@pytest.mark.parametrize(("chunk", "units"), [(0, 9), (0, 2**53 - 1), (1, 2), (3, 1), (2**40, 1)])
async def test_a_close_that_cannot_be_true_is_none(chunk, units):
    """By it the customer would pay verification shares of chunks that nobody computed, and count up to them."""
    payments, _ = job()
    whole = min(chunk, 1)  # how many chunks were closed before, for the first word on one stands
    await closed(payments, *range(whole))
    await payments.delivered(0)
    members = SimpleNamespace(controls=partial(_once, close_of(chunk, units=units)))
    await asyncio.wait_for(control_messages.follow(REQUEST, members, DRIVER.public, payments, None, JobTaskGroup()), 10)
    await payments.close()
    assert (payments.count_owed(), payments.open_chunk(), payments.units(chunk)) == (whole, whole, 1)


async def _once(close):
    yield DRIVER.public, close.control()


async def test_a_claim_that_shows_no_close_and_asks_for_more_means_that_either_lies():
    """As of an honest stage, to which the driver's close says fewer units than it computed."""
    payments, payer = job()
    await closed(payments, 0)
    with pytest.raises(FrameRejection) as caught:
        await asked(payments, asks(HONEST, 0, units=5))
    assert caught.value.whom == {DRIVER.public, HONEST.public}
    assert not payer.paid_msat


async def test_a_claim_beyond_the_budget_is_its_providers_fault():
    payments, payer = job()
    await closed(payments, 0, units=8)
    terms = payments._plan.terms.model_copy(update={"max_total_msat": 7 * payments._plan.chunk_msat})
    payments._plan = payments._plan.model_copy(update={"terms": terms})
    with pytest.raises(BadInput, match="budget"):
        await asked(payments, asks(HONEST, 0, units=8, close=close_of(0, units=8)))
    assert not payer.paid_msat


async def test_who_claims_more_than_the_first_close_leaves_others_what_that_says():
    payments, payer = job()
    await closed(payments, 0, units=2)
    budgets = []

    async def pay(key, amount_msat, fetch, *, budget, **options):
        budgets.append(budget.msat)
        return await Payer.pay(payer, key, amount_msat, fetch)

    payer.pay = pay
    await asked(payments, asks(LAST, 0, units=2))
    with pytest.raises(FrameRejection):
        await asked(payments, asks(HONEST, 0, units=8, close=close_of(0, units=8)))
    whole = payments._plan.terms.max_total_msat
    assert budgets == [whole, whole - 2 * payments._plan.price_msat(DRIVER.public)]
