"""Nodes on 127.0.0.1 over real sockets and uvloop, closed after each test."""

import asyncio
import hashlib
from dataclasses import dataclass, field

import pytest
import uvloop

from nodewire.nostr.keys import Keys
from nodewire.protocol.frame import Array
from nodewire.wire import Link, Node, Patience


@pytest.fixture
def event_loop_policy():
    return uvloop.EventLoopPolicy()


@dataclass
class Net:
    """The nodes of a test; addresses by public key."""

    addresses: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    async def node(self, keys: Keys | None = None, **options) -> Node:
        node = Node(keys or Keys.generate(), **options)
        self.nodes.append(node)
        self.addresses[node.public] = await node.listen("127.0.0.1")
        return node

    async def link(self, a: Node, b: Node) -> Link:
        link = await a.link(b.public, [self.addresses[b.public]])
        await until(lambda: a.public in b.peers)
        return link

    async def pair(self, **options) -> tuple[Node, Node]:
        a, b = await self.node(**options), await self.node(**options)
        await self.link(a, b)
        return a, b


@pytest.fixture
async def net():
    net = Net()
    yield net
    for node in net.nodes:
        await node.close()


async def until(true, within_s: float = 5.0) -> None:
    """Let the loop run until `true()`."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.001)


def job_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def array(data: bytes | bytearray | memoryview, dtype: str = "uint8", shape: tuple[int, ...] | None = None) -> Array:
    return Array(dtype, shape if shape is not None else (len(data),), data)


QUICK = Patience(handshake_s=0.3, dial_s=1.0, stagger_s=0.05, early_s=0.3)
