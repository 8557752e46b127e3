"""What this relay does beyond what all relays must: its limits, its refusals, and who is shown what."""

import asyncio
import json

import aiohttp
import pytest
from websockets.asyncio.client import connect

from nodewire.nostr.event import sign
from relay import POLICIES, Config, Limits, serve
from relay.events import schema
from relay.events.expiring import sweep
from relay.events.storing import Job, store
from tests.relay.conversation import ALICE, BOB, NOW, Talk, note, talk


@pytest.fixture
def running(tmp_path):
    """serve(...) with other settings than the usual."""

    def start(policies=POLICIES, clock=lambda: NOW, **settings):
        config = Config(db=tmp_path / "events.sqlite", port=0, **settings)
        return serve(config, policies=policies, clock=clock)

    return start


# NIP-11


async def test_the_same_address_tells_what_the_relay_is(relay):
    async with aiohttp.ClientSession() as http:
        answer = await http.get(relay.http_url, headers={"Accept": "application/nostr+json"})
        document = json.loads(await answer.text())
        page = await http.get(relay.http_url)
    assert answer.content_type == "application/nostr+json"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert {1, 9, 11, 40, 42, 45, 59, 70} == set(document["supported_nips"])
    assert document["limitation"]["max_message_length"] == 131_072
    assert "Nostr relay" in await page.text()


