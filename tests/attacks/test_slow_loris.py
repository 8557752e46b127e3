"""Connections that are opened, and then nothing, or one byte a minute."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohttp
import pytest

from nodewire.pay import lnurl_server
from nodewire.pay.lnurl_server import Endpoint, serving


async def quote(zap_request: str, amount_msat: int):
    raise AssertionError("nobody asks for one")


@pytest.fixture
async def base(monkeypatch):
    monkeypatch.setattr(lnurl_server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(lnurl_server, "CONNECTION_S", 0.5)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with serving(Endpoint("nodewire", url, "ab" * 32, quote), listening):
        yield url


async def half_a_request(base: str):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    await writer.drain()
    return reader, writer


async def gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""


async def test_half_a_request_ends_soon(base):
    reader, writer = await half_a_request(base)
    async with asyncio.timeout(3):
        await gone(reader)
    writer.close()


async def test_many_of_them_do_not_keep_a_customer_from_its_invoice(base):
    held = [await half_a_request(base) for _ in range(20)]
    async with asyncio.timeout(3), aiohttp.ClientSession() as session:
        async with session.get(f"{base}/.well-known/lnurlp/nodewire") as answer:
            assert (await answer.json(content_type=None))["tag"] == "payRequest"
        for reader, writer in held:
            await gone(reader)
            writer.close()
