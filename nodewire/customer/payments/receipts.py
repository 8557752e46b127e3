"""The providers' zap receipts of a job as they come, and the customer's own receipts made from them."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import BadZap, NodewireError
from nodewire.nostr.nips import nip57
from nodewire.pay.accounts import zaps
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
    """What the providers of one job published as receipts (kind 9735).

    Each is checked once, as it comes: a provider may publish any number of false ones, and only ids are kept.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._read: Counter[str] = Counter()
        """By provider, how many came."""
        self._ids: dict[tuple[str, str], str] = {}
        """By provider and invoice."""

    def note(self, event: Event) -> None:
        """Take a receipt that holds by every clause of NIP-57, by who was to be paid."""
        if self._read[event.pubkey] >= MAX_ZAP_RECEIPTS:
            return
        self._read[event.pubkey] += 1
        try:
            key = zaps.chunk_of(nip57.parse_request(event.tag("description") or ""))
            zap = zaps.check_receipt(event, key=key, nostr_pubkey=event.pubkey, network=self._network)
            if key.payee != event.pubkey:
                raise BadZap("p", "another's")
        except NodewireError as error:
            log.info("receipt by %s: %s", event.pubkey[:8], error)
            return
        self._ids.setdefault((zap.key.payee, event.tag("bolt11") or ""), event.id)

    def find_receipt(self, paid: ZapPayment) -> str | None:
        """The id of the provider's receipt for this zap."""
        return self._ids.get((paid.provider, paid.debt.bolt11 or ""))


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
