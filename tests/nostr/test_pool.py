"""A pool against independent relays (nostr-sdk's LocalRelay), and against relays that lie, stall and flood."""

import asyncio
import contextlib
import time

import nostr_sdk
import orjson
import pytest
import uvloop
from websockets.asyncio.server import serve

from nodewire.errors import BadConfig, BadInput, RelayRefused, TimedOut, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr import link as links
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip01, nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool

KEYS = Keys(b"\x01" * 32)
NOTES = [Filter(kinds={1})]
DEAD = "ws://127.0.0.1:9"  # the discard port, where nobody listens
FAST = {"first_pause_s": 0.02, "last_pause_s": 0.05, "linger_s": 0.2}


def note(content="x", kind=1, tags=()):
    return events.sign(KEYS, kind, created_at=int(time.time()), content=content, tags=tags)


@contextlib.asynccontextmanager
async def local_relay(port=None, auth=None):
    """An in-memory relay of nostr-sdk."""
    builder = nostr_sdk.LocalRelayBuilder()
    if port is not None:
        builder = builder.port(port)
    if auth is not None:
        builder = builder.nip42(nostr_sdk.LocalRelayBuilderNip42(mode=auth))
    relay = builder.build()
    await relay.run()
    try:
        yield str(await relay.url()).rstrip("/")
    finally:
        relay.shutdown()


