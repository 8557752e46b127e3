"""The zap receipts of a job as they come, and the customer's own receipts made from them."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import BadZap, NodewireError
from nodewire.nostr.nips import nip57, nip61
from nodewire.pay.accounts import zaps
from nodewire.pay.nutzaps import authorship
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.job.receipt import MAX_CHUNKS, PaidChunk, Receipt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.customer.payments.job_payments import ZapPayment
    from nodewire.nostr.event import Event
    from nodewire.protocol.job.plan import Plan

MAX_ZAP_RECEIPTS = 16_384
"""Read of one provider."""

log = logging.getLogger("nodewire.customer")


class ZapReceipts:
    """What the providers of one job published as receipts (kind 9735), and what the customer did: its nutzaps (9321).

    Each is checked once, as it comes: a provider may publish any number of false ones, and only ids are kept.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._read: Counter[str] = Counter()
        """By provider, how many came."""
        self._ids: dict[tuple[str, str], str] = {}
        """By provider and payment hash."""

    def note(self, event: Event) -> None:
        """Take a receipt that holds by every clause of NIP-57, by who was to be paid; or a nutzap, which is its own."""
        if self._read[event.pubkey] >= MAX_ZAP_RECEIPTS:
            return
        self._read[event.pubkey] += 1
        try:
            payee, payment_hash = _nutzapped(event) if event.kind == nip61.NUTZAP else self._zapped(event)
        except NodewireError as error:
            log.info("receipt by %s: %s", event.pubkey[:8], error)
            return
        self._ids.setdefault((payee, payment_hash), event.id)

    def find_receipt(self, paid: ZapPayment) -> str | None:
        """The id of the provider's receipt for this zap, or of the nutzap."""
        return self._ids.get((paid.provider, paid.debt.payment_hash or ""))

    def _zapped(self, event: Event) -> tuple[str, str]:
        """Whom a receipt says to have been paid, and the payment hash. Raises BadZap, BadInvoice, TooLarge."""
        key = zaps.chunk_of(nip57.parse_request(event.tag("description") or ""))
        zap = zaps.check_receipt(event, key=key, nostr_pubkey=event.pubkey, network=self._network)
        if key.payee != event.pubkey:
            raise BadZap("p", "another's")
        return key.payee, zap.invoice.payment_hash


def _nutzapped(event: Event) -> tuple[str, str]:
    """Whom a customer's own nutzap pays, and its payment hash. Raises BadZap."""
    nutzap = nip61.parse(event)
    if not authorship.is_bound(nutzap):
        raise BadZap("salt", "missing")
    return nutzap.recipient, authorship.payment_hash(nutzap)


def receipts_for(
    provider: str, request: str, plan: Plan, paid: Mapping[tuple[str, int], ZapPayment], zap_receipts: ZapReceipts
) -> list[Receipt]:
    """One receipt, or for a long job several of MAX_CHUNKS chunks each."""
    digest, codecs = plan.digest(), plan.terms.lossy
    chunks = []
    for (payee, chunk), one in sorted(paid.items()):
        if payee == provider:
            chunks.append(
                PaidChunk(
                    chunk=chunk,
                    attempt=one.due.attempt,
                    units=one.due.units,
                    root=one.due.root,
                    feedback=one.claim.id,
                    amount_msat=one.due.amount_msat,
                    fee_msat=one.debt.fee_msat,
                    payment_hash=one.debt.payment_hash if one.debt.state == "paid" else None,
                    zap_receipt=zap_receipts.find_receipt(one),
                    cached=one.due.cached,
                )
            )
    parts = [tuple(chunks[i : i + MAX_CHUNKS]) for i in range(0, len(chunks), MAX_CHUNKS)] or [()]
    return [Receipt(request=request, plan=digest, provider=provider, chunks=part, codecs=codecs) for part in parts]
