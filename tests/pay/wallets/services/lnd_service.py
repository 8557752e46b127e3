"""LND's REST API over a wallet of the simulated network, for tests.

What has expired it does not begin and does not write down. What failed it would begin anew.
"""

from __future__ import annotations

import base64
import json

from aiohttp import web

from nodewire.errors import NotAllowed
from nodewire.pay.lightning import invoices
from tests.pay.wallets.services.stand_in import StandIn, is_over

_IN = {"open": "OPEN", "pending": "ACCEPTED", "settled": "SETTLED", "failed": "CANCELED"}
_OUT = {"pending": "IN_FLIGHT", "settled": "SUCCEEDED", "failed": "FAILED"}


class LndService(StandIn):
    recorded = "lnd"

    def routes(self):
        return [
            web.get("/v1/getinfo", self._info),
            web.get("/v1/balance/channels", self._balance),
            web.post("/v1/invoices", self._add),
            web.get("/v1/invoices", self._list),
            web.get("/v1/invoices/subscribe", self._subscribe),
            web.get("/v1/invoice/{r_hash_str}", self._invoice),
            web.post("/v2/router/send", self._send),
            web.get("/v2/router/track/{payment_hash}", self._track),
            web.post("/v2/invoices/hodl", self._hold),
            web.post("/v2/invoices/settle", self._settle),
            web.post("/v2/invoices/cancel", self._cancel),
        ]

    def refusal(self, request):
        if request.headers.get("Grpc-Metadata-macaroon") != self.secret:
            return refused(2, "verification failed: signature mismatch after caveat verification")
        if any(request.path.startswith(path) for path in self.forbidden):
            return refused(2, "permission denied")
        return None

    def _answer(self, call, value):
        return web.json_response(self.documented.check(call, "answer", value))

    async def _info(self, _):
        chains = [{"chain": "bitcoin", "network": "regtest"}]
        said = {"version": "0.20.0-beta", "identity_pubkey": self.node, "alias": "test", "chains": chains}
        return self._answer("GET /v1/getinfo", said | {"block_height": 840_000, "synced_to_chain": True})

    async def _balance(self, _):
        msat = await self.wallet.balance_msat()
        local = {"sat": str(msat // 1_000), "msat": str(msat)}
        return self._answer("GET /v1/balance/channels", {"balance": local["sat"], "local_balance": local})

    async def _add(self, request):
        call = "POST /v1/invoices"
        body = self.documented.check(call, "request", await request.json())
        if "value" in body and "value_msat" in body:
            return refused(2, "sat and msat arguments are mutually exclusive")
        assert 24 <= int(body["cltv_expiry"]) <= 144 and body["private"] is True
        made = await self.issue(int(body["value_msat"]), to_hex(body["description_hash"]), int(body["expiry"]))
        said = {"r_hash": to_base64(made.payment_hash), "payment_request": made.bolt11}
        return self._answer(call, said | {"add_index": str(len(self.made)), "payment_addr": to_base64("ab" * 32)})

    async def _hold(self, request):
        call = "POST /v2/invoices/hodl"
        body = self.documented.check(call, "request", await request.json())
        if "hash" not in body:
            return refused(2, "invalid hash length of 0, want 32")
        payment_hash = to_hex(body["hash"])
        try:
            made = await self.issue(
                int(body["value_msat"]),
                to_hex(body["description_hash"]),
                int(body["expiry"]),
                payment_hash=payment_hash,
            )
        except NotAllowed:
            return refused(2, "invoice with payment hash already exists")
        return self._answer(call, {"payment_request": made.bolt11, "add_index": str(len(self.made))})

    async def _settle(self, request):
        call = "POST /v2/invoices/settle"
        preimage = to_hex(self.documented.check(call, "request", await request.json())["preimage"])
        payment_hash = invoices.hash_of(preimage)
        if payment_hash not in self.made:
            return refused(2, "unable to locate invoice")
        state = (await self.wallet.lookup(payment_hash, "in")).state
        if state in ("open", "failed"):
            return refused(2, "invoice still open" if state == "open" else "invoice already canceled")
        await self.wallet.settle_hold(preimage)
        return self._answer(call, {})

    async def _cancel(self, request):
        call = "POST /v2/invoices/cancel"
        payment_hash = to_hex(self.documented.check(call, "request", await request.json())["payment_hash"])
        if payment_hash not in self.made:
            return refused(2, "unable to locate invoice")
        state = (await self.wallet.lookup(payment_hash, "in")).state
        if state == "settled":
            return refused(2, "invoice already settled")
        if state != "failed":
            await self.wallet.cancel_hold(payment_hash)
        return self._answer(call, {})

    async def _invoice(self, request):
        payment_hash = request.match_info["r_hash_str"]
        if payment_hash not in self.made:
            return refused(5, "unable to locate invoice", 404)
        return self._answer("GET /v1/invoice/{r_hash_str}", await self._incoming(payment_hash))

    async def _list(self, request):
        call = "GET /v1/invoices"
        asked = self.documented.check(call, "query", dict(request.query))
        after, most = int(asked["index_offset"]), int(asked["num_max_invoices"])
        page = list(self.made)[after : after + most]
        rows = [await self._incoming(one) for one in page]
        ends = {"first_index_offset": str(after + 1), "last_index_offset": str(after + len(page))}
        return self._answer(call, {"invoices": rows, **ends})

    async def _subscribe(self, request):
        call = "GET /v1/invoices/subscribe"
        place = int(self.documented.check(call, "query", dict(request.query))["settle_index"])
        place = place or len(self._settled())  # of 0 there is no backlog
        stream = await started(request)
        while True:
            for payment_hash in self._settled()[place:]:
                await say(stream, self.documented.check(call, "stream", await self._incoming(payment_hash)))
                place += 1
            async with self.changed:
                if len(self._settled()) == place:
                    await self.changed.wait()

    async def _send(self, request):
        call = "POST /v2/router/send"
        body = self.documented.check(call, "request", await request.json())
        if "payment_request" not in body:
            return refused_stream(2, "invalid vertex length of 0, want 33")
        invoice = invoices.decode(body["payment_request"])
        if is_over(invoice):
            return refused_stream(2, "invoice expired. Valid until 2026-01-01 00:00:00 +0000 UTC")
        if invoice.payment_hash in self.outgoing:
            now = await self.outgoing_state(invoice.payment_hash)
            if now is None or now.state != "failed":
                words = "invoice is already paid" if now and now.state == "settled" else "payment is in transition"
                return refused_stream(6, words, 409)
        assert body["timeout_seconds"] >= 1 and body["no_inflight_updates"]
        await self.begin(body["payment_request"], int(body["fee_limit_msat"]), request)
        stream = await started(request)
        await say(stream, self.documented.check(call, "stream", await self._payment(invoice.payment_hash)))
        return stream

    async def _track(self, request):
        payment_hash = to_hex(request.match_info["payment_hash"])
        if payment_hash not in self.outgoing:
            return refused_stream(5, "payment isn't initiated", 404)
        stream = await started(request)
        row = await self._payment(payment_hash)
        await say(stream, self.documented.check("GET /v2/router/track/{payment_hash}", "stream", row))
        return stream

    def _settled(self):
        return [one for one in self.came if one in self.made]

    async def _incoming(self, payment_hash):
        made, found = self.made[payment_hash], await self.wallet.lookup(payment_hash, "in")
        settled = self._settled()
        paid_msat = found.amount_msat if found.state in ("pending", "settled") else 0
        return {
            "r_hash": to_base64(payment_hash),
            # A node knows the preimages of its own invoices, paid or not.
            "r_preimage": to_base64(found.preimage or "ee" * 32),
            "value": str(made.amount_msat // 1_000),
            "value_msat": str(made.amount_msat),
            "payment_request": made.bolt11,
            "description_hash": to_base64(made.description_hash),
            "creation_date": str(made.created_at_s),
            "expiry": str(made.expires_at_s - made.created_at_s),
            "cltv_expiry": "80",
            "private": True,
            "add_index": str(list(self.made).index(payment_hash) + 1),
            "settle_index": str(settled.index(payment_hash) + 1 if payment_hash in settled else 0),
            "settle_date": str(found.at_s if found.state == "settled" else 0),
            "amt_paid_sat": str(paid_msat // 1_000),
            "amt_paid_msat": str(paid_msat),
            "state": _IN[found.state],
            "htlcs": [],
        }

    async def _payment(self, payment_hash):
        invoice, found = self.outgoing[payment_hash], await self.outgoing_state(payment_hash)
        row = {
            "payment_hash": payment_hash,
            "value_sat": str(invoice.amount_msat // 1_000),
            "value_msat": str(invoice.amount_msat),
            "payment_request": invoice.bolt11,
            "creation_time_ns": str(invoice.created_at_s * 10**9),
            "payment_preimage": "00" * 32,
            "fee_sat": "0",
            "fee_msat": "0",
            "status": "INITIATED",
            "failure_reason": "FAILURE_REASON_NONE",
            "payment_index": "1",
            "htlcs": [],
        }
        if found is None:
            return row
        row |= {"status": _OUT[found.state]}
        if found.state == "failed":
            row |= {"failure_reason": "FAILURE_REASON_NO_ROUTE"}
        if found.state == "settled":
            ended = {"attempt_id": "1", "status": "SUCCEEDED", "resolve_time_ns": str(found.at_s * 10**9)}
            row |= {"payment_preimage": found.preimage, "fee_msat": str(found.fee_msat), "htlcs": [ended]}
            row |= {"fee_sat": str(found.fee_msat // 1_000)}
        return row


async def started(request):
    stream = web.StreamResponse(headers={"Content-Type": "application/json"})
    await stream.prepare(request)
    return stream


async def say(stream, message):
    await stream.write(json.dumps({"result": message}).encode() + b"\n")


def refused(code, words, status=500):
    return web.json_response({"code": code, "message": words, "details": []}, status=status)


def refused_stream(code, words, status=500):
    return web.json_response({"error": {"code": code, "message": words, "details": []}}, status=status)


def to_hex(text):
    return base64.b64decode(text, altchars=b"-_").hex()


def to_base64(digits):
    return base64.b64encode(bytes.fromhex(digits)).decode()
