"""One address that has a relay hold and keep for it whatever it may: filters, answers, deletions, tiny blobs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json

import aiohttp
import pytest
from websockets.asyncio.client import connect

from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip42, nipb7
from relay import BlobLimits, Config, Limits, serve
from relay.events.querying import PAGE, load
from tests.relay.conversation import ALICE, BOB, NOW, Talk, note

HONEST, GREEDY = "127.0.0.7", "127.0.0.8"
NEVER = {"since": 2**52, "limit": 0}


@pytest.fixture
def running(tmp_path):
    def start(**settings):
        return serve(Config(db=tmp_path / "e.sqlite", port=0, blobs=tmp_path / "b", **settings), clock=lambda: NOW)

    return start


@contextlib.asynccontextmanager
async def talk_from(address, relay):
    async with connect(relay.url, compression=None, max_queue=None, local_addr=(address, 0)) as socket:
        yield Talk(socket)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def shouted(n, tag="a", size=60_000):
    """An event that is passed on and not kept."""
    return sign(ALICE, 21_000, created_at=NOW, content=f"{n}" + "x" * size, tags=[["t", tag]])


# Filters


async def test_an_address_has_a_share_of_filters_and_another_its_own(running):
    async with running(limits=Limits(standing_values=5_000)) as relay:
        async with talk_from(GREEDY, relay) as greedy, talk_from(HONEST, relay) as honest:
            for n in range(4):
                await greedy.say("REQ", f"{n}", {"#t": [f"{n} {i}" for i in range(2_000)], "limit": 0})
            answers = [await greedy.hear() for _ in range(4)]
            assert [verb for verb, *_ in answers] == ["EOSE", "EOSE", "CLOSED", "CLOSED"]
            assert answers[2][2].startswith("rate-limited: your address")
            assert relay.standing[GREEDY] <= 5_000
            await honest.ask({"#t": [f"{i}" for i in range(2_000)], "limit": 0}, name="mine")
            await greedy.say("CLOSE", "0")
            await greedy.ask({"#t": [f"{i}" for i in range(1_000)], "limit": 0}, name="again")
        await until(lambda: not relay.standing)


async def test_filters_that_match_nothing_hold_up_nobodys_events(running):
    async with (
        running(limits=Limits(tests_per_s=1.0, tests_burst=20_000)) as relay,
        talk_from(HONEST, relay) as honest,
        talk_from(GREEDY, relay) as modest,
    ):
        await honest.ask({"kinds": [1], "limit": 0}, name="mine")
        await modest.ask({"kinds": [1], "limit": 0}, name="mine")
        async with talk_from(GREEDY, relay) as greedy:
            for n in range(100):
                await greedy.ask(*[NEVER] * 32, name=f"{n}")
            for n in range(20):
                assert (await honest.publish(note(content=f"{n}")))[0]
            await asyncio.wait_for(greedy.socket.wait_closed(), 10)
            assert "too many events" in greedy.socket.close_reason
        assert (await modest.publish(note(content="of the same address")))[0]


async def test_a_connection_authenticates_few_keys_for_each_query_is_held_against_all(running):
    """With 30,000 each REQ of 30 kinds took the relay's loop half a second, at the price of a short one."""
    async with running(limits=Limits(keys=3)) as relay, talk_from(GREEDY, relay) as greedy:
        await greedy.ask({"kinds": [1]})
        taken = []
        for n in (0, 1, 2, 3, 0):
            keys = Keys(bytes([n + 1]) * 32)
            await greedy.say(
                "AUTH", nip42.build(keys, relay_url=relay.url, challenge=greedy.challenge, now_s=NOW).as_dict()
            )
            answer, _ = await greedy.until("OK")
            taken.append(answer[2])
        assert taken == [True, True, True, False, True]


# What waits to be sent


async def test_what_waits_for_one_addresss_readers_is_bounded_and_others_get_theirs(running):
    limits = Limits(outbox_bytes=2**20, address_outbox_bytes=2**20)
    async with running(limits=limits) as relay, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(6):
            # A small window: nothing but the relay holds what is not read.
            socket = await stack.enter_async_context(
                connect(relay.url, compression=None, max_queue=1, local_addr=(GREEDY, 0), close_timeout=0.1)
            )
            for n in range(15):
                await socket.send(json.dumps(["REQ", f"{n}", {"#t": ["a"], "limit": 0}]))
            readers.append(socket)
        await until(lambda: relay.counts.subscriptions == 90)
        honest = await stack.enter_async_context(talk_from(HONEST, relay))
        await honest.ask({"#t": ["b"], "limit": 0}, name="mine")
        most = 0
        for n in range(4):
            await honest.publish(shouted(n))
            most = max(most, relay.unsent_bytes(GREEDY))
        await honest.publish(shouted(9, "b"))
        assert most <= 2**20 + 6 * 2**17
        assert relay.counts.cut


