"""Receipts (kind 8856): the customer's statement of what one provider did and was paid for. nips/25-receipts.md.

A receipt binds plan, commitment and payment: each chunk's root (signed by the provider in its feedback), the amount,
the payment hash, and the provider's own zap receipt where one was seen. One per provider and job.

When it is known what became of the roots, a closing follows each receipt (same kind, tag `receipt`): it names, chunk by
chunk, the commitment and the quorum certificate that make the work final, or says that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Hex32, Msat, Schema
from nodewire.protocol.model.edge_codec import CODECS, Codec

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

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
    payment_hash: Hex32 | None
    """Of the payment that settled the last of it; None where it is still owed."""
    zap_receipt: Hex32 | None
    """Event id of the provider's 9735, if it came in time."""
    cached: Count = 0
    """Of the units, those that the provider had found and not computed; left out of a document if there are none."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.cached:
            del said["cached"]
        return said


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
    codecs: tuple[Codec, ...] = Field(default=(), max_length=len(CODECS))
    """The lossy codecs among the job's edges, sorted; which edge, the plan says. Left out if there is none."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.codecs:
            del said["codecs"]
        return said


class FinalChunk(Schema):
    """A paid chunk whose roots a quorum certificate holds."""

    chunk: Count
    attempt: Count
    commitment: Hex32
    """Event id of the provider's commitment (8854); the last, if its tasks' roots stand in several."""
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    certificate: Hex32
    """Digest of the certified body of that epoch."""


class Closing(Schema):
    """What became of every chunk of one receipt."""

    TAG: ClassVar[str] = "nodewire/closing/1"
    MAX_BYTES: ClassVar[int] = 60_000
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    receipt: Hex32
    """The receipt's event id."""
    request: Hex32
    plan: Hex32
    provider: Hex32
    final: tuple[FinalChunk, ...] = Field(max_length=MAX_CHUNKS)
    uncertified: tuple[tuple[Count, Count], ...] = Field(max_length=MAX_CHUNKS)
    """(chunk, attempt) of what was paid, and no certificate ever held."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        named = [*((one.chunk, one.attempt) for one in self.final), *self.uncertified]
        if len(named) != len(set(named)):
            raise ValueError("final: a chunk stands twice")
        return self


def is_closing(event: Event) -> bool:
    """Whether an event of this kind says that it closes a receipt."""
    return event.tag("receipt") is not None


def build(keys: Keys, receipt: Receipt, *, created_at: int) -> Event:
    cited = [["e", receipt.request], ["p", receipt.provider], ["plan", receipt.plan]]
    return _event.sign(keys, kinds.RECEIPT, created_at=created_at, content=receipt.to_json(), tags=cited)


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


def build_closing(keys: Keys, closing: Closing, *, created_at: int) -> Event:
    cited = [["e", closing.request], ["p", closing.provider], ["plan", closing.plan], ["receipt", closing.receipt]]
    return _event.sign(keys, kinds.RECEIPT, created_at=created_at, content=closing.to_json(), tags=cited)


def parse_closing(event: Event) -> Closing:
    """The closing in `event`, whose signature has been checked. Raises as `parse`."""
    if event.kind != kinds.RECEIPT:
        raise BadEvent("kind", f"{event.kind} is not a receipt")
    closing = Closing.parse(event.content)
    named = (("e", closing.request), ("p", closing.provider), ("plan", closing.plan), ("receipt", closing.receipt))
    for name, cited in named:
        if event.tag(name) != cited:
            raise BadTag(name, "not what the closing says")
    return closing
