"""The simulated network over HTTP and JSON.

POST /v1/accounts                     {name, opening_msat}  -> {node, token}       no token needed
GET  /v1/info                         -> {network, base_fee_msat, fee_ppm, unit_msat, node?}  `node`: of a token
GET  /v1/totals, /healthz                                                          no token needed
GET  /v1/balance                      -> {balance_msat}
POST /v1/invoices                     {amount_msat, expiry_s, description | description_hash, payment_hash?}
POST /v1/payments                     {bolt11, max_fee_msat}
POST /v1/holds/settle, /v1/holds/cancel   {preimage} / {payment_hash}
GET  /v1/transfers/HASH?direction=&wait_s=   what came (in) or went (out); waits up to wait_s while it is held
GET  /v1/invoices?after=&limit=       own invoices, oldest first
GET  /v1/events?after=&limit=&wait_s= outcomes after a cursor; waits up to wait_s for the first

A transfer is {payment_hash, direction, state, reason, amount_msat, fee_msat, preimage, bolt11, at_s}. A payment that
cannot be made is a transfer that failed, for good. An error is the typed error's {code, field, reason, ...} with a
fitting status.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from aiohttp import web

from nodewire.errors import BadInput
from nodewire.net.json_http import answer, bearer_token, body_of, bounded, errors, hex32, query
from nodewire.pay.lightning import invoices
from simnet import holder_http, network
from simnet.journal import Entry, tag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from simnet.service import Simnet
    from simnet.treasurer import Treasurer

MAX_WAIT_S = 60
MAX_PAGE = 500

_STATES = {"open": "open", "held": "pending", "settled": "settled", "cancelled": "failed", "expired": "failed"}


def application(simnet: Simnet, treasurer: Treasurer | None = None, base_url: str = "") -> web.Application:
    """The service as an aiohttp application; closing it closes `simnet`.

    With a `treasurer` it holds bonds, too (`holder_http`), and `base_url` is what others reach it by.
    """
    routes = _Routes(simnet)
    app = web.Application(middlewares=[errors])
    app.add_routes(
        [
            web.get("/healthz", routes.health),
            web.get("/v1/info", routes.info),
            web.get("/v1/totals", routes.totals),
            web.post("/v1/accounts", routes.open_account),
            web.get("/v1/balance", routes.balance),
            web.post("/v1/invoices", routes.make_invoice),
            web.get("/v1/invoices", routes.list_invoices),
            web.post("/v1/payments", routes.pay),
            web.post("/v1/holds/settle", routes.settle),
            web.post("/v1/holds/cancel", routes.cancel),
            web.get("/v1/transfers/{payment_hash}", routes.transfer),
            web.get("/v1/events", routes.events),
        ]
    )

    if treasurer is not None:
        app.add_routes(holder_http.routes(treasurer, simnet, base_url))

    async def expiry(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(_expire(simnet, treasurer))
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        simnet.close()

    app.cleanup_ctx.append(expiry)
    return app


async def start(
    simnet: Simnet, host: str, port: int, treasurer: Treasurer | None = None, base_url: str = ""
) -> tuple[web.AppRunner, str]:
    """Serve on `host`:`port` (0: any free port); the runner, whose `cleanup()` ends it, and the service's URL.

    The URL is `base_url` if that is given: what a proxy, or another machine, reaches it by.
    """
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    name = f"[{host}]" if ":" in host else host
    url = base_url.rstrip("/") or f"http://{name}:{listening.getsockname()[1]}"
    runner = web.AppRunner(application(simnet, treasurer, url), shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return runner, url


async def _expire(simnet: Simnet, treasurer: Treasurer | None) -> None:
    while True:
        simnet.sweep()
        deadlines_s = [simnet.next_deadline_s()]
        if treasurer is not None:
            treasurer.sweep()
            deadlines_s.append(treasurer.next_deadline_s())
        next_s = min((at_s for at_s in deadlines_s if at_s is not None), default=simnet.time_s() + MAX_WAIT_S)
        await simnet.change(max(0.05, min(MAX_WAIT_S, next_s - simnet.time_s())))


class _Routes:
    def __init__(self, simnet: Simnet) -> None:
        self._simnet = simnet

    async def health(self, _: web.Request) -> web.Response:
        return answer({"ok": True})

    async def info(self, request: web.Request) -> web.Response:
        fees = self._simnet.fees
        said = {"network": invoices.REGTEST, "base_fee_msat": fees.base_msat, "fee_ppm": fees.ppm}
        said["unit_msat"] = self._simnet.unit_msat
        if "Authorization" in request.headers:
            said["node"] = self._account(request)
        return answer(said)

    async def totals(self, _: web.Request) -> web.Response:
        """All money: what was issued is what accounts have and what is held."""
        state = self._simnet.state
        balances = sum(state.balances.values())
        held_msat = state.held_msat()
        return answer(
            {
                "issued_msat": state.issued_msat,
                "balances_msat": balances,
                "held_msat": held_msat,
                "routing_msat": state.balances[network.ROUTING],
            }
        )

    async def open_account(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        name = body.get("name")
        if not isinstance(name, str) or len(name) > 128:
            raise BadInput("name", "not a string of at most 128 characters")
        opening_msat = bounded(body.get("opening_msat", 0), "opening_msat", invoices.MAX_MSAT)
        node, token = self._simnet.open_account(name, opening_msat)
        return answer({"node": node, "token": token})

    async def balance(self, request: web.Request) -> web.Response:
        node = self._account(request)
        return answer({"node": node, "balance_msat": self._simnet.balance_msat(node)})

    async def make_invoice(self, request: web.Request) -> web.Response:
        node, body = self._account(request), await body_of(request)
        description = body.get("description")
        if description is not None and not isinstance(description, str):
            raise BadInput("description", "not a string")
        invoice = self._simnet.make_invoice(
            node,
            bounded(body.get("amount_msat"), "amount_msat", invoices.MAX_MSAT),
            bounded(body.get("expiry_s"), "expiry_s", invoices.MAX_EXPIRY_S),
            description=description,
            description_hash=hex32(body, "description_hash") if "description_hash" in body else None,
            payment_hash=hex32(body, "payment_hash") if "payment_hash" in body else None,
        )
        return answer(_transfer(invoice, node))

    async def list_invoices(self, request: web.Request) -> web.Response:
        node = self._account(request)
        entries = self._simnet.issued(node, query(request, "after", 2**62), query(request, "limit", MAX_PAGE, 100))
        return answer({"invoices": [self._entry(entry, node) for entry in entries]})

    async def pay(self, request: web.Request) -> web.Response:
        node, body = self._account(request), await body_of(request)
        bolt11 = body.get("bolt11")
        if not isinstance(bolt11, str):
            raise BadInput("bolt11", "not a string")
        max_fee_msat = bounded(body.get("max_fee_msat"), "max_fee_msat", invoices.MAX_MSAT)
        return answer(_recorded(self._simnet.attempt(node, bolt11, max_fee_msat), node))

    async def settle(self, request: web.Request) -> web.Response:
        node, body = self._account(request), await body_of(request)
        return answer(_transfer(self._simnet.settle(node, hex32(body, "preimage")), node))

    async def cancel(self, request: web.Request) -> web.Response:
        node, body = self._account(request), await body_of(request)
        return answer(_transfer(self._simnet.cancel(node, hex32(body, "payment_hash")), node))

    async def transfer(self, request: web.Request) -> web.Response:
        node = self._account(request)
        payment_hash = hex32(dict(request.match_info), "payment_hash")
        direction = request.query.get("direction")
        if direction not in ("in", "out"):
            raise BadInput("direction", 'neither "in" nor "out"')
        until = _Until(query(request, "wait_s", MAX_WAIT_S))
        while True:
            found = self._simnet.record(node, payment_hash, direction)
            if isinstance(found, network.PaymentRefusal) or found.phase != "held" or until.left_s() <= 0:
                return answer(_recorded(found, node))
            await self._simnet.change(until.left_s())

    async def events(self, request: web.Request) -> web.Response:
        node = self._account(request)
        after, size = query(request, "after", 2**62), max(1, query(request, "limit", MAX_PAGE, 100))
        until = _Until(query(request, "wait_s", MAX_WAIT_S))
        while not (entries := self._simnet.outcomes(node, after, size)) and until.left_s() > 0:
            await self._simnet.change(until.left_s())
        return answer({"events": [self._entry(entry, node) for entry in entries]})

    def _account(self, request: web.Request) -> str:
        return self._simnet.account_of(bearer_token(request))

    def _entry(self, entry: Entry, node: str) -> dict[str, Any]:
        assert isinstance(entry.event, network.OfInvoice)
        invoice = self._simnet.state.invoice(entry.event.payment_hash)
        return {"cursor": entry.seq, "event": tag(entry.event).lower(), **_transfer(invoice, node)}


class _Until:
    """A moment `wait_s` from now."""

    def __init__(self, wait_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + wait_s

    def left_s(self) -> float:
        return self._at - self._loop.time()


def _recorded(found: network.Invoice | network.PaymentRefusal, node: str) -> dict[str, Any]:
    """What the record has: an invoice, or a payment that failed."""
    if isinstance(found, network.Invoice):
        return _transfer(found, node)
    return {
        "payment_hash": found.payment_hash,
        "direction": "out",
        "state": "failed",
        "reason": found.reason,
        "amount_msat": found.amount_msat,
        "fee_msat": 0,
        "preimage": None,
        "bolt11": found.bolt11,
        "at_s": found.at_s,
    }


def _transfer(invoice: network.Invoice, node: str) -> dict[str, Any]:
    """An invoice as one of its two parties sees it; only a settled one shows its preimage."""
    return {
        "payment_hash": invoice.payment_hash,
        "direction": "in" if node == invoice.payee else "out",
        "state": _STATES[invoice.phase],
        "reason": invoice.phase,
        "amount_msat": invoice.amount_msat,
        "fee_msat": invoice.fee_msat if node == invoice.payer else 0,
        "preimage": invoice.preimage if invoice.phase == "settled" else None,
        "bolt11": invoice.bolt11,
        "at_s": invoice.ended_at_s or invoice.held_at_s,
    }
