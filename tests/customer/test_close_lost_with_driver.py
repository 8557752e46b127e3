"""A close that came to a provider, and not to the customer, since the driver died. NIPS.md, 7 and 8."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import BadSignature
from nodewire.protocol.close import Close
from tests.customer.paid_job import DRIVER, HONEST, PRICE_MSAT, REQUEST, asked, asks, closed, job


def close_of(chunk, keys=DRIVER, request=REQUEST):
    return Close.sign(keys, request=request, attempt=0, chunk=chunk, units=1, end=False)


@pytest.fixture
async def broken_off():
    """A job whose driver died: of its close of chunk 1 the customer heard nothing."""
    payments, payer = job()
    await closed(payments, 0)
    await payments.delivered(1)
    await payments.over()
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
