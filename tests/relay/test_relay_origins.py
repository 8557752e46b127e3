"""One address takes all it can of what the relay shares, and another address still gets its part.

Loopback has many addresses: each is an origin here.
"""

import asyncio
import contextlib
import hashlib

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nipb7
from relay import BlobLimits, Config, Limits, serve
from relay.turns.sharing import address_of
from tests.relay.conversation import ALICE, BOB, NOW, Talk, note, talk

HONEST, GREEDY = "127.0.0.7", "127.0.0.8"
BODY = b"honest" * 100


@pytest.fixture
def running(tmp_path):
    def start(**settings):
        return serve(Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "b", **settings), clock=lambda: NOW)

    return start


def grant(body, keys=ALICE):
    sha256 = hashlib.sha256(body).hexdigest()
    return nipb7.to_header(nipb7.build_token(keys, "upload", now_s=NOW, expires_at_s=NOW + 600, hashes=[sha256]))


@contextlib.asynccontextmanager
async def talk_from(address, url):
    async with connect(url, compression=None, max_queue=None, local_addr=(address, 0)) as socket:
        yield Talk(socket)


async def put_from(address, relay, body=BODY, keys=ALICE):
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(relay.http_url, connector=connector) as http:
        answer = await http.put("/upload", data=body, headers={"Authorization": grant(body, keys)})
        return answer.status, answer.headers.get("Retry-After")


async def held_upload(address, relay, length=1_000_000):
    """An upload of which one byte comes."""
    port = int(relay.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    head = (
        f"PUT /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {grant(b'x')}\r\nContent-Length: {length}\r\n\r\n"
    )
    writer.write(head.encode() + b"x")
    await writer.drain()
    return reader, writer


def under_way(tmp_path):
    return len(list((tmp_path / "b" / "incoming").iterdir()))


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_held_uploads_take_no_slot_from_another_address(running, tmp_path):
    async with running(blob_limits=BlobLimits(uploads=4)) as relay:
        held = [await held_upload(GREEDY, relay) for _ in range(4)]
        await until(lambda: under_way(tmp_path) == 4)
        assert await put_from(GREEDY, relay) == (503, "1")
        assert await put_from(HONEST, relay) == (200, None)
        assert relay.counts.refusals["uploads"] == 2  # the one turned away, and the one that made room
        for _, writer in held:
            writer.close()


async def test_an_upload_below_the_least_rate_is_let_go_however_often_bytes_come(running):
    async with running(blob_limits=BlobLimits(stall_s=0.3, least_bytes_s=1_000)) as relay:
        reader, writer = await held_upload(GREEDY, relay)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and not reader._buffer:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_an_upload_that_is_announced_takes_no_room_from_others(running, tmp_path):
    limits = BlobLimits(least_blob_bytes=1, quota_bytes=2_000_000, key_quota_bytes=2_000_000, address_bytes=2_000_000)
    async with running(blob_limits=limits) as relay:
        held = await held_upload(GREEDY, relay, 1_999_999)
        await until(lambda: under_way(tmp_path) == 1)
        assert (await put_from(HONEST, relay, b"x" * 1_500, BOB))[0] == 413  # a step of the other's is reserved
        held[1].close()
        await until(lambda: under_way(tmp_path) == 0)
        assert (await put_from(HONEST, relay, b"x" * 1_500, BOB))[0] == 200


async def test_an_address_has_a_share_of_the_store_whatever_its_keys(running):
    async with running(blob_limits=BlobLimits(least_blob_bytes=1, address_bytes=1_000)) as relay:
        assert (await put_from(GREEDY, relay, b"1" * 900))[0] == 200
        assert (await put_from(GREEDY, relay, b"2" * 900, BOB))[0] == 413
        assert (await put_from(HONEST, relay, b"3" * 900))[0] == 200


async def test_downloads_that_are_not_read_end_and_take_no_slot_from_another_address(running):
    body = bytes(16_000_000)
    limits = BlobLimits(downloads=3, stall_s=1_000)
    async with running(blob_limits=limits) as relay:
        assert (await put_from(HONEST, relay, body))[0] == 200
        path = f"/{hashlib.sha256(body).hexdigest()}"
        port = int(relay.url.rpartition(":")[2])
        held = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(GREEDY, 0), limit=1_000)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await reader.readline()
            held.append(writer)
        for address, status in ((GREEDY, 503), (HONEST, 200)):
            connector = aiohttp.TCPConnector(local_addr=(address, 0))
            async with aiohttp.ClientSession(relay.http_url, connector=connector) as http, http.get(path) as answer:
                assert answer.status == status
                if status == 200:
                    assert await answer.read() == body
        for writer in held:
            writer.transport.abort()


