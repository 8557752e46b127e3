"""What nodewire asks of one wallet, and the little that Electrum does not remember by itself.

Electrum tries an invoice again whose payment has failed. Here a failure is for good: who was told of it may have bought
another invoice since. So payments are written down before they begin, and failures stay.
"""

import asyncio
import time

from electrum import constants, util
from electrum.bolt11 import encode_bolt11_invoice
from electrum.crypto import sha256
from electrum.invoices import PR_UNPAID, Invoice, Request
from electrum.lnutil import LOCAL, MIN_FINAL_CLTV_DELTA_ACCEPTED, RECEIVED, SENT, PaymentFeeBudget
from electrum.lnworker import PaymentInfo
from electrum.util import InvoiceError

VERSION = 1
HOLD_CLTV = 240
"""Blocks that a hold invoice asks for at its end. Electrum gives back what has fewer than 144 left."""
LEAST_MSAT = 1_000
"""Electrum splits what it pays into parts, and never ends with an amount of fewer msat than parts."""
LABEL = "nodewire"
_ASK_S = 0.05


class Book:
    """One wallet's payments. `storage` is the plugin's part of the wallet's file."""

    def __init__(self, wallet, storage):
        self._wallet, self._node = wallet, wallet.lnworker
        self._sent = storage.setdefault("sent", {})
        self._holds = storage.setdefault("holds", {})
        self._running = {}
        self._reasons = {}
        util.register_callback(self._on_failure, ["payment_failed"])

    def close(self):
        util.unregister_callback(self._on_failure)

    def info(self):
        return {
            "version": VERSION,
            "node": self._node.node_keypair.pubkey.hex(),
            "network": constants.net.BOLT11_HRP,
            "least_msat": LEAST_MSAT,
        }

    def balance(self):
        channels = [one for one in self._node.channels.values() if not one.is_closed()]
        return {"msat": int(sum(one.balance_minus_outgoing_htlcs(LOCAL) for one in channels))}

    # What comes

    def invoice(self, amount_msat, description, expiry_s):
        payment_hash = self._node.create_payment_info(amount_msat=amount_msat, exp_delay=expiry_s, write_to_disk=False)
        info = self._node.get_payment_info(payment_hash, direction=RECEIVED)
        request = Request(
            outputs=[],
            message=LABEL,
            time=info.creation_ts,
            amount_msat=amount_msat,
            exp=expiry_s,
            height=self._wallet.adb.get_local_height(),
            payment_hash=payment_hash,
        )
        self._wallet.add_payment_request(request)  # written to the file
        return {"bolt11": self._bolt11(info, description)}

    def hold_invoice(self, payment_hash, amount_msat, description, expiry_s):
        raw = bytes.fromhex(payment_hash)
        used = self._node.get_payment_info(raw, direction=RECEIVED) or self._node.get_preimage(raw)
        if used or payment_hash in self._holds:
            return _refused("not-allowed", "another invoice has the payment hash")
        info = PaymentInfo(
            payment_hash=raw,
            amount_msat=amount_msat,
            direction=RECEIVED,
            status=PR_UNPAID,
            min_final_cltv_delta=HOLD_CLTV,
            expiry_delay=expiry_s,
            invoice_features=self._node._prepare_invoice_features(
                self._node.features.for_bolt11_invoice(), amount_msat=amount_msat
            ),
        )
        self._node.save_payment_info(info, write_to_disk=False)
        self._node.dont_expire_htlcs[payment_hash] = MIN_FINAL_CLTV_DELTA_ACCEPTED
        self._holds[payment_hash] = {"amount_msat": amount_msat, "created_at": info.creation_ts, "expiry": expiry_s}
        self._wallet.save_db()
        return {"bolt11": self._bolt11(info, description)}

    async def settle_hold(self, preimage, wait_s):
        raw = bytes.fromhex(preimage)
        payment_hash = sha256(raw).hex()
        found = self._incoming(payment_hash)
        if found is None or payment_hash not in self._holds:
            return _refused("not-found", "no hold invoice has the hash of this preimage")
        if found["state"] in ("open", "failed"):
            return _refused("not-allowed", f"nothing is held: it is {found['state']}")
        if self._node.get_preimage(sha256(raw)) is None:
            self._node.save_preimage(sha256(raw), raw)
            util.trigger_callback("wallet_updated", self._wallet)
        return await self._until(payment_hash, "settled", wait_s)

    async def cancel_hold(self, payment_hash, wait_s):
        raw = bytes.fromhex(payment_hash)
        found = self._incoming(payment_hash)
        if found is None:
            return _refused("not-found", "the wallet never issued it")
        if payment_hash not in self._holds or found["state"] == "settled" or self._node.get_preimage(raw):
            return _refused("not-allowed", f"it is {found['state']}, or no hold invoice")
        if self._node.get_payment_info(raw, direction=RECEIVED) is not None:
            if found["state"] == "failed":
                return _refused("not-allowed", "it has expired")
            self._holds[payment_hash] = {**self._holds[payment_hash], "cancelled_at": int(time.time())}
            self._node.set_payment_status(raw, PR_UNPAID, direction=RECEIVED)
            self._node.delete_payment_info(payment_hash, direction=RECEIVED)
            self._node.dont_expire_htlcs.pop(payment_hash, None)
            self._wallet.save_db()
        until = time.monotonic() + wait_s
        while self._node.is_complete_mpp(raw) and time.monotonic() < until:
            await asyncio.sleep(_ASK_S)
        return self._incoming(payment_hash)

    def invoices(self, since_s):
        payments = self._node.get_payments(direction=RECEIVED)
        requests = [one for one in self._wallet.get_requests() if one.is_lightning()]
        rows = [(one.time, one.time + one.exp if one.exp else 0, one.rhash) for one in requests]
        rows += [(one["created_at"], one["created_at"] + one["expiry"], key) for key, one in self._holds.items()]
        found = []
        for created_at, expires_at, payment_hash in sorted(row for row in rows if row[0] >= since_s):
            transfer = self._incoming(payment_hash, payments)
            if transfer is not None:
                found.append({**transfer, "created_at": created_at, "expires_at": expires_at})
        return {"invoices": found}

    def _bolt11(self, info, description):
        """As Electrum makes it, with the hash of a description where it has a description."""
        address, _ = self._node.get_bolt11_invoice(payment_info=info, message="", fallback_address=None)
        address.tags = [("h", description) if name == "d" else (name, value) for name, value in address.tags]
        made = encode_bolt11_invoice(address, self._node.node_keypair.privkey)
        self._node._bolt11_cache[info.payment_hash] = address, made
        return made

    def _incoming(self, payment_hash, payments=None):
        raw, hold = bytes.fromhex(payment_hash), self._holds.get(payment_hash)
        info = self._node.get_payment_info(raw, direction=RECEIVED)
        if info is None:
            if hold is None or "cancelled_at" not in hold:
                return None
            return _transfer(payment_hash, "failed", hold["amount_msat"], hold["cancelled_at"], reason="cancelled")
        payments = self._node.get_payments(direction=RECEIVED) if payments is None else payments
        parts = payments.get(raw, [])
        came = [one.htlc for one in parts if one.status == "settled"]
        if came:
            amount_msat, at_s = sum(one.amount_msat for one in came), max(one.timestamp for one in came)
            return _transfer(
                payment_hash, "settled", amount_msat, at_s, preimage=self._node.get_preimage_hex(payment_hash)
            )
        amount_msat = info.amount_msat or 0
        if any(one.status == "inflight" for one in parts):
            state = "pending" if hold and self._node.is_complete_mpp(raw) else "open"
            return _transfer(payment_hash, state, amount_msat, info.creation_ts)
        if time.time() >= info.expiration_ts:
            return _transfer(payment_hash, "failed", amount_msat, info.expiration_ts, reason="expired")
        return _transfer(payment_hash, "open", amount_msat, info.creation_ts)

    async def _until(self, payment_hash, state, wait_s):
        until = time.monotonic() + wait_s
        while (found := self._incoming(payment_hash))["state"] != state and time.monotonic() < until:
            await asyncio.sleep(_ASK_S)
        return found

    # What goes

    async def pay(self, bolt11, max_fee_msat, wait_s):
        try:
            invoice = Invoice.from_bech32(bolt11)
        except InvoiceError as error:
            return _refused("bad-input", f"no invoice: {error}"[:200])
        if not invoice.amount_msat:
            return _refused("bad-input", "the invoice has no amount")
        payment_hash = invoice.rhash
        if self._outgoing(payment_hash) is None:
            if invoice.has_expired():
                self._write(payment_hash, invoice.amount_msat, "failed", "the invoice has expired")
            elif invoice.amount_msat < LEAST_MSAT:
                self._write(payment_hash, invoice.amount_msat, "failed", "Electrum pays no part of a satoshi alone")
            else:
                self._write(payment_hash, invoice.amount_msat, "begun")
                self._running[payment_hash] = asyncio.create_task(self._send(invoice, max_fee_msat))
        until = time.monotonic() + wait_s
        if payment_hash in self._running:
            await asyncio.wait({self._running[payment_hash]}, timeout=wait_s)
        while (found := self._outgoing(payment_hash))["state"] == "pending" and time.monotonic() < until:
            await asyncio.sleep(_ASK_S)
        return found

    async def _send(self, invoice, max_fee_msat):
        budget = PaymentFeeBudget.from_invoice_amount(
            config=self._wallet.config, invoice_amount_msat=invoice.amount_msat, max_fee_msat=max_fee_msat
        )
        try:
            self._wallet.save_invoice(invoice)
            await self._node.pay_invoice(invoice, budget=budget)
            await asyncio.sleep(0)  # after this Electrum has said why it failed
        except Exception as error:
            self._reasons[invoice.rhash] = str(error) or type(error).__name__
        finally:
            del self._running[invoice.rhash]

    def _on_failure(self, wallet, payment_hash, reason):
        if wallet is self._wallet and payment_hash in self._sent:
            self._reasons[payment_hash] = str(reason)

    def _outgoing(self, payment_hash):
        raw, written = bytes.fromhex(payment_hash), self._sent.get(payment_hash)
        info = self._node.get_payment_info(raw, direction=SENT)  # none of what is forwarded
        if info is None and written is None:
            return None
        amount_msat = written["amount_msat"] if written is not None else info.amount_msat
        at_s = written["at_s"] if written is not None else info.creation_ts
        if payment_hash in self._running or payment_hash in self._node.inflight_payments:
            return _transfer(payment_hash, "pending", amount_msat, at_s)
        if self._node.has_unresolved_sent_htlcs(raw):
            return _transfer(payment_hash, "pending", amount_msat, at_s)
        parts = self._node.get_payments(status="settled", direction=SENT).get(raw, []) if info is not None else []
        if parts:
            fee_msat = sum(one.htlc.amount_msat for one in parts) - amount_msat
            at_s = max(one.htlc.timestamp for one in parts)
            preimage = self._node.get_preimage_hex(payment_hash)
            return _transfer(payment_hash, "settled", amount_msat, at_s, fee_msat=fee_msat, preimage=preimage)
        if written is None:
            return None  # Electrum itself tried it, and may again
        if written["state"] != "failed":
            reason = self._reasons.pop(payment_hash, "it came back, or the wallet was closed before it was sent")
            written = self._write(payment_hash, amount_msat, "failed", reason[:200])
        return _transfer(payment_hash, "failed", amount_msat, written["at_s"], reason=written["reason"])

    def _write(self, payment_hash, amount_msat, state, reason=""):
        row = {"amount_msat": amount_msat, "state": state, "at_s": int(time.time()), "reason": reason}
        self._sent[payment_hash] = row
        self._wallet.save_db()
        return row

    def lookup(self, payment_hash, direction):
        found = self._incoming(payment_hash) if direction == "in" else self._outgoing(payment_hash)
        return found if found is not None else _refused("not-found", "the wallet's record has no such payment")


def _transfer(payment_hash, state, amount_msat, at_s, *, fee_msat=0, preimage=None, reason=""):
    return {
        "payment_hash": payment_hash,
        "state": state,
        "amount_msat": amount_msat,
        "fee_msat": fee_msat,
        "preimage": preimage,
        "at_s": at_s,
        "reason": reason,
    }


def _refused(code, reason):
    return {"refused": code, "reason": reason}