@contextlib.asynccontextmanager
async def scripted_relay(script):
    """A relay that does with each connection what `script(socket)` says."""
    async with serve(script, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def replies(socket, answer):
    """Answer each message by the messages that `answer(message)` gives."""
    async for text in socket:
        for said in answer(orjson.loads(text)):
            await socket.send(said if isinstance(said, str) else said.to_json())


async def next_of(subscription, seconds=5):
    return await asyncio.wait_for(anext(subscription), seconds)


async def until(check, seconds=5):
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


async def test_what_is_published_is_fetched_counted_and_heard():
    async with local_relay() as url, Pool([url], **FAST) as pool:
        event = note()
        subscription = pool.subscribe(NOTES)
        await subscription.eose
        assert (await pool.publish(event))[url].accepted
        assert await next_of(subscription) == event
        assert await pool.fetch(NOTES) == [event]
        assert await pool.count(NOTES) == {url: 1}
        (status,) = pool.relays
        assert (status.url, status.state, status.invalid) == (url, "connected", 0)


async def test_an_ephemeral_event_reaches_who_subscribed_before_it():
    async with local_relay() as url, Pool([url], **FAST) as pool:
        subscription = pool.subscribe([Filter(kinds={28_840})])
        event = note(kind=28_840)
        await pool.publish(event)  # one connection keeps the order of REQ and EVENT
        assert await next_of(subscription) == event


async def test_a_wrapped_event_passes_between_two_pools():
    other = Keys(b"\x02" * 32)
    async with local_relay() as url, Pool([url], **FAST) as one, Pool([url], **FAST) as two:
        subscription = two.subscribe([Filter(kinds={21_059}, tags={"p": {other.public}})])
        await subscription.eose
        rumor = nip59.rumor(KEYS.public, 28_841, created_at=1, content="ticket")
        await one.publish(nip59.wrap(rumor, KEYS, other.public, now_s=int(time.time()), ephemeral=True))
        assert nip59.unwrap(await next_of(subscription), other) == rumor


async def test_two_relays_answer_as_one_and_each_event_comes_once():
    async with local_relay() as one, local_relay() as two:
        both, first, second = note("both"), note("first"), note("second")
        async with Pool([one], **FAST) as only_one, Pool([two], **FAST) as only_two:
            await only_one.publish(first)
            await only_two.publish(second)
        async with Pool([one, two], **FAST) as pool:
            assert set(await pool.publish(both, wait_all=True)) == {one, two}
            subscription = pool.subscribe(NOTES)
            await subscription.eose
            assert subscription.standing == {one: "eose", two: "eose"}
            assert sorted(event.content for event in subscription.drain()) == ["both", "first", "second"]
            assert {event.content for event in await pool.fetch(NOTES)} == {"both", "first", "second"}
            live = note("live")
            await pool.publish(live, wait_all=True)
            assert await next_of(subscription) == live
            assert subscription.drain() == []


async def test_stored_events_come_newest_first():
    async with local_relay() as url, Pool([url], **FAST) as pool:
        made = [events.sign(KEYS, 1, created_at=created_at) for created_at in (5, 9, 7)]
        for event in made:
            await pool.publish(event)
        assert [event.created_at for event in await pool.fetch(NOTES)] == [9, 7, 5]


async def test_after_a_restart_of_the_relay_subscriptions_go_on_and_nothing_comes_twice():
    async with contextlib.AsyncExitStack() as stack:
        async with local_relay() as url:
            pool = await stack.enter_async_context(Pool([url], **FAST))
            subscription = pool.subscribe(NOTES)
            before = note("before")
            await pool.publish(before)
            assert await next_of(subscription) == before
        await until(lambda: pool.relays[0].state == "waiting")
        after = note("after")
        publishing = asyncio.create_task(pool.publish(after))  # while the relay is away
        await stack.enter_async_context(local_relay(port=int(url.rsplit(":", 1)[1])))
        assert (await publishing)[url].accepted
        assert await next_of(subscription) == after
        await pool.publish(before)
        last = note("last")
        await pool.publish(last)
        assert await next_of(subscription) == last
        assert pool.relays[0].connections == 2


async def test_one_dead_relay_holds_nothing_up():
    async with local_relay() as url, Pool([DEAD, url], **FAST) as pool:
        event = note()
        assert set(await pool.publish(event)) == {url}
        assert await pool.fetch(NOTES) == [event]
        dead, alive = pool.relays
        assert (dead.state, alive.state) == ("waiting", "connected")
        assert "Refused" in dead.reason


async def test_with_no_relay_in_reach_everything_times_out():
    async with Pool([DEAD], **FAST) as pool:
        for ask in (pool.publish(note(), 0.1), pool.fetch(NOTES, 0.1), pool.count(NOTES, 0.1)):
            with pytest.raises(TimedOut):
                await ask


async def test_a_pool_authenticates_where_a_relay_asks_and_it_has_keys():
    mode = nostr_sdk.LocalRelayBuilderNip42Mode.BOTH
    async with local_relay(auth=mode) as url:
        async with Pool([url], KEYS, **FAST) as pool:
            event = note()
            subscription = pool.subscribe(NOTES)
            assert (await pool.publish(event))[url].accepted
            assert await next_of(subscription) == event
            assert await pool.fetch(NOTES) == [event]
            assert pool.relays[0].authenticated
        async with Pool([url], **FAST) as stranger:
            with pytest.raises(RelayRefused, match="auth-required"):
                await stranger.publish(note())
            with pytest.raises(RelayRefused, match="auth-required"):
                await stranger.fetch(NOTES)
            refused = stranger.subscribe(NOTES)
            assert [event async for event in refused] == []
            assert refused.standing == {url: "refused"}
            assert refused.closed[url].startswith("auth-required")


async def test_a_publication_is_refused_when_all_relays_refuse():
    def no(message):
        return [nip01.Ok(message[1]["id"], False, "blocked: not here")] if message[0] == "EVENT" else []

    async with scripted_relay(lambda socket: replies(socket, no)) as url:
        async with Pool([url], **FAST) as pool:
            with pytest.raises(RelayRefused, match="blocked: not here"):
                await pool.publish(note())
        async with local_relay() as good, Pool([url, good], **FAST) as pool:
            assert (await pool.publish(note(), wait_all=True))[good].accepted


async def test_a_count_that_is_refused_or_not_answered():
    def refuse(message):
        return [nip01.ClosedMessage(message[1], "unsupported: no counting")] if message[0] == "COUNT" else []

    async with scripted_relay(lambda socket: replies(socket, refuse)) as url, Pool([url], **FAST) as pool:
        with pytest.raises(RelayRefused, match="unsupported"):
            await pool.count(NOTES)
    async with scripted_relay(lambda socket: replies(socket, lambda _: [])) as url, Pool([url], **FAST) as pool:
        with pytest.raises(TimedOut):
            await pool.count(NOTES, 0.05)


async def test_events_that_are_false_or_were_not_asked_for_are_dropped_and_counted():
    true, other = note("true"), note("other", kind=7)
    forged = nip01.RelayEvent("n1", true).to_json().replace("true", "forged")

    def lie(message):
        if message[0] != "REQ":
            return []
        return [forged, nip01.RelayEvent("n1", other), nip01.RelayEvent("n1", true), forged, nip01.Eose("n1")]

    async with scripted_relay(lambda socket: replies(socket, lie)) as url, Pool([url], **FAST) as pool:
        assert await pool.fetch(NOTES) == [true]
        # The last forgery has the id of an event that came already, and is a duplicate like any other.
        assert (pool.relays[0].invalid, pool.relays[0].events) == (2, 2)


async def test_a_forgery_from_one_relay_does_not_hide_the_event_from_another():
    true = note("true")
    sent = asyncio.Event()

    async def liar(socket):
        forged = nip01.RelayEvent("n1", true).to_json().replace("true", "forged")
        await replies(socket, lambda message: [forged, nip01.Eose("n1")] if message[0] == "REQ" else sent.set() or [])

    async def honest(socket):
        async for text in socket:
            if orjson.loads(text)[0] == "REQ":
                await until(lambda: pool.relays[0].invalid == 1)
                await socket.send(nip01.RelayEvent("n1", true).to_json())
                await socket.send(nip01.Eose("n1").to_json())

    async with scripted_relay(liar) as one, scripted_relay(honest) as two, Pool([one, two], **FAST) as pool:
        assert await pool.fetch(NOTES) == [true]


async def test_a_relay_that_talks_nonsense_is_left_and_tried_again_later():
    async def babble(socket):
        for _ in range(200):
            await socket.send("nonsense")
        await socket.wait_closed()

    async with scripted_relay(babble) as url, Pool([url], **FAST) as pool:
        await until(lambda: pool.relays[0].connections >= 2)
        assert pool.relays[0].invalid >= links.MAX_INVALID


async def test_a_message_above_the_bound_ends_the_connection():
    async def flood(socket):
        with contextlib.suppress(Exception):
            await socket.send("x" * (nip01.MAX_RELAY_FRAME_BYTES + 1))
            await socket.wait_closed()

    async with scripted_relay(flood) as url, Pool([url], **FAST) as pool:
        await until(lambda: "1009" in pool.relays[0].reason)


async def test_strangers_events_that_are_too_large_end_no_connection():
    true = note("true")
    larger = nip01.RelayEvent("n1", true).to_json().replace("true", "x" * nip01.MAX_MESSAGE_BYTES)
    answer = [*[larger] * (links.MAX_INVALID + 1), nip01.RelayEvent("n1", true).to_json(), nip01.Eose("n1").to_json()]

    async with (
        scripted_relay(lambda socket: replies(socket, lambda said: answer * (said[0] == "REQ"))) as url,
        Pool([url], **FAST) as pool,
    ):
        assert await pool.fetch(NOTES) == [true]
        assert (pool.relays[0].connections, pool.relays[0].invalid) == (1, len(answer) - 2)


async def test_a_slow_reader_loses_the_oldest_events_and_learns_how_many():
    made = [note(str(n)) for n in range(20)]

    def all_at_once(message):
        return [*(nip01.RelayEvent(message[1], event) for event in made), nip01.Eose(message[1])] * (
            message[0] == "REQ"
        )

    async with scripted_relay(lambda socket: replies(socket, all_at_once)) as url, Pool([url], **FAST) as pool:
        subscription = pool.subscribe(NOTES, max_queued=5)
        await subscription.eose
        assert subscription.dropped == 15
        assert subscription.drain() == made[-5:]


async def test_a_queue_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr("nodewire.nostr.subscription.MAX_QUEUED_BYTES", 50_000)
    made = [note("x" * 20_000 + str(n)) for n in range(4)]

    def all_at_once(message):
        return [*(nip01.RelayEvent(message[1], event) for event in made), nip01.Eose(message[1])] * (
            message[0] == "REQ"
        )

    async with scripted_relay(lambda socket: replies(socket, all_at_once)) as url, Pool([url], **FAST) as pool:
        subscription = pool.subscribe(NOTES)
        await subscription.eose
        assert subscription.drain() == made[-2:]
        assert subscription.dropped == 2


async def test_a_fetch_takes_what_came_from_those_that_answered_in_time():
    event = note()

    async with (
        local_relay() as good,
        scripted_relay(lambda socket: replies(socket, lambda _: [])) as silent,
        Pool([good, silent], **FAST) as pool,
    ):
        await pool.publish(event)
        assert await pool.fetch(NOTES, 0.3) == [event]


async def test_fetch_all_asks_on_where_relays_cap_their_answers():
    def capped_relay(stored, cap):
        """A relay that sends at most `cap` events per filter, newest first, as most relays do."""

        def answer(message):
            if message[0] != "REQ":
                return []
            asked = [nip01.parse_filter(data) for data in message[2:]]
            newest = sorted(stored, key=nip01.newest_first)
            hits = [[event for event in newest if one.matches(event)][:cap] for one in asked]
            return [*(nip01.RelayEvent(message[1], event) for hit in hits for event in hit), nip01.Eose(message[1])]

        return scripted_relay(lambda socket: replies(socket, answer))

    made = [events.sign(KEYS, 1 + 6 * (n % 3 == 0), created_at=n // 4, content=str(n)) for n in range(80)]
    wanted = [Filter(kinds={1}, limit=1), Filter(kinds={7}, since=10)]
    due = [event for event in made if event.kind == 1 or event.created_at >= 10]
    async with (
        capped_relay(made[::2] + made[1:7:2], 5) as one,
        capped_relay(made[1::2], 7) as two,
        Pool([one, DEAD, two], **FAST) as pool,
    ):
        assert len(await pool.fetch([Filter(kinds={1, 7})])) == 12
        assert await pool.fetch_all(wanted) == sorted(due, key=nip01.newest_first)
        assert len(await pool.fetch_all(wanted, max_events=20)) == 20


async def test_fetch_all_asks_for_smaller_pages_where_events_are_large(monkeypatch):
    monkeypatch.setattr("nodewire.nostr.subscription.MAX_QUEUED_BYTES", 100_000)
    made = [events.sign(KEYS, 1, created_at=n, content="x" * 20_000) for n in range(12)]
    async with local_relay() as url, Pool([url], **FAST) as pool:
        for event in made:
            await pool.publish(event)
        assert await pool.fetch_all(NOTES) == made[::-1]


async def test_fetch_asks_for_no_more_than_it_takes():
    made = [events.sign(KEYS, 1, created_at=n) for n in range(5)]
    async with local_relay() as url, Pool([url], **FAST) as pool:
        for event in made:
            await pool.publish(event)
        assert await pool.fetch(NOTES, max_events=2) == [made[4], made[3]]


async def test_fetch_all_from_nobody_or_from_those_that_refuse():
    def refuse(message):
        return [nip01.ClosedMessage(message[1], "restricted: no")] if message[0] == "REQ" else []

    async with Pool([DEAD], **FAST) as pool:
        with pytest.raises(TimedOut):
            await pool.fetch_all(NOTES, 0.1)
    async with scripted_relay(lambda socket: replies(socket, refuse)) as url, Pool([url], **FAST) as pool:
        with pytest.raises(RelayRefused, match="restricted: no"):
            await pool.fetch_all(NOTES)


async def test_an_iteration_ends_with_its_subscription_and_with_the_pool():
    async with local_relay() as url:
        async with Pool([url], **FAST) as pool:
            async with pool.subscribe(NOTES) as subscription:
                await pool.publish(note())
                await subscription.eose
                await until(lambda: subscription.queued)
                waiting = asyncio.create_task(_all(subscription))
                await asyncio.sleep(0)
            assert len(await waiting) == 1
            last = asyncio.create_task(_all(pool.subscribe(NOTES)))
            await asyncio.sleep(0)
        await asyncio.wait_for(last, 5)
        assert [status.state for status in pool.relays] == ["closed"]


async def _all(subscription):
    return [event async for event in subscription]


async def test_leaving_the_pool_gives_the_other_relays_a_moment():
    async with local_relay() as one, local_relay() as two:
        event = note()
        async with Pool([one, two], **FAST) as pool:
            await pool.publish(event)
        async with Pool([two], **FAST) as pool:
            assert await pool.fetch(NOTES) == [event]


@pytest.mark.parametrize(
    "urls",
    [
        [],
        ["https://x"],
        ["ws://"],
        ["nonsense"],
        ["ws://[::1"],
        ["ws://x:99999"],
        ["ws://a..b"],
        [f"ws://h{n}" for n in range(65)],
    ],
)
def test_what_is_no_list_of_relays_is_refused(urls):
    with pytest.raises(BadConfig, match="relays"):
        Pool(urls)


async def test_filters_have_bounds():
    async with Pool([DEAD], **FAST) as pool:
        with pytest.raises(BadInput):
            pool.subscribe([])
        with pytest.raises(TooLarge):
            pool.subscribe(NOTES * 65)


def test_a_pool_runs_on_uvloop():
    async def main():
        async with local_relay() as url, Pool([url], KEYS, **FAST) as pool:
            event = note()
            await pool.publish(event)
            assert await pool.fetch(NOTES) == [event]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
