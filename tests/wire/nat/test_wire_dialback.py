"""Whether a port is open from outside: a splice dials back who asks, where it asks from, and says what it found."""

import asyncio
import socket
import time

import pytest

from nodewire.errors import BadPeer, Busy, NotAllowed, Unsupported
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire import Node
from nodewire.wire.nat import dialback, splice_client, splice_server
from nodewire.wire.nat.splice_client import message
from nodewire.wire.nat.splice_server import Limits, Splicer

KEYS = Keys.generate()


@pytest.fixture
async def make():
    """Makes splices; the address is what their ends get."""
    made: list[Splicer] = []

    async def one(**options) -> SpliceAddress:
        made.append(Splicer(Keys.generate().public, **{"allow_private": True, **options}))
        return SpliceAddress(made[-1].public, await made[-1].listen("127.0.0.1"))

    yield one
    for each in made:
        await each.close()


@pytest.fixture
async def node():
    """A node of KEYS; the port at which it listens."""
    made = Node(KEYS)
    yield int((await made.listen("127.0.0.1")).rpartition(":")[2])
    await made.close()


@pytest.fixture
def closed():
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def deaf(monkeypatch):
    """A port that answers nothing: the queue of who may connect is full, and the kernel drops what comes."""
    monkeypatch.setattr(dialback, "DIAL_S", 0.3)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]
        for one in crowd:
            one.close()


async def ask(at: SpliceAddress, port: int, keys: Keys = KEYS) -> dialback.DialbackResult:
    return await dialback.ask(at, port, keys, allow_private=True)


async def test_a_port_at_which_the_asker_itself_answers_is_open(make, node):
    at = await make()
    assert await ask(at, node) == dialback.DialbackResult(at.at, f"127.0.0.1:{node}", "open")


async def test_another_nodes_port_is_a_strangers(make, node):
    assert (await ask(await make(), node, Keys.generate())).outcome == "stranger"


async def test_whoever_accepts_and_proves_nothing_is_a_stranger(make, monkeypatch):
    monkeypatch.setattr(dialback, "DIAL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert (await ask(await make(), listening.getsockname()[1])).outcome == "stranger"


async def test_a_port_at_which_nobody_listens_is_refused(make, closed):
    assert (await ask(await make(), closed)).outcome == "refused"


async def test_a_port_behind_which_everything_is_dropped_is_silent(make, deaf):
    assert (await ask(await make(), deaf)).outcome == "silent"


async def _asked_from(host: str, at: SpliceAddress, port: int) -> tuple[str, str]:
    """How a splice sees who asks from an address of this machine, and what it says of the port."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.bind((host, 0))
        where, _, number = at.at.rpartition(":")
        await loop.sock_connect(connection, (where, int(number)))
        data = splices.request(KEYS, at.public, salt=host, now_s=time.time(), port=port).to_json().encode()
        await loop.sock_sendall(connection, len(data).to_bytes(2, "big") + data)
        seen = await splice_client.read_message(connection, at.at)
        return str(seen["seen"]).rpartition(":")[0], str(
            (await splice_client.read_message(connection, at.at))["dialled"]
        )


async def test_who_asks_is_dialled_where_it_asks_from_and_nowhere_else(make, node):
    """So nobody learns by a splice which ports of others are open: the node listens at 127.0.0.1 only."""
    at = await make()
    assert await _asked_from("127.0.0.1", at, node) == ("127.0.0.1", "open")
    assert await _asked_from("127.0.0.2", at, node) == ("127.0.0.2", "refused")


async def test_who_comes_from_a_private_address_is_dialled_by_leave_only(make, node):
    with pytest.raises(NotAllowed, match="not a public address"):
        await ask(await make(allow_private=False), node)


async def test_a_key_is_dialled_so_often_a_minute(make, closed):
    at = await make(strangers=Limits(dials_per_minute=2))
    for _ in range(2):
        await ask(at, closed)
    with pytest.raises(Busy, match="2 a minute"):
        await ask(at, closed)
    assert (await ask(at, closed, Keys.generate())).outcome == "refused"


async def test_an_address_is_dialled_so_often_a_minute_whatever_its_keys(make, closed, monkeypatch):
    monkeypatch.setattr(splice_server, "ADDRESS_DIALS_PER_MINUTE", 2)
    at = await make()
    for _ in range(2):
        await ask(at, closed, Keys.generate())
    with pytest.raises(Busy, match="2 a minute"):
        await ask(at, closed, Keys.generate())


async def test_a_splice_dials_so_many_at_a_time(make, deaf, monkeypatch):
    monkeypatch.setattr(splice_server, "MAX_DIALS", 1)
    monkeypatch.setattr(dialback, "DIAL_S", 1.0)
    at = await make()
    asked = (ask(at, deaf, Keys.generate()) for _ in range(3))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert "silent" in [one.outcome for one in found if isinstance(one, dialback.DialbackResult)]
    assert any("at a time" in str(one) for one in found if isinstance(one, Busy))
    assert (await ask(at, deaf)).outcome == "silent"  # there is room again


@pytest.mark.parametrize("wanted", [{"port": 22}, {"port": 4_000, "room": "ab" * 32}])
def test_a_service_is_not_knocked_at_and_a_room_stands_alone(wanted):
    at = Keys.generate().public
    event = splices.request(KEYS, at, salt="0", now_s=5.0, **wanted)
    with pytest.raises(BadPeer, match="dial"):
        splices.check_request(event.to_json().encode(), at, 5.0)


def _saying(*words):
    """A splice that says this to everybody, and hangs up."""

    async def serve(reader, writer):
        await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        for word in words:
            writer.write(message(word))
        writer.close()

    return asyncio.start_server(serve, "127.0.0.1")


@pytest.mark.parametrize(
    ("words", "error"),
    [([], Unsupported), ([{"dialled": "perhaps"}], BadPeer), ([{"dialled": ["open"]}], BadPeer), ([{}], BadPeer)],
)
async def test_a_splice_that_dials_nobody_or_says_nonsense_proves_nothing(words, error):
    async with await _saying({"seen": "127.0.0.1:1"}, *words) as server:
        at = SpliceAddress(Keys.generate().public, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(error):
            await ask(at, 4_000)
        assert isinstance(await dialback.ask_some([at], 4_000, KEYS, allow_private=True), error)


async def test_of_several_splices_one_that_finds_us_is_enough(make, node):
    gone, private, good = SpliceAddress(KEYS.public, "127.0.0.1:9"), await make(allow_private=False), await make()
    found = await dialback.ask_some([gone, private, good], node, KEYS, allow_private=True)
    assert isinstance(found, dialback.DialbackResult) and (found.splice, found.outcome) == (good.at, "open")
    assert isinstance(await dialback.ask_some([private], node, KEYS, allow_private=True), NotAllowed)
    assert await dialback.ask_some([], node, KEYS, allow_private=True) is None
