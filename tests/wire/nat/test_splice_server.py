"""A splice: whom it joins, what it carries, and what it takes from whom."""

import asyncio
import socket

import pytest

from nodewire.errors import BadPeer, Busy, LinkLost, NodewireError, NotAllowed, TimedOut, TooLarge
from nodewire.metrics.family import CODES
from nodewire.net.rate_limits import AtATime, Meter, PerMinute
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire.nat import splice_client, splice_server
from nodewire.wire.nat.splice_client import SpliceConnection, read
from nodewire.wire.nat.splice_metrics import SpliceCollector
from nodewire.wire.nat.splice_server import MAX_HALF_OPEN, Limits, Splicer

ROOM, OTHER_ROOM = "ab" * 32, "cd" * 32


@pytest.fixture
async def make():
    """Makes splices; the address is what their ends get."""
    made: list[Splicer] = []

    async def one(**options) -> SpliceAddress:
        keys = Keys.generate()
        made.append(Splicer(keys.public, **options))
        return SpliceAddress(keys.public, await made[-1].listen("127.0.0.1"))

    one.made = made
    yield one
    for one_made in made:
        await one_made.close()


async def enter(at: SpliceAddress, room: str | None = ROOM, keys: Keys | None = None) -> SpliceConnection:
    return await splice_client.enter(at, room, keys or Keys.generate(), allow_private=True)


async def joined(at: SpliceAddress, room: str = ROOM, one: Keys | None = None, other: Keys | None = None):
    """The two ends of a pair."""
    ends = await enter(at, room, one), await enter(at, room, other)
    await asyncio.gather(ends[0].say_go(), ends[1].hear_go())
    return ends


