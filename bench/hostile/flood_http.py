"""Floods of HTTP: a gateway's completions and connections, and a provider's LNURL callback
(`bench.hostile`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import tomllib
from collections import Counter
from contextlib import suppress

import aiohttp

from bench.hostile.flood import GREEDY, Target, local, together
from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from processes.market import Market

_BUYERS = 200
_HALF_SENT = 600
_UNREAD = 12
_PAYERS = 100
_PAUSE_S = 0.2
MODEL = "coder"


async def gateway(market: Market) -> dict[str, str]:
    """A gateway without keys: there an address is an owner."""
    if "gateway" not in market.processes:
        config = await market.customer_config("gateway")
        lines = [f'customer = "{config}"', 'state = "accounts"', 'listen = "127.0.0.1:0"']
        lines += [f'[[models]]\nname = "{MODEL}"\nmanifest = {json.dumps(market.models["pycoder"]["address"])}']
        (config.parent / "gateway.toml").write_text("\n".join(lines) + "\n")
        ready = await market.daemon("gateway", "gateway", "--config", str(config.parent / "gateway.toml"))
        _gateways[id(market)] = ready["url"].removesuffix("/v1")
    return {"gateway": _gateways[id(market)]}


_gateways: dict[int, str] = {}


async def lnurl(market: Market) -> dict[str, str]:
    """Where a provider is zapped."""
    config = tomllib.loads(market.providers["provider-0"].config.read_text())
    return {"lnurl": f"http://{config['lnurl']['listen']}/lnurlp/nodewire/callback"}


def completion(max_tokens: int, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": f"def f{os.urandom(4).hex()}(", "max_tokens": max_tokens, "temperature": 0} | more


async def gateway_requests(target: Target, counts: Counter[str]) -> None:
    """More completions at once than the gateway buys, asked for again as soon as they are answered or refused."""

    async def buy() -> None:
        while True:
            async with _session() as http:
                with suppress(aiohttp.ClientConnectionError, TimeoutError):
                    while True:
                        counts["sent"] += 1
                        async with http.post(_completions(target), json=completion(4)) as answer:
                            counts[str(answer.status)] += 1
                            if answer.status == 503 and "Retry-After" not in answer.headers:
                                counts["503 without Retry-After"] += 1
                            await answer.read()
                        await asyncio.sleep(_PAUSE_S)
            counts["reset"] += 1
            await asyncio.sleep(_PAUSE_S)

    await together(*(buy() for _ in range(_BUYERS)))


async def gateway_connections(target: Target, counts: Counter[str]) -> None:
    """Connections that begin a request: half of them end in its header, half in its body, a byte a second."""
    host, _, port = local(target.extra["gateway"]).partition(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"

    async def hold(number: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(GREEDY[0], 0))
                counts["sent"] += 1
                try:
                    body = "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
                    writer.write((head + (body if number % 2 else "X: ")).encode())
                    while not reader.at_eof():
                        with suppress(TimeoutError):
                            async with asyncio.timeout(1):
                                if line := await reader.readline():
                                    counts[line.decode("latin-1")[9:12]] += 1
                                await reader.read()
                        writer.write(b"x")
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE_S)

    await together(*(hold(n) for n in range(_HALF_SENT)))


async def gateway_unread(target: Target, counts: Counter[str]) -> None:
    """Streams of completions that nobody reads."""
    host, _, port = local(target.extra["gateway"]).partition(":")

    async def ask() -> None:
        body = json.dumps(completion(64, stream=True, logprobs=3))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            connection.setblocking(False)
            connection.bind((GREEDY[0], 0))
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (host, int(port)))
            await loop.sock_sendall(connection, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            counts["sent"] += 1
            await asyncio.sleep(target.seconds)

    await together(*(ask() for _ in range(_UNREAD)))


async def lnurl_callbacks(target: Target, counts: Counter[str]) -> None:
    """Zap requests for jobs that never were, well signed, each of another key's."""

    async def pay() -> None:
        while True:
            with suppress(aiohttp.ClientConnectionError, TimeoutError):
                async with _session() as http:
                    while True:
                        job, now_s = os.urandom(32).hex(), int(time.time())
                        tags = [["relays", "ws://x"], ["amount", "21000"], ["p", target.provider], ["e", job]]
                        tags += [["chunk", "0"], ["attempt", "0"]]
                        zap = sign(Keys.generate(), 9734, created_at=now_s, content="", tags=tags)
                        asked = {"amount": "21000", "nostr": zap.to_json()}
                        counts["sent"] += 1
                        async with http.get(target.extra["lnurl"], params=asked) as answer:
                            said = await answer.json()
                            counts[str(said.get("code", answer.status))] += 1
            counts["reset"] += 1
            await asyncio.sleep(_PAUSE_S)

    await together(*(pay() for _ in range(_PAYERS)))


def _completions(target: Target) -> str:
    return f"{target.extra['gateway']}/v1/completions"


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(GREEDY[0], 0), limit=1))
