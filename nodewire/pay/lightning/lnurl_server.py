"""A provider's LNURL-pay endpoint: aiohttp routes that answer zap requests with invoices.

https://github.com/lnurl/luds (LUD-06, LUD-16) and NIP-57 appendices B, C. What a zap request must satisfy is the
till's affair (`zaps.Till.quote`); this is its HTTP form.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from nodewire.core.budget import Budget
from nodewire.errors import BadInput, Busy, NodewireError, NotFound, TooLarge
from nodewire.net import http_server
from nodewire.net.connection_limits import origin_of
from nodewire.pay.lightning.invoices import MAX_MSAT, Invoice

if TYPE_CHECKING:
    import socket

MAX_ZAP_REQUEST_CHARS = 4_096
MAX_CONNECTIONS = 256
CONNECTION_S = 20.0
REQUESTS_PER_S, REQUESTS_BURST = 20.0, 200.0
"""Of one address. Those beyond wait for their turn: a provider's loop has heartbeats to send."""
MOST_WAIT_S = CONNECTION_S / 2
MAX_QUOTES_EACH = 32
"""Invoices that one address may wait for at a time: each is work for the wallet."""
WELL_KNOWN = "/.well-known/lnurlp/"
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "*",
}

Quote = Callable[[str, int, str], Awaitable[Invoice]]
"""The invoice for a zap request (JSON as received), the amount in msat and the origin that asks. Raises a typed error
to refuse.
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One name at `base_url` (scheme, host, port; no path). Receipts will be signed by `nostr_pubkey`."""

    name: str
    base_url: str
    nostr_pubkey: str
    quote: Quote
    min_msat: int = 1
    max_msat: int = 100_000_000_000

    @property
    def pay_url(self) -> str:
        return f"{self.base_url}{WELL_KNOWN}{self.name}"

    @property
    def callback(self) -> str:
        return f"{self.base_url}/lnurlp/{self.name}/callback"


def routes(endpoint: Endpoint) -> list[web.RouteDef]:
    """The two routes of LUD-06 for `endpoint`, to be added to any aiohttp application."""

    async def offer(_: web.Request) -> web.Response:
        host = endpoint.base_url.partition("://")[2]
        metadata = [
            ["text/plain", f"nodewire provider {endpoint.name}"],
            ["text/identifier", f"{endpoint.name}@{host}"],
        ]
        return _json(
            {
                "tag": "payRequest",
                "callback": endpoint.callback,
                "minSendable": endpoint.min_msat,
                "maxSendable": endpoint.max_msat,
                "metadata": orjson.dumps(metadata).decode(),
                "allowsNostr": True,
                "nostrPubkey": endpoint.nostr_pubkey,
            }
        )

    waiting: Counter[str] = Counter()

    async def quoted(request: web.Request) -> Invoice:
        asked, origin = _asked(request, endpoint), origin_of(request.remote or "")
        if waiting[origin] >= MAX_QUOTES_EACH:
            raise Busy("invoices", f"{MAX_QUOTES_EACH} at a time for one address")
        waiting[origin] += 1
        try:
            return await endpoint.quote(*asked, origin)
        finally:
            waiting[origin] -= 1
            if not waiting[origin]:
                del waiting[origin]

    async def callback(request: web.Request) -> web.Response:
        try:
            invoice = await quoted(request)
        except NodewireError as error:
            return _json(_refusal(error))
        return _json({"pr": invoice.bolt11, "routes": []})

    return [
        web.get(f"{WELL_KNOWN}{endpoint.name}", offer),
        web.get(f"/lnurlp/{endpoint.name}/callback", callback),
    ]


@asynccontextmanager
async def serve_endpoint(endpoint: Endpoint, listening: socket.socket) -> AsyncIterator[None]:
    """Serve `endpoint` on a bound socket, to strangers (`nodewire.net.http_server`)."""
    app = web.Application(middlewares=[_in_turn(), _for_browsers])
    app.add_routes(routes(endpoint))
    refusal = orjson.dumps(_refusal(Busy("connections", "others need the room")))
    async with http_server.serve_app(app, listening, most=MAX_CONNECTIONS, each_s=CONNECTION_S, refusal=refusal):
        yield


def _in_turn() -> Callable[..., Awaitable[web.StreamResponse]]:
    """Have a request wait until its address has paid for it, before anything of it is looked at."""
    budget = Budget(REQUESTS_PER_S, REQUESTS_BURST, asyncio.get_running_loop().time)

    @web.middleware
    async def waited(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        origin = origin_of(request.remote or "")
        if (1.0 - budget.available(origin)) / REQUESTS_PER_S > MOST_WAIT_S:
            response = _json(_refusal(Busy("requests", f"{REQUESTS_PER_S:g} a second for one address")))
            response.force_close()
            return response
        if debt_s := budget.charge(origin, 1.0):
            await asyncio.sleep(debt_s)
        return await handler(request)

    return waited


@web.middleware
async def _for_browsers(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A wallet in a browser asks first whether it may ask, and reads nothing of an answer that does not say so."""
    if request.method == "OPTIONS":
        return web.Response(status=204, headers={**_CORS, "Access-Control-Max-Age": "86400"})
    try:
        return await handler(request)
    except web.HTTPException as error:
        refused = NotFound("url", "nobody of that name is paid here") if error.status == 404 else BadInput("request")
        return _json(_refusal(refused), status=error.status)


def _refusal(error: NodewireError) -> dict[str, Any]:
    return {"status": "ERROR", **error.as_dict(), "reason": error.reason or error.field}


def _asked(request: web.Request, endpoint: Endpoint) -> tuple[str, int]:
    text = request.query.get("amount", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_MSAT))):
        raise BadInput("amount", "not an amount in millisats")
    amount_msat = int(text)
    if not endpoint.min_msat <= amount_msat <= endpoint.max_msat:
        raise BadInput(
            "amount", f"{amount_msat} msat, from {endpoint.min_msat} msat to {endpoint.max_msat} msat are taken"
        )
    zap_request = request.query.get("nostr")
    if zap_request is None:
        raise BadInput("nostr", "this endpoint takes zaps only")
    if len(zap_request) > MAX_ZAP_REQUEST_CHARS:
        raise TooLarge("nostr", f"{len(zap_request)} characters, at most {MAX_ZAP_REQUEST_CHARS}")
    return zap_request, amount_msat


def _json(data: dict[str, Any], status: int = 200) -> web.Response:
    # LUD-06 tells errors in the body.
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json", headers=_CORS)
