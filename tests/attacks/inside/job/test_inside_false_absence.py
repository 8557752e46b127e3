"""A driver that says of a live stage that it is gone, and what the customer makes of that."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from nodewire.customer.job.attempt import JobAttempt
from nodewire.customer.job.liveness import ProviderLiveness
from nodewire.customer.job.retry_policy import SecondChances
from nodewire.customer.payments.job_payments import most_units
from nodewire.errors import BadInput, LinkLost
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.node import Node
from tests.attacks.inside.job.test_inside_double_pay import (
    DRIVER,
    FRIEND,
    HONEST,
    PRICE_MSAT,
    asked,
    asks,
    closed,
    job,
)
from tests.attacks.market.test_hostile_providers import ME, REQUEST


async def claims(payments, *said):
    """Payments of claims that wait for something."""
    assert all(payments.expects(one) for one in said)
    waiting = [asyncio.create_task(payments.asked(one)) for one in said]
    await asyncio.sleep(0.01)
    return waiting


async def test_a_claim_of_a_provider_that_is_gone_keeps_nobody_waiting_and_is_paid_all_the_same():
    payments, _ = job()
    await closed(payments, 0)
    assert payments.expects(asks(HONEST, 0))
    waiting = asyncio.create_task(payments.claims_settled(()))
    await asyncio.wait_for(payments.claims_settled({HONEST.public}), 3)
    assert not waiting.done()
    await asked(payments, asks(HONEST, 0))
    await asyncio.wait_for(waiting, 3)


class Market:
    """A customer whose job has ended, and the stage that it can ask, on real links."""

    async def __aenter__(self):
        self.customer, self.stage = Node(ME), Node(HONEST)
        where = await self.stage.listen("127.0.0.1")
        self.running = running = object.__new__(JobAttempt)
        running._named, running.background = set(), SimpleNamespace(fault=None)
        running._member = SimpleNamespace(lost_here=set())
        running.answers = SimpleNamespace(blamed=set(), failed=set())
        running.request, running.plan = SimpleNamespace(id=REQUEST), job()[0]._plan
        running._session = SimpleNamespace(node=self.customer, log=logging.getLogger("nodewire.customer"))
        running._liveness = ProviderLiveness(self.customer, {HONEST.public: (where,)})
        return self

    async def __aexit__(self, *_):
        await self.customer.close()
        await self.stage.close()

    def said(self):
        error = LinkLost(HONEST.public, "gone")
        error.by = DRIVER.public
        self.running.background.fault = error
        return error


async def test_a_live_stage_is_not_believed_to_be_gone_and_the_next_job_has_neither_it_nor_the_driver():
    async with Market() as market:
        assert await market.running.find_absent(market.said()) == set()
        assert market.running.blamed() == {DRIVER.public, HONEST.public}


async def test_a_stage_that_is_gone_is_all_that_the_next_job_leaves_out():
    async with Market() as market:
        await market.stage.close()
        assert await market.running.find_absent(market.said()) == {HONEST.public}
        assert market.running.blamed() == {HONEST.public}


async def test_a_stage_that_the_customer_itself_has_missed_is_not_asked_again():
    async with Market() as market:
        market.running._member.lost_here.add(HONEST.public)
        assert await market.running.find_absent(market.said()) == {HONEST.public}
        assert not market.customer.peers


def test_each_of_two_of_whom_one_lies_is_taken_back_once_and_only_if_there_is_no_other():
    """The stage has no first claim to the job that begins again, and no third."""
    excluded = (FRIEND.public, DRIVER.public, HONEST.public)
    terms, chances = Terms(max_chunk_msat=1, max_total_msat=1, excluded=excluded), SecondChances()
    for _ in range(2):
        chances.lost(LinkLost(HONEST.public, "gone"), {DRIVER.public, HONEST.public})
    back = set()
    while (again := chances.next(terms)) is not None:
        (one,) = set(excluded) - set(again.excluded)
        assert one not in back
        back.add(one)
    assert back == {DRIVER.public, HONEST.public}


async def test_a_driver_is_paid_for_no_more_units_of_the_prompt_than_another_counted():
    payments, payer = job()
    await closed(payments, 0, units=8)
    (driver,) = await claims(payments, asks(DRIVER, 0, units=8))
    assert not driver.done()
    with pytest.raises(BadInput, match="asks for 2"):
        await asked(payments, asks(HONEST, 0, units=2))
    with pytest.raises(BadInput, match="nobody else for more than 2"):
        await asyncio.wait_for(driver, 10)
    assert payer.paid_msat == {HONEST.public: 2 * PRICE_MSAT}


async def test_an_honest_driver_waits_for_one_other_to_count_and_not_at_all_for_one_unit():
    payments, payer = job()
    await closed(payments, 0, units=8)
    (driver,) = await claims(payments, asks(DRIVER, 0, units=8))
    await asked(payments, asks(HONEST, 0, units=8))
    await asyncio.wait_for(driver, 10)
    assert payer.paid_msat == {HONEST.public: 8 * PRICE_MSAT, DRIVER.public: 8 * PRICE_MSAT}
    payments, payer = job()
    await closed(payments, 0)
    await asked(payments, asks(DRIVER, 0))
    assert payer.paid_msat == {DRIVER.public: PRICE_MSAT}


def test_ids_in_a_prompt_are_counted_and_not_their_bytes():
    """What an earlier job generated goes into the next one's prompt: eight bytes a token, one position each."""
    text, history = Array("uint8", (48,), bytes(48)), Array("int64", (128,), bytes(1024))
    made = SimpleNamespace(mode="generate", chunk=64, context=0)
    assert most_units(made, [Frame("prompt", 0, (text, history), {})]) == 3
