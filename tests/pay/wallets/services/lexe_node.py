"""A Lexe node as AsyncLexeWallet of lexe-sdk shows one, over a wallet of the simulated network, for tests."""

from __future__ import annotations

import asyncio
import hashlib
from enum import Enum
from types import SimpleNamespace

from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet
from tests.pay.wallets.services.recordings import Recording
from tests.pay.wallets.services.stand_in import is_over

RECORDED = Recording("lexe")
Status = Enum("Status", {name: name for name in RECORDED.types["PaymentStatus"]["enum"]})
Direction = Enum("Direction", {name: name for name in RECORDED.types["PaymentDirection"]["enum"]})
_STATES = {"pending": Status.PENDING, "settled": Status.COMPLETED, "failed": Status.FAILED}


class FfiError(Exception):
    """As the client's own: its text is the message."""


class LexeNode:
    """It has the methods of AsyncLexeWallet that nodewire calls, with their parameters and the members of answers."""

    def __init__(self, wallet: SimWallet) -> None:
        self.wallet = wallet
        self.key = "02" + hashlib.sha256(wallet._token.encode()).hexdigest()
        self.scopes = ["full"]
        self.provisions = 0
        self.drops = 0
        """How many answers to payments are lost, after these have been made."""
        self.told: list[str] = []
        self.outgoing: dict[str, invoices.Invoice] = {}

    async def provision(self, credentials):
        self.provisions += 1

    async def client_info(self):
        said = {"kind": None, "client_pk": "ab" * 32, "created_at_ms": 1, "expires_at_ms": None, "label": None}
        return made("GetClientInfoResponse", said | {"scopes": self.scopes, "permissions": []})

    async def node_info(self):
        sats = await self.wallet.balance_msat() // 1_000
        said = {"version": "0.9.0", "user_pk": "ab" * 32, "node_pk": self.key, "balance_sats": sats}
        return made("NodeInfo", said | {"lightning_sendable_balance_sats": sats})

    async def pay_invoice(self, invoice):
        asked = invoices.decode(invoice)
        self.told.append(asked.payment_hash)
        if asked.payment_hash not in self.outgoing:
            if is_over(asked):
                raise FfiError("Invoice has expired")
            if asked.amount_msat > await self.wallet.balance_msat():
                raise FfiError("Insufficient balance")  # and no record
            self.outgoing[asked.payment_hash] = asked
            await self.wallet.pay(invoice, max_fee_msat=100_000, timeout_s=3_600)
        if self.drops:
            self.drops -= 1
            raise FfiError("Could not reach the node")
        while (found := await self.get_payment_by_id(f"ln_{asked.payment_hash}")).status is Status.PENDING:
            await asyncio.sleep(0.05)
        return found

    async def get_payment_by_id(self, id):
        kind, _, payment_hash = id.partition("_")
        assert kind == "ln"
        invoice = self.outgoing.get(payment_hash)
        if invoice is None:
            return None
        found = await self.wallet.lookup(payment_hash, "out")
        said = {"index": f"{invoice.created_at_s}000-{id}", "direction": Direction.OUTBOUND, "hash": payment_hash}
        said |= {"preimage": found.preimage, "amount_sats": found.amount_msat // 1_000}
        said |= {"fees_sats": found.fee_msat // 1_000, "status": _STATES[found.state], "status_msg": found.reason}
        ended_ms = found.at_s * 1_000 if found.state != "pending" else None
        said |= {"created_at_ms": invoice.created_at_s * 1_000, "finalized_at_ms": ended_ms}
        return made("Payment", said | {"invoice": made("Invoice", {"string": invoice.bolt11})})


def made(name, members):
    """An object of a documented class. It has the members that are given, and no other is documented."""
    assert members.keys() <= RECORDED.types[name].keys(), members.keys() - RECORDED.types[name].keys()
    return SimpleNamespace(**members)