async def test_a_page_of_large_events_is_short(running):
    async with running() as relay:
        async with talk_from(HONEST, relay) as honest:
            sent = [note(content=f"{n}" + "x" * 40_000, ago=n) for n in range(30)]
            for event in sent:
                assert (await honest.publish(event))[0]
            assert await honest.ask({"kinds": [1]}) == [event.id for event in sent]
        page = load(relay.writer._db, list(range(1, 31)))
        assert page.length == 10 == len(page.jsons)
    assert page.length < PAGE


# What is kept


def of_nothing(n, keys=ALICE, names=400, **more):
    """A deletion of what never was."""
    tags = [["e", hashlib.sha256(f"{n} {i}".encode()).hexdigest()] for i in range(names)]
    return sign(keys, 5, created_at=NOW, tags=[*tags, *more.get("tags", ())])


async def test_deletions_of_nothing_fill_no_more_than_a_keys_share(running):
    limits = Limits(key_events_bytes=100_000, events_bytes=400_000)
    async with running(limits=limits) as relay, talk_from(GREEDY, relay) as greedy, talk_from(HONEST, relay) as honest:
        short = note(BOB, content="a word")
        assert (await honest.publish(short))[0]
        answers = [await greedy.publish(of_nothing(n)) for n in range(8)]
        assert [taken for taken, _ in answers][:2] == [True, True]
        assert not any(taken for taken, _ in answers[4:])
        assert answers[-1][1].startswith("blocked: this key")
        for n in range(8):
            await greedy.publish(of_nothing(n, Keys.generate()))
            await greedy.publish(of_nothing(n, Keys.generate()))
        assert (await greedy.publish(of_nothing(9, Keys.generate())))[1].startswith("error: the relay has no room")
        # Who takes something back is heard all the same.
        assert (await honest.publish(sign(BOB, 5, created_at=NOW, tags=[["e", short.id]])))[0]
        assert await honest.ask({"ids": [short.id]}) == []


async def test_deletions_count_in_what_an_address_stores_in_a_day(running):
    async with running(limits=Limits(address_bytes_per_day=400_000)) as relay, talk_from(GREEDY, relay) as greedy:
        answers = [await greedy.publish(of_nothing(n)) for n in range(8)]
        assert answers[0][0]
        assert answers[-1][1].startswith("rate-limited: your address")


async def test_a_deletion_does_not_expire_for_its_names_would_stay(running):
    async with running() as relay, talk_from(GREEDY, relay) as greedy:
        taken, reason = await greedy.publish(of_nothing(0, names=3, tags=[["expiration", str(NOW + 60)]]))
        assert not taken
        assert reason.startswith("blocked")


async def test_who_has_much_indexed_pays_for_it(running):
    async with running(limits=Limits(work_per_s=0.001)) as relay, talk_from(GREEDY, relay) as greedy:
        letters = "abcdefghijklmnopqrstuvwxyz"
        event = note(tags=[[letters[n % 26], f"{n}"] for n in range(1_500)])
        before = relay.work.available(GREEDY)
        assert (await greedy.publish(event))[0]
        assert before - relay.work.available(GREEDY) > 100


async def test_a_tiny_blob_counts_as_what_it_takes_of_a_disk(running):
    quota = 16 * BlobLimits().least_blob_bytes
    limits = BlobLimits(quota_bytes=quota, key_quota_bytes=quota // 2, address_bytes=quota)
    async with running(blob_limits=limits) as relay:

        async def put(n, keys=ALICE, address=GREEDY):
            body = f"{n}".encode()
            sha256 = hashlib.sha256(body).hexdigest()
            token = nipb7.build_token(keys, "upload", now_s=NOW, expires_at_s=NOW + 600, hashes=[sha256])
            connector = aiohttp.TCPConnector(local_addr=(address, 0))
            async with aiohttp.ClientSession(relay.http_url, connector=connector) as http:
                answer = await http.put("/upload", data=body, headers={"Authorization": nipb7.to_header(token)})
                return answer.status

        assert [await put(n) for n in range(9)] == [200] * 8 + [413]
        assert [await put(n, BOB, HONEST) for n in range(10, 19)] == [200] * 8 + [413]
        assert await put(20, Keys.generate(), HONEST) == 413
