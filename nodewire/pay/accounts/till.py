"""The provider's side: invoices for what is due, and receipts for what its own wallet says is paid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nodewire.errors import BadZap, NodewireError, NotAllowed, NotFound
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import ZapRequest
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger, Quote
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.invoices import Invoice
from nodewire.pay.lightning.wallet import Receipt, Wallet

Publish = Callable[[Event, tuple[str, ...]], Awaitable[None]]
"""Publishes an event to relays and returns once one has taken it; raises a typed error otherwise."""
Expect = Callable[[ZapRequest], None]
"""What the operator's policy demands of a zap request besides; raises a typed error to refuse."""

MAX_QUOTES = 8
"""Unsettled invoices per due: a customer that loses invoices gets others, but not without end."""


class Till:
    """Takes zaps for `keys` into `wallet`, by the book of `ledger`; `expiry_s` is how long its invoices live."""

    def __init__(
        self,
        keys: Keys,
        wallet: Wallet,
        ledger: Ledger,
        publish: Publish,
        *,
        expect: Expect | None = None,
        expiry_s: int = 300,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._wallet = wallet
        self._ledger = ledger
        self._publish = publish
        self._expect = expect
        self._expiry_s = expiry_s
        self._now_s = now_s

    async def quote(self, zap_request: str, amount_msat: int, origin: str = "") -> Invoice:
        """The invoice for a zap request (JSON as received): what LNURL's callback and the wire's frames ask for.

        The request must satisfy NIP-57 appendix D and name a chunk that its author owes, with exactly what is due.
        The same request gets the same invoice while that lives, whatever its `origin`.

        Raises:
            BadZap: the request breaks a clause.
            NotFound: nothing is due for that job, chunk and attempt.
            NotAllowed: it is paid, or too many invoices are open; or what `expect` raises.

        """
        request = nip57.parse_request(zap_request, amount_msat=amount_msat, receipt_signer=self._keys.public)
        if request.recipient != self._keys.public:
            raise BadZap("p", "another provider")
        key = zaps.chunk_of(request)
        due = self._ledger.due(key)
        if due.state in ("settled", "receipted"):
            raise NotAllowed("chunk", "it is paid")
        if due.customer != request.sender:
            raise BadZap("pubkey", "another customer owes this chunk")
        if due.amount_msat != amount_msat:
            raise BadZap("amount", f"{due.amount_msat} msat are due, not {amount_msat} msat")
        if self._expect is not None:
            self._expect(request)
        return await self._invoice(key, amount_msat, zap_request, zaps.description_hash(zap_request), self._expiry_s)

    async def plain_invoice(self, key: Key, *, expiry_s: int) -> Invoice:
        """The invoice for a due whose customer sends no zap request, and gets no receipt but its preimage.

        Its description's hash is of "JOB:CHUNK". While it lives it stays the same.

        Raises:
            NotFound: nothing is due for that.
            NotAllowed: it is paid, or too many invoices are open.

        """
        due = self._ledger.due(key)
        if due.state in ("settled", "receipted"):
            raise NotAllowed("chunk", "it is paid")
        said = zaps.description_hash(f"{key.job}:{key.chunk}")
        return await self._invoice(key, due.amount_msat, "", said, expiry_s)

    async def _invoice(
        self, key: Key, amount_msat: int, zap_request: str, description_hash: str, expiry_s: int
    ) -> Invoice:
        quotes = self._ledger.quotes(key)
        now_s = self._now_s()
        for earlier in quotes:
            if earlier.zap_request == zap_request:
                invoice = invoices.decode(earlier.bolt11)
                if not invoice.is_expired(now_s):
                    return invoice
        live = sum(not invoices.decode(earlier.bolt11).is_expired(now_s) for earlier in quotes[-MAX_QUOTES:])
        if live >= MAX_QUOTES:
            raise NotAllowed("invoice", f"{live} are open for this chunk")
        invoice = await self._wallet.make_invoice(amount_msat, description_hash=description_hash, expiry_s=expiry_s)
        self._ledger.quoted(Quote(key, invoice.payment_hash, zap_request, invoice.bolt11))
        return invoice

    async def run(self, on_settled: Callable[[Due], None] | None = None) -> None:
        """Follow the wallet without end: clear each due as it settles, tell `on_settled`, publish its receipt.

        Starts where the ledger's cursor stands, so that what was paid while the process was down is found.
        """
        unreceipted = asyncio.Event()
        unreceipted.set()
        async with asyncio.TaskGroup() as group:
            # Beside: relays that are slow, or refuse somebody's receipt, must not keep the next payment from counting.
            group.create_task(self._publish_each(unreceipted))
            async for came in self._wallet.settled(after=self._ledger.cursor()):
                due = self.clear(came)
                if due is None:
                    continue
                if on_settled is not None:
                    on_settled(due)
                unreceipted.set()

    async def _publish_each(self, unreceipted: asyncio.Event) -> None:
        while True:
            await unreceipted.wait()
            unreceipted.clear()
            await self.publish_receipts()

    def clear(self, came: Receipt) -> Due | None:
        """Enter one settled payment; the due that it clears, or None if it is for something else."""
        return self._ledger.settled(
            came.payment_hash, came.preimage, came.amount_msat, came.settled_at_s, cursor=came.cursor
        )

    async def publish_receipts(self) -> list[NodewireError]:
        """Publish every receipt that no relay has yet; what failed is tried again next time.

        A receipt is a function of the request and the moment of payment: published again, it is the same event.
        """
        failed: list[NodewireError] = []
        for due in self._ledger.unreceipted():
            receipt = self._receipt(due)
            if receipt is None:
                self._ledger.receipted(due.key, "")
                continue
            signed, relays = receipt
            try:
                await self._publish(signed, relays)
            except NodewireError as error:
                failed.append(error)
                continue
            self._ledger.receipted(due.key, signed.id)
        return failed

    def _receipt(self, due: Due) -> tuple[Event, tuple[str, ...]] | None:
        """The receipt and where it goes; None where nobody asked for one."""
        assert due.payment_hash is not None
        assert due.preimage is not None
        quote = self._ledger.quote(due.payment_hash)
        if quote is None:
            raise NotFound("quote", "a due was cleared by an invoice that is not in the book")
        if not quote.zap_request:
            return None
        signed = nip57.build_receipt(
            self._keys,
            quote.zap_request,
            bolt11=quote.bolt11,
            paid_at_s=due.settled_at_s,
            preimage=due.preimage,
        )
        return signed, nip57.parse_request(quote.zap_request).relays
