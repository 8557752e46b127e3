"""A trainer's ad (kind 31990, NIP-89): what rounds of training a provider takes, at what price. nips/34.

Event: `d` = name, `k` = each kind of round (8840 to 8842), `t` = federated, `expiration` (NIP-40) where the ad does not
stand until it is replaced; content = the document as JSON. An
inference ad (`ad`) has the same kind and `["k", "8843"]`: readers tell them apart by `k`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr.event import Event, sign
from nodewire.nostr.nips import nip40
from nodewire.protocol import kinds
from nodewire.protocol.committee.committee import HttpUrl, Ppm, RelayUrl
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Label, Msat, Name, Schema
from nodewire.protocol.market.ad import MAX_UNIT_MSAT

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.AD
TOPIC = "federated"
_GFLOP_PER_PFLOP = 1_000_000


class Trainer(Schema):
    """Work is counted in gflop (10**9 floating-point operations), as a recipe's formula says, rounded up."""

    MAX_BYTES: ClassVar[int] = 16_384
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    name: Name
    kinds: tuple[Literal[8840, 8841, 8842], ...] = Field(min_length=1, max_length=3)
    families: tuple[Name, ...] = Field(min_length=1, max_length=16)
    """Model families that it trains."""
    msat_per_pflop: Msat
    """Per 10**15 operations, so that whole numbers price both a graphics card and one core."""
    least_msat: Msat = 0
    """Of every round, however small."""
    gflops: int = Field(ge=1, le=2**40)
    """The speed it claims, gflop a second."""
    memory_bytes: Count
    """What one round may take."""
    most_bytes: Count
    """The largest weights or shard that it fetches."""
    concurrency: int = Field(ge=1, le=4_096)
    deposit_ppm: Ppm = 0
    """The part of a round's price that it wants before it begins; who paid it for the round before is spared it."""
    credit_msat: Msat = 0
    """What a customer that has been served before may owe it, besides the round before, and still be served."""
    unit_msat: int = Field(default=1, ge=1, le=MAX_UNIT_MSAT)
    """A payment to it is a whole multiple of this."""
    lnurl: HttpUrl | Literal[""] = ""
    """Its LNURL-pay endpoint; empty where everything is free."""
    pow_bits: int = Field(default=0, ge=0, le=64)
    """NIP-13 work that a request must carry."""
    hardware: Label = ""
    region: Label = ""
    relays: tuple[RelayUrl, ...] = Field(default=(), max_length=16)

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len(set(self.kinds)) != len(self.kinds):
            raise ValueError("kinds: one stands twice")
        if len(set(self.families)) != len(self.families):
            raise ValueError("families: one stands twice")
        if not self.lnurl and (self.msat_per_pflop or self.least_msat):
            raise ValueError("lnurl: empty, though rounds have a price")
        return self

    def price_msat(self, gflop: int) -> int:
        """What a round of so much work costs."""
        return max(self.least_msat, -(-gflop * self.msat_per_pflop // _GFLOP_PER_PFLOP))

    def deposit_msat(self, price_msat: int) -> int:
        """What is to be paid of `price_msat` before the work begins."""
        return -(-price_msat * self.deposit_ppm // 1_000_000)


def build(keys: Keys, trainer: Trainer, *, created_at: int, expires_at_s: int | None = None) -> Event:
    said = [("d", trainer.name), *(("k", str(kind)) for kind in trainer.kinds), ("t", TOPIC)]
    if expires_at_s is not None:
        said.append((nip40.TAG, str(expires_at_s)))
    return sign(keys, KIND, created_at=created_at, content=trainer.to_json(), tags=said)


def parse(event: Event) -> Trainer:
    """The trainer in a verified event.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed, or its tags contradict its document.

    """
    tags.check_kind(event, KIND)
    trainer = Trainer.parse(event.content)
    if tags.text(event, "d") != trainer.name:
        raise BadTag("d", "not the trainer's name")
    if event.values("k") != [str(kind) for kind in trainer.kinds]:
        raise BadTag("k", "not the trainer's kinds")
    if TOPIC not in event.values("t"):
        raise BadTag("t", f"does not say {TOPIC}")
    return trainer
