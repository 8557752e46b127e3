"""What a relay shows Prometheus: what came of events, who listens, what is on the disk."""

import asyncio

import pytest

from nodewire.metrics import endpoint
from relay import Config, Limits, exporting, serve
from tests.metrics.scrape import fetched, value
from tests.relay.conversation import ALICE, NOW, note, talk


@pytest.fixture
async def shown(relay, monkeypatch):
    """What the endpoint says now."""
    monkeypatch.setattr(endpoint, "FRESH_S", 0.0)
    async with endpoint.serve_metrics(exporting.exposed(relay, "127.0.0.1:0")) as url:

        async def read(name, **labels):
            return value(await asyncio.to_thread(fetched, url), f"nodewire_relay_{name}", **labels)

        yield read


async def test_events_are_counted_by_what_came_of_them(client, shown):
    event = note()
    assert (await client.publish(event))[0]
    assert (await client.publish(event))[0]
    assert not (await client.publish(note(kind=22242)))[0]
    assert not (await client.publish({**note(content="x").as_dict(), "sig": "0" * 128}))[0]
    assert (await client.publish(note(kind=20_001)))[0]
    assert await shown("events_total", outcome="accepted", reason="") == 1
    assert await shown("events_total", outcome="accepted", reason="duplicate") == 1
    assert await shown("events_total", outcome="accepted", reason="mute") == 1
    assert await shown("events_total", outcome="refused", reason="blocked") == 1
    assert await shown("events_total", outcome="refused", reason="invalid") == 1
    assert await shown("ingest_seconds_count") == 5
    assert await shown("fanout_seconds_count") == 2  # the one that is new, and the ephemeral one
    assert 0 < await shown("ingest_seconds_sum") < 5


async def test_messages_that_are_not_taken_are_counted(client, shown):
    await client.socket.send("no JSON")
    await client.say("EVENT", {"id": "x"})
    await client.say("COFFEE")
    for _ in range(3):
        await client.hear()
    assert await shown("messages_refused_total", reason="invalid") >= 2
    assert await shown("events_total", outcome="refused", reason="invalid") == 0


async def test_an_operators_own_words_are_one_reason(tmp_path):
    def refuses(event, visit):
        return True, f"{event.content} is not to my taste"

    config = Config(db=tmp_path / "events.sqlite", port=0)
    async with serve(config, policies=[refuses], clock=lambda: NOW) as relay, talk(relay.url) as client:
        for n in range(20):
            assert not (await client.publish(note(content=f"{n}")))[0]
        assert relay.counts.answers == {(False, "other"): 20}


async def test_who_listens_is_counted_and_who_has_left_is_not(relay, client, other, shown):
    assert await shown("connections") == 2
    await client.ask({"kinds": [1]}, name="mine")
    await client.ask({"kinds": [1]}, name="mine")  # in the place of the first
    await other.ask({"authors": [ALICE.public]}, name="yours")
    assert await shown("subscriptions") == 2
    await other.publish(note())
    assert await shown("events_delivered_total") == 2
    await client.say("CLOSE", "mine")
    await client.ask({"kinds": [1]})
    assert await shown("subscriptions") == 1
    await other.socket.close()
    async with asyncio.timeout(30):
        while await shown("subscriptions") or await shown("connections") != 1:
            await asyncio.sleep(0.01)


async def test_who_finds_no_room_is_counted(tmp_path):
    config = Config(db=tmp_path / "events.sqlite", port=0, limits=Limits(connections=1))
    async with serve(config) as relay, talk(relay.url) as client:
        await client.ask({"kinds": [1]})
        with pytest.raises(Exception, match="503"):
            async with talk(relay.url):
                raise AssertionError("let in")
        assert relay.counts.turned_away == 1


async def test_what_is_on_the_disk_is_shown(relay, client, shown):
    before = await shown("database_bytes")
    assert before > 0
    for n in range(50):
        await client.publish(note(content=f"{n}" * 1_000))
    assert await shown("database_bytes") > before
    assert await shown("blobs") == await shown("blob_bytes") == 0
    assert await shown("blob_cap_bytes") == relay.config.blob_limits.quota_bytes
