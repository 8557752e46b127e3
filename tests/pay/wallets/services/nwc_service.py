"""A wallet service of NIP-47 over a wallet of the simulated network, for tests. Its cryptography is nostr-sdk's."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager

from nostr_sdk import (
    Nip44Version,
    PublicKey,
    SecretKey,
    nip04_decrypt,
    nip04_encrypt,
    nip44_decrypt,
    nip44_encrypt,
)

from nodewire.errors import NodewireError, NotFound
from nodewire.nostr.event import sign
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet

METHODS = ["pay_invoice", "make_invoice", "lookup_invoice", "list_transactions", "get_balance", "get_info"]
_STATES = {"open": "pending", "pending": "pending", "settled": "settled", "failed": "failed"}


class Refusal(Exception):
    def __init__(self, code, message):
        super().__init__(code)
        self.code, self.message = code, message


class NwcService:
    """Serves `wallet` to who has `uri`. What a test makes of it stands in the fields that it may change."""

    def __init__(self, wallet: SimWallet, relay: str) -> None:
        self.wallet, self.relay = wallet, relay
        self.keys, self.client = Keys.generate(), Keys.generate()
        self.methods = list(METHODS)
        self.network = "regtest"
        self.announces = True
        """Whether it publishes its info event."""
        self.encryption: str | None = "nip44_v2 nip04"
        """As its info event has it. A service that has no NIP-44 answers by NIP-04."""
        self.drops: list[str] = []
        """Methods whose next answer is lost, after what was asked has been done."""
        self.forgets = False
        """Whether it has no record of what went."""
        self.texts: dict[str, str] = {}
        """By method, an answer that it gives in place of each of its own, as it stands."""
        self.rounds = False
        self.drops_hash = False
        self.asked: list[str] = []
        self.book: dict[tuple[str, str], dict] = {}

    @property
    def uri(self) -> str:
        secret = self.client.secret.hex()
        return f"nostr+walletconnect://{self.keys.public}?relay={self.relay}&secret={secret}&lud16=a@b.example"

    @asynccontextmanager
    async def serving(self):
        async with Pool([self.relay], self.keys) as pool:
            tags = [["encryption", self.encryption]] if self.encryption is not None else []
            info = sign(self.keys, 13194, created_at=int(time.time()), content=" ".join(self.methods), tags=tags)
            if self.announces:
                await pool.publish(info)
            listening = asyncio.create_task(self._listen(pool))
            try:
                yield self
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, pool):
        wanted = Filter(kinds=frozenset({23194}), tags={"p": frozenset({self.keys.public})}, since=int(time.time()) - 5)
        async with asyncio.TaskGroup() as group, pool.subscribe([wanted]) as events:
            async for event in events:
                if event.pubkey == self.client.public:
                    group.create_task(self._answer(pool, event))

    async def _answer(self, pool, event):
        secret, public = SecretKey.parse(self.keys.secret.hex()), PublicKey.parse(event.pubkey)
        modern = "nip44_v2" in (self.encryption or "")
        assert event.tag("encryption") == ("nip44_v2" if modern else "nip04")
        asked = json.loads((nip44_decrypt if modern else nip04_decrypt)(secret, public, event.content))
        method, said = asked["method"], {"result_type": asked["method"], "error": None, "result": None}
        self.asked.append(method)
        try:
            if method not in self.methods:
                raise Refusal("NOT_IMPLEMENTED", method)
            said["result"] = await getattr(self, method)(**asked["params"])
        except Refusal as refused:
            said["error"] = {"code": refused.code, "message": refused.message}
        except NodewireError as error:
            said["error"] = {"code": "NOT_FOUND" if isinstance(error, NotFound) else "OTHER", "message": str(error)}
        if method in self.drops:
            self.drops.remove(method)
            return
        text = self.texts.get(method, json.dumps(said))
        content = (
            nip44_encrypt(secret, public, text, Nip44Version.V2) if modern else nip04_encrypt(secret, public, text)
        )
        tags = [["p", event.pubkey], ["e", event.id]]
        await pool.publish(sign(self.keys, 23195, created_at=int(time.time()), content=content, tags=tags))

    async def get_info(self):
        return {"alias": "test", "network": self.network, "methods": self.methods, "notifications": []}

    async def get_balance(self):
        return {"balance": await self.wallet.balance_msat()}

    async def make_invoice(self, amount, description_hash, expiry):
        if self.rounds:
            amount = amount // 1_000 * 1_000
        body = {"amount_msat": amount, "expiry_s": expiry}
        body |= {"description": "a memo"} if self.drops_hash else {"description_hash": description_hash}
        made = invoices.decode((await self.wallet.ask("POST", "/v1/invoices", body))["bolt11"])
        return await self._entered(made, "incoming")

    async def pay_invoice(self, invoice):
        asked = invoices.decode(invoice)
        await self._entered(asked, "outgoing")
        paid = await self.wallet.pay(invoice, max_fee_msat=10_000)
        if paid.state != "settled":
            if paid.state == "failed":  # of which it keeps no record
                del self.book[asked.payment_hash, "outgoing"]
            raise Refusal("PAYMENT_FAILED", paid.reason)
        return {"preimage": paid.preimage, "fees_paid": paid.fee_msat}

    async def lookup_invoice(self, payment_hash):
        for kind in ("incoming", "outgoing"):
            if (payment_hash, kind) in self.book and not (kind == "outgoing" and self.forgets):
                return await self._row(payment_hash, kind)
        raise Refusal("NOT_FOUND", "no such payment")

    async def list_transactions(self, type, unpaid=False, limit=50, offset=0, **since):
        keys = [key for key in reversed(self.book) if key[1] == type]  # the book may grow while the wallet answers
        rows = [await self._row(*key) for key in keys if key in self.book]
        rows = [row for row in rows if row["created_at"] >= since.get("from", 0)]
        return {"transactions": [] if self.forgets and type == "outgoing" else rows[offset : offset + limit]}

    async def _entered(self, invoice, kind):
        fixed = {
            "type": kind,
            "invoice": invoice.bolt11,
            "payment_hash": invoice.payment_hash,
            "amount": invoice.amount_msat,
            "created_at": invoice.created_at_s if kind == "incoming" else int(time.time()),
            "expires_at": invoice.expires_at_s,
        }
        self.book.setdefault((invoice.payment_hash, kind), fixed)
        return fixed

    async def _row(self, payment_hash, kind):
        row = dict(self.book[payment_hash, kind])
        try:
            found = await self.wallet.lookup(payment_hash, "in" if kind == "incoming" else "out")
        except NotFound:
            return {**row, "state": "pending"}
        row["state"] = _STATES[found.state]
        if found.state == "settled":
            row |= {"preimage": found.preimage, "settled_at": found.at_s, "fees_paid": found.fee_msat}
        return row
