"""rust-nostr's client, an independent implementation, drives this relay."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import nostr_sdk

from relay import Config, serve
from tests.relay.conversation import ALICE, BOB, note

WAIT = timedelta(seconds=10)


def theirs(event):
    return nostr_sdk.Event.from_json(event.to_json())


@asynccontextmanager
async def connected(url, keys=None):
    nostr_sdk.uniffi_set_event_loop(asyncio.get_running_loop())  # its threads call our signer back
    builder = nostr_sdk.ClientBuilder()
    if keys is not None:
        signer = nostr_sdk.Keys.parse(keys.secret.hex())
        builder = builder.authenticator(nostr_sdk.SignerAuthenticator(signer))
    client = builder.build()
    await client.add_relay(nostr_sdk.RelayUrl.parse(url))
    await client.try_connect(WAIT)
    try:
        yield client
    finally:
        await client.shutdown()
        nostr_sdk.uniffi_set_event_loop(None)  # the next test has a loop of its own


async def fetched(client, filter_):
    found = await client.fetch_events(nostr_sdk.ReqTarget.auto([filter_]), WAIT)
    return [json.loads(event.as_json()) for event in found]


async def test_what_it_publishes_it_fetches_and_counts(relay):
    events = [note(ago=n, content=str(n), tags=[["t", "x"]]) for n in range(3)]
    filter_ = nostr_sdk.Filter().hashtag("x").author(nostr_sdk.PublicKey.parse(ALICE.public))
    async with connected(relay.url) as client:
        for event in events:
            output = await client.send_event(theirs(event))
            assert not output.failed
        assert await fetched(client, filter_) == [event.as_dict() for event in events]
        one = await client.relay(nostr_sdk.RelayUrl.parse(relay.url))
        assert await one.count_events(filter_, WAIT) == 3


async def test_it_hears_live_events(relay, other):
    async with connected(relay.url) as client:
        target = nostr_sdk.ReqTarget.auto([nostr_sdk.Filter().kind(nostr_sdk.Kind(20_001))])
        heard = client.notifications()
        await client.subscribe(target)
        event = note(kind=20_001)
        for _ in range(500):
            _, muted = await other.publish(event)
            if not muted:  # the subscription has come
                break
        while not hasattr(found := await asyncio.wait_for(heard.next(), 5), "event"):
            pass
        assert json.loads(found.event.as_json()) == event.as_dict()


async def test_it_learns_why_an_event_was_refused(relay):
    async with connected(relay.url) as client:
        output = await client.send_event(theirs(note(ago=-10_000)))
        assert "too far in the future" in str(output.failed)


async def test_it_authenticates_and_is_then_shown_its_wraps(tmp_path):
    config = Config(db=tmp_path / "events.sqlite", port=0, wraps_need_auth=True)
    wrap = note(kind=1059, tags=[["p", BOB.public]])
    filter_ = nostr_sdk.Filter().kind(nostr_sdk.Kind(1059))
    async with serve(config) as relay:
        async with connected(relay.url, ALICE) as eve:
            await eve.send_event(theirs(wrap))
            assert await fetched(eve, filter_) == []
        async with connected(relay.url, BOB) as bob:
            assert await fetched(bob, filter_) == [wrap.as_dict()]
