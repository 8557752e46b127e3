"""phoenixd's HTTP API over a wallet of the simulated network, for tests. What failed it would begin anew."""

from __future__ import annotations

import base64
import json
import time
import uuid

from aiohttp import web

from nodewire.errors import NodewireError
from nodewire.pay.lightning import invoices
from tests.pay.wallets.services.stand_in import StandIn

_FULL_ACCESS = ("/payinvoice",)


class PhoenixdService(StandIn):
    recorded = "phoenixd"

    def __init__(self, wallet):
        super().__init__(wallet)
        self.limited_secret = self.secret[::-1]
        self.liquidity_fee_sat = 0
        """What it takes of each payment that comes, for a channel."""
        self.made_ms: dict[str, int] = {}

    def routes(self):
        return [
            web.get("/getinfo", self._info),
            web.get("/getbalance", self._balance),
            web.post("/createinvoice", self._create),
            web.post("/payinvoice", self._pay),
            web.get("/payments/incoming", self._list),
            web.get("/payments/incoming/{paymentHash}", self._incoming),
            web.get("/payments/outgoingbyhash/{paymentHash}", self._outgoing),
        ]

    def refusal(self, request):
        expected = [self.secret] if request.path in _FULL_ACCESS else [self.secret, self.limited_secret]
        shown = request.headers.get("Authorization", "")
        if shown not in [f"Basic {base64.b64encode(f':{one}'.encode()).decode()}" for one in expected]:
            return web.Response(status=401, text="Invalid authentication (use basic auth with the http password)")
        if any(request.path.startswith(path) for path in self.forbidden):
            return web.Response(status=404, text="Unknown endpoint (check api doc)")
        return None

    def _answer(self, call, value):
        return web.json_response(
            self.documented.check(call, "answer", value), dumps=lambda found: json.dumps(found, indent=4)
        )

    async def _info(self, _):
        said = {"nodeId": self.node, "channels": [], "chain": "regtest", "blockHeight": 840_000, "version": "0.8.0"}
        return self._answer("GET /getinfo", said)

    async def _balance(self, _):
        said = {"balanceSat": await self.wallet.balance_msat() // 1_000, "feeCreditSat": 0}
        return self._answer("GET /getbalance", said)

    async def _create(self, request):
        call = "POST /createinvoice"
        form = dict(await request.post())
        if not form.get("amountSat", "0").isdecimal():
            return web.Response(status=400, text="Request parameter amountSat couldn't be parsed/converted to integer")
        self.documented.check(call, "form", form)
        if ("description" in form) == ("descriptionHash" in form):
            return web.Response(status=400, text="Must provide either a description or descriptionHash")
        amount_msat = int(form["amountSat"]) * 1_000
        made = await self.issue(amount_msat, form["descriptionHash"], int(form.get("expirySeconds", 3_600)))
        self.made_ms[made.payment_hash] = int(time.time() * 1_000)
        said = {"amountSat": int(form["amountSat"]), "paymentHash": made.payment_hash, "serialized": made.bolt11}
        return self._answer(call, said)

    async def _pay(self, request):
        call = "POST /payinvoice"
        form = self.documented.check(call, "form", dict(await request.post()))
        try:
            invoice = invoices.decode(form["invoice"])
        except NodewireError:
            return web.Response(status=400, text="Request parameter invoice couldn't be parsed/converted")
        if invoice.payment_hash in self.outgoing:
            now = await self.outgoing_state(invoice.payment_hash)
            if now is None or now.state != "failed":
                paid = now is not None and now.state == "settled"
                why = "this invoice has already been paid" if paid else "another payment is in progress"
                return self._failed(invoice.payment_hash, why)
        paid = await self.begin(form["invoice"], 100_000, request)
        if paid.state == "failed":
            return self._failed(invoice.payment_hash, "not enough funds in wallet to afford payment")
        said = {"recipientAmountSat": paid.amount_msat // 1_000, "routingFeeSat": paid.fee_msat // 1_000}
        said |= {"paymentId": str(uuid.uuid4()), "paymentHash": paid.payment_hash, "paymentPreimage": paid.preimage}
        return self._answer(call, said)

    def _failed(self, payment_hash, reason):
        said = {"paymentHash": payment_hash, "reason": reason}
        self.documented._check("payment_failed", "PaymentFailed", said)
        return web.json_response(said)

    async def _list(self, request):
        call = "GET /payments/incoming"
        asked = self.documented.check(call, "query", dict(request.query))
        assert asked["all"] == "true"
        offset, limit = int(asked["offset"]), int(asked["limit"])
        found = [one for one in reversed(self.made) if self.made_ms[one] >= int(asked["from"])]
        return self._answer(call, [await self._in(one) for one in found[offset : offset + limit]])

    async def _incoming(self, request):
        payment_hash = request.match_info["paymentHash"]
        if payment_hash not in self.made:
            return web.Response(status=404, text="Not found")
        return self._answer("GET /payments/incoming/{paymentHash}", await self._in(payment_hash))

    async def _outgoing(self, request):
        payment_hash = request.match_info["paymentHash"]
        invoice = self.outgoing.get(payment_hash)
        if invoice is None:
            return web.Response(status=404, text="Not found")
        found = await self.outgoing_state(payment_hash)
        paid = found is not None and found.state == "settled"
        fees_msat = found.fee_msat if paid else 0
        row = {"type": "outgoing_payment", "subType": "lightning", "paymentId": str(uuid.uuid4())}
        row |= {"paymentHash": payment_hash, "invoice": invoice.bolt11, "isPaid": paid, "fees": fees_msat}
        row |= {"sent": (invoice.amount_msat + fees_msat) // 1_000, "createdAt": invoice.created_at_s * 1_000}
        if found is not None and found.state in ("settled", "failed"):
            row |= {"completedAt": found.at_s * 1_000}
        if paid:
            row |= {"preimage": found.preimage}
        return self._answer("GET /payments/outgoingbyhash/{paymentHash}", row)

    async def _in(self, payment_hash):
        made, found = self.made[payment_hash], await self.wallet.lookup(payment_hash, "in")
        paid = found.state == "settled"
        row = {
            "type": "incoming_payment",
            "subType": "lightning",
            "paymentHash": payment_hash,
            # It knows the preimages of its own invoices, paid or not.
            "preimage": found.preimage or "ee" * 32,
            "invoice": made.bolt11,
            "isPaid": paid,
            "isExpired": made.is_expired(time.time()),
            "requestedSat": made.amount_msat // 1_000,
            "receivedSat": found.amount_msat // 1_000 - self.liquidity_fee_sat if paid else 0,
            "fees": self.liquidity_fee_sat * 1_000 if paid else 0,
            "expiresAt": made.expires_at_s * 1_000,
            "createdAt": self.made_ms[payment_hash],
        }
        return row | ({"completedAt": found.at_s * 1_000} if paid else {})
