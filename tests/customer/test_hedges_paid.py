"""What who computes along is paid, before it enters and after, and how long a customer waits for its claims."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.payments import JobPayments
from nodewire.errors import BadInput
from nodewire.protocol.plan import Terms
from tests.attacks.inside.test_inside_paid_twice import (
    DRIVER,
    FRIEND,
    HONEST,
    PRICE_MSAT,
    REQUEST,
    TASKS,
    Payer,
    asked,
    asks,
    closed,
    plan,
    takeover,
)

HEDGE = FRIEND
STAGE = TASKS[1].task


@pytest.fixture
def job():
    terms = Terms(max_chunk_msat=10**6, max_total_msat=10**9, hedge=(STAGE,))
    made = plan().model_copy(update={"tasks": TASKS, "chunk_msat": 3 * PRICE_MSAT, "terms": terms})
    assert made.hedges == {STAGE: HEDGE.public}
    ads = {one.public: SimpleNamespace(lnurl="https://wallet.example/pay") for one in (DRIVER, HONEST, HEDGE)}
    manifest = SimpleNamespace(mode="generate", chunk=64, context=4096)
    payer = Payer()
    payments = JobPayments(
        REQUEST, made, manifest, ads, payer, (), "bcrt", most_units=8, private_endpoints=False
    )  # fmt: skip
    return payments, payer


async def within(waiting, seconds=0.2):
    """Whether it ends so soon."""
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        return False
    return True


async def test_it_is_paid_its_price_once_for_each_chunk_before_it_enters_and_after(job):
    payments, payer = job
    await closed(payments, 0, 1)
    for chunk in (0, 1):
        for who in (DRIVER, HONEST, HEDGE):
            await asked(payments, asks(who, chunk))
    await payments.took_over(takeover(first=2))
    await closed(payments, 2)
    for who in (DRIVER, HEDGE):
        await asked(payments, asks(who, 2, attempt=1))
    for chunk in range(3):
        assert not payments.expects(asks(HEDGE, chunk, attempt=2))
    with pytest.raises(BadInput):
        await asked(payments, asks(HONEST, 2))
    assert payer.paid_msat == {who.public: n * PRICE_MSAT for who, n in ((DRIVER, 3), (HONEST, 2), (HEDGE, 3))}
    assert await within(payments.settled(2)) and await within(payments.hedges_settled(2))


async def test_a_hedge_that_only_stood_by_and_enters_is_not_waited_for_before_that(job):
    """It had no room when the job began: what came before it entered it never asks for."""
    payments, payer = job
    await closed(payments, 0, 1)
    for chunk in (0, 1):
        for who in (DRIVER, HONEST):
            await asked(payments, asks(who, chunk))
    await payments.took_over(takeover(first=2))
    await closed(payments, 2)
    await asked(payments, asks(DRIVER, 2, attempt=1))
    assert not await within(payments.settled(2))
    await asked(payments, asks(HEDGE, 2, attempt=1))
    assert await within(payments.settled(2)) and await within(payments.hedges_settled(2))
    assert payer.paid_msat[HEDGE.public] == PRICE_MSAT


async def test_one_that_computes_along_to_the_end_is_waited_for_and_one_that_fell_silent_is_not(job):
    payments, _ = job
    await closed(payments, 0, 1, 2)
    for chunk in range(3):
        for who in (DRIVER, HONEST):
            await asked(payments, asks(who, chunk))
    await asked(payments, asks(HEDGE, 0))
    assert await within(payments.settled(2)) and await within(payments.hedges_settled(2))
    await asked(payments, asks(HEDGE, 1))
    assert await within(payments.settled(2)) and not await within(payments.hedges_settled(2))
    await asked(payments, asks(HEDGE, 2))
    assert await within(payments.hedges_settled(2))
