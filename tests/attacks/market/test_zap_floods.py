"""An address that asks a provider for invoices without end: it waits for itself, and another address is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector

from nodewire.net import http_server
from nodewire.net.http_server import listening_socket
from nodewire.pay.lightning import lnurl_server
from nodewire.pay.lightning.lnurl_server import Endpoint

HONEST, GREEDY = "127.0.0.7", "127.0.0.8"


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[str, list[str]]]:
    """An LNURL server's base URL, and what it was asked to quote."""
    asked: list[str] = []

    async def quote(text: str, amount_msat: int, origin: str) -> object:
        asked.append(text)
        return SimpleNamespace(bolt11="lnbc1")

    sock = listening_socket("lnurl.listen", "127.0.0.1:0")
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with lnurl_server.serve_endpoint(Endpoint("nodewire", base, "ab" * 32, quote), sock):  # type: ignore[arg-type]
        yield base, asked


def coming_from(address: str) -> ClientSession:
    return ClientSession(connector=TCPConnector(local_addr=(address, 0), force_close=True))


async def zapped(session: ClientSession, base: str, text: str) -> str:
    """The invoice, or the error's code."""
    query = {"amount": "21000", "nostr": text}
    async with session.get(f"{base}/lnurlp/nodewire/callback", params=query) as answer:
        said = await answer.json()
        return str(said.get("pr") or said["code"])


async def test_requests_beyond_an_addresss_share_are_not_looked_at_and_another_is_answered(monkeypatch):
    monkeypatch.setattr(lnurl_server, "REQUESTS_PER_S", 0.001)
    monkeypatch.setattr(lnurl_server, "REQUESTS_BURST", 2.0)
    async with endpoint() as (base, asked), coming_from(GREEDY) as greedy, coming_from(HONEST) as honest:
        said = [await zapped(greedy, base, f"greedy {n}") for n in range(4)]
        assert said == ["lnbc1", "lnbc1", "busy", "busy"]
        assert await zapped(honest, base, "honest") == "lnbc1"
    assert asked == ["greedy 0", "greedy 1", "honest"]


async def test_requests_a_little_beyond_the_share_wait_for_their_turn_and_all_are_answered(monkeypatch):
    monkeypatch.setattr(lnurl_server, "REQUESTS_PER_S", 50.0)
    monkeypatch.setattr(lnurl_server, "REQUESTS_BURST", 2.0)
    async with endpoint() as (base, asked), coming_from(HONEST) as honest:
        began_s = asyncio.get_running_loop().time()
        said = await asyncio.gather(*(zapped(honest, base, str(n)) for n in range(20)))
        assert said == ["lnbc1"] * 20
        assert asyncio.get_running_loop().time() - began_s >= 18 / 50
    assert len(asked) == 20


async def test_an_address_that_connects_without_end_is_reset_and_another_is_answered(monkeypatch):
    monkeypatch.setattr(http_server, "ACCEPTS_PER_S", 0.001)
    monkeypatch.setattr(http_server, "ACCEPTS_BURST", 3.0)
    async with endpoint() as (base, asked), coming_from(GREEDY) as greedy, coming_from(HONEST) as honest:
        assert [await zapped(greedy, base, "greedy") for _ in range(3)] == ["lnbc1"] * 3
        with pytest.raises(ClientError):
            await zapped(greedy, base, "greedy")
        assert await zapped(honest, base, "honest") == "lnbc1"
    assert len(asked) == 4
