"""Connections without number, from one address or a few: they keep nobody else out."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.nostr.keys import Keys
from nodewire.pay.lightning import lnurl_server
from nodewire.wire.link.link_manager import MAX_HALF_OPEN
from nodewire.wire.node import Node
from relay.limits import Config, Limits
from relay.serving import serve
from tests.attacks.input.test_slow_loris import endpoint

HOST = "127.0.0.1"


async def silent(port: int, whence: str, count: int) -> list[asyncio.StreamWriter]:
    """Connections that say nothing, from an address of this machine."""
    made = [await asyncio.open_connection(HOST, port, local_addr=(whence, 0)) for _ in range(count)]
    return [writer for _, writer in made]


@contextlib.asynccontextmanager
async def nodes(count: int):
    made = [Node(Keys.generate()) for _ in range(count)]
    try:
        yield made
    finally:
        for node in made:
            await node.close()


@pytest.mark.parametrize("whence", [HOST, "127.0.0.2"], ids=["behind the same NAT", "from another address"])
async def test_silent_connections_keep_no_peer_from_a_provider(whence):
    async with nodes(4) as (provider, *peers):
        address = await provider.listen(HOST)
        early, *late = peers
        link = await early.link(provider.public, [address])
        held = await silent(int(address.rpartition(":")[2]), whence, 2 * MAX_HALF_OPEN)
        async with asyncio.timeout(3):
            await asyncio.gather(*(peer.link(provider.public, [address]) for peer in late))
        assert link.is_open  # a link that is proven makes room for nobody
        assert provider.peers.keys() == {peer.public for peer in peers}
        for writer in held:
            writer.transport.abort()


def test_an_address_with_many_connections_displaces_its_own_only():
    room: Strangers[str] = Strangers(4)
    assert [room.enter(f"many {n}", "10.0.0.1") for n in range(3)] == [None] * 3
    assert room.enter("one", "10.0.0.2") is None
    assert room.enter("many 3", "10.0.0.1") == "many 0"
    assert room.enter("another", "10.0.0.3") == "many 1"
    room.leave("many 2")
    room.leave("many 2")
    assert room.enter("yet another", "10.0.0.4") is None
    assert len(room) == 4


def test_a_network_that_one_party_has_is_one_origin():
    assert origin_of("2001:db8:1:2::1") == origin_of("2001:db8:1:2:ffff::9") != origin_of("2001:db8:1:3::1")
    assert origin_of("::ffff:192.0.2.1") == origin_of("192.0.2.1") != origin_of("192.0.2.2")
    assert origin_of("fe80::1%eth0") == origin_of("fe80::2%eth0")


async def test_one_address_does_not_displace_others_from_the_payment_endpoint(monkeypatch):
    monkeypatch.setattr(lnurl_server, "MAX_CONNECTIONS", 8)
    async with endpoint() as base, aiohttp.ClientSession() as honest:
        async with honest.get(f"{base}/.well-known/lnurlp/nodewire") as answer:
            assert answer.status == 200
        assert honest.connector is not None
        (kept,) = [pool for pool in honest.connector._conns.values() if pool]
        held = await silent(int(base.rpartition(":")[2]), "127.0.0.2", 20)
        assert not kept[0][0].transport.is_closing()
        async with honest.get(f"{base}/.well-known/lnurlp/nodewire") as answer:
            assert answer.status == 200
        for writer in held:
            writer.transport.abort()


async def test_silent_connections_keep_nobody_from_a_relay_and_end_soon(tmp_path):
    limits = Limits(idle_connections=4, idle_s=0.5)
    async with (
        serve(Config(db=tmp_path / "relay.db", port=0, limits=limits)) as relay,
        aiohttp.ClientSession() as honest,
    ):
        port = int(relay.url.rpartition(":")[2])
        async with honest.ws_connect(relay.url) as talking:
            held = [await asyncio.open_connection(HOST, port) for _ in range(20)]
            for _, writer in held[::2]:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
            async with asyncio.timeout(30), honest.get(relay.http_url) as answer:
                assert answer.status == 200
            async with asyncio.timeout(15):
                for reader, writer in held:
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
                    writer.close()
            await talking.send_str('["REQ","x",{"limit":1}]')  # a conversation may be silent for as long as it likes
            async with asyncio.timeout(30):
                assert "AUTH" in await talking.receive_str()
                assert "EOSE" in await talking.receive_str()
