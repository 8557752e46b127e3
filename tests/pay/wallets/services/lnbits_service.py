"""LNbits's REST API over a wallet of the simulated network, for tests: the answers have the shapes of LNbits 1.6.

What it refuses to begin it does not write down, and it says "failed" of an invoice that it has paid before.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from aiohttp import web

from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet

_STATES = {"open": "pending", "pending": "pending", "settled": "success", "failed": "failed"}


class LnbitsService:
    """Serves `wallet` to who has `admin_key`, or only its income to who has `invoice_key`."""

    def __init__(self, wallet: SimWallet) -> None:
        self.wallet = wallet
        self.admin_key, self.invoice_key = hashlib.sha256(wallet._token.encode()).hexdigest()[:32], "1" * 32
        self.url = ""
        self.drops = 0
        """How many answers to payments are lost, after these have been made."""
        self.rows: dict[str, dict] = {}

    @asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.add_routes(
            [
                web.get("/api/v1/wallet", self._wallet),
                web.post("/api/v1/payments", self._post),
                web.get("/api/v1/payments/paginated", self._list),
                web.get("/api/v1/payments/{payment_hash}", self._payment),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def _key(self, request):
        key = request.headers.get("X-Api-Key")
        if key not in (self.admin_key, self.invoice_key):
            raise web.HTTPUnauthorized(text='{"detail": "Invalid Api Key"}', content_type="application/json")
        return key

    async def _wallet(self, request):
        said = {"name": "test", "balance": await self.wallet.balance_msat()}
        return web.json_response(said | ({"id": self.admin_key[::-1]} if self._key(request) == self.admin_key else {}))

    async def _post(self, request):
        key, body = self._key(request), await request.json()
        if body["out"]:
            if key != self.admin_key:
                return web.json_response({"detail": "Invoice (or Admin) key required."}, status=401)
            return await self._pay(body["bolt11"])
        if body["unit"] != "sat" or not 0 < body["amount"] <= 10**8:
            return refused("Amountless invoices not supported.")
        asked = {"amount_msat": int(body["amount"]) * 1_000, "expiry_s": body["expiry"]}
        if "unhashed_description" in body:
            asked["description_hash"] = hashlib.sha256(bytes.fromhex(body["unhashed_description"])).hexdigest()
        else:
            asked["description_hash"] = body["description_hash"]
        made = invoices.decode((await self.wallet.ask("POST", "/v1/invoices", asked))["bolt11"])
        self._enter(made, made.amount_msat)
        return web.json_response(await self._row(made.payment_hash), status=201)

    async def _pay(self, bolt11):
        invoice = invoices.decode(bolt11)
        if invoice.payment_hash in self.rows:
            return refused("Internal invoice already paid.")
        paid = await self.wallet.pay(bolt11, max_fee_msat=10_000)
        if paid.state == "failed":
            return refused(paid.reason)
        self._enter(invoice, -invoice.amount_msat)
        if self.drops:
            self.drops -= 1
            return web.Response(status=502, text="Bad Gateway")
        return web.json_response(await self._row(invoice.payment_hash), status=201)

    async def _list(self, request):
        self._key(request)
        limit, offset = int(request.query["limit"]), int(request.query["offset"])
        assert (request.query["sortby"], request.query["direction"]) == ("time", "desc")
        rows = [await self._row(one) for one in reversed(self.rows)]
        return web.json_response({"data": rows[offset : offset + limit], "total": len(rows)})

    async def _payment(self, request):
        self._key(request)
        payment_hash = request.match_info["payment_hash"]
        if payment_hash not in self.rows:
            return web.json_response({"detail": "Payment does not exist."}, status=404)
        row = await self._row(payment_hash)
        said = {"paid": row["status"] == "success", "status": row["status"], "preimage": row["preimage"]}
        return web.json_response({**said, "details": row})

    def _enter(self, invoice, amount_msat):
        self.rows[invoice.payment_hash] = {
            "checking_id": invoice.payment_hash,
            "payment_hash": invoice.payment_hash,
            "wallet_id": self.admin_key[::-1],
            "amount": amount_msat,
            "bolt11": invoice.bolt11,
            "memo": "",
            "expiry": moment(invoice.expires_at_s),
            "time": moment(invoice.created_at_s),
            "created_at": moment(invoice.created_at_s),
        }

    async def _row(self, payment_hash):
        row = self.rows[payment_hash]
        found = await self.wallet.lookup(payment_hash, "in" if row["amount"] > 0 else "out")
        ended = {"updated_at": moment(found.at_s or invoices.decode(row["bolt11"]).created_at_s)}
        return {**row, **ended, "fee": -found.fee_msat, "preimage": found.preimage, "status": _STATES[found.state]}


def moment(at_s):
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def refused(why):
    return web.json_response({"detail": why, "status": "failed"}, status=520)