async def test_each_piece_of_a_download_is_paid_for_before_it_is_read_and_an_unread_one_is_not_read_on(running):
    """The kernel took megabytes for each client that read nothing, at nobody's cost."""
    body = bytes(16_000_000)
    async with running(limits=Limits(work_per_s=0.001)) as relay:
        assert (await put_from(HONEST, relay, body))[0] == 200
        path = f"/{hashlib.sha256(body).hexdigest()}"
        connector = aiohttp.TCPConnector(local_addr=(HONEST, 0))
        async with aiohttp.ClientSession(relay.http_url, connector=connector) as http:
            before = relay.work.available(HONEST)
            async with http.get(path) as answer:
                assert len(await answer.read()) == len(body)
            paid = before - relay.work.available(HONEST)
        assert paid >= len(body) / 262_144
        port = int(relay.url.rpartition(":")[2])
        before = relay.work.available(GREEDY)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(GREEDY, 0), limit=1_000)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await reader.readline()
        async with talk_from(HONEST, relay.url) as honest:
            for _ in range(50):
                await honest.ask({"kinds": [1]})
        assert before - relay.work.available(GREEDY) < paid / 2
        writer.transport.abort()


async def test_an_address_without_budget_has_a_download_wait_and_another_does_not(running):
    body = bytes(4_000_000)
    async with running(limits=Limits(work_per_s=0.001, work_burst=60)) as relay:
        assert (await put_from(HONEST, relay, body))[0] == 200
        port = int(relay.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(GREEDY, 0))
        relay.work.charge(GREEDY, 57.5)
        path = f"/{hashlib.sha256(body).hexdigest()}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        await until(lambda: relay.counts.waited_s)
        assert (await put_from(HONEST, relay, b"meanwhile"))[0] == 200
        writer.transport.abort()


async def test_a_download_that_takes_too_long_for_its_size_is_cut_off(running):
    body = bytes(16_000_000)
    async with running() as relay:
        assert (await put_from(HONEST, relay, body))[0] == 200
    async with running(blob_limits=BlobLimits(stall_s=0, least_bytes_s=10**9)) as relay:
        port = int(relay.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
        writer.write(f"GET /{hashlib.sha256(body).hexdigest()} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await until(lambda: relay.counts.refusals["slow"])
        with contextlib.suppress(ConnectionError):
            came = 0
            while chunk := await reader.read(100_000):
                came += len(chunk)
            assert came < len(body)
        writer.close()


async def test_websockets_of_one_address_take_none_from_another(running):
    async with running(limits=Limits(connections=8)) as relay, contextlib.AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(talk_from(GREEDY, relay.url)) for _ in range(8)]
        with pytest.raises(Exception, match="503"):
            async with talk_from(GREEDY, relay.url):
                pass
        for _ in range(4):
            honest = await stack.enter_async_context(talk_from(HONEST, relay.url))
            assert (await honest.publish(note()))[0]
        assert (await greedy[0].publish(note()))[0]  # who came first stays
        await until(lambda: relay.counts.cut == 4 and relay.connections == 8)


async def test_a_proxys_clients_are_told_apart_by_what_it_says(running):
    async with running(limits=Limits(connections=2), proxies=frozenset({"127.0.0.1"})) as relay:
        async with contextlib.AsyncExitStack() as stack:
            for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
                headers = {"X-Forwarded-For": f"203.0.113.9, {address}"}
                socket = connect(relay.url, compression=None, additional_headers=headers)
                await stack.enter_async_context(socket)
            await until(lambda: relay.counts.cut == 1)
        async with connect(relay.url, local_addr=(HONEST, 0), additional_headers=headers), talk(relay.url) as client:
            assert (await client.publish(note()))[0]


async def test_an_address_that_has_spent_its_budget_waits_and_another_does_not(running):
    async with running(limits=Limits(work_per_s=100, work_burst=200)) as relay, contextlib.AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(talk_from(GREEDY, relay.url)) for _ in range(2)]
        honest = await stack.enter_async_context(talk_from(HONEST, relay.url))
        for n in range(300):
            await greedy[n % 2].say("EVENT", note(content=str(n)).as_dict())
        await until(lambda: relay.counts.waited_s)
        for n in range(20):
            assert (await honest.publish(note(BOB, content=str(n))))[0]
        assert relay.work.available(GREEDY) < 0 < relay.work.available(HONEST)
        assert relay.counts.answers[True, ""] < 300  # of 320: the greedy one is still at it
        for client in greedy:
            assert (await client.until("OK"))[0][2]  # nothing of it is lost


