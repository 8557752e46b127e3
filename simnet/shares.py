"""Invoices for the lumps that customers pay ahead for verification shares, and the receipts for those that came in."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import BadZap, Busy, NotAllowed, NotFound
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts import zaps
from nodewire.pay.lightning import invoices
from simnet.steps import ZapQuote

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.pay.lightning.invoices import Invoice
    from simnet.service import Simnet

QUOTE_S = 300
MAX_QUOTES = 8
"""Open invoices of one sender."""
MAX_OPEN_QUOTES = 10_000
"""Open invoices of all together. Beyond it an origin gets one that has fewer than its part."""
MAX_OF_ORIGIN = 1_000


class Shares:
    """The treasury's till, signing as `keys`."""

    def __init__(self, simnet: Simnet, keys: Keys) -> None:
        self._simnet = simnet
        self._keys = keys
        self._open_quotes = [(quote.expires_at_s, quote.payment_hash) for quote in simnet.book.quotes.values()]
        heapq.heapify(self._open_quotes)
        self._origins: dict[str, str] = {}
        """The addresses that asked for open invoices, by payment hash; paid ones are left out."""

    async def quote(self, zap_request: str, amount_msat: int, origin: str = "") -> Invoice:
        """The invoice for a zap, which its sender pays ahead; the same request gets the same invoice.

        Raises:
            BadZap: the request breaks a clause of NIP-57.
            NotAllowed, Busy: its sender, its `origin`, or everybody together, has too many open invoices.

        """
        request = nip57.parse_request(zap_request, amount_msat=amount_msat, receipt_signer=self._keys.public)
        if request.recipient != self._keys.public:
            raise BadZap("p", "another treasurer")
        while self._open_quotes and self._open_quotes[0][0] <= self._simnet.time_s():
            _, over = heapq.heappop(self._open_quotes)
            self._origins.pop(over, None)
        live = [self._simnet.book.quotes[payment_hash] for _, payment_hash in self._open_quotes]
        for quote in live:
            if quote.zap_request == zap_request:
                return invoices.decode(quote.bolt11)
        received = self._simnet.book.received
        if sum(one.sender == request.sender and one.payment_hash not in received for one in live) >= MAX_QUOTES:
            raise NotAllowed("invoice", f"{MAX_QUOTES} are open for this key")
        self._check_room(origin)
        invoice = self._simnet.make_invoice(
            self._simnet.book.node, amount_msat, QUOTE_S, description_hash=zaps.description_hash(zap_request)
        )
        step = ZapQuote(
            payment_hash=invoice.payment_hash,
            zap_request=zap_request,
            bolt11=invoice.bolt11,
            sender=request.sender,
            amount_msat=amount_msat,
            expires_at_s=invoice.expires_at_s,
        )
        self._simnet.apply(step)  # before anybody has the invoice: no payment comes that the book cannot place
        heapq.heappush(self._open_quotes, (step.expires_at_s, step.payment_hash))
        self._origins[step.payment_hash] = origin
        return invoices.decode(invoice.bolt11)

    def _check_room(self, origin: str) -> None:
        """Raises Busy: too many invoices are open, and this origin has its part of them."""
        received = self._simnet.book.received
        self._origins = {open_: whose for open_, whose in self._origins.items() if open_ not in received}
        of = Counter(self._origins.values())
        if of[origin] >= MAX_OF_ORIGIN:
            raise Busy("invoice", f"{MAX_OF_ORIGIN} of this address are open")
        if of.total() >= MAX_OPEN_QUOTES and of[origin] * len(of) >= of.total():
            raise Busy("invoice", "too many are open")

    def receipt(self, payment_hash: str) -> Event:
        """The zap receipt (kind 9735) of a lump that came in. Raises NotFound."""
        book = self._simnet.book
        if payment_hash not in book.received:
            raise NotFound("payment_hash", "no lump came in by it")
        quote, invoice = book.quotes[payment_hash], self._simnet.state.invoice(payment_hash)
        return nip57.build_receipt(
            self._keys,
            quote.zap_request,
            bolt11=quote.bolt11,
            paid_at_s=book.received[payment_hash],
            preimage=invoice.preimage,
        )
