"""Payments of a generation by three providers, out of a wallet that pays all that it is told to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from nodewire.customer.payments.job_payments import JobPayments
from nodewire.customer.payments.purse import Purse
from nodewire.pay.accounts.debts import Debt, Part, Payment
from nodewire.protocol.job.feedback import Due, Feedback
from tests.protocol import documents

DRIVER, HONEST, LAST = documents.PROVIDERS
PRICE_MSAT = 1_000
REQUEST = "ab" * 32


class Payer:
    def __init__(self):
        self.paid_msat: dict[str, int] = {}

    async def pay(self, key, amount_msat, fetch, **options):
        await asyncio.sleep(0)
        self.paid_msat[key.payee] = self.paid_msat.get(key.payee, 0) + amount_msat
        return Debt(key, amount_msat, (Part(Payment("ab" * 32, "lnbcrt1", amount_msat, "paid"), amount_msat),))


def job(mode="generate", requested_s=0):
    payer, plan = Payer(), documents.plan()
    ads = {one: SimpleNamespace(lnurl="https://wallet.example/pay", credit=None) for one in plan.providers()}
    manifest = SimpleNamespace(mode=mode, chunk=64, context=4096, driver=SimpleNamespace(name="driver"))
    purse = Purse(payer, (), "bcrt", False)
    payments = JobPayments(REQUEST, plan, manifest, ads, purse, most_units=8, requested_s=requested_s)
    return payments, payer


def asks(who, chunk, *, attempt=0, units=1, close=None):
    due = Due(chunk, attempt, units, PRICE_MSAT * units, documents.HASH, close=close)
    id_ = f"{chunk:02x}{attempt:02x}".ljust(64, "e")
    return Feedback(id_, who.public, REQUEST, documents.CUSTOMER.public, "payment-required", due=due)


async def closed(payments, *chunks, units=1):
    for chunk in chunks:
        await payments.delivered(chunk)
        await payments.closed(chunk, units)


async def asked(payments, said):
    assert payments.expects(said)
    await asyncio.wait_for(payments.asked(said), 10)
