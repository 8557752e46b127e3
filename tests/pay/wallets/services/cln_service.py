"""Core Lightning's clnrest over a wallet of the simulated network, for tests.

What it finds no way for, or has expired, it does not write down. While xpay works, its parts so far may have failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time

from aiohttp import web

from nodewire.pay.lightning import invoices
from tests.pay.wallets.services.stand_in import StandIn, is_over

_IN = {"open": "unpaid", "pending": "unpaid", "settled": "paid", "failed": "expired"}
_OUT = {"pending": "pending", "settled": "complete", "failed": "failed"}


class ClnService(StandIn):
    recorded = "cln"

    def __init__(self, wallet):
        super().__init__(wallet)
        self.descriptions, self.labels = {}, {}
        self.retries = 0
        """Of how many payments all parts fail at first, and xpay looks for another way for `retry_s`."""
        self.retry_s = 1.0
        self.retried: set[str] = set()

    def routes(self):
        return [web.post("/v1/{method}", self._call)]

    def refusal(self, request):
        method = request.path.removeprefix("/v1/")
        if request.headers.get("Rune") != self.secret:
            return refused(1501, "Not authorized: Not derived from master", 401)
        if method in self.forbidden:
            return refused(1502, f"Not permitted: method is equal to {method}", 401)
        return None

    async def _call(self, request):
        method = request.match_info["method"]
        handler = getattr(self, f"_{method}", None)
        call = f"POST /v1/{method}"
        if handler is None or call not in self.documented.calls:
            return refused(-32601, f"Unknown command '{method}'", 404)
        params = await request.json()
        missing = [name for name in self.documented.calls[call]["required"] if name not in params]
        if missing:
            return refused(-32602, f"missing required parameter: {missing[0]}")
        if params.get("lastpay_index", 0) < 0:
            return refused(-32602, "lastpay_index: should be an unsigned 64 bit integer: invalid token '-1'")
        said = await handler(self.documented.check(call, "request", params), request)
        if isinstance(said, web.Response):
            return said
        return web.json_response(self.documented.check(call, "answer", said), status=201)

    async def _getinfo(self, _, __):
        said = {"id": self.node, "alias": "test", "version": "v26.06", "blockheight": 840_000, "network": "regtest"}
        return said | {"num_peers": 1, "fees_collected_msat": 0}

    async def _listfunds(self, _, __):
        msat = await self.wallet.balance_msat()
        channel = {"peer_id": self.node, "connected": True, "channel_id": "ab" * 32, "funding_txid": "cd" * 32}
        channel |= {"funding_output": 0, "amount_msat": 10**12}
        closed = channel | {"state": "ONCHAIN", "our_amount_msat": 777_000}
        return {"outputs": [], "channels": [channel | {"state": "CHANNELD_NORMAL", "our_amount_msat": msat}, closed]}

    async def _invoice(self, params, _):
        assert params["deschashonly"] is True and params["label"] not in self.labels.values()
        digest = hashlib.sha256(params["description"].encode()).hexdigest()
        made = await self.issue(params["amount_msat"], digest, params["expiry"])
        self.labels[made.payment_hash] = params["label"]
        self.descriptions[made.payment_hash] = params["description"]
        said = {"payment_hash": made.payment_hash, "expires_at": made.expires_at_s, "bolt11": made.bolt11}
        return said | {"payment_secret": "ab" * 32, "created_index": len(self.made)}

    async def _xpay(self, params, request):
        invoice = invoices.decode(params["invstring"])
        payment_hash = invoice.payment_hash
        if is_over(invoice):
            return refused(207, "Invoice expired")
        if payment_hash in self.outgoing:
            now = await self.outgoing_state(payment_hash)
            if now is not None and now.state == "settled":
                return refused(219, "Already paid this invoice successfully")
            if now is None or now.state == "pending":
                return refused(209, "Payment with groupid=1 still in progress")
        if self.retries:
            self.retries -= 1
            self.outgoing[payment_hash] = invoice
            self.retried.add(payment_hash)
            await asyncio.sleep(self.retry_s)
            self.retried.discard(payment_hash)
        paid = await self.begin(params["invstring"], params["maxfee"], request)
        if paid.state == "failed":
            if any(word in paid.reason for word in ("route", "balance", "fee")):
                del self.outgoing[payment_hash]
                return refused(205, "Could not find route")
            return refused(203, "Destination said it doesn't know invoice: incorrect_or_unknown_payment_details")
        said = {"payment_preimage": paid.preimage, "failed_parts": 0, "successful_parts": 1}
        return said | {"amount_msat": paid.amount_msat, "amount_sent_msat": paid.amount_msat + paid.fee_msat}

    async def _listpays(self, params, _):
        payment_hash = params["payment_hash"]
        invoice = self.outgoing.get(payment_hash)
        if invoice is None:
            return {"pays": []}
        found = await self.outgoing_state(payment_hash)
        row = {"payment_hash": payment_hash, "destination": invoice.payee, "bolt11": invoice.bolt11}
        row |= {"created_at": int(time.time()), "created_index": 1, "status": "pending"}
        if payment_hash in self.retried:
            return {"pays": [row | {"status": "failed"}]}
        if found is not None:
            row |= {"status": _OUT[found.state]}
        if found is not None and found.state == "settled":
            row |= {"completed_at": found.at_s, "preimage": found.preimage, "amount_msat": found.amount_msat}
            row |= {"amount_sent_msat": found.amount_msat + found.fee_msat}
        return {"pays": [row]}

    async def _listinvoices(self, params, _):
        payment_hash = params["payment_hash"]
        return {"invoices": [await self._incoming(payment_hash)] if payment_hash in self.made else []}

    async def _waitanyinvoice(self, params, _):
        place = params["lastpay_index"]
        try:
            async with asyncio.timeout(params["timeout"]), self.changed:
                await self.changed.wait_for(lambda: len(self._settled()) > place)
        except TimeoutError:
            return refused(904, "Timed out")
        return await self._incoming(self._settled()[place])

    def _settled(self):
        return [one for one in self.came if one in self.made]

    async def _incoming(self, payment_hash):
        made, found = self.made[payment_hash], await self.wallet.lookup(payment_hash, "in")
        row = {
            "label": self.labels[payment_hash],
            "bolt11": made.bolt11,
            "payment_hash": payment_hash,
            "amount_msat": made.amount_msat,
            "status": _IN[found.state],
            "description": self.descriptions[payment_hash],
            "expires_at": made.expires_at_s,
            "created_index": list(self.made).index(payment_hash) + 1,
        }
        if found.state == "settled":
            settled = self._settled()
            index = settled.index(payment_hash) + 1 if payment_hash in settled else len(settled) + 1
            row |= {"pay_index": index, "paid_at": found.at_s, "payment_preimage": found.preimage}
            row |= {"amount_received_msat": found.amount_msat}
        return row


def refused(code, words, status=500):
    return web.json_response({"code": code, "message": words}, status=status)
