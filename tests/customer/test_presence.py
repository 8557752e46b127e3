"""A customer asks a provider without a link for a sign of life once an output is late, before others complain."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.presence import Presence
from nodewire.nostr.keys import Keys
from nodewire.wire.node import Node
from tests.protocol import documents

LINKED, STOPPED, DIALLING = (keys.public for keys in documents.PROVIDERS)


class Stopped:
    """An address as of a process under SIGSTOP: connections are taken, and nothing is ever read."""

    def __init__(self):
        self.connections, self.asked, self._open = 0, asyncio.Event(), []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._take, "127.0.0.1")
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def _take(self, _, writer):
        self.connections += 1
        self._open.append(writer)
        self.asked.set()

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._open:
            writer.transport.abort()


@pytest.fixture
async def market():
    """A customer's presence: one provider has a link to it, one has stopped, one has no address."""
    customer, other = Node(Keys.generate()), Node(documents.PROVIDERS[0])
    address = await other.listen("127.0.0.1")
    await customer.link(LINKED, [address])
    async with Stopped() as stopped:
        presence = Presence(customer, {LINKED: (address,), STOPPED: (stopped.address,), DIALLING: ()})
        yield SimpleNamespace(presence=presence, stopped=stopped, customer=customer, other=other)
        await presence.close()
    await customer.close()
    await other.close()


async def output(presence):
    """An output that has come already."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    await presence.wait_for_output(future)
    presence.forget()


async def test_a_late_output_makes_it_ask_those_without_a_link_and_their_answer_stands_when_others_complain(market):
    presence, stopped = market.presence, market.stopped
    await output(presence)
    never = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(presence.wait_for_output(never))
    async with asyncio.timeout(60):
        await stopped.asked.wait()
        assert set(presence._questions) == {STOPPED, DIALLING}
        question = presence._questions[STOPPED]
        assert not waiting.done() and not question.done()
        assert await presence.absent([STOPPED]) == {STOPPED}
        assert presence._questions[STOPPED] is question
        assert await presence.absent([LINKED, DIALLING]) == set()
        never.set_result(None)
        await waiting


async def test_an_output_ends_what_is_asked_and_the_next_complaint_asks_anew(market):
    presence, stopped = market.presence, market.stopped
    await output(presence)
    coming = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(presence.wait_for_output(coming))
    async with asyncio.timeout(60):
        await stopped.asked.wait()
        question, connections = presence._questions[STOPPED], stopped.connections
        coming.set_result(None)
        await waiting
        presence.forget()
        await asyncio.wait([question])
        assert question.cancelled()
        assert await presence.absent([STOPPED]) == {STOPPED}
        assert presence._questions[STOPPED] is not question and stopped.connections > connections


async def test_a_provider_that_answered_is_asked_again_and_one_that_has_ended_since_is_absent(market):
    presence = market.presence
    assert await presence.absent([LINKED]) == set()
    await market.other.close()
    assert await presence.absent([LINKED]) == {LINKED}


async def test_nobody_is_asked_before_the_first_output(market):
    presence, first = market.presence, asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(presence.wait_for_output(first))
    # As long as an output may be late once there was one.
    presence_of_another = Presence(market.customer, {STOPPED: (market.stopped.address,)})
    await output(presence_of_another)
    other = asyncio.create_task(presence_of_another.wait_for_output(asyncio.get_running_loop().create_future()))
    async with asyncio.timeout(60):
        await market.stopped.asked.wait()
        assert presence._questions == {}
        first.set_result(None)
        await waiting
    other.cancel()
    await presence_of_another.close()
