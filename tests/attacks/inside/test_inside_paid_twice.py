"""A driver and its standby friend: being paid for another's chunks, or keeping others from their pay."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.payments import JobPayments
from nodewire.errors import BadInput
from nodewire.protocol.feedback import Due, Feedback
from nodewire.protocol.plan import Assignment
from nodewire.protocol.takeover import Takeover
from tests.attacks.test_hostile_providers import ME, REQUEST, ROOT, plan
from tests.protocol_committee.actors import keys

DRIVER, HONEST, FRIEND = keys("driver"), keys("honest stage"), keys("the driver's friend")
PRICE_MSAT = 100
TASKS = (
    Assignment(task="driver", provider=DRIVER.public, standby=HONEST.public, price_msat=PRICE_MSAT),
    Assignment(task="stage.0", provider=HONEST.public, standby=FRIEND.public, price_msat=PRICE_MSAT),
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
    ads = {one.public: SimpleNamespace(lnurl="https://wallet.example/pay") for one in (DRIVER, HONEST, FRIEND)}
    manifest = SimpleNamespace(mode="generate", chunk=64, context=4096)
    payments = JobPayments(
        REQUEST, made, manifest, ads, payer, (), "bcrt", most_units=8, private_endpoints=False
    )  # fmt: skip
    return payments, payer


def asks(who, chunk, *, attempt=0, units=1):
    due = Due(chunk, attempt, units, PRICE_MSAT * units, ROOT)
    id_ = f"{chunk:02x}{attempt:02x}".ljust(64, "e")
    return Feedback(id_, who.public, REQUEST, ME.public, "payment-required", due=due)


def takeover(first, attempt=1, previous=REQUEST):
    replaced = (("stage.0", HONEST.public, FRIEND.public, first),)
    return Takeover.sign(DRIVER, request=REQUEST, attempt=attempt, previous=previous, replaced=replaced)


async def closed(payments, *chunks, units=1):
    for chunk in chunks:
        await payments.delivered(chunk)
        await payments.closed(chunk, units)


async def asked(payments, said):
    assert payments.expects(said)
    await asyncio.wait_for(payments.asked(said), 10)


async def test_a_takeover_that_says_it_began_long_ago_has_no_chunk_paid_a_second_time():
    payments, payer = job()
    await closed(payments, 0, 1, 2)
    for chunk in range(3):
        await asked(payments, asks(HONEST, chunk))
    await payments.took_over(takeover(first=0))
    for chunk in range(3):
        with pytest.raises(BadInput):
            await asked(payments, asks(FRIEND, chunk, attempt=1))
    assert payer.paid_msat == {HONEST.public: 3 * PRICE_MSAT}
    await closed(payments, 3)
    await asked(payments, asks(FRIEND, 3, attempt=1))  # what it did it is paid for
    assert payer.paid_msat[FRIEND.public] == PRICE_MSAT


async def test_a_second_takeover_that_moves_the_first_ones_begin_has_nothing_paid_twice_either():
    payments, payer = job()
    await closed(payments, 0, 1)
    await asked(payments, asks(HONEST, 0))
    await asked(payments, asks(HONEST, 1))
    one = takeover(first=2)
    await payments.took_over(one)
    await payments.took_over(takeover(first=0, attempt=2, previous=one.digest()))
    with pytest.raises(BadInput):
        await asked(payments, asks(FRIEND, 1, attempt=2))
    assert payer.paid_msat == {HONEST.public: 2 * PRICE_MSAT}


async def test_who_claims_a_chunk_early_and_is_replaced_in_it_is_not_paid_beside_its_standby():
    payments, payer = job()
    await closed(payments, 0)
    early = asks(HONEST, 1)
    assert payments.expects(early)
    waiting = asyncio.create_task(payments.asked(early))
    await asyncio.sleep(0)
    await payments.took_over(takeover(first=1))
    await closed(payments, 1)
    await asked(payments, asks(FRIEND, 1, attempt=1))
    with pytest.raises(BadInput):
        await asyncio.wait_for(waiting, 10)
    assert payer.paid_msat == {FRIEND.public: PRICE_MSAT}


async def test_two_claims_for_one_task_and_chunk_that_come_at_once_are_paid_once():
    payments, payer = job()
    await closed(payments, 0)
    await payments.took_over(takeover(first=0))
    one, two = asks(HONEST, 0), asks(FRIEND, 0, attempt=1)
    assert payments.expects(one) and payments.expects(two)
    found = await asyncio.gather(payments.asked(one), payments.asked(two), return_exceptions=True)
    assert sum(payer.paid_msat.values()) == PRICE_MSAT
    assert sum(isinstance(error, BadInput) for error in found) == 1


async def test_a_driver_that_tells_the_customer_more_units_than_the_stages_keeps_no_stage_from_its_pay():
    """It signs 8 to the customer and 2 to the stages, which claim 2: they are paid, and the job goes on no further."""
    payments, payer = job()
    await closed(payments, 0, units=8)
    with pytest.raises(BadInput, match="others computed 2"):
        await asked(payments, asks(HONEST, 0, units=2))
    assert payer.paid_msat == {HONEST.public: 2 * PRICE_MSAT}
