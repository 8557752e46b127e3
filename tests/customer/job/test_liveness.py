"""A customer asks all providers for a sign of life once an output is late, before others complain."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.customer.job.liveness import PRESENCE_S, ProviderLiveness
from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.wire.node import Node
from tests.faults.cut import Way
from tests.protocol import documents

PROVIDER, DIALLING = (keys.public for keys in documents.PROVIDERS[:2])


class Market:
    """A customer and a provider with a link, whose way can be stopped; others that have no link, or no address."""

    def __init__(self, customer, provider, way):
        self.customer, self.provider, self.way = customer, provider, way
        self.liveness = ProviderLiveness(customer, {PROVIDER: (way.address,), DIALLING: ()})

    async def output(self):
        """An output that has come already."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        await self.liveness.wait_for_output(future, asyncio.Future())

    async def late(self):
        """The question that a late output brings, and the output."""
        output = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(self.liveness.wait_for_output(output, asyncio.Future()))
        async with asyncio.timeout(60):
            while PROVIDER not in self.liveness._questions:
                await asyncio.sleep(0)
        assert not waiting.done()
        return self.liveness._questions[PROVIDER], output, waiting


@pytest.fixture(params=["linked", "not linked"])
async def market(request):
    customer, provider = Node(Keys.generate()), Node(documents.PROVIDERS[0])
    async with Way(await provider.listen("127.0.0.1")) as way:
        if request.param == "linked":
            await customer.link(PROVIDER, [way.address])
        made = Market(customer, provider, way)
        yield made
        await made.liveness.close()
        await customer.close()
        await provider.close()


async def test_a_late_output_has_all_asked_and_their_answer_stands_when_others_complain(market):
    await market.output()
    market.way.stop()
    question, output, waiting = await market.late()
    assert set(market.liveness._questions) == {PROVIDER, DIALLING}
    async with asyncio.timeout(60):
        assert await market.liveness.absent([PROVIDER, DIALLING]) == {PROVIDER}
        assert market.liveness._questions[PROVIDER] is question
        output.set_result(None)
        await waiting


async def test_an_output_ends_what_is_asked_and_the_next_complaint_asks_anew(market):
    await market.output()
    market.way.stop()
    question, output, waiting = await market.late()
    async with asyncio.timeout(60):
        output.set_result(None)
        await waiting
        await asyncio.wait([question.answer])
        assert question.answer.cancelled()
        assert await market.liveness.absent([PROVIDER]) == {PROVIDER}


@pytest.mark.parametrize("word", ["of the mailbox", "of the background"])
async def test_a_complaint_in_place_of_an_output_leaves_what_was_asked(market, word):
    await market.output()
    market.way.stop()
    output, ended = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(market.liveness.wait_for_output(output, ended))
    async with asyncio.timeout(60):
        while PROVIDER not in market.liveness._questions:
            await asyncio.sleep(0)
        question = market.liveness._questions[PROVIDER]
        if word == "of the mailbox":
            output.set_exception(LinkLost(PROVIDER, "silent for 1 s"))
        else:
            ended.set_result(None)
        await waiting
        assert market.liveness._questions[PROVIDER] is question
        assert await market.liveness.absent([PROVIDER]) == {PROVIDER}
    assert not question.answer.cancelled()


async def test_a_provider_that_answered_is_asked_again_and_one_that_has_ended_since_is_absent(market):
    assert await market.liveness.absent([PROVIDER]) == set()
    link = await market.customer.link(PROVIDER, [market.way.address])
    async with asyncio.timeout(60):
        while link._pulse._pings:  # what is under way would be a sign of life
            await asyncio.sleep(0)
    await market.provider.close()
    assert await market.liveness.absent([PROVIDER]) == {PROVIDER}


@pytest.mark.parametrize("fault", ["stopped", "cut"])
async def test_a_provider_that_was_silent_and_is_there_again_is_not_absent(market, fault):
    await market.output()
    await market.way.cut() if fault == "cut" else market.way.stop()
    question, output, waiting = await market.late()
    await asyncio.wait([question.answer], timeout=1.1 * PRESENCE_S)
    assert not question.answer.done() or not question.answer.result()
    market.way.mend() if fault == "cut" else market.way.go_on()
    async with asyncio.timeout(60):
        await asyncio.wait([market.liveness._question(PROVIDER).answer])
        assert await market.liveness.absent([PROVIDER]) == set()
        output.set_result(None)
        await waiting


async def test_nobody_is_asked_before_the_first_output(market):
    first = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(market.liveness.wait_for_output(first, asyncio.Future()))
    other = Market(market.customer, market.provider, market.way)
    await other.output()
    question, *ends = await other.late()  # an output can be as late as that
    assert market.liveness._questions == {}
    first.set_result(None)
    await waiting
    ends[0].set_result(None)
    await ends[1]
    await other.liveness.close()
    await asyncio.wait([question.answer])


async def test_one_long_wait_is_forgotten_after_some_outputs(market):
    await market.output()
    market.liveness._longest_s = 60.0
    for _ in range(100):
        await market.output()
    assert market.liveness._longest_s < 0.01
