"""A relay that a stranger names: what is dialled, and what its words mean."""

from __future__ import annotations

import asyncio
import json

import aiohttp.resolver
import pytest
from aiohttp import web

from nodewire.errors import BadInput, Busy, LinkLost, NotAllowed, RelayRefused, TimedOut, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr import relay_visit
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from relay import Config, serve

KEYS = Keys(b"\x02" * 32)
EVENT = events.sign(KEYS, 1, created_at=1_700_000_000, content="a receipt")


@pytest.fixture
async def relay_that():
    """`await relay_that(handler of a websocket)` -> its ws:// URL and the list of its connections. Under /moved it
    redirects to where the option `to` says.
    """
    runners = []

    async def start(talk, to=""):
        seen = []

        async def handle(request):
            seen.append(request.path)
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await talk(socket)
            return socket

        async def redirect(request):
            seen.append(request.path)
            raise web.HTTPFound(to)

        app = web.Application()
        app.router.add_get("/", handle)
        app.router.add_get("/moved", redirect)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"ws://127.0.0.1:{runner.addresses[0][1]}", seen

    yield start
    for runner in runners:
        await runner.cleanup()


def answering(accepted, message):
    async def talk(socket):
        async for said in socket:
            _, event = json.loads(said.data)
            await socket.send_json(["OK", event["id"], accepted, message])

    return talk


async def visit(url, **options):
    await relay_visit.publish(url, EVENT, KEYS, **{"allow_private": True, "timeout_s": 5.0, **options})


async def test_the_event_is_there_afterwards(tmp_path):
    async with serve(Config(db=tmp_path / "relay.sqlite", port=0)) as running:
        await visit(running.url)
        await visit(running.url)  # what is there already counts as taken
        async with Pool([running.url]) as pool:
            assert await pool.fetch([Filter(ids=frozenset({EVENT.id}))]) == [EVENT]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("blocked: no", RelayRefused),
        ("invalid: no", RelayRefused),
        ("pow: 30 bits", RelayRefused),
        ("restricted: members only", RelayRefused),
        ("rate-limited: slow down", Busy),
        ("error: disk", Busy),
        ("", Busy),
    ],
)
async def test_a_refusal_is_told_apart_from_a_bad_moment_in_a_visit_and_in_a_pool(relay_that, message, error):
    url, _ = await relay_that(answering(False, message))
    with pytest.raises(error):
        await visit(url)
    async with Pool([url], KEYS) as pool:
        with pytest.raises(error):
            await pool.publish_at(url, EVENT, 5.0)


async def test_a_relay_that_never_says_goodbye_has_taken_the_event(relay_that):
    async def take_and_hang(socket):
        _, event = json.loads((await socket.receive()).data)
        await socket.send_json(["OK", event["id"], True, ""])
        await asyncio.Event().wait()

    url, _ = await relay_that(take_and_hang)
    async with asyncio.timeout(4):
        await visit(url)


async def test_a_pools_relay_that_does_not_answer_is_away(unused_tcp_port):
    url = f"ws://127.0.0.1:{unused_tcp_port}"
    async with Pool([url], KEYS) as pool:
        with pytest.raises(TimedOut):
            await pool.publish_at(url, EVENT, 0.1)


async def test_who_hangs_up_says_nothing_or_talks_nonsense_is_away(relay_that, unused_tcp_port):
    async def hang_up(socket):
        await socket.receive()

    async def say_nothing(socket):
        await asyncio.Event().wait()

    async def talk_nonsense(socket):
        for _ in range(1_000):
            await socket.send_str("nonsense")
        await asyncio.Event().wait()

    async def send_much(socket):
        await socket.send_str("x" * 1_000_000)
        await asyncio.Event().wait()

    for talk in (hang_up, talk_nonsense, send_much):
        url, _ = await relay_that(talk)
        with pytest.raises(LinkLost):
            await visit(url)
    url, _ = await relay_that(say_nothing)
    with pytest.raises(TimedOut):
        await visit(url, timeout_s=0.2)
    with pytest.raises(LinkLost):
        await visit(f"ws://127.0.0.1:{unused_tcp_port}")


@pytest.mark.parametrize(
    "url",
    [
        "wss://127.0.0.1/",
        "wss://10.0.0.1:7777",
        "wss://[::1]/",
        "wss://[::ffff:192.168.0.1]/",
        "wss://169.254.169.254/",
        "wss://localhost/",
        "ws://relay.example/",
    ],
)
async def test_without_leave_nothing_of_ones_own_network_is_dialled(url):
    with pytest.raises(NotAllowed):
        await visit(url, allow_private=False)


async def test_a_name_that_first_stands_for_a_public_address_and_then_for_a_private_one_is_not_dialled(
    relay_that, monkeypatch
):
    """DNS rebinding: what is resolved for the connection itself is what is checked."""
    url, seen = await relay_that(answering(True, ""))
    answers = ["8.8.8.8", "127.0.0.1"]
    port = int(url.rpartition(":")[2])

    async def resolve(self, host, port=0, family=0):
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        return [{"hostname": host, "host": address, "port": port, "family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr(aiohttp.resolver.ThreadedResolver, "resolve", resolve)
    monkeypatch.setattr("nodewire.net.address_policy.DefaultResolver", aiohttp.resolver.ThreadedResolver)
    answers.pop(0)  # somebody looked the name up before
    with pytest.raises(NotAllowed, match="not a public address"):
        await visit(f"wss://rebound.example:{port}", allow_private=False)
    assert not seen


async def test_a_redirect_is_not_followed(relay_that):
    inside, dialled = await relay_that(answering(True, ""))
    url, _ = await relay_that(answering(True, ""), to=inside.replace("ws", "http"))
    with pytest.raises(NotAllowed, match="redirect"):
        await visit(f"{url}/moved")
    assert not dialled


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", BadInput),
        ("https://a.example", BadInput),
        ("wss://", BadInput),
        ("wss://u:p@a.example", BadInput),
        ("wss://a.example/#x", BadInput),
        ("wss://a.example/?x", BadInput),
        ("wss://a.example:99999", BadInput),
        ("wss://\x00.example", BadInput),
        ("wss://a.example/" + "x" * 300, TooLarge),
    ],
)
def test_what_names_no_relay_is_refused(url, error):
    with pytest.raises(error):
        relay_visit.parse(url)


def test_one_relay_has_one_spelling():
    for text in ("wss://Relay.Example", "WSS://relay.example/", "wss://relay.example:443"):
        assert relay_visit.parse(text) == "wss://relay.example"
    assert relay_visit.parse("ws://10.0.0.1:80/a/") == "ws://10.0.0.1/a"
