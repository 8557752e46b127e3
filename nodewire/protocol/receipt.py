"""Receipts (kind 8856): the customer's statement of what one provider did and was paid for. NIPS.md, "Receipts".

A receipt binds plan, commitment and payment: each chunk's root (signed by the provider in its feedback), the amount,
the payment hash, and the provider's own zap receipt where one was seen. One per provider and job.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.protocol import kinds
from nodewire.protocol.schema import Count, Hex32, Msat, Schema

MAX_CHUNKS = 128
"""In one receipt; a longer job has several receipts for a provider."""


class PaidChunk(Schema):
    chunk: Count
    attempt: Count
    units: Count
    root: Hex32
    feedback: Hex32
    """Event id of the provider's signed claim (7000)."""
    amount_msat: Msat
    fee_msat: Msat
    payment_hash: Hex32
    zap_receipt: Hex32 | None
    """Event id of the provider's 9735, if it came in time."""


class Receipt(Schema):
    TAG: ClassVar[str] = "nodewire/receipt/1"
    MAX_BYTES: ClassVar[int] = 60_000
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    request: Hex32
    plan: Hex32
    """Plan.digest()."""
    provider: Hex32
    chunks: tuple[PaidChunk, ...] = Field(max_length=MAX_CHUNKS)


def build(keys: Keys, receipt: Receipt, *, created_at: int) -> Event:
    tags = [["e", receipt.request], ["p", receipt.provider], ["plan", receipt.plan]]
    return _event.sign(keys, kinds.RECEIPT, created_at=created_at, content=receipt.to_json(), tags=tags)


def parse(event: Event) -> Receipt:
    """The receipt in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: with the field at fault.
    """
    if event.kind != kinds.RECEIPT:
        raise BadEvent("kind", f"{event.kind} is not a receipt")
    receipt = Receipt.parse(event.content)
    for name, cited in (("e", receipt.request), ("p", receipt.provider), ("plan", receipt.plan)):
        if event.tag(name) != cited:
            raise BadTag(name, "not what the receipt says")
    return receipt
