"""A close that came to a provider, and not to the customer, since the driver died. NIPS.md, 8 and 10.6."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.pay.debts import Key
from nodewire.pay.dues import Due
from nodewire.pay.ledger import Ledger
from tests.customer.paid_job import HONEST, PRICE_MSAT, REQUEST, asks, closed, job
from tests.protocol import documents


@pytest.mark.xfail(strict=True, reason="a claim does not carry the close that it rests on")
async def test_close_lost_with_its_driver_makes_no_debtor_of_the_customer(tmp_path):
    ledger, (payments, payer) = Ledger(tmp_path / "provider.db"), job()
    await closed(payments, 0)
    await payments.delivered(1)
    await payments.over()  # the driver died: its close of chunk 1 came to the provider alone
    asking = asyncio.create_task(payments.asked(asks(HONEST, 1)))
    # As `Settling` does with a chunk that the driver has closed.
    key = Key(REQUEST, HONEST.public, 1)
    ledger.owe(Due(key, documents.CUSTOMER.public, PRICE_MSAT, 100), under_way=False, claim="{}")
    ledger.told(key)
    ledger.broke_off(REQUEST, 50)
    for _ in range(20):  # turns of the loop: all that does not wait for something else
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert payer.paid_msat or not ledger.in_debt(documents.CUSTOMER.public, 100)
