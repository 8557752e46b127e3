"""What a provider's ad says of its place on the wire."""

from contextlib import AsyncExitStack

import pytest

import relay
from nodewire.config import WireConfig
from nodewire.errors import BadConfig
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.provider.market.listener import open_wire
from nodewire.wire.nat.splice_server import Splicer
from nodewire.wire.node import Node


@pytest.fixture
async def opened(tmp_path):
    """Opens a provider's wire; its node and the ad's addresses."""
    async with AsyncExitStack() as stack:
        config = relay.Config(host="127.0.0.1", port=0, db=tmp_path / "relay.db", blobs=tmp_path / "blobs")
        url = (await stack.enter_async_context(relay.serve(config))).url

        async def one(**wire):
            keys = Keys.generate()
            pool = await stack.enter_async_context(Pool([url], keys=keys))
            node = Node(keys, expect=lambda peer: True)
            stack.push_async_callback(node.close)
            return node, await open_wire(stack, WireConfig(**wire), node, keys, pool)

        yield one


@pytest.fixture
async def splice():
    keys = Keys.generate()
    splicer = Splicer(keys.public)
    yield f"splice:{keys.public}@{await splicer.listen('127.0.0.1')}"
    await splicer.close()


async def test_a_listening_address_is_announced_as_it_is(opened):
    _, wire = await opened(listen="127.0.0.1:0")
    assert [address.rpartition(":")[0] for address in wire] == ["127.0.0.1"]


async def test_what_the_operator_says_is_announced(opened, splice):
    _, wire = await opened(listen="0.0.0.0:0", announce=("example.org:4000", splice))
    assert wire == ("example.org:4000", splice)


async def test_who_listens_everywhere_finds_out_and_is_met_at_its_splice(opened, splice):
    _, wire = await opened(listen="0.0.0.0:0", splices=(splice,), upnp=False, private=True)
    assert wire[0].startswith("127.0.0.1:")
    assert wire[1:] == (splice,)
    customer, _ = await opened(private=True)
    provider, announced = await opened(announce=(splice,), private=True)
    assert (await customer.link(provider.public, announced)).peer == provider.public


async def test_who_cannot_be_reached_at_all_is_told_so(opened):
    with pytest.raises(BadConfig, match="no way leads here"):
        await opened(listen="0.0.0.0:0", upnp=False)
