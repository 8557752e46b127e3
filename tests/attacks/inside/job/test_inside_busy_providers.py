"""Any keys at all: keeping an honest provider so busy that oracles never get what it must show, and say it withheld."""

from __future__ import annotations

import asyncio

from nodewire.nostr.keys import Keys
from nodewire.wire.evidence.pull import MAX_PULLS, Want, pull_document
from nodewire.wire.link import link_manager as wire
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.node import Node
from tests.protocol.committee.actors import keys

ORACLES = [keys(f"oracle/{n}") for n in range(2)]
WANT = Want(what="opening", request="cd" * 32, task="stage.0", attempt=0, first=1, last=1)
MiB = 2**20


class Net:
    """Nodes on this machine's loopback, closed in the end."""

    def __init__(self):
        self.nodes = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.gather(*(node.close() for node in self.nodes))

    def node(self, author=None, **options):
        made = Node(author or Keys.generate(), **options)
        self.nodes.append(made)
        return made


async def test_strangers_that_ask_without_end_do_not_keep_an_oracle_waiting():
    """Whether somebody was drawn is asked of relays, and takes its time: sixteen who were not fill every place."""
    asked, never = [], asyncio.Event()

    async def holder(peer, want):
        asked.append(peer)
        if peer not in {oracle.public for oracle in ORACLES}:
            await never.wait()
        return b"the opening"

    async with Net() as net:
        provider = net.node(holder=holder, policy=LinkPolicy(judges={oracle.public for oracle in ORACLES}))
        where = [await provider.listen("127.0.0.1")]
        waiting = []
        for _ in range(MAX_PULLS // 2 + 1):
            stranger = net.node()
            waiting += [
                asyncio.create_task(pull_document(stranger, provider.public, where, WANT, max_bytes=MiB))
                for _ in range(2)
            ]
        while len(asked) < MAX_PULLS:
            await asyncio.sleep(0.01)
        for oracle in ORACLES:
            shown = await asyncio.wait_for(
                pull_document(net.node(oracle), provider.public, where, WANT, max_bytes=MiB), 5
            )
            assert shown == b"the opening"
        assert len(asked) == MAX_PULLS + len(ORACLES)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_strangers_that_hold_every_link_leave_one_to_an_oracle(monkeypatch):
    monkeypatch.setattr(wire, "MAX_LINKS", 4)

    async def holder(peer, want):
        return b"the opening"

    async with Net() as net:
        provider = net.node(holder=holder, policy=LinkPolicy(judges={oracle.public for oracle in ORACLES}))
        where = [await provider.listen("127.0.0.1")]
        for _ in range(4):
            await net.node().link(provider.public, where)
        assert len(provider.peers) == 4
        for oracle in ORACLES:
            found = await pull_document(net.node(oracle), provider.public, where, WANT, max_bytes=MiB)
            assert found == b"the opening"
