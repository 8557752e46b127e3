"""A driver and its friend: being paid twice, for another's chunks, or keeping others from their pay."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.customer.payments.job_payments import JobPayments
from nodewire.customer.payments.purse import Purse
from nodewire.errors import BadInput
from nodewire.protocol.job.feedback import Due, Feedback
from nodewire.protocol.job.plan import Assignment
from tests.attacks.market.test_hostile_providers import ME, REQUEST, ROOT, plan
from tests.protocol.committee.actors import keys

DRIVER, HONEST, FRIEND = keys("driver"), keys("honest stage"), keys("the driver's friend")
PRICE_MSAT = 100
TASKS = (
    Assignment(task="driver", provider=DRIVER.public, price_msat=PRICE_MSAT),
    Assignment(task="stage.0", provider=HONEST.public, price_msat=PRICE_MSAT),
)


class Payer:
    """A wallet that pays whatever it is told to."""

    def __init__(self):
        self.paid_msat: dict[str, int] = {}

    async def pay(self, key, amount_msat, fetch, **options):
        await asyncio.sleep(0)
        self.paid_msat[key.payee] = self.paid_msat.get(key.payee, 0) + amount_msat
        return SimpleNamespace(key=key, state="paid")


def job():
    payer = Payer()
    made = plan().model_copy(update={"tasks": TASKS, "chunk_msat": 2 * PRICE_MSAT})
    ads = {
        one.public: SimpleNamespace(lnurl="https://wallet.example/pay", credit=None) for one in (DRIVER, HONEST, FRIEND)
    }
    manifest = SimpleNamespace(mode="generate", chunk=64, context=4096, driver=SimpleNamespace(name="driver"))
    purse = Purse(payer, (), "bcrt", False)
    payments = JobPayments(REQUEST, made, manifest, ads, purse, most_units=8, requested_s=0)
    return payments, payer


def asks(who, chunk, *, attempt=0, units=1):
    due = Due(chunk, attempt, units, PRICE_MSAT * units, ROOT)
    id_ = f"{chunk:02x}{attempt:02x}".ljust(64, "e")
    return Feedback(id_, who.public, REQUEST, ME.public, "payment-required", due=due)


async def closed(payments, *chunks, units=1):
    for chunk in chunks:
        await payments.delivered(chunk)
        await payments.closed(chunk, units)


async def asked(payments, said):
    assert payments.expects(said)
    await asyncio.wait_for(payments.asked(said), 10)


@pytest.mark.parametrize("attempt", [1, 2**16])
async def test_a_claim_of_another_attempt_than_the_first_is_refused(attempt):
    """A chunk has one: or it would be paid once for each."""
    payments, payer = job()
    await closed(payments, 0, 1)
    await asked(payments, asks(HONEST, 0))
    with pytest.raises(BadInput, match="attempt"):
        await asked(payments, asks(HONEST, 1, attempt=attempt))
    assert not payments.expects(asks(HONEST, 0, attempt=attempt))
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}


async def test_a_friend_that_is_not_in_the_plan_is_paid_for_nothing():
    payments, payer = job()
    await closed(payments, 0)
    with pytest.raises(BadInput):
        await asked(payments, asks(FRIEND, 0))
    assert payer.paid_msat == {}


async def test_a_claim_of_the_job_that_broke_off_is_not_paid_in_the_one_that_was_begun_anew():
    payments, payer = job()
    await closed(payments, 0)
    with pytest.raises(BadInput):
        await asked(payments, replace(asks(HONEST, 0), request="ee" * 32))
    assert payer.paid_msat == {}


async def test_two_claims_of_a_provider_for_one_chunk_that_come_at_once_are_paid_once():
    payments, payer = job()
    await closed(payments, 0)
    one = asks(HONEST, 0)
    assert payments.expects(one)
    assert not payments.expects(replace(one, id="ff" * 32))
    await asyncio.gather(payments.asked(one), payments.claims_settled(()))
    assert payer.paid_msat == {HONEST.public: PRICE_MSAT}


async def test_a_driver_that_tells_the_customer_more_units_than_the_stages_keeps_no_stage_from_its_pay():
    """It signs 8 to the customer and 2 to the stages, which claim 2: they are paid, and the job goes on no further."""
    payments, payer = job()
    await closed(payments, 0, units=8)
    with pytest.raises(BadInput, match="asks for 2"):
        await asked(payments, asks(HONEST, 0, units=2))
    assert payer.paid_msat == {HONEST.public: 2 * PRICE_MSAT}
