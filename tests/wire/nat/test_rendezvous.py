"""Nodes that cannot be dialled: offers, holes and splices; who is met, and what a splice that lies brings about."""

import asyncio
import socket
import time

import pytest

from nodewire.errors import BadPeer, LinkLost, NodewireError, NotAllowed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Patience, Route
from nodewire.wire.nat import hole_punch, offer, rendezvous, splice_client, strategies
from nodewire.wire.nat.offer import Offer
from nodewire.wire.transport import identity
from tests.wire.meetings import Meetings, copied
from tests.wire.wire_net import array, job_id, until

PATIENT = Patience(handshake_s=1.0, dial_s=6.0)


@pytest.fixture
async def meetings(tmp_path):
    meetings = Meetings(tmp_path)
    async with meetings.stack:
        await meetings.open()
        yield meetings


@pytest.fixture
def no_holes(monkeypatch):
    """Routers that let no hole be punched."""
    monkeypatch.setattr(strategies, "knocked", lambda entered, places, allow_private: [])


@pytest.mark.parametrize("dials_lower", [True, False])
async def test_two_nodes_meet_by_a_hole(meetings, dials_lower):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here, dials_lower=dials_lower)
    link = await a.link(b.public, [str(here)])
    assert (link.peer, link.rung, link.dialled) == (b.public, "punch", dials_lower)
    await until(lambda: a.public in b.peers)
    assert b.peers[a.public].rung == "punch"


@pytest.mark.parametrize("dials_lower", [True, False])
async def test_where_no_hole_can_be_punched_the_splice_joins_both_and_frames_go_through(
    meetings, no_holes, dials_lower
):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here, dials_lower=dials_lower)
    assert (await a.link(b.public, [str(here)])).rung == "splice"
    await until(lambda: a.public in b.peers)
    routes = {"edge": Route(a.public, b.public)}
    sends, takes = (
        a.open_job(JobChannelSpec(job_id("spliced"), routes)),
        b.open_job(JobChannelSpec(job_id("spliced"), routes)),
    )
    data = bytes(range(256)) * 4_096
    await sends.put(Frame("edge", 0, (array(data),)))
    assert bytes((await takes.get()).tensors[0].data) == data


async def test_who_is_not_expected_is_not_met(meetings):
    _, here = await meetings.splice()
    b = await meetings.node(here=[here])
    a = await meetings.node(patience=Patience(dial_s=1.5))
    with pytest.raises(TimedOut):
        await a.link(b.public, [str(here)])
    assert not b.peers


async def test_who_is_in_a_job_is_met_as_soon_as_the_job_is_open(meetings):
    _, here = await meetings.splice()
    a, b = await meetings.node(), await meetings.node(here=[here])
    linking = asyncio.create_task(a.link(b.public, [str(here)]))
    await asyncio.sleep(0)
    b.open_job(JobChannelSpec(job_id("later"), {"edge": Route(a.public, b.public)}))
    assert (await linking).peer == b.public


async def test_offers_that_cross_make_one_link(meetings):
    _, here = await meetings.splice()
    a = await meetings.node(here=[here], expect=lambda peer: True)
    b = await meetings.node(here=[here], expect=lambda peer: True)
    links = await asyncio.gather(a.link(b.public, [str(here)]), b.link(a.public, [str(here)]))
    assert [link.peer for link in links] == [b.public, a.public]
    assert {link.dialled for link in links} == {True, False}
    await until(lambda: a.peers[b.public].is_open and b.peers[a.public].is_open)


async def test_an_address_that_answers_needs_no_offer(meetings):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here)
    address = await b.listen("127.0.0.1")
    assert (await a.link(b.public, [address, str(here)])).rung == "address"


async def test_an_address_that_is_silent_holds_nobody_up(meetings):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        host, port = silent.getsockname()
        assert (await a.link(b.public, [f"{host}:{port}", str(here)])).rung == "punch"


async def test_a_node_without_a_ladder_says_so(meetings):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here)
    a.ladder = None
    with pytest.raises(LinkLost, match="splice only"):
        await a.link(b.public, [str(here)])


async def test_the_next_splice_is_tried_when_one_is_gone(meetings):
    gone, here = SpliceAddress(Keys.generate().public, "127.0.0.1:9"), (await meetings.splice())[1]
    a, b = await meetings.pair(here)
    assert (await a.link(b.public, [str(gone), str(here)])).peer == b.public


async def test_nobody_connects_to_private_networks_on_a_strangers_word(meetings):
    _, here = await meetings.splice()
    a, b = await meetings.pair(here, private=False)
    with pytest.raises(NotAllowed) as refused:
        await a.link(b.public, [str(here)])
    assert refused.value.field == "splice"