async def test_a_browser_gets_the_site_and_nothing_beside_it(running, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<p>hello")
    (site / "app.js").write_text("1")
    (tmp_path / "secret").write_text("no")
    async with running(site=site) as relay, aiohttp.ClientSession() as http:
        assert await (await http.get(relay.http_url)).text() == "<p>hello"
        assert await (await http.get(relay.http_url + "/app.js")).text() == "1"
        for path in ("/missing", "/%2e%2e/secret", "/..%2fsecret"):
            assert (await http.get(relay.http_url + path)).status == 404


# Limits


async def test_an_event_above_the_limit_is_refused_by_id_and_one_below_is_kept(client):
    accepted, message = await client.publish(note(content="x" * 65_536))
    assert not accepted
    assert message.startswith("invalid:")
    accepted, _ = await client.publish(note(content="x" * 65_000))
    assert accepted


async def test_a_frame_above_the_limit_ends_only_its_own_connection(client, other):
    await client.socket.send("x" * 131_073)
    await client.socket.wait_closed()
    assert client.socket.close_code == 1009
    assert (await other.publish(note()))[0]


async def test_a_client_that_talks_too_fast_is_told_so_in_the_form_it_asked_in(running):
    limits = Limits(messages_per_s=0.001, messages_burst=2)
    async with running(limits=limits) as relay, talk(relay.url) as client:
        assert (await client.publish(note()))[0]
        await client.ask({"kinds": [1]}, name="s")
        assert await client.publish(note(content="2")) == (False, "rate-limited: too many messages, slow down")
        await client.say("REQ", "s", {})
        assert await client.hear() == ["CLOSED", "s", "rate-limited: too many messages, slow down"]


async def test_subscriptions_and_filters_are_counted(running):
    async with running(limits=Limits(subscriptions=2, filters=2)) as relay, talk(relay.url) as client:
        await client.ask({}, name="1")
        await client.ask({}, name="2")
        await client.ask({}, name="2")
        await client.say("REQ", "3", {})
        assert (await client.hear())[:2] == ["CLOSED", "3"]
        await client.say("REQ", "2", {}, {}, {})
        assert (await client.hear())[:2] == ["CLOSED", "2"]


async def test_connections_are_counted(running):
    async with running(limits=Limits(connections=1)) as relay, talk(relay.url) as first:
        with pytest.raises(Exception, match="503"):
            async with talk(relay.url):
                pass
        assert (await first.publish(note()))[0]


async def test_a_reader_that_does_not_read_is_cut_off_and_nobody_waits_for_it(running):
    limits = Limits(outbox_bytes=300_000, messages_per_s=0)
    async with running(limits=limits) as relay, talk(relay.url) as writer, aiohttp.ClientSession() as http:
        slow = await http.ws_connect(relay.url.replace("ws", "http", 1), receive_timeout=None)
        await slow.send_str('["REQ","all",{"limit":0}]')
        while json.loads((await slow.receive()).data)[0] != "EOSE":
            pass
        connection = slow._response.connection.transport
        connection.pause_reading()
        for n in range(400):
            assert (await writer.publish(note(content=f"{n}" + "x" * 60_000)))[0]
            if not relay.fanout._by_key:
                break
        assert not relay.fanout._by_key
        connection.resume_reading()
        while not slow.closed:
            await slow.receive()


async def test_a_large_answer_waits_for_its_reader(running):
    async with running(limits=Limits(outbox_bytes=150_000)) as relay, talk(relay.url) as client:
        events = [note(ago=n, content="x" * 50_000) for n in range(60)]
        for event in events:
            assert (await client.publish(event))[0]
        assert await client.ask({"kinds": [1]}) == [event.id for event in events]


async def test_between_stored_and_live_events_there_is_no_gap_and_no_double(relay, client, other):
    events = [note(content=str(n)) for n in range(400)]

    async def flood():
        for event in events:
            await other.say("EVENT", event.as_dict())

    flooding = asyncio.create_task(flood())
    names = [f"s{n}" for n in range(20)]
    heard = {name: [] for name in names}
    for name in names:
        await client.say("REQ", name, {"kinds": [1], "limit": 500})
        await asyncio.sleep(0.002)
    await flooding
    last = note(kind=7)
    await client.say("REQ", "last", {"kinds": [7]})
    for _ in events:
        await other.until("OK")
    await other.publish(last)
    while (message := await client.hear())[0] != "EVENT" or message[1] != "last":
        if message[0] == "EVENT":
            heard[message[1]].append(message[2]["id"])
    for name in names:
        assert sorted(heard[name]) == sorted(event.id for event in events)


async def test_an_event_that_the_query_saw_before_its_delivery_comes_once(relay, client, other):
    held = []

    class Holding:
        """The writer's way back to the event loop, held up between its commit and the delivery."""

        def call_soon_threadsafe(self, *call):
            held.append(call)

    loop, relay.writer._loop = relay.writer._loop, Holding()
    event, later = note(), note(content="later")
    await other.say("EVENT", event.as_dict())
    for _ in range(1_000):
        if await client.count({"kinds": [1]}):
            break
    assert await client.ask({"kinds": [1]}, name="s") == [event.id]
    relay.writer._loop = loop
    for call in held:
        loop.call_soon_threadsafe(*call)
    await other.until("OK")
    await other.publish(later)
    assert (await client.hear())[2]["id"] == later.id


# Refusals


@pytest.mark.parametrize("kind", [13, 9734, 22242, 24242, 27235])
async def test_what_is_meant_for_one_receiver_is_not_published(client, kind):
    accepted, message = await client.publish(note(kind=kind))
    assert not accepted
    assert message.startswith("blocked:")


async def test_an_event_from_the_future_is_refused(client):
    accepted, message = await client.publish(note(ago=-1_000))
    assert not accepted
    assert message.startswith("invalid:")


async def test_an_ephemeral_event_of_the_past_is_refused(client):
    assert (await client.publish(note(kind=20_001, ago=100)))[0] is False


async def test_the_sender_of_an_ephemeral_event_learns_that_nobody_listens(client, other):
    assert await client.publish(note(kind=20_001)) == (True, "mute: nobody listens")
    await other.ask({"kinds": [20_001]}, name="s")
    assert await client.publish(note(kind=20_001)) == (True, "")


async def test_a_long_indexed_tag_is_refused_and_a_long_description_is_not(client):
    assert (await client.publish(note(tags=[["t", "x" * 1_025]])))[0] is False
    assert (await client.publish(note(tags=[["description", "x" * 5_000]])))[0] is True


async def test_an_operators_own_policy_is_one_more_function(running):
    def is_polite(event, visit):
        return ("please" not in event.content, "blocked: say please")

    async with running(policies=[*POLICIES, is_polite]) as relay, talk(relay.url) as client:
        assert await client.publish(note()) == (False, "blocked: say please")
        assert (await client.publish(note(content="please")))[0]


# Evidence


async def test_evidence_cannot_be_deleted_nor_expire(client):
    vote = note(kind=8850)
    await client.publish(vote)
    assert (await client.publish(note(kind=5, tags=[["e", vote.id]])))[0]
    assert await client.ask({"ids": [vote.id]}) == [vote.id]
    accepted, message = await client.publish(note(kind=8853, tags=[["expiration", str(NOW + 99)]]))
    assert not accepted
    assert message.startswith("blocked:")


async def test_evidence_is_taken_even_if_its_deletion_came_first(client):
    vote = note(kind=8853)
    await client.publish(note(kind=5, tags=[["e", vote.id]]))
    assert (await client.publish(vote))[0]


async def test_a_deletion_of_a_deletion_has_no_effect(client):
    first = note(kind=5, tags=[["e", "0" * 64]])
    await client.publish(first)
    await client.publish(note(kind=5, tags=[["e", first.id]]))
    assert await client.ask({"ids": [first.id]}) == [first.id]


async def test_the_addressee_may_delete_a_wrap(client):
    wrap = note(kind=1059, tags=[["p", BOB.public]])
    await client.publish(wrap)
    await client.publish(note(BOB, kind=5, tags=[["e", wrap.id]]))
    assert await client.ask({"ids": [wrap.id]}) == []
    assert (await client.publish(wrap))[0] is False


# NIP-40


async def test_what_has_expired_is_not_served_any_more(running):
    time = [NOW]
    async with running(clock=lambda: time[0]) as relay, talk(relay.url) as client:
        event = note(kind=11_998, tags=[["expiration", str(NOW + 10)], ["t", "x"]])
        await client.publish(event)
        assert await client.ask({"#t": ["x"]}) == [event.id]
        time[0] += 11
        assert await client.ask({"#t": ["x"]}) == []
        assert await client.count({"#t": ["x"]}) == 0


def test_what_has_expired_is_swept_away_with_its_tags(tmp_path):
    db = schema.open_writer(tmp_path / "events.sqlite", "NORMAL")
    for ago, moment in [(1, NOW), (2, NOW + 1), (3, None)]:
        event = note(ago=ago, tags=[["t", "x"]])
        store(db, Job(event, event.to_json(), moment, lambda _: None), Config(db=tmp_path))
    assert sweep(db, NOW + 1) == 1
    assert db.execute("SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM tag)").fetchone() == (2, 2)
    db.close()


# NIP-42 and NIP-70


async def authenticate(client, to, keys, **changes):
    tags = {"relay": to.url, "challenge": client.challenge} | changes
    event = sign(keys, 22242, created_at=changes.get("at", NOW), tags=[[k, v] for k, v in tags.items() if k != "at"])
    await client.say("AUTH", event.as_dict())
    ok, _ = await client.until("OK")
    assert ok[1] == event.id
    return ok[2], ok[3]


@pytest.fixture
async def private(running):
    async with running(wraps_need_auth=True) as relay:
        yield relay


async def greeted(client):
    await client.ask({"kinds": [9]})  # the challenge has come by then
    return client


async def test_wraps_are_shown_only_to_the_keys_they_are_addressed_to(private):
    wrap, public = note(kind=1059, tags=[["p", BOB.public]]), note(ago=1)
    live = note(kind=21_059, tags=[["p", BOB.public]])
    async with talk(private.url) as bob, talk(private.url) as eve, talk(private.url) as sender:
        await sender.publish(wrap)
        await sender.publish(public)
        await eve.say("REQ", "s", {"kinds": [1059]})
        assert (await eve.hear())[2].startswith("auth-required:")
        assert await eve.ask({}, name="all") == [public.id]
        assert await eve.count({}) == 1
        assert (await authenticate(eve, private, ALICE))[0]
        assert await eve.ask({"kinds": [1059]}) == []
        await greeted(bob)
        assert (await authenticate(bob, private, BOB))[0]
        assert await bob.ask({}, name="all") == [wrap.id, public.id]
        await sender.publish(live)
        assert (await bob.hear())[2]["id"] == live.id
        await sender.publish(note(content="end"))
        assert (await eve.hear())[2]["content"] == "end"


@pytest.mark.parametrize(("proxies", "accepted"), [({"127.0.0.1"}, True), ((), False)])
async def test_behind_its_operators_proxy_a_relay_is_dialled_by_tls_and_nobody_else_says_so(running, proxies, accepted):
    async with running(proxies=frozenset(proxies)) as relay:
        by_tls = "wss://127.0.0.1"
        headers = {"X-Forwarded-Proto": "https"}
        port = int(relay.url.rpartition(":")[2])
        async with connect("ws://127.0.0.1", host="127.0.0.1", port=port, additional_headers=headers) as socket:
            client = Talk(socket)
            await greeted(client)
            assert (await authenticate(client, relay, BOB, relay=by_tls))[0] is accepted


async def test_a_challenge_is_answered_for_this_relay_and_now_and_with_ones_own_signature(private):
    async with talk(private.url) as client:
        await greeted(client)
        for changes in ({"challenge": "x"}, {"relay": "ws://elsewhere.example"}, {"at": NOW - 3_600}):
            accepted, message = await authenticate(client, private, BOB, **changes)
            assert not accepted
            assert message.startswith("invalid:")
        forged = sign(BOB, 22242, created_at=NOW, tags=[["relay", private.url], ["challenge", client.challenge]])
        await client.say("AUTH", {**forged.as_dict(), "sig": "0" * 128})
        assert (await client.until("OK"))[0][2] is False


async def test_several_keys_may_authenticate_on_one_connection(private):
    async with talk(private.url) as client:
        await greeted(client)
        assert (await authenticate(client, private, ALICE))[0]
        assert (await authenticate(client, private, BOB))[0]
        wrap = note(kind=1059, tags=[["p", ALICE.public]])
        await client.publish(wrap)
        assert await client.ask({"kinds": [1059]}) == [wrap.id]


async def test_a_protected_event_comes_from_its_author_or_not_at_all(private):
    event = note(tags=[["-"]])
    async with talk(private.url) as client:
        assert (await client.publish(event))[1].startswith("auth-required:")
        await authenticate(client, private, BOB)
        assert (await client.publish(event))[1].startswith("restricted:")
        assert (await client.publish(note(BOB, kind=6, content=event.to_json())))[1].startswith("blocked:")
        await authenticate(client, private, ALICE)
        assert (await client.publish(event))[0]