async def send(end: SpliceConnection, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(end.connection, data)


async def raw(at: SpliceAddress) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    host, port = at.at.split(":")
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    return connection


async def test_it_says_how_it_sees_an_end(make):
    entered = await enter(await make(), None)
    assert entered.seen == entered.local
    entered.close()


async def test_what_came_of_connections_and_what_was_carried_is_counted(make):
    def shown():
        return {
            (sample.name.removeprefix("nodewire_splice_"), *sample.labels.values()): sample.value
            for metric in SpliceCollector(make.made[-1]).collect()
            for sample in metric.samples
        }

    at = await make()
    (await enter(at, None)).close()
    one, other = await joined(at)
    await send(one, b"x" * 100_000)
    await read(other.connection, 100_000)
    assert shown()["connections", "paired"] == 2
    carried = shown()["bytes_total",]
    assert carried > 100_000
    one.close()
    other.close()
    stranger = await raw(at)
    await asyncio.get_running_loop().sock_sendall(stranger, b"\xff" * 64)
    async with asyncio.timeout(60):
        while shown()["connections", "paired"] or ("requests_total", "bad-peer") not in shown():
            await asyncio.sleep(0.01)
    stranger.close()
    found = shown()
    assert found["requests_total", "seen"] == found["requests_total", "bad-peer"] == 1
    assert found["requests_total", "paired"] == 2
    assert found["bytes_total",] >= carried  # also when the pair is over
    assert set(found) <= {
        *(("connections", state) for state in ("half-open", "waiting", "paired")),
        *(("requests_total", outcome) for outcome in (*CODES, "seen", "paired", "gone", "other")),
        ("bytes_total",),
    }


async def test_it_joins_two_keys_in_one_room_both_ways_and_to_the_last_byte(make):
    one, other = await joined(await make())
    data = bytes(range(256)) * 8_192

    async def through(source: SpliceConnection, sink: SpliceConnection) -> None:
        sending = asyncio.create_task(send(source, data))
        assert await read(sink.connection, len(data)) == data
        await sending

    await asyncio.gather(through(one, other), through(other, one))
    await send(one, b"the last")
    one.close()
    assert await read(other.connection, 8) == b"the last"
    with pytest.raises(OSError, match="hung up"):
        await read(other.connection, 1)
    other.close()


async def test_rooms_are_apart(make):
    at = await make(wait_s=0.3)
    one, other = await enter(at, ROOM), await enter(at, OTHER_ROOM)
    for end in (one, other):
        with pytest.raises(TimedOut):
            await end.say_go()
        end.close()


async def test_a_key_does_not_meet_itself_and_its_newest_connection_counts(make):
    at, keys = await make(), Keys.generate()
    first, second = await enter(at, ROOM, keys), await enter(at, ROOM, keys)
    with pytest.raises(NotAllowed):
        await first.say_go()
    third = await enter(at, ROOM)
    await asyncio.gather(second.say_go(), third.hear_go())
    for end in (first, second, third):
        end.close()


async def test_a_third_one_waits_alone(make):
    at = await make(wait_s=1.0)
    one, other = await joined(at)
    third = await enter(at)
    with pytest.raises(TimedOut):
        await third.say_go()
    await send(one, b"x")
    assert await read(other.connection, 1) == b"x"
    for end in (one, other, third):
        end.close()


async def test_who_hangs_up_or_speaks_while_it_waits_leaves_the_room(make):
    at = await make(wait_s=0.5)
    gone = await enter(at)
    gone.close()
    hasty = await enter(at, OTHER_ROOM)
    await send(hasty, b"x")
    with pytest.raises(LinkLost):
        await hasty.say_go()
    for room in (ROOM, OTHER_ROOM):
        late = await enter(at, room)
        with pytest.raises(TimedOut):
            await late.say_go()
        late.close()
    hasty.close()


async def _answer(at: SpliceAddress, said: bytes) -> dict:
    connection = await raw(at)
    await asyncio.get_running_loop().sock_sendall(connection, said)
    try:
        return dict(await splice_client.read_message(connection, at.at))
    finally:
        connection.close()


def _request(keys: Keys, public: str, now_s: float) -> bytes:
    data = splices.request(keys, public, room=ROOM, salt="0", now_s=now_s).to_json().encode()
    return len(data).to_bytes(2, "big") + data


async def test_requests_for_others_of_another_time_or_made_before_are_refused(make):
    now_s = 1_800_000_000.0
    at, keys = await make(unix_s=lambda: now_s), Keys.generate()
    good = _request(keys, at.public, now_s)
    assert "seen" in await _answer(at, good)
    for bad in (
        good,
        _request(keys, Keys.generate().public, now_s),
        _request(keys, at.public, now_s - 61),
        _request(keys, at.public, now_s + 61),
        good[:-2] + b"!}",
        b"\xff\xff",
        b"\0\x02{}",
    ):
        with pytest.raises(BadPeer):
            await _answer(at, bad)


async def test_a_key_asks_so_often_a_minute(make):
    at, keys = await make(strangers=Limits(requests_per_minute=2)), Keys.generate()
    for _ in range(2):
        (await enter(at, None, keys)).close()
    with pytest.raises(Busy):
        await enter(at, None, keys)
    (await enter(at, None)).close()


async def test_an_address_asks_so_often_a_minute_whatever_its_keys(make, monkeypatch):
    monkeypatch.setattr(splice_server, "ADDRESS_PER_MINUTE", 2)
    at = await make()
    for _ in range(2):
        (await enter(at, None)).close()
    with pytest.raises(Busy, match="2 a minute"):
        await enter(at, None)


async def test_a_key_waits_in_so_many_rooms(make):
    at, keys = await make(strangers=Limits(waiting=1)), Keys.generate()
    first, second = await enter(at, ROOM, keys), await enter(at, OTHER_ROOM, keys)
    with pytest.raises(Busy):
        await second.say_go()
    other = await enter(at)
    await asyncio.gather(first.say_go(), other.hear_go())
    for end in (first, second, other):
        end.close()


async def test_a_key_has_so_many_pairs_and_who_waits_for_it_is_told(make):
    at, keys = await make(strangers=Limits(pairs=1)), Keys.generate()
    pair = await joined(at, one=keys)
    waiting, again = await enter(at, OTHER_ROOM), await enter(at, OTHER_ROOM, keys)
    for end in (waiting, again):
        with pytest.raises(Busy):
            await end.say_go()
    for end in (*pair, waiting, again):
        end.close()


async def test_a_pair_carries_so_many_bytes_and_a_friends_pair_more(make):
    friend = Keys.generate()
    at = await make(strangers=Limits(most_bytes=1_000), friend=Limits(most_bytes=10**6), friends=[friend.public])
    one, other = await joined(at)
    await send(one, b"x" * 1_200)
    with pytest.raises(OSError):  # noqa: PT011
        await read(other.connection, 1_200)
    favoured, beside = await joined(at, OTHER_ROOM, one=friend)
    await send(beside, b"x" * 1_200)
    assert len(await read(favoured.connection, 1_200)) == 1_200
    for end in (one, other, favoured, beside):
        end.close()


async def test_a_silent_pair_is_over_and_beside_it_another_goes_on(make):
    at = await make(idle_s=1.0)
    silent, spoken = await joined(at), await joined(at, OTHER_ROOM)

    async def speak() -> None:
        while True:
            await send(spoken[0], b"x")
            await asyncio.sleep(0.02)

    speaking = asyncio.create_task(speak())
    with pytest.raises(OSError, match="hung up"):
        await read(silent[1].connection, 1)
    assert await read(spoken[1].connection, 1) == b"x"
    speaking.cancel()
    for end in (*silent, *spoken):
        end.close()


async def test_connections_that_ask_for_nothing_displace_each_other_only(make):
    at = await make()
    one, other = await joined(at)
    crowd = [await raw(at) for _ in range(MAX_HALF_OPEN + 4)]
    loop = asyncio.get_running_loop()
    assert await asyncio.wait_for(loop.sock_recv(crowd[0], 1), 5) == b""
    await send(one, b"x")
    assert await read(other.connection, 1) == b"x"
    for connection in crowd:
        connection.close()
    for end in (one, other):
        end.close()


async def test_an_end_that_reads_nothing_fills_no_memory(make):
    one, other = await joined(await make(strangers=Limits(bytes_per_s=2**40, most_bytes=2**40)))
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while True:
            await send(one, bytes(65_536))
            sent += 65_536

    pouring = asyncio.create_task(pour())
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 64 * 2**20  # what kernels hold
    pouring.cancel()
    one.close()
    other.close()


# Allowances.


def test_so_many_a_minute_are_saved_up_for_a_minute_at_most():
    now_s = 0.0
    rates = PerMinute(3, clock=lambda: now_s)
    for _ in range(3):
        rates.acquire("a")
    with pytest.raises(Busy):
        rates.acquire("a")
    rates.acquire("b")
    now_s = 20.0
    rates.acquire("a")
    with pytest.raises(Busy):
        rates.acquire("a")
    now_s = 10_000.0
    for _ in range(3):
        rates.acquire("a")
    with pytest.raises(Busy):
        rates.acquire("a")


def test_so_many_at_a_time_come_back():
    held = AtATime("pairs")
    held.acquire("a", 1)
    with pytest.raises(Busy):
        held.acquire("a", 1)
    held.give("a")
    held.acquire("a", 1)


async def test_a_meter_holds_bytes_up_in_proportion_and_ends():
    loop = asyncio.get_running_loop()
    meter = Meter(per_s=10_000, most=16_000)
    began_s = loop.time()
    await meter.spend(10_000)  # a second's worth at once
    at_once_s = loop.time() - began_s
    await meter.spend(5_000)
    assert at_once_s < (loop.time() - began_s) / 2
    with pytest.raises(TooLarge):
        await meter.spend(1_001)


# Ads.


def _ad(**changed) -> splices.Splice:
    return splices.Splice(name="s", at=("example.org:7790",), bytes_per_s=1, most_bytes=1, **changed)


def test_an_ad_is_read_as_it_was_built():
    keys = Keys.generate()
    event = splices.build(keys, _ad(region="eu"), created_at=1)
    assert splices.parse(event) == _ad(region="eu")
    assert event.tag("k") == "28844"


def test_an_address_is_read_as_it_was_written():
    address = SpliceAddress("ab" * 32, "[2001:db8::1]:7790")
    assert SpliceAddress.parse(str(address)) == address
    for bad in ("splice:ab@x:1", "example.org:1", f"splice:{'AB' * 32}@x:1", f"splice:{'ab' * 32}"):
        with pytest.raises(NodewireError):
            SpliceAddress.parse(bad)
