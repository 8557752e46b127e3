"""A customer that speaks FEDSTR's layout and knows nothing else of this software: written from nips/37-fedstr.md alone.

It signs events, pays invoices, reads safetensors files, and adds an update to its weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from safetensors.numpy import load, save

from nodewire.errors import PaymentFailed
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip13, nip44
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet

SEGMENT = 2**20


class Customer:
    def __init__(self, keys: Keys, pool: Pool, wallet: SimWallet) -> None:
        self.keys, self.pool, self.wallet = keys, pool, wallet
        self.heard: list[Event] = []
        self._came = asyncio.Condition()
        self.paid_msat = 0

    async def listen(self) -> None:
        wanted = Filter(kinds=frozenset({7000, 6000}), tags={"p": frozenset({self.keys.public})})
        async for event in self.pool.subscribe([wanted]):
            self.heard.append(event)
            async with self._came:
                self._came.notify_all()

    async def ask(
        self, provider: str, tags: list[list[str]], *, encrypted: bool = False, pow_bits: int = 0, created_at: int = 0
    ) -> Event:
        """Publish a request for `provider`."""
        public = [["p", provider], ["relays", "ws://nowhere.invalid"], ["output", "application/safetensors"]]
        public.append(["alt", secrets.token_hex(4)])  # two requests of one second are two
        content = ""
        if encrypted:
            content = nip44.encrypt(json.dumps(tags), nip44.conversation_key(self.keys, provider))
            public.append(["encrypted"])
        else:
            public += tags
        at = created_at or int(time.time())
        mined = nip13.mine(self.keys.public, 8000, pow_bits, created_at=at, content=content, tags=public)
        event = events.sign(self.keys, 8000, created_at=at, content=content, tags=mined if pow_bits else public)
        await self.pool.publish(event)
        return event

    async def answer(self, request: Event, *wanted: str, timeout_s: float = 15.0) -> Event:
        """The first answer to a request that has one of these statuses; a result's is "result"."""

        def found() -> Event | None:
            mine = [event for event in self.heard if event.tag("e") == request.id]
            return next((event for event in mine if status(event) in wanted), None)

        async with asyncio.timeout(timeout_s), self._came:
            await self._came.wait_for(lambda: found() is not None)
        event = found()
        assert event is not None
        return event

    def said(self, request: Event) -> list[str]:
        return [status(event) for event in self.heard if event.tag("e") == request.id]

    async def pay(self, event: Event) -> int:
        """Pay the invoice in its `amount` tag, which says what it is for."""
        _, amount, bolt11 = next(tag for tag in event.tags if tag[0] == "amount")
        said = f"{event.tag('e')}:{int(event.kind == 6000)}"
        invoice = invoices.decode(bolt11)
        assert invoice.description_hash == hashlib.sha256(said.encode()).hexdigest()
        assert invoice.amount_msat == int(amount)
        paid = await self.wallet.pay(bolt11, max_fee_msat=1_000)
        if paid.state != "settled":
            raise PaymentFailed("payment", paid.reason)
        self.paid_msat += int(amount)
        return int(amount)

    async def update(self, result: Event) -> dict[str, np.ndarray]:
        """What a result's content leads to."""
        document = json.loads(nip44.decrypt(result.content, nip44.conversation_key(self.keys, result.pubkey)))
        async with aiohttp.ClientSession() as session, session.get(document["urls"][0]) as got:
            ciphertext = await got.read()
        assert (hashlib.sha256(ciphertext).hexdigest(), len(ciphertext)) == (document["sha256"], document["bytes"])
        plain = unsealed(ciphertext, document["key"])
        assert (hashlib.sha256(plain).hexdigest(), len(plain)) == (document["update_sha256"], document["update_bytes"])
        return load(plain)

    async def buy(self, provider: str, tags: list[list[str]], **how: Any) -> tuple[Event, Event]:
        """A round with everything paid, by invoices or by what was paid ahead: the request and its result."""
        request = await self.ask(provider, tags, **how)
        asked = await self.answer(request, "payment-required", "processing", "error")
        if status(asked) != "processing":
            await self.pay(asked)
        result = await self.answer(request, "result", "error")
        assert status(result) == "result", result.tags
        if len(next(tag for tag in result.tags if tag[0] == "amount")) > 2:
            await self.pay(result)
        return request, result


def status(event: Event) -> str:
    return "result" if event.kind == 6000 else str(event.tag("status"))


def why(event: Event) -> str:
    """An error's code."""
    return next(tag[2] for tag in event.tags if tag[0] == "status")


def stepped(weights: dict[str, np.ndarray], update: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outer step of FedAvg with one provider."""
    return {name: (weights[name].astype(np.float64) + update[name]).astype(np.float32) for name in weights}


def inputs(marker: str, url: str, data: bytes, key: str | None = None) -> list[list[str]]:
    said = [["i", url, "url", "", marker], ["x", hashlib.sha256(data).hexdigest(), marker, str(len(data))]]
    return [*said, ["key", key, marker]] if key else said


def params(**values: object) -> list[list[str]]:
    return [["param", name, str(value)] for name, value in values.items()]


def sealed(data: bytes, key: str) -> bytes:
    cipher, out = ChaCha20Poly1305(bytes.fromhex(key)), b""
    pieces = [data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT)] or [b""]
    for number, piece in enumerate(pieces):
        out += cipher.encrypt(nonce(number, number == len(pieces) - 1), piece, None)
    return out


def unsealed(data: bytes, key: str) -> bytes:
    cipher, out = ChaCha20Poly1305(bytes.fromhex(key)), b""
    pieces = [data[at : at + SEGMENT + 16] for at in range(0, len(data), SEGMENT + 16)]
    for number, piece in enumerate(pieces):
        out += cipher.decrypt(nonce(number, number == len(pieces) - 1), piece, None)
    return out


def nonce(number: int, last: bool) -> bytes:
    return bytes(7) + number.to_bytes(4, "big") + bytes([last])


class Host:
    """Serves files over http on loopback, under any name; counts what is asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.asked: list[str] = []
        self.lost: set[str] = set()
        """Whose connections break."""
        self.base = ""

    def put(self, name: str, data: bytes) -> str:
        self.files[name] = data
        return f"{self.base}/{name}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.asked.append(name)
        if name in self.lost:
            assert request.transport is not None
            request.transport.abort()
        if name in self.redirects:
            raise web.HTTPFound(self.redirects[name])
        if name not in self.files:
            raise web.HTTPNotFound
        response = web.StreamResponse()  # chunked: it does not say how much comes
        await response.prepare(request)
        await response.write(self.files[name])
        return response


@asynccontextmanager
async def hosting() -> AsyncIterator[Host]:
    host, app = Host(), web.Application()
    app.router.add_get("/{name}", host.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield host
    finally:
        await runner.cleanup()


@asynccontextmanager
async def customer(relay: str, wallet: SimWallet, keys: Keys) -> AsyncIterator[Customer]:
    async with Pool([relay], keys=keys) as pool:
        one = Customer(keys, pool, wallet)
        listening = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await wallet.close()


__all__ = ["Customer", "Host", "customer", "hosting", "inputs", "params", "save", "sealed", "stepped", "why"]
