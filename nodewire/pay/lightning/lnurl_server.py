"""A provider's LNURL-pay endpoint: aiohttp routes that answer zap requests, and plain payments, with invoices.

https://github.com/lnurl/luds (LUD-06, LUD-12, LUD-16) and NIP-57 appendices B, C. What a zap request must satisfy is
the till's affair (`Till.quote`); this is its HTTP form. Any web page may ask and read (CORS): nothing here is secret.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from nodewire.core.budget import Budget
from nodewire.errors import BadInput, Busy, NodeFailed, NodewireError, NotAllowed, NotFound, TooLarge
from nodewire.net import http_server
from nodewire.net.connection_limits import origin_of
from nodewire.pay.lightning.invoices import MAX_MSAT, Invoice

if TYPE_CHECKING:
    import socket

MAX_ZAP_REQUEST_CHARS = 4_096
MAX_COMMENT_CHARS = 255
MAX_LINE_BYTES = 4 * MAX_ZAP_REQUEST_CHARS
"""Of a request, with its URL. There each character of a zap request may take three bytes."""
MAX_CONNECTIONS = 256
CONNECTION_S = 20.0
REQUESTS_PER_S, REQUESTS_BURST = 20.0, 200.0
"""Of one address. Those beyond wait for their turn: a provider's loop has heartbeats to send."""
MOST_WAIT_S = CONNECTION_S / 2
MAX_QUOTES_EACH = 32
"""Invoices that one address may wait for at a time: each is work for the wallet."""
WELL_KNOWN = "/.well-known/lnurlp/"
log = logging.getLogger("nodewire.pay")
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Expose-Headers": "*",
}

Quote = Callable[[str, int, str], Awaitable[Invoice]]
"""The invoice for a zap request (JSON as received), the amount in msat and the origin that asks. Raises a typed error
to refuse.
"""
Tip = Callable[[int, str, str, str], Awaitable[Invoice]]
"""The invoice for a plain payment: the amount in msat, the metadata that it commits to, the payer's comment and the
origin that asks. Raises a typed error to refuse.
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One name at `base_url` (scheme, host, port; no path).

    Receipts will be signed by `nostr_pubkey`. Without `tip` it takes zaps only.

    Raises:
        BadInput: it takes nothing: `min_msat` is none, or above `max_msat`.


    """

    name: str
    base_url: str
    nostr_pubkey: str
    quote: Quote
    min_msat: int = 1
    max_msat: int = 100_000_000_000
    tip: Tip | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_msat <= self.max_msat:
            raise BadInput("min_msat", f"from {self.min_msat} msat to {self.max_msat} msat nothing can be sent")

    @property
    def metadata(self) -> str:
        """What plain payments commit to (LUD-06)."""
        host = self.base_url.partition("://")[2]
        kept = [["text/plain", f"nodewire provider {self.name}"], ["text/identifier", f"{self.name}@{host}"]]
        return orjson.dumps(kept).decode()

    @property
    def pay_url(self) -> str:
        return f"{self.base_url}{WELL_KNOWN}{self.name}"

    @property
    def callback(self) -> str:
        return f"{self.base_url}/lnurlp/{self.name}/callback"


