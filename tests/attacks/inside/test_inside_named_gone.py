"""A driver that hands a live stage's tasks to a friend, and a stage that says that it was there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.again import SecondChances
from nodewire.customer.payments import most_units
from nodewire.customer.purchase import Purchase
from nodewire.customer.running import Running
from nodewire.customer.timing import Timing
from nodewire.errors import BadInput, LinkLost, NotAllowed
from nodewire.job_task_group import JobTaskGroup
from nodewire.protocol import takeover as takeovers
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.plan import Terms
from nodewire.wire.node import Node, Route
from tests.attacks.inside.test_inside_paid_twice import (
    DRIVER,
    FRIEND,
    HONEST,
    PRICE_MSAT,
    asked,
    asks,
    closed,
    job,
    takeover,
)
from tests.attacks.test_hostile_providers import ME, REQUEST
from tests.protocol.documents import manifest


async def claims(payments, *said):
    """Payments of claims that wait for something."""
    assert all(payments.expects(one) for one in said)
    waiting = [asyncio.create_task(payments.asked(one)) for one in said]
    await asyncio.sleep(0.01)
    return waiting


async def test_who_entered_for_a_stage_that_is_there_gets_nothing_and_the_stage_what_it_did():
    """The driver says that the friend has all from chunk 1 on, which the stage has done and asked for."""
    payments, payer = job()
    await closed(payments, 0)
    await asked(payments, asks(HONEST, 0))
    await payments.took_over(takeover(first=1), {HONEST.public})
    await closed(payments, 1, 2)
    friend, stage, driver = await claims(
        payments, asks(FRIEND, 1, attempt=1), asks(HONEST, 1), asks(DRIVER, 1, attempt=1)
    )
    assert driver.done() and not friend.done() and not stage.done()
    await payments.found(HONEST.public, there=True)
    await asyncio.wait_for(asyncio.gather(friend, stage), 10)
    await asked(payments, asks(FRIEND, 2, attempt=1))
    assert payer.paid_msat == {HONEST.public: 2 * PRICE_MSAT, DRIVER.public: PRICE_MSAT}
    assert payments.disowned == {FRIEND.public}
    await asyncio.wait_for(payments.claims_settled(()), 3)  # what is not paid is not waited for


async def test_what_who_is_gone_has_claimed_and_cannot_be_asked_for_keeps_nobody_waiting():
    payments, _ = job()
    await closed(payments, 0)
    assert payments.expects(asks(HONEST, 0))
    waiting = asyncio.create_task(payments.claims_settled(()))
    await asyncio.wait_for(payments.claims_settled({HONEST.public}), 3)
    assert not waiting.done()
    await asked(payments, asks(HONEST, 0))
    await asyncio.wait_for(waiting, 3)


async def test_who_entered_for_one_that_is_gone_is_paid_when_that_is_known():
    payments, payer = job()
    await closed(payments, 0)
    await payments.took_over(takeover(first=0), {HONEST.public})
    (friend,) = await claims(payments, asks(FRIEND, 0, attempt=1))
    assert not friend.done()
    await payments.found(HONEST.public, there=False)
    await asyncio.wait_for(friend, 10)
    assert payer.paid_msat == {FRIEND.public: PRICE_MSAT}
    with pytest.raises(BadInput):
        await asked(payments, asks(HONEST, 0))


class Market:
    """A customer in mid-job and the stage that it could ask, on real links."""

    async def __aenter__(self):
        self.customer, self.stage = Node(ME), Node(HONEST)
        where = await self.stage.listen("127.0.0.1")
        self.payments, self.payer = job()
        self.running = running = object.__new__(Running)
        running._timing, running.background = Timing(), JobTaskGroup()
        running._asked_after, running._named, running._lost_s = set(), set(), 0.0
        running._deadline, running._patient_until = None, 0.0
        running._local = running._claims = None
        running.payments, running.answers = self.payments, SimpleNamespace(blamed=set())
        running.request, running.plan = SimpleNamespace(id=REQUEST), self.payments._plan
        running._session = SimpleNamespace(node=self.customer)
        running.handover = SimpleNamespace(missed=set(), gone={HONEST.public})
        running.drawn = SimpleNamespace(ads={HONEST.public: SimpleNamespace(wire=(where,))})
        self.bought = object.__new__(Purchase)
        self.bought._running, self.bought._gone = running, set()
        return self

    async def __aexit__(self, *_):
        await self.running.background.end()
        await self.customer.close()
        await self.stage.close()

    def holds(self):
        routes = {"hidden": Route(HONEST.public, (DRIVER.public,)), "tokens": Route(DRIVER.public, (ME.public,))}
        return self.stage.open_job(REQUEST, routes, on_lost=lambda peer, error: None)


@pytest.mark.parametrize("knows", [True, False], ids=["told of the takeover", "not told"])
async def test_a_job_whose_driver_has_a_live_stage_replaced_is_over_and_goes_on_without_driver_and_friend(knows):
    async with Market() as market:
        mailbox = market.holds()
        if knows:
            mailbox.replaced()
            mailbox.cancel(NotAllowed("job", "taken over"))
            mailbox.close()
        await market.running._took_over(takeover(first=1))
        await asyncio.wait_for(market.running.background.ended.wait(), 3)
        assert isinstance(market.running.background.fault, LinkLost)
        assert market.bought.blamed >= {DRIVER.public, FRIEND.public}
        assert market.bought.wronged == {HONEST.public}


@pytest.mark.parametrize("how", ["dead", "started anew", "its worker is dead", "stood still"])
async def test_a_takeover_from_one_that_is_gone_costs_nobody_anything(how):
    """One that fell silent because it stood still gains nothing by waking up: it knows it, and says so."""
    async with Market() as market:
        match how:
            case "dead":
                await market.stage.close()
            case "its worker is dead":
                market.holds().give_up()
            case "stood still":
                market.holds()
                market.stage.stood_still()
        await market.running._took_over(takeover(first=1))
        await asyncio.wait_for(asyncio.gather(*market.running.background._tasks), 4)
        assert market.running.background.fault is None
        assert not market.payments._doubted and not market.bought.wronged


async def test_a_takeover_that_comes_while_nobody_waits_for_output_ends_nothing():
    """The reader of the tokens takes its time over one of them."""
    async with Market() as market:

        async def arrived():
            return "a frame"

        market.running._arrived = arrived
        assert await market.running.next(1.0) == "a frame"
        market.running._noticed_loss()
        await market.running._took_over(takeover(first=1))
        assert await market.running.next(0.0) == "a frame"  # the standby has its time all the same


async def test_whom_the_customer_itself_has_missed_it_does_not_ask():
    async with Market() as market:
        market.holds()
        market.running.handover.missed.add(HONEST.public)
        await market.running._took_over(takeover(first=1))
        assert not market.running.background._tasks and not market.payments._doubted


def test_a_stage_that_was_replaced_comes_back_once_and_only_if_there_is_no_other():
    """It may be the one that lies: it has no first claim to the job that begins again, and no third."""
    excluded = (DRIVER.public, FRIEND.public, HONEST.public)
    terms = Terms(max_chunk_msat=1, max_total_msat=1, excluded=excluded)
    chances = SecondChances()
    chances.wronged({HONEST.public})
    again = chances.next(terms)
    assert again.excluded == excluded[:2]
    chances.wronged({HONEST.public})
    assert chances.next(again) is None


def test_a_call_is_not_handed_over():
    """Nobody goes over to such a takeover; it must not be believed by those who judge or audit the job either."""
    said = takeover(first=0)
    call = manifest().model_copy(update={"mode": "embed"})
    made = job()[0]._plan
    with pytest.raises(NotAllowed, match="mode"):
        said.check(REQUEST, made, call)
    assert takeovers.newest([said], REQUEST, made, call) is None
    assert takeovers.newest([said], REQUEST, made, manifest()) == said


async def test_a_driver_is_paid_for_no_more_units_of_the_prompt_than_another_counted():
    payments, payer = job()
    await closed(payments, 0, units=8)
    (driver,) = await claims(payments, asks(DRIVER, 0, units=8))
    assert not driver.done()
    with pytest.raises(BadInput, match="others computed 2"):
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
