"""The provider's side: invoices for what is due, and receipts for what its own wallet says is paid."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from nodewire.errors import BadInput, BadZap, NodewireError, NotAllowed
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import ZapRequest
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Income, Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import PAID
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.invoices import Invoice
from nodewire.pay.lightning.wallet import Receipt, Wallet, WalletInfo

Publish = Callable[[Event, tuple[str, ...]], Awaitable[None]]
"""Publishes an event to relays and returns once one has taken it; raises a typed error otherwise."""
Expect = Callable[[ZapRequest], None]
"""What the operator's policy demands of a zap request besides; raises a typed error to refuse."""

MAX_QUOTES = 8
"""Unsettled invoices per due: a customer that loses invoices gets others, but not without end."""
_AGAIN_S, _LONGEST_S = 1.0, 20.0
"""After which a receipt that no relay took is published again, and the longest that this pause becomes."""
_AT_ONCE = 8
"""Receipts that are published at a time: one that no relay takes does not keep others back."""
log = logging.getLogger("nodewire.pay")


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
        self._info: WalletInfo | None = None
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def quote(self, zap_request: str, amount_msat: int, origin: str = "") -> Invoice:
        """The invoice for a zap request (JSON as received): what LNURL's callback and the wire's frames ask for.

        The request must satisfy NIP-57 appendix D and name a chunk that its author owes, with what is due for that or
        more. If that is paid, its author must owe others. The same request gets the same invoice while that lives,
        whatever its `origin`.

        Raises:
            BadZap: the request breaks a clause.
            NotFound: nothing is due for that job, chunk and attempt.
            NotAllowed: it is paid and nothing is owed, or too many invoices are open; or what `expect` raises.

        """
        request = nip57.parse_request(zap_request, amount_msat=amount_msat, receipt_signer=self._keys.public)
        if request.recipient != self._keys.public:
            raise BadZap("p", "another provider")
        key = zaps.chunk_of(request)
        due = self._ledger.due(key)
        # By its own book the customer may have spent its balance on another chunk, and owe this one for that.
        if due.state == "settled" and not self._ledger.tab_msat(due.customer):
            raise NotAllowed(PAID, "it is paid")
        if due.customer != request.sender:
            raise BadZap("pubkey", "another customer owes this chunk")
        if amount_msat < due.amount_msat:
            raise BadZap("amount", f"{due.amount_msat} msat are due, {amount_msat} msat are less")
        if self._expect is not None:
            self._expect(request)
        return await self._invoice(key, amount_msat, zap_request, zap_request, self._expiry_s)

    async def plain_invoice(self, key: Key, *, expiry_s: int) -> Invoice:
        """The invoice for a due whose customer sends no zap request, and gets no receipt but its preimage.

        Its description's hash is of "JOB:CHUNK". While it lives it stays the same.

        Raises:
            NotFound: nothing is due for that.
            NotAllowed: it is paid, or too many invoices are open.

        """
        due = self._ledger.due(key)
        if due.state == "settled":
            raise NotAllowed(PAID, "it is paid")
        return await self._invoice(key, due.amount_msat, "", f"{key.job}:{key.chunk}", expiry_s)

    async def _invoice(self, key: Key, amount_msat: int, zap_request: str, description: str, expiry_s: int) -> Invoice:
        wallet = (await self._known_wallet()).id
        async with self._locks.setdefault(key, asyncio.Lock()):  # the same request may come again meanwhile
            quotes = self._ledger.quotes(key)
            now_s = self._now_s()
            for earlier in quotes:
                if earlier.zap_request == zap_request and earlier.wallet in ("", wallet):
                    invoice = invoices.decode(earlier.bolt11)
                    if not invoice.is_expired(now_s):
                        return invoice
            live = sum(not invoices.decode(earlier.bolt11).is_expired(now_s) for earlier in quotes[-MAX_QUOTES:])
            if live >= MAX_QUOTES:
                raise NotAllowed("invoice", f"{live} are open for this chunk")
            invoice = await self._wallet.invoice(amount_msat, description=description, expiry_s=expiry_s)
            self._ledger.quoted(Quote(key, invoice.payment_hash, zap_request, invoice.bolt11, wallet))
            return invoice

    async def _known_wallet(self) -> WalletInfo:
        if self._info is None:
            self._info = await self._wallet.info()
        return self._info

    async def run(self, on_settled: Callable[[Due], None] | None = None) -> None:
        """Follow the wallet without end: tell `on_settled` of each due that a payment settles, publish its receipt.

        Starts where the ledger's cursor of this wallet stands, so that what was paid while the process was down is
        found.
        """
        wallet = (await self._known_wallet()).id
        unreceipted = asyncio.Event()
        unreceipted.set()
        async with asyncio.TaskGroup() as group:
            # Beside: relays that are slow, or refuse somebody's receipt, must not keep the next payment from counting.
            group.create_task(self._publish_each(unreceipted))
            async for came in self._wallet.settled(after=self._ledger.cursor(wallet)):
                for due in self.clear(came, wallet):
                    if on_settled is not None:
                        on_settled(due)
                unreceipted.set()

    async def _publish_each(self, unreceipted: asyncio.Event) -> None:
        """Publish receipts as payments settle, and those that no relay took again after a pause."""
        pause_s = _AGAIN_S
        while True:
            await unreceipted.wait()
            unreceipted.clear()
            if not await self.publish_receipts():
                pause_s = _AGAIN_S
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(unreceipted.wait(), pause_s)
            unreceipted.set()
            pause_s = min(_LONGEST_S, 2 * pause_s)

    def clear(self, came: Receipt, wallet: str) -> list[Due]:
        """Enter one payment that settled in the wallet with this id; the dues that it settles.

        None if it is for something else, of less than is due, or without the preimage that proves it.
        """
        try:
            return self._ledger.settled(came, wallet)
        except BadInput as error:
            log.error("a payment does not count: %s", error)
            return []

    async def publish_receipts(self) -> list[NodewireError]:
        """Publish every receipt that no relay has yet; what failed is tried again next time.

        A receipt is a function of the request and the moment of payment: published again, it is the same event.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def publish(came: Income) -> NodewireError | None:
            try:
                async with turns:
                    receipt = self._receipt(came)
                    if receipt is not None:
                        await self._publish(*receipt)
            except NodewireError as error:
                return error
            self._ledger.receipted(came.quote.payment_hash, "" if receipt is None else receipt[0].id)
            return None

        told = await asyncio.gather(*map(publish, self._ledger.unreceipted()))
        return [error for error in told if error is not None]

    def _receipt(self, came: Income) -> tuple[Event, tuple[str, ...]] | None:
        """The receipt and where it goes; None where nobody asked for one."""
        quote = came.quote
        if not quote.zap_request:
            return None
        signed = nip57.build_receipt(
            self._keys,
            quote.zap_request,
            bolt11=quote.bolt11,
            paid_at_s=came.settled_at_s,
            preimage=came.preimage,
        )
        return signed, nip57.parse_request(quote.zap_request).relays