async def test_only_public_places_are_knocked_at_and_no_services_port():
    entered = splice_client.SpliceConnection(
        socket.socket(), SpliceAddress("0" * 64, "x:1"), "9.9.9.9:5000", "10.0.0.2:5000", 0.01
    )
    places = ["8.8.8.8:4000", "10.0.0.7:4000", "127.0.0.1:4000", "8.8.8.8:22", "[2600::1]:4000", "9.9.9.9:5000"]
    assert strategies.knocked(entered, places, False) == [("8.8.8.8", 4_000)]
    assert strategies.knocked(entered, places, True) == [("8.8.8.8", 4_000), ("10.0.0.7", 4_000), ("127.0.0.1", 4_000)]
    entered.close()


# Holes, without any splice. `bench.network.nat` has the routers.


async def test_who_knocks_first_is_answered():
    ports = []
    for _ in range(2):
        with hole_punch.bound(socket.AF_INET) as one:
            ports.append(one.getsockname()[1])
    here, there = ports
    listening = asyncio.create_task(hole_punch.answer(socket.AF_INET, here, {"127.0.0.1"}))
    one = await hole_punch.punch(socket.AF_INET, there, ("127.0.0.1", here))
    other = await listening
    assert one.getsockname() == other.getpeername() == ("127.0.0.1", there)
    one.close()
    other.close()


async def test_a_host_that_was_not_named_is_not_answered():
    with hole_punch.bound(socket.AF_INET) as one:
        port = one.getsockname()[1]
    listening = asyncio.create_task(hole_punch.answer(socket.AF_INET, port, {"8.8.8.8"}))
    stranger = await hole_punch.punch(socket.AF_INET, 0, ("127.0.0.1", port))
    assert await asyncio.get_running_loop().sock_recv(stranger, 1) == b""
    listening.cancel()
    stranger.close()


async def test_who_is_refused_for_good_is_told_so(monkeypatch):
    monkeypatch.setattr(hole_punch, "MAX_TRIES", 3)
    with hole_punch.bound(socket.AF_INET) as free:
        port = free.getsockname()[1]
    with pytest.raises(LinkLost, match="refuses"):
        await hole_punch.punch(socket.AF_INET, 0, ("127.0.0.1", port))


# Splices that lie.


async def _never_forwards(ends):
    await asyncio.sleep(60)


async def _truncates(ends):
    """As much as a handshake begins with, and no more."""
    left = [300, 300]

    async def some(number: int) -> None:
        reader, (_, to_other) = ends[number][0], ends[1 - number]
        while left[number] and (data := await reader.read(left[number])):
            left[number] -= len(data)
            to_other.write(data)

    await asyncio.gather(some(0), some(1))
    for _, writer in ends:
        writer.close()


async def _garbles(ends):
    (one, to_one), (other, to_other) = ends

    def garbled(data: bytes) -> bytes:
        return data[:-1] + bytes((data[-1] ^ 1,)) if len(data) > 1 else data

    await asyncio.gather(copied(one, to_other, garbled), copied(other, to_one, garbled))


async def _replays(ends):
    (one, to_one), (other, to_other) = ends
    await asyncio.gather(copied(one, to_other, lambda data: data + data), copied(other, to_one))


async def _connects_to_somebody_else(ends):
    """Either end gets a TLS server that shows another key."""
    shown = identity.make(Keys.generate(), time.time())
    ends[1][1].write(await ends[0][0].readexactly(1))
    copying = []
    for reader, writer in ends:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=shown.server)
        other, to_other = await asyncio.open_connection(*server.sockets[0].getsockname())
        copying += [copied(reader, to_other), copied(other, writer)]
    await asyncio.gather(*copying)