def routes(endpoint: Endpoint) -> list[web.RouteDef]:
    """The two routes of LUD-06 for `endpoint`, to be added to any aiohttp application."""

    async def offer(_: web.Request) -> web.Response:
        comment = {"commentAllowed": MAX_COMMENT_CHARS} if endpoint.tip is not None else {}
        return _json(
            {
                "tag": "payRequest",
                "callback": endpoint.callback,
                "minSendable": endpoint.min_msat,
                "maxSendable": endpoint.max_msat,
                "metadata": endpoint.metadata,
                **comment,
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
            if asked.zap_request is not None:
                return await endpoint.quote(asked.zap_request, asked.amount_msat, origin)
            assert endpoint.tip is not None
            return await endpoint.tip(asked.amount_msat, endpoint.metadata, asked.comment, origin)
        finally:
            waiting[origin] -= 1
            if not waiting[origin]:
                del waiting[origin]

    async def callback(request: web.Request) -> web.Response:
        try:
            invoice = await quoted(request)
        except Busy as error:
            return _too_many(error)
        except NodewireError as error:
            return _json(_refusal(error))
        return _json({"pr": invoice.bolt11, "routes": []})

    return [
        web.get(f"{WELL_KNOWN}{endpoint.name}", offer),
        web.get(f"/lnurlp/{endpoint.name}/callback", callback, allow_head=False),  # nobody gets an invoice unseen
    ]


@asynccontextmanager
async def serve_endpoint(endpoint: Endpoint, listening: socket.socket) -> AsyncIterator[None]:
    """Serve `endpoint` on a bound socket, to strangers (`nodewire.net.http_server`)."""
    app = web.Application(middlewares=[_in_turn(), _for_browsers])
    app.add_routes(routes(endpoint))
    refusals = http_server.Refusals(
        orjson.dumps(_refusal(Busy("connections", "others need the room"))),
        orjson.dumps(_refusal(BadInput("request", f"no HTTP, or a line of more than {MAX_LINE_BYTES} bytes"))),
        _CORS,
    )
    async with http_server.serve_app(
        app,
        listening,
        most=MAX_CONNECTIONS,
        each_s=CONNECTION_S,
        refusals=refusals,
        line_bytes=MAX_LINE_BYTES,
    ):
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
            response = _too_many(Busy("requests", f"{REQUESTS_PER_S:g} a second for one address"))
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
    except web.HTTPMethodNotAllowed as error:
        allowed = {"Allow": ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))}
        return _json(_refusal(NotAllowed("method", f"{allowed['Allow']} are taken")), error.status, allowed)
    except web.HTTPException as error:
        refused = NotFound("url", "nobody of that name is paid here") if error.status == 404 else BadInput("request")
        return _json(_refusal(refused), error.status)
    except Exception:  # a defect of ours: told like all else, and logged
        log.exception("a request to the LNURL endpoint ended in an error")
        return _json(_refusal(NodeFailed("endpoint", "it failed, and its operator can read why")), 500)


def _refusal(error: NodewireError) -> dict[str, Any]:
    return {"status": "ERROR", **error.as_dict(), "reason": error.reason or error.field}


def _too_many(error: Busy) -> web.Response:
    return _json(_refusal(error), 429, {"Retry-After": str(http_server.RETRY_S)})


@dataclass(frozen=True, slots=True)
class _Query:
    amount_msat: int
    zap_request: str | None
    comment: str


def _asked(request: web.Request, endpoint: Endpoint) -> _Query:
    for name in ("amount", "nostr", "comment"):
        if len(request.query.getall(name, [])) > 1:
            raise BadInput(name, "given twice")
    text = request.query.get("amount", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_MSAT))):
        raise BadInput("amount", "not an amount in millisats")
    amount_msat = int(text)
    if not endpoint.min_msat <= amount_msat <= endpoint.max_msat:
        raise BadInput(
            "amount", f"{amount_msat} msat, from {endpoint.min_msat} msat to {endpoint.max_msat} msat are taken"
        )
    zap_request, comment = request.query.get("nostr"), request.query.get("comment", "")
    if zap_request is None and endpoint.tip is None:
        raise BadInput("nostr", "this endpoint takes zaps only")
    if zap_request is not None and len(zap_request) > MAX_ZAP_REQUEST_CHARS:
        raise TooLarge("nostr", f"{len(zap_request)} characters, at most {MAX_ZAP_REQUEST_CHARS}")
    if len(comment) > MAX_COMMENT_CHARS:
        raise TooLarge("comment", f"{len(comment)} characters, at most {MAX_COMMENT_CHARS}")
    return _Query(amount_msat, zap_request, comment)


def _json(data: dict[str, Any], status: int = 200, headers: Mapping[str, str] = {}) -> web.Response:
    # LUD-06 tells errors in the body.
    body = orjson.dumps(data)
    return web.Response(body=body, status=status, content_type="application/json", headers={**_CORS, **headers})
