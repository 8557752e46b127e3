"""The provider's side: invoices for what is due, and receipts for what its own wallet says is paid."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nodewire.errors import BadInput, BadZap, Busy, NodewireError, NotAllowed, NotFound
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import ZapRequest
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.payer import PAID
from nodewire.pay.accounts.receipt_outbox import KEPT_S, Publish, ReceiptCourier, relays_of
from nodewire.pay.accounts.unbilled_payments import PaidZap, UnbilledInvoice
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.debts import Key
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.wallet import Wallet, WalletInfo

Expect = Callable[[ZapRequest], None]
"""What the operator's policy demands of a zap request besides; raises a typed error to refuse."""

EXPIRY_S = 300
"""How long an invoice lives."""
MAX_QUOTES = 8
"""Unsettled invoices per due: a customer that loses invoices gets others, but not without end."""
MAX_UNBILLED, MAX_UNBILLED_EACH = 256, 8
"""Unpaid invoices for tips that are kept for all strangers, and for one customer or one address."""
_GRACE_S = 600
"""After its end an invoice is kept so long: its payment may be under way."""
_ROOM = 16
"""Of invoices that have expired so many are looked up at a time."""
log = logging.getLogger("nodewire.pay")


class Till:
    """Takes zaps for `keys` into `wallet`, by the book of `ledger`.

    `own_relays` are those that `publish` brings an event to where none is named.
    """

    def __init__(
        self,
        keys: Keys,
        wallet: Wallet,
        ledger: Ledger,
        publish: Publish,
        *,
        expect: Expect | None = None,
        own_relays: frozenset[str] = frozenset(),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._wallet = wallet
        self._ledger = ledger
        self._courier = ReceiptCourier(ledger.receipts, publish, now_s)
        self._own_relays = own_relays
        self._expect = expect
        self._now_s = now_s
        self._info: WalletInfo | None = None
        self._on_settled: Callable[[Due], None] | None = None
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._unbilled = asyncio.Lock()

    @property
    def most_of_strangers(self) -> int:
        """Unpaid invoices that are kept for all who are no customers."""
        return MAX_UNBILLED

    async def quote(self, zap_request: str, amount_msat: int, origin: str = "") -> Invoice:
        """The invoice for a zap request (JSON as received): what LNURL's callback and the wire's frames ask for.

        The request must satisfy NIP-57 appendix D. If it names a chunk, its author must owe that, or have paid it and
        owe others, and it is for no less than is due for that. What is settled by name alone is settled here where the
        author's balance covers it. Any other is an ordinary zap: a deposit of a customer, or a tip. The same request
        gets the same invoice while that lives, whatever its `origin`.

        Raises:
            BadZap: the request breaks a clause.
            NotFound: nothing is due for that job, chunk and attempt.
            NotAllowed: it is paid and nothing is owed; or what `expect` raises.
            Busy: too many invoices are open, for the chunk or for tips.

        """
        request = nip57.parse_request(zap_request, amount_msat=amount_msat, receipt_signer=self._keys.public)
        if request.recipient != self._keys.public:
            raise BadZap("p", "another provider")
        if not self.is_for_chunk(request):
            return await self._ordinary(request, zap_request, amount_msat, origin)
        key = zaps.chunk_of(request)
        due, by_name = self._ledger.due(key), self._ledger.is_by_name(key)
        if due.customer != request.sender:
            raise BadZap("pubkey", "another customer owes this chunk")
        if self._expect is not None:
            self._expect(request)
        if by_name:
            self._tell(self._ledger.settle_by_name(key))
            due = self._ledger.due(key)
        # By its own book the customer may have spent its balance on another chunk, and owe this one for that.
        if due.state == "settled" and (by_name or not self._ledger.tab_msat(due.customer)):
            raise NotAllowed(PAID, "it is paid")
        if amount_msat < due.amount_msat:
            raise BadZap("amount", f"{due.amount_msat} msat are due, {amount_msat} msat are less")
        return await self._invoice(key, amount_msat, zap_request, zap_request, EXPIRY_S)

    def is_for_chunk(self, request: ZapRequest) -> bool:
        """Whether a zap request means to pay for a chunk."""
        return zaps.is_for_chunk(request)

    async def plain_invoice(self, key: Key, *, unit_msat: int, expiry_s: int) -> Invoice:
        """The invoice for a due whose customer sends no zap request, and gets no receipt but its preimage.

        Its amount is the due's, rounded up to whole units. Nothing else settles that from now on. Its description's
        hash is of "JOB:CHUNK". While it lives it stays the same.

        Raises:
            NotFound: nothing is due for that.
            NotAllowed: it is paid, or too many invoices are open.

        """
        due = self._ledger.due(key)
        if due.state == "settled":
            raise NotAllowed(PAID, "it is paid")
        amount_msat = max((await self._known_wallet()).least_msat, due.amount_msat)
        self._ledger.set_by_name(key)
        amount_msat = -(-amount_msat // unit_msat) * unit_msat
        return await self._invoice(key, amount_msat, "", f"{key.job}:{key.chunk}", expiry_s)

    async def tip(self, amount_msat: int, metadata: str, comment: str, origin: str) -> Invoice:
        """The invoice for a plain payment over LNURL (LUD-06), which commits to the endpoint's `metadata`.

        `comment` is the payer's (LUD-12).

        Raises:
            Busy: too many invoices for tips are open.


        """
        return await self._unbilled_invoice(amount_msat, metadata, origin, comment=comment)

    async def _ordinary(self, request: ZapRequest, zap_request: str, amount_msat: int, origin: str) -> Invoice:
        """The invoice for a zap that names no chunk."""
        if request.event is not None and self._ledger.has_job(request.event):
            raise BadZap("chunk", "it names a job here, and no chunk of it")
        if self._expect is not None:
            self._expect(request)
        return await self._unbilled_invoice(amount_msat, zap_request, origin, request=request)

    async def _unbilled_invoice(
        self, amount_msat: int, description: str, origin: str, *, request: ZapRequest | None = None, comment: str = ""
    ) -> Invoice:
        wallet, book = (await self._known_wallet()).id, self._ledger.unbilled
        sender, zap = (request.sender, request.id) if request is not None else ("", "")
        is_customer = bool(sender) and self._ledger.is_customer(sender)
        async with self._unbilled:  # the same request may come again meanwhile, and others take what room there is
            if request is not None:
                if book.is_paid(zap):
                    raise NotAllowed("nostr", "it is paid")
                if (bolt11 := book.open_invoice(zap, wallet, self._now_s())) is not None:
                    return invoices.decode(bolt11)
            whose = sender if is_customer else origin
            await self._make_room(whose, is_customer=is_customer)
            invoice = await self._wallet.invoice(amount_msat, description=description, expiry_s=EXPIRY_S)
            zap_request, said = (description, request.content) if request is not None else ("", comment)
            book.enter(
                UnbilledInvoice(
                    invoice.payment_hash,
                    sender,
                    said,
                    zap,
                    zap_request,
                    invoice.bolt11,
                    wallet,
                    invoice.expires_at_s,
                    whose,
                    is_customer,
                )
            )
            return invoice

    async def _make_room(self, origin: str, *, is_customer: bool) -> None:
        """See to it that one more invoice may be open. Raises Busy: too many are."""
        book = self._ledger.unbilled

        def is_full() -> bool:
            is_crowded = not is_customer and book.count_open_of_strangers() >= self.most_of_strangers
            return is_crowded or book.count_open(origin) >= MAX_UNBILLED_EACH

        if is_full():
            await self._forget_expired()
        if is_full():
            raise Busy("invoices", f"too many are unpaid. Pay one of them, or come again in {EXPIRY_S + _GRACE_S} s")

    async def _forget_expired(self) -> None:
        """Forget invoices that the wallet's record says were never paid, or that nobody can be asked about."""
        info, now_s = await self._known_wallet(), self._now_s()
        expired = self._ledger.unbilled.expired(now_s - _GRACE_S, _ROOM)
        forgotten = [one for one, wallet in expired if await self._is_unpaid(one, wallet, info)]
        old = [one for one, _ in self._ledger.unbilled.expired(now_s - KEPT_S, _ROOM)]
        self._ledger.unbilled.drop([*forgotten, *old])

    async def _is_unpaid(self, payment_hash: str, wallet: str, info: WalletInfo) -> bool:
        if wallet != info.id or "lookup-in" not in info.abilities:
            return False
        try:
            return (await self._wallet.lookup(payment_hash, "in")).state in ("open", "failed")
        except NotFound:
            return True
        except NodewireError:
            return False

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
            newest = [invoices.decode(earlier.bolt11) for earlier in quotes[-MAX_QUOTES:]]
            if len(newest) == MAX_QUOTES and not any(one.is_expired(now_s) for one in newest):
                again_s = math.ceil(min(one.expires_at_s for one in newest) - now_s)
                raise Busy("invoices", f"{MAX_QUOTES} for this chunk are unpaid. Pay one, or come again in {again_s} s")
            invoice = await self._wallet.invoice(amount_msat, description=description, expiry_s=expiry_s)
            self._ledger.quoted(Quote(key, invoice.payment_hash, zap_request, invoice.bolt11, wallet))
            return invoice

    async def _known_wallet(self) -> WalletInfo:
        if self._info is None:
            self._info = await self._wallet.info()
        return self._info

    async def run(self, on_settled: Callable[[Due], None] | None = None) -> None:
        """Follow the wallet without end: clear each due as it settles, tell `on_settled`, publish its receipt.

        Starts where the ledger's cursor of this wallet stands, so that what was paid while the process was down is
        found.
        """
        self._on_settled = on_settled
        wallet = (await self._known_wallet()).id
        self._sign_receipts()
        async with asyncio.TaskGroup() as group:
            # Beside: relays that are slow, or refuse somebody's receipt, must not keep the next payment from counting.
            group.create_task(self._courier.run())
            async for came in self._wallet.settled(after=self._ledger.cursor(wallet)):
                self._tell(self.clear(came, wallet))
                self._sign_receipts()

    def _tell(self, settled: Sequence[Due]) -> None:
        for due in settled:
            if self._on_settled is not None:
                self._on_settled(due)

    def clear(self, came: Receipt, wallet: str) -> list[Due]:
        """Enter one payment that settled in the wallet with this id; the dues that it settles.

        None if it is a tip or something else, of less than is due, or without the preimage that proves it.
        """
        try:
            return self._ledger.settled(came, wallet)
        except BadInput as error:
            log.error("a payment does not count: %s", error)
            return []

    async def take_receipt(self, receipt: Event, nostr_pubkey: str) -> list[Due]:
        """Look for the payment of a zap whose receipt a service has signed; the dues that it settles.

        `receipt` is a verified event. Its signer must be `nostr_pubkey`, the service of the wallet's own lightning
        address.

        Such a service makes the invoices, so its receipt alone says what a payment is for. Whether it came, and how
        much, is for the wallet's record to say.

        Raises:
            BadZap, BadInvoice: the receipt, or its invoice, breaks a clause.
            NotFound: nothing is due for the chunk that it names, or the wallet's record does not say that it came.
            NotAllowed: the payment counted before.
            LinkLost, TimedOut: the wallet cannot be reached.

        """
        info = await self._known_wallet()
        request, invoice = zaps.read_receipt(
            receipt, recipient=self._keys.public, nostr_pubkey=nostr_pubkey, network=info.network
        )
        found = await self._wallet.lookup(invoice.payment_hash, "in")
        if found.state != "settled" or found.preimage is None:
            raise NotFound("payment", f"the wallet's record says that it is {found.state}, whatever the receipt says")
        zap_request, key = receipt.tag("description") or "", None
        known = self._ledger.quote(invoice.payment_hash)
        if known is not None and known.zap_request != zap_request:
            raise NotAllowed("payment_hash", "it is another zap's")
        if zaps.is_for_chunk(request):
            key = zaps.chunk_of(request)
            if self._ledger.due(key).customer != request.sender:
                raise BadZap("pubkey", "another customer owes this chunk")
            if known is None:
                self._ledger.quoted(Quote(key, invoice.payment_hash, zap_request, invoice.bolt11, info.id))
        else:
            self._ledger.unbilled.enter(
                UnbilledInvoice(
                    invoice.payment_hash,
                    request.sender,
                    request.content,
                    request.id,
                    zap_request,
                    invoice.bolt11,
                    info.id,
                    invoice.expires_at_s,
                    request.sender,
                    is_customer=True,
                )
            )
        came = Receipt("", invoice.payment_hash, found.preimage, found.amount_msat, found.at_s)
        settled = self._ledger.settled(came, info.id)
        if key is None:
            self._ledger.unbilled.receipted(invoice.payment_hash, receipt.id)
        else:
            self._ledger.receipted(invoice.payment_hash, receipt.id)
        return settled

    def take_nutzap(
        self, came: Receipt, wallet: str, *, nutzap: str, sender: str, named: Key | None, comment: str
    ) -> list[Due]:
        """Enter a nutzap (its event's id) whose ecash is in the purse with the id `wallet`; the dues that it settles.

        It settles what `named` says if that is due from `sender`. Any other is an ordinary one: a deposit, or a tip. It
        is its own receipt. Entered again it changes nothing.
        """
        book, payment_hash = self._ledger.unbilled, came.payment_hash
        if not (book.has(payment_hash) or self._ledger.quote(payment_hash)):
            if named is not None and self._ledger.is_due_from(named, sender):
                self._ledger.quoted(Quote(named, payment_hash, "", "", wallet))
            else:
                until_s, whose = came.settled_at_s + KEPT_S, sender or nutzap
                one = UnbilledInvoice(
                    payment_hash, sender, comment, nutzap, "", "", wallet, until_s, whose, is_customer=True
                )
                book.enter(one)
        settled = self.clear(came, wallet)
        self._ledger.receipted(payment_hash, nutzap)
        book.receipted(payment_hash, nutzap)
        return settled

    async def publish_receipts(self) -> list[NodewireError]:
        """Bring every receipt to each relay that waits for it, once; why those that still wait do."""
        return [*self._sign_receipts(), *await self._courier.bring_all()]

    def _sign_receipts(self) -> list[NodewireError]:
        """Sign the receipt of each zap that was paid, and keep it for the relays that its request names.

        A receipt is a function of the request and the moment of payment: signed again, it is the same event.
        """
        errors = []
        for came in self._ledger.unreceipted():
            quote = came.quote
            paid = PaidZap(quote.payment_hash, quote.zap_request, quote.bolt11, came.settled_at_s, came.preimage)
            try:
                self._ledger.receipted(quote.payment_hash, self._sign_receipt(paid))
            except NodewireError as error:
                errors.append(error)
        for paid in self._ledger.unbilled.unreceipted():
            try:
                self._ledger.unbilled.receipted(paid.payment_hash, self._sign_receipt(paid))
            except NodewireError as error:
                errors.append(error)
        for one in errors:
            log.error("a receipt cannot be signed: %s", one)
        self._courier.wake()
        return errors

    def _sign_receipt(self, paid: PaidZap) -> str:
        """The receipt's id, empty where nobody asked for one."""
        if not paid.zap_request:
            return ""
        receipt = nip57.build_receipt(
            self._keys, paid.zap_request, bolt11=paid.bolt11, paid_at_s=paid.at_s, preimage=paid.preimage
        )
        named = nip57.parse_request(paid.zap_request).relays
        self._ledger.receipts.enter(receipt, relays_of(named, self._own_relays), self._now_s())
        return receipt.id