LIES = {
    "never forwards": (_never_forwards, (TimedOut, BadPeer)),
    "truncates": (_truncates, (LinkLost, BadPeer, TimedOut)),
    "garbles": (_garbles, (LinkLost, BadPeer, TimedOut)),
    "connects to somebody else": (_connects_to_somebody_else, (BadPeer,)),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_splice_that_lies_is_a_typed_error_and_costs_others_nothing(meetings, no_holes, lie):
    lying, errors = LIES[lie]
    here, honest = await meetings.liar(lying), (await meetings.splice())[1]
    a, b = await meetings.pair(here, patience=PATIENT)
    c, d = await meetings.pair(honest)
    beside = await c.link(d.public, [str(honest)])
    with pytest.raises(NodewireError) as failed:
        await a.link(b.public, [str(here)])
    assert isinstance(failed.value, errors), failed.value
    assert not a.peers and not b.peers
    assert await beside.is_alive()


async def test_after_a_splice_that_lies_the_next_one_is_tried(meetings, no_holes):
    lying, honest = await meetings.liar(_connects_to_somebody_else), (await meetings.splice())[1]
    a, b = await meetings.pair(honest, patience=PATIENT)
    b.ladder.here |= {lying}
    assert (await a.link(b.public, [str(lying), str(honest)])).rung == "splice"


async def test_a_replaying_splice_opens_nothing_twice(meetings, no_holes):
    here = await meetings.liar(_replays)
    a, b = await meetings.pair(here, patience=PATIENT)
    with pytest.raises(NodewireError):
        await a.link(b.public, [str(here)])
    assert not a.peers and not b.peers


SAYINGS = {
    "no JSON": (b"\0\x05hello", BadPeer),
    "too long": (b"\xff\xff", BadPeer),
    "nothing": (b"", LinkLost),
    "half": (b"\0\x10{", LinkLost),
    "a name": (splice_client.message({"seen": "example.org:80"}), BadPeer),
    "no object": (b"\0\x02[]", BadPeer),
    "its own error": (splice_client.message(NotAllowed("room", "not for you")), NotAllowed),
}


@pytest.mark.parametrize("saying", SAYINGS)
async def test_what_a_splice_says_is_bounded_and_checked(saying):
    said, error = SAYINGS[saying]

    async def serve(reader, writer):
        await reader.readexactly(2)
        writer.write(said)
        await writer.drain()
        writer.write_eof()

    server = await asyncio.start_server(serve, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    address = SpliceAddress(Keys.generate().public, f"{host}:{port}")
    with pytest.raises(error):
        await splice_client.enter(address, "ab" * 32, Keys.generate(), allow_private=True)
    server.close()


# Offers.


class _Lossy:
    """Relays that lose the first `lost` events that are published, and deliver the others twice."""

    def __init__(self, relays, lost: int) -> None:
        self._relays, self._lost = relays, lost
        self.subscribe = relays.subscribe

    async def publish(self, event, timeout_s):
        self._lost -= 1
        if self._lost < 0:
            await self._relays.publish(event, timeout_s=timeout_s)
            await self._relays.publish(event, timeout_s=timeout_s)


async def test_offers_and_answers_that_relays_lose_are_sent_again(meetings, monkeypatch):
    monkeypatch.setattr(rendezvous, "AGAIN_S", 0.1)
    _, here = await meetings.splice()
    a, b = await meetings.pair(here)
    for node in (a, b):
        node.ladder._relays = _Lossy(node.ladder._relays, 2)
    assert (await a.link(b.public, [str(here)])).peer == b.public
    await until(lambda: a.public in b.peers)


def _offer(**changed) -> Offer:
    fields = {
        "type": "offer",
        "session": "ab" * 32,
        "room": "cd" * 32,
        "splice": f"splice:{'ef' * 32}@10.0.0.1:7790",
        "places": ("8.8.8.8:4000",),
        "splice_ms": 30,
        "expires_s": int(time.time()) + 30,
    }
    return Offer.from_document({"v": 1, **fields, **changed})


def test_an_offer_is_read_by_its_reader_alone():
    a, b, made = Keys.generate(), Keys.generate(), _offer()
    wrapped = offer.wrap(made, a, b.public, now_s=time.time())
    assert offer.unwrap(wrapped, b, now_s=time.time()) == (a.public, made)
    with pytest.raises(NodewireError):
        offer.unwrap(wrapped, Keys.generate(), now_s=time.time())


@pytest.mark.parametrize("after_s", [-3_600, 3_600], ids=["past", "future"])
def test_an_offer_of_the_past_or_of_the_far_future_counts_for_nothing(after_s):
    a, b, now_s = Keys.generate(), Keys.generate(), time.time()
    wrapped = offer.wrap(_offer(expires_s=int(now_s) + after_s), a, b.public, now_s=now_s)
    with pytest.raises(NodewireError, match="expires_s"):
        offer.unwrap(wrapped, b, now_s=now_s)


@pytest.mark.parametrize(
    "changed",
    [
        {"places": ("example.org:80",)},
        {"places": ("8.8.8.8:0",)},
        {"places": ("8.8.8.8:1",) * 5},
        {"splice": "10.0.0.1:7790"},
        {"splice_ms": 60_001},
        {"session": "ab"},
        {"type": "order"},
    ],
)
def test_a_malformed_offer_is_refused(changed):
    with pytest.raises(NodewireError):
        _offer(**changed)


async def test_an_offer_for_a_splice_that_was_never_announced_is_passed_over(meetings):
    """Whoever writes an offer does not say where we connect to."""
    (_, here), (_, elsewhere) = await meetings.splice(), await meetings.splice()
    a, b = await meetings.pair(here, patience=Patience(dial_s=1.5))
    with pytest.raises(TimedOut):
        await a.link(b.public, [str(elsewhere)])
    assert not b.peers


async def test_one_peer_has_so_many_meetings_a_minute(meetings, monkeypatch):
    monkeypatch.setattr(rendezvous, "PEER_PER_MINUTE", 1)
    _, here = await meetings.splice()
    a, b = await meetings.pair(here, patience=Patience(dial_s=1.5))
    link = await a.link(b.public, [str(here)])
    await until(lambda: a.public in b.peers)
    link.end(LinkLost("test", "over"))
    await until(lambda: a.public not in b.peers)
    with pytest.raises(TimedOut):
        await a.link(b.public, [str(here)])
