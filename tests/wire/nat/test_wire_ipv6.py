"""IPv6: dialled, listened at beside IPv4, counted by network, met at splices and through holes."""

import asyncio
import socket

import pytest

from nodewire.net import host_port
from nodewire.net.connection_limits import origin_of
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress, ip_port
from nodewire.wire import Node
from nodewire.wire.nat import splice_client, splice_server, strategies
from nodewire.wire.transport import tcp
from tests.wire.meetings import Meetings
from tests.wire.wire_net import until

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
async def meetings(tmp_path):
    meetings = Meetings(tmp_path)
    async with meetings.stack:
        await meetings.open()
        yield meetings


async def test_a_node_that_listens_at_all_addresses_is_dialled_by_both_kinds(net):
    """It listened at those of IPv6 alone."""
    node = Node(Keys.generate())
    net.nodes.append(node)
    address = await node.listen("::")
    assert address.startswith("[::]:")
    port = host_port.parse(address)[1]
    for where in (f"127.0.0.1:{port}", f"[::1]:{port}"):
        caller = await net.node()
        assert (await caller.link(node.public, [where])).peer == node.public
        await until(lambda: caller.public in node.peers)  # noqa: B023
        came = node.peers[caller.public]
        assert came.address.rpartition(":")[0] == where.rpartition(":")[0]
        assert came.origin == origin_of("127.0.0.1" if "." in where else "::1")


async def test_a_name_whose_first_address_is_silent_is_reached_at_the_next(net, monkeypatch):
    """A machine with IPv6 that leads nowhere waited there until the dial was over."""
    node = await net.node()
    port = host_port.parse(net.addresses[node.public])[1]
    monkeypatch.setattr(tcp, "_EACH_S", 0.1)
    with socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=0) as silent:
        full = []
        while len(full) < 4:  # a queue that is full answers nothing
            full.append(socket.socket(socket.AF_INET6))
            full[-1].setblocking(False)
            full[-1].connect_ex(silent.getsockname())
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 0, "", silent.getsockname()),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
        ]
        connected = await tcp.TcpTls()._connected(found)
        assert connected.getpeername() == ("127.0.0.1", port)
        connected.close()
        for one in full:
            one.close()


@pytest.mark.parametrize("dials_lower", [True, False])
async def test_two_nodes_meet_by_a_hole(meetings, dials_lower):
    _, here = await meetings.splice("::1")
    a, b = await meetings.pair(here, dials_lower=dials_lower)
    link = await a.link(b.public, [str(here)])
    assert (link.peer, link.rung) == (b.public, "punch")
    assert link.address.startswith("[::1]:")


async def test_where_no_hole_can_be_punched_the_splice_joins_both(meetings, monkeypatch):
    monkeypatch.setattr(strategies, "knocked", lambda entered, places, allow_private: [])
    _, here = await meetings.splice("::1")
    a, b = await meetings.pair(here)
    assert (await a.link(b.public, [str(here)])).rung == "splice"


async def test_pairs_of_one_address_give_way_when_a_splice_is_full(monkeypatch):
    """Eight addresses had all pairs of a splice for as long as they said something once a minute."""
    monkeypatch.setattr(splice_server, "MAX_PAIRS", 3)
    full = splice_server.Splicer(Keys.generate().public)
    port = ip_port(await full.listen("::"))[1]
    crowd, other = (SpliceAddress(full.public, f"{host}:{port}") for host in ("127.0.0.1", "[::1]"))
    try:
        first, *held = [await joined(crowd, room) for room in ("1a" * 32, "1b" * 32, "1c" * 32)]
        late = await joined(other, "2a" * 32)
        with pytest.raises(ConnectionResetError):
            await splice_client.read(first[0].connection, 1)
        for one, far in (*held, late):
            await asyncio.get_running_loop().sock_sendall(one.connection, b"x")
            assert await splice_client.read(far.connection, 1) == b"x"
        for end in (*first, *late, *(end for pair in held for end in pair)):
            end.close()
    finally:
        await full.close()


async def joined(at, room):
    ends = [await splice_client.enter(at, room, Keys.generate(), allow_private=True) for _ in range(2)]
    await asyncio.gather(ends[0].say_go(), ends[1].hear_go())
    return ends


async def test_a_splice_sees_an_ipv4_address_as_one():
    """An end whose place is written as IPv6 would never be knocked at."""
    seeing = splice_server.Splicer(Keys.generate().public)
    port = ip_port(await seeing.listen("::"))[1]
    try:
        for host in ("127.0.0.1", "[::1]"):
            at = SpliceAddress(seeing.public, f"{host}:{port}")
            entered = await splice_client.enter(at, None, Keys.generate(), allow_private=True)
            assert entered.seen == entered.local
            assert entered.seen.startswith(f"{host}:")
            entered.close()
    finally:
        await seeing.close()
