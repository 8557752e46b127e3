"""What is paid of one job: each chunk once, by the plan, whoever asks again and whatever it calls it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodewire.errors import BadInput
from tests.customer.paid_job import DRIVER, HONEST, LAST, PRICE_MSAT, asked, asks, closed, job

EVERYBODY = (DRIVER, HONEST, LAST)


async def test_each_chunk_is_paid_once_to_each_however_often_it_is_asked_for():
    payments, payer = job()
    await closed(payments, 0, 1)
    for chunk in (0, 1):
        for who in EVERYBODY:
            await asked(payments, asks(who, chunk))
    for attempt in (1, 7):
        assert not any(payments.expects(asks(who, n, attempt=attempt)) for who in EVERYBODY for n in (0, 1))
    assert payer.paid_msat == {who.public: 2 * PRICE_MSAT for who in EVERYBODY}
    await asyncio.wait_for(payments.settled(1), 10)


@pytest.mark.parametrize("attempt", [1, 2, 63])
async def test_a_claim_of_another_attempt_is_refused_and_waited_for_by_nobody(attempt):
    payments, payer = job()
    await closed(payments, 0)
    for who in (DRIVER, LAST):
        await asked(payments, asks(who, 0))
    with pytest.raises(BadInput, match="attempt"):
        await asked(payments, asks(HONEST, 0, attempt=attempt))
    assert HONEST.public not in payer.paid_msat
    await asyncio.wait_for(payments.settled(0), 10)
    await asyncio.wait_for(payments.claims_settled(()), 10)


async def test_nobody_is_paid_for_another_that_died():
    """A provider's price is what its tasks cost by the plan, also when another's claim never comes."""
    payments, payer = job()
    await closed(payments, 0, 1)
    for who in EVERYBODY:
        await asked(payments, asks(who, 0))
    await asked(payments, asks(DRIVER, 1))
    with pytest.raises(BadInput, match="amount"):
        one = asks(LAST, 1)
        await asked(payments, replace(one, due=replace(one.due, amount_msat=2 * PRICE_MSAT)))
    await payments.close()
    await asyncio.wait_for(payments.claims_settled({HONEST.public}), 10)
    assert payer.paid_msat == {DRIVER.public: 2 * PRICE_MSAT, HONEST.public: PRICE_MSAT, LAST.public: PRICE_MSAT}


async def test_what_a_provider_claimed_before_it_died_is_paid_when_its_chunk_is_closed_and_not_waited_for():
    payments, payer = job()
    await closed(payments, 0)
    early = asks(HONEST, 1)
    assert payments.expects(early)
    paying = asyncio.create_task(payments.asked(early))
    await payments.close()
    await asyncio.wait_for(payments.claims_settled({HONEST.public}), 10)
    assert not paying.done()
    await payments.closed(1, 1)  # its driver had signed that, and it came over the wire at last
    await asyncio.wait_for(paying, 10)
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}
    assert payments.count_owed() == 2
