"""A treasury over HTTP and JSON, whoever keeps it.

POST /v1/shares                a customer's statement (`ShareStatement`)          -> {ahead_msat}
GET  /v1/ahead/CUSTOMER        {ahead_msat}: what the customer has paid, and not stated
GET  /v1/treasury/REQUEST      {received_msat, left_msat}
GET  /v1/treasury/REQUEST/shares/CUSTOMER/CHUNK    {came_msat}: the customer's share for the chunk, fee included;
                                                   with ?before_ms=UNIX_MS what of it had come before
POST /v1/claims                {case}                                         P   -> {amount_msat}: now due to the payee
GET  /v1/dues/PAYEE            {due_msat, payable_msat}: what is due, and what of it can be paid in whole units
POST /v1/payouts               {bolt11}                                       P   -> {amount_msat, is_paid, ...}

P: the request is signed by the payee's Nostr key (NIP-98).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from nodewire.errors import BadInput, NotFound
from nodewire.net.json_http import MAX_BODY_BYTES, answer, hex32, raw_of
from nodewire.protocol.job.share_statement import ShareStatement

if TYPE_CHECKING:
    from nodewire.pay.bond.treasury.book import InvoicePayout

Signed = Callable[[web.Request], Awaitable[tuple[str, dict[str, Any]]]]
"""The Nostr key that asks, and what. Raises NotAllowed."""


class Treasury(Protocol):
    """A treasury at work. It believes nobody, and every method may be asked again."""

    def book_shares(self, said: ShareStatement, /) -> int:
        """Book a customer's statement of shares; what the customer has left ahead, in msat.

        Raises:
            BadSignature: the customer did not sign it.
            NotAllowed: it is for another holder, or a chunk's share was stated otherwise.
            PaymentFailed: the customer has not paid so much ahead.

        """

    def ahead_msat(self, customer: str, /) -> int: ...
    def pot(self, request: str, /) -> tuple[int, int]: ...
    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None, /) -> int: ...

    def claim(self, payee: str, case: str, /) -> int:
        """Put what a settled case gives `payee` to its dues; in msat.

        Raises:
            NotFound, NotAllowed: no such case, or it gives this key nothing.
            PaymentFailed: the treasury does not hold it (yet), or no share covers it.

        """

    def due_msat(self, payee: str, /) -> int: ...
    def payable_msat(self, payee: str, /) -> int: ...

    async def payout(self, payee: str, bolt11: str, /) -> InvoicePayout:
        """Pay a part of a payee's dues by its invoice, once.

        Raises:
            BadInvoice: no invoice that can be paid here.
            PaymentFailed: so much is not due.
            NotAllowed: it failed before, or too many of the payee's are under way.

        """


def routes(treasury: Treasury | None, signed: Signed) -> list[web.RouteDef]:
    """Those of a holder. Without a treasury each answers that there is none."""
    own = _Routes(treasury, signed)
    return [
        web.post("/v1/shares", own.book_shares),
        web.get("/v1/ahead/{customer}", own.ahead),
        web.get("/v1/treasury/{request}", own.pot),
        web.get("/v1/treasury/{request}/shares/{customer}/{chunk}", own.share),
        web.post("/v1/claims", own.claim),
        web.get("/v1/dues/{payee}", own.due),
        web.post("/v1/payouts", own.payout),
    ]


class _Routes:
    def __init__(self, treasury: Treasury | None, signed: Signed) -> None:
        self._kept, self._signed = treasury, signed

    @property
    def _treasury(self) -> Treasury:
        if self._kept is None:
            raise NotFound("treasury", "this holder has none")
        return self._kept

    async def book_shares(self, request: web.Request) -> web.Response:
        said = ShareStatement.parse(await raw_of(request, MAX_BODY_BYTES))
        return answer({"ahead_msat": self._treasury.book_shares(said)})

    async def ahead(self, request: web.Request) -> web.Response:
        return answer({"ahead_msat": self._treasury.ahead_msat(_named(request, "customer"))})

    async def pot(self, request: web.Request) -> web.Response:
        received_msat, left_msat = self._treasury.pot(_named(request, "request"))
        return answer({"received_msat": received_msat, "left_msat": left_msat})

    async def share(self, request: web.Request) -> web.Response:
        job, customer, chunk = _named(request, "request"), _named(request, "customer"), request.match_info["chunk"]
        before = request.query.get("before_ms")
        for name, text in (("chunk", chunk), ("before_ms", before)):
            if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= 16):
                raise BadInput(name, "not a number")
        before_ms = int(before) if before is not None else None
        return answer({"came_msat": self._treasury.share_msat(job, customer, int(chunk), before_ms)})

    async def claim(self, request: web.Request) -> web.Response:
        payee, body = await self._signed(request)
        return answer({"amount_msat": self._treasury.claim(payee, hex32(body, "case"))})

    async def due(self, request: web.Request) -> web.Response:
        payee = _named(request, "payee")
        return answer({"due_msat": self._treasury.due_msat(payee), "payable_msat": self._treasury.payable_msat(payee)})

    async def payout(self, request: web.Request) -> web.Response:
        payee, body = await self._signed(request)
        bolt11 = body.get("bolt11")
        if not isinstance(bolt11, str):
            raise BadInput("bolt11", "not a string")
        paid = await self._treasury.payout(payee, bolt11)
        is_paid = paid.state == "paid"
        return answer({"amount_msat": paid.amount_msat, "payment_hash": paid.payment_hash, "is_paid": is_paid})


def _named(request: web.Request, name: str) -> str:
    return hex32(dict(request.match_info), name)