@pytest.mark.parametrize(
    ("remote", "said", "address"),
    [
        ("203.0.113.9", "10.0.0.1", "203.0.113.9"),  # no proxy of the operator's: it may say what it likes
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "10.0.0.1, 198.51.100.7", "198.51.100.7"),  # what came before the last is the client's word
        ("127.0.0.1", "198.51.100.7, 127.0.0.2", "198.51.100.7"),
    ],
)
def test_only_the_operators_proxies_say_where_a_client_comes_from(remote, said, address):
    request = make_mocked_request("GET", "/", headers={"X-Forwarded-For": said} if said else {})
    request = request.clone(remote=remote)
    assert address_of(request, frozenset({"127.0.0.1", "127.0.0.2"})) == address


async def test_all_that_an_address_has_the_relay_do_is_charged_to_it(running):
    limits = Limits(work_per_s=1e-6, work_burst=100_000)
    async with running(limits=limits) as relay, contextlib.AsyncExitStack() as stack:

        async def spent(doing):
            before = relay.work.available(GREEDY)
            result = await doing
            return before - relay.work.available(GREEDY), result

        price, greedy = await spent(stack.enter_async_context(talk_from(GREEDY, relay.url)))
        assert price >= 50  # a websocket
        price, _ = await spent(greedy.count({"kinds": [1]}))
        assert price > 1 + 0.04  # a message, and what the query took
        for kind in (1, 20_000):  # stored, and passed on alone
            alone, _ = await spent(greedy.publish(note(kind=kind, content="a")))
            readers = [await stack.enter_async_context(talk_from(HONEST, relay.url)) for _ in range(3)]
            for reader in readers:
                for n in range(10):
                    await reader.ask({"kinds": [kind], "limit": 1, "since": NOW}, name=str(n))
            told, _ = await spent(greedy.publish(note(kind=kind, content="b")))
            assert told - alone > 2.5  # thirty hear of it
        for n in range(20):
            await greedy.publish(note(kind=7, content=str(n)))
        none, _ = await spent(greedy.ask({"kinds": [8]}))
        all_, found = await spent(greedy.ask({"kinds": [7]}))
        assert len(found) == 20
        assert all_ - none > 5  # they are sent


async def test_wrong_signatures_cost_more_and_of_many_the_connection_ends(running):
    limits = Limits(bad_signatures=3, work_per_s=0.001)
    async with running(limits=limits) as relay, contextlib.AsyncExitStack() as stack:
        honest = await stack.enter_async_context(talk_from(HONEST, relay.url))
        whole = relay.work.available(HONEST)
        async with talk_from(GREEDY, relay.url) as greedy:
            for n in range(3):
                forged = note(content=str(n)).as_dict() | {"sig": "0" * 128}
                await greedy.say("EVENT", forged)
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await greedy.hear()
            assert greedy.socket.close_code == 1008
            assert relay.counts.refusals["bad-signatures"] == 1
            assert whole - relay.work.available(GREEDY) > 30
            assert (await honest.publish(note()))[0]


