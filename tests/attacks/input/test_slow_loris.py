"""Connections that are opened, and then nothing, or one byte a minute."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
import uvloop

from nodewire.errors import NotFound
from nodewire.pay.lightning import lnurl_server
from nodewire.pay.lightning.invoices import Invoice
from nodewire.pay.lightning.lnurl_server import Endpoint, serve_endpoint


async def quote(zap_request: str, amount_msat: int, origin: str) -> Invoice:
    raise AssertionError("nobody asks for one")


@contextlib.asynccontextmanager
async def endpoint() -> AsyncIterator[str]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with serve_endpoint(Endpoint("nodewire", url, "ab" * 32, quote), listening):
        yield url


async def half_a_request(base: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    await writer.drain()
    return reader, writer


async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        said = await reader.read()
        assert not said or (said.startswith(b"HTTP/1.1 503 ") and b'"status":"ERROR"' in said)
    writer.close()


async def alone() -> None:
    async with asyncio.timeout(3), endpoint() as base:
        await gone(*await half_a_request(base))


async def many() -> None:
    async with asyncio.timeout(30), endpoint() as base, aiohttp.ClientSession() as session:
        held = [await half_a_request(base) for _ in range(20)]
        async with session.get(f"{base}/.well-known/lnurlp/nodewire") as answer:
            assert (await answer.json(content_type=None))["tag"] == "payRequest"
        for one in held:
            await gone(*one)


async def test_invoices_for_one_address_are_made_a_few_at_a_time_and_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lnurl_server, "MAX_QUOTES_EACH", 4)
    waits, free = 0, asyncio.Event()

    async def slow(zap_request: str, amount_msat: int, origin: str) -> Invoice:
        nonlocal waits
        waits += 1
        await free.wait()
        raise NotFound("zap", "no such job")

    listening = socket.socket()
    listening.bind(("0.0.0.0", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    callback = f"{url}/lnurlp/nodewire/callback?amount=1000&nostr=x"
    here, there = (aiohttp.TCPConnector(local_addr=(host, 0)) for host in ("127.0.0.1", "127.0.0.2"))
    async with (
        asyncio.timeout(60),
        serve_endpoint(Endpoint("nodewire", url, "ab" * 32, slow), listening),
        aiohttp.ClientSession(connector=here) as crowd,
        aiohttp.ClientSession(connector=there) as other,
    ):

        async def code(session: aiohttp.ClientSession) -> str:
            async with session.get(callback) as answer:
                return str((await answer.json())["code"])

        asked = [asyncio.create_task(code(crowd)) for _ in range(10)]
        while sum(one.done() for one in asked) < 6:
            await asyncio.sleep(0.001)
        asked.append(asyncio.create_task(code(other)))
        while waits < 5:
            await asyncio.sleep(0.001)
        free.set()
        codes = await asyncio.gather(*asked)
    assert (codes.count("busy"), codes.count("not-found"), codes[-1]) == (6, 5, "not-found")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])  # the daemon's loop, and the one that tests have
@pytest.mark.parametrize("attack", [alone, many])
def test_silent_connections_end_soon_and_keep_nobody_from_an_invoice(
    attack: Callable[[], Awaitable[None]], run: Callable[[Awaitable[None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lnurl_server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(lnurl_server, "CONNECTION_S", 0.5)
    run(attack())
