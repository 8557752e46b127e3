"""The providers' zap receipts of a job as they come, and the customer's own receipts made from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nodewire.customer.payments.job_payments import ZapPayment
from nodewire.errors import NodewireError
from nodewire.nostr.event import Event
from nodewire.pay.accounts import zaps
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.job.receipt import MAX_CHUNKS, PaidChunk, Receipt

MAX_ZAP_RECEIPTS = 16_384
"""Kept of one provider."""

log = logging.getLogger("nodewire.customer")


class ZapReceipts:
    """What the providers of one job published as receipts (kind 9735), checked when asked for."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._seen: dict[str, list[Event]] = {}

    def note(self, event: Event) -> None:
        seen = self._seen.setdefault(event.pubkey, [])
        if len(seen) < MAX_ZAP_RECEIPTS:
            seen.append(event)

    def find_receipt(self, paid: ZapPayment) -> str | None:
        """The id of the provider's receipt for this zap, checked by every clause of NIP-57."""
        for event in self._seen.get(paid.provider, []):
            if event.tag("bolt11") != paid.debt.bolt11:
                continue
            try:
                zaps.check_receipt(event, key=paid.debt.key, nostr_pubkey=paid.provider, network=self._network)
            except NodewireError as error:
                log.warning("receipt by %s: %s", paid.provider[:8], error)
                continue
            return event.id
        return None


def receipts_for(
    provider: str, request: str, plan: Plan, paid: Mapping[tuple[str, int], ZapPayment], zap_receipts: ZapReceipts
) -> list[Receipt]:
    """One receipt, or for a long job several of MAX_CHUNKS chunks each."""
    digest, codecs = plan.digest(), plan.terms.lossy
    chunks = []
    for (payee, chunk), one in sorted(paid.items()):
        if payee == provider and one.debt.payment_hash is not None:
            chunks.append(
                PaidChunk(
                    chunk=chunk,
                    attempt=one.due.attempt,
                    units=one.due.units,
                    root=one.due.root,
                    feedback=one.claim.id,
                    amount_msat=one.due.amount_msat,
                    fee_msat=one.debt.fee_msat,
                    payment_hash=one.debt.payment_hash,
                    zap_receipt=zap_receipts.find_receipt(one),
                    cached=one.due.cached,
                )
            )
    parts = [tuple(chunks[i : i + MAX_CHUNKS]) for i in range(0, len(chunks), MAX_CHUNKS)] or [()]
    return [Receipt(request=request, plan=digest, provider=provider, chunks=part, codecs=codecs) for part in parts]