async def test_an_address_stores_so_much_a_day_and_another_has_its_own(running):
    limits = Limits(address_bytes_per_day=40_000)
    async with running(limits=limits) as relay, contextlib.AsyncExitStack() as stack:
        greedy = await stack.enter_async_context(talk_from(GREEDY, relay.url))
        honest = await stack.enter_async_context(talk_from(HONEST, relay.url))
        keys = [Keys.generate() for _ in range(4)]
        answers = [await greedy.publish(note(one, content="x" * 5_000)) for one in keys]
        assert [accepted for accepted, _ in answers] == [True, True, False, False]
        assert answers[-1][1].startswith("rate-limited: your address may store 40000 bytes a day")
        assert (await greedy.publish(note(kind=20_001)))[0]  # nothing is stored of it
        assert (await honest.publish(note(content="x" * 5_000)))[0]


async def test_a_key_stores_so_much_a_day_from_wherever_it_comes(running):
    limits = Limits(key_bytes_per_day=40_000)
    async with running(limits=limits) as relay, contextlib.AsyncExitStack() as stack:
        greedy = await stack.enter_async_context(talk_from(GREEDY, relay.url))
        honest = await stack.enter_async_context(talk_from(HONEST, relay.url))
        for n in range(2):
            assert (await greedy.publish(note(content=f"{n}" + "x" * 5_000)))[0]
        assert (await honest.publish(note(content="more")))[1].startswith("rate-limited: a key")
        assert (await honest.publish(note(BOB)))[0]


async def test_what_replaces_is_charged_for_what_it_adds(running):
    async with running(limits=Limits(key_bytes_per_day=40_000)) as relay, talk(relay.url) as client:
        for n in range(20):
            assert (await client.publish(note(kind=11_998, ago=100 - n, content="x" * 3_000)))[0]


async def test_quotas_on_disk_hold_for_one_key_and_for_all_and_what_makes_room_is_taken(running):
    limits = Limits(events_bytes=20_000, key_events_bytes=12_000)
    async with running(limits=limits) as relay, talk(relay.url) as client:
        first = note(content="1" + "x" * 5_000)
        assert (await client.publish(first))[0]
        assert (await client.publish(note(content="2" + "x" * 5_000)))[0]
        assert (await client.publish(note(content="3" + "x" * 5_000)))[1].startswith("blocked: this key")
        assert (await client.publish(note(BOB, kind=30_000, content="x" * 5_000, ago=9, tags=[["d", ""]])))[0]
        assert (await client.publish(note(BOB, content="x" * 5_000)))[1].startswith("error: the relay has no room")
        assert (await client.publish(note(BOB, kind=30_000, content="x" * 4_900, tags=[["d", ""]])))[0]
        assert (await client.publish(note(kind=5, tags=[["e", first.id]])))[0]
        assert (await client.publish(note(content="4" + "x" * 4_000)))[0]


async def test_256_nodes_behind_one_address_connect_at_once_and_all_are_heard(running):
    """Those beyond the first hundred were reset."""
    async with running() as relay:

        async def node(number):
            async with connect(relay.url, compression=None, open_timeout=60) as socket:
                client = Talk(socket)
                return (await client.publish(note(Keys.generate(), content=str(number))))[0]

        assert all(await asyncio.gather(*map(node, range(256))))
        assert not relay.counts.turned_away


async def test_an_address_in_debt_opens_no_connection_and_another_does(running):
    async with running(limits=Limits(work_per_s=0.001, work_burst=200)) as relay:
        with pytest.raises((OSError, InvalidHandshake, EOFError)):
            for _ in range(10):
                async with connect(relay.url, local_addr=(GREEDY, 0), open_timeout=60):
                    relay.work.charge(GREEDY, 100)
        async with talk_from(HONEST, relay.url) as honest:
            await honest.ask({"kinds": [1]})
        assert relay.counts.turned_away
