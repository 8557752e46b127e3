"""Whom a provider dials to learn where it is: nodes of the snapshot at random, and no doors of its own network."""

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.nostr.keys import Keys
from nodewire.provider.market import peer_sampler
from nodewire.provider.market.peer_sampler import NEIGHBOURS, Acquaintance, is_private
from nodewire.wire import Node


class Market:
    """What is read of a market: a snapshot whose nodes are at these addresses."""

    def __init__(self, wire):
        self.wire = wire

    async def epoch(self, *, timeout_s):
        return SimpleNamespace(body=SimpleNamespace(snapshot=""))

    async def snapshot(self, sha256, *, keep):
        return SimpleNamespace(nodes=[SimpleNamespace(pubkey=key) for key in self.wire], ads=self.ads)

    def ads(self, keys):
        return {key: SimpleNamespace(wire=self.wire[key]) for key in keys}


@pytest.fixture
async def nodes(monkeypatch):
    """Ten that listen, and one that is alone; with their addresses."""
    monkeypatch.setattr(peer_sampler, "PACE_S", 0.001)
    made = [Node(Keys.generate()) for _ in range(NEIGHBOURS + 3)]
    wire = {node.public: (await node.listen("127.0.0.1"),) for node in made}
    yield made, wire
    for node in made:
        await node.close()


async def run_until(work, done):
    task = asyncio.create_task(work)
    try:
        async with asyncio.timeout(60):
            while not done():
                await asyncio.sleep(0.005)
    finally:
        task.cancel()


async def test_a_provider_links_to_eight_others_and_no_more(nodes):
    (one, *_), wire = nodes
    meeting = Acquaintance(one, Market(wire), allow_private=True)
    await run_until(meeting.run(), lambda: len(one.peers) >= NEIGHBOURS)
    assert len(one.peers) == NEIGHBOURS


async def test_who_cannot_be_reached_is_left_for_a_while_and_others_are_met(nodes):
    (one, two, *_), wire = nodes
    few = {Keys.generate().public: ("127.0.0.1:9",), two.public: wire[two.public]}
    meeting = Acquaintance(one, Market(few), allow_private=True)
    await run_until(meeting.run(), lambda: len(one.peers) == 1 and len(meeting._failed) == 1)


async def test_a_public_provider_does_not_dial_what_strangers_say_of_its_own_network(nodes):
    (one, *_), wire = nodes
    meeting = Acquaintance(one, Market(wire), allow_private=False)
    await run_until(meeting.run(), lambda: len(meeting._failed) == len(wire) - 1)
    assert not one.peers


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1:4000", True),
        ("192.168.1.2:4000", True),
        ("[fd00::1]:4000", True),
        ("198.41.0.4:4000", False),
        ("[2606:4700::1]:4000", False),
        ("node.example:4000", False),
        ("splice:" + "ab" * 32 + "@192.168.1.2:7790", False),
    ],
)
def test_private_are_ip_addresses_that_are_not_the_internets(address, private):
    assert is_private(address) is private
