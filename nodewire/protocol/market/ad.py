"""A specialization ad (kind 31990, NIP-89): which tasks of which manifests a provider holds, at what price and speed.

Event: `d` = name, `k` = 8843, `x` = each manifest's digest, and what was measured (`ad_profile`); content = the
document as JSON. Addressable: the newest per
author and name counts for people, the one that a beat names by id counts for a snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.committee.committee import HttpUrl, RelayUrl
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.address import WireAddress
from nodewire.protocol.encoding.schema import Count, Hex32, Label, Msat, Name, Schema
from nodewire.protocol.market.cached_price import WHOLE_PPM
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.keys import Keys

KIND = kinds.AD
MAX_OFFERS = 1_024
LOOKAHEAD = 1
"""What a provider takes that says nothing."""


class TaskOffer(Schema):
    """`price_msat` per chunk; `us_per_position` is the speed the provider claims, microseconds for one position."""

    task: Name
    price_msat: Msat
    us_per_position: int = Field(ge=1, le=2**40)


class ManifestOffer(Schema):
    """The tasks of one manifest; a slot is room for one session in every one of them."""

    manifest: Hex32
    tasks: tuple[TaskOffer, ...] = Field(min_length=1, max_length=MAX_OFFERS)
    slots: int = Field(ge=1, le=4_096)


MAX_UNIT_MSAT = 1_000
"""One satoshi: a customer pays so much ahead to a stranger, for a chunk of a few msat."""


class CreditOffer(Schema):
    """What a customer may owe before it has paid anything, and at most, having paid as much."""

    first_msat: Msat
    most_msat: Msat
    unit_msat: int = Field(ge=1, le=MAX_UNIT_MSAT)
    """A payment is of so much, or whole multiples: the provider's wallet takes no others."""


class Ad(Schema):
    TAG: ClassVar[str] = "nodewire/ad/1"
    MAX_BYTES: ClassVar[int] = 32_768
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    name: Name
    manifests: tuple[ManifestOffer, ...] = Field(min_length=1, max_length=16)
    wire: tuple[WireAddress, ...] = Field(default=(), max_length=8)
    lnurl: HttpUrl | Literal[""] = ""
    """The provider's LNURL-pay endpoint; empty where everything is free."""
    pow_bits: int = Field(default=0, ge=0, le=64)
    """NIP-13 work that a request must carry to be credited its first chunk."""
    memory_bytes: Count = 0
    hardware: Label = ""
    region: Label = ""
    relays: tuple[RelayUrl, ...] = Field(default=(), max_length=16)
    committees: tuple[Hex32, ...] = Field(default=(), max_length=16)
    """Digests of the committees that the provider accepts."""
    bond_msat: Msat = 0
    bond: Hex32 | None = None
    """Id of the holder's bond statement (kind 8858)."""
    lookahead: int = Field(default=LOOKAHEAD, ge=1, le=MAX_LOOKAHEAD)
    """The most that a plan's may be; left out of a document at its default."""
    cached_ppm: int = Field(default=WHOLE_PPM, ge=1, le=WHOLE_PPM)
    """What a prompt's beginning costs that is found and not computed, of its price; left out at its default."""

    credit: CreditOffer | None = None
    """What a customer may owe; left out where it is nothing."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if self.lookahead == LOOKAHEAD:
            del said["lookahead"]
        if self.cached_ppm == WHOLE_PPM:
            del said["cached_ppm"]
        if self.credit is None:
            del said["credit"]
        return said

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len({offer.manifest for offer in self.manifests}) != len(self.manifests):
            raise ValueError("manifests: one stands twice")
        for offer in self.manifests:
            if len({task.task for task in offer.tasks}) != len(offer.tasks):
                raise ValueError("manifests: a task stands twice")
        if sum(len(offer.tasks) for offer in self.manifests) > MAX_OFFERS:
            raise ValueError(f"manifests: more than {MAX_OFFERS} tasks")
        return self


def build(keys: Keys, ad: Ad, *, created_at: int, profile: Iterable[tuple[str, ...]] = ()) -> Event:
    """The signed event; `profile`: the tags of what was measured (`ad_profile.build`)."""
    manifests = [("x", offer.manifest) for offer in ad.manifests]
    tags_ = [("d", ad.name), ("k", str(kinds.INFERENCE)), *manifests, *profile]
    return sign(keys, KIND, created_at=created_at, content=ad.to_json(), tags=tags_)


def parse(event: Event) -> Ad:
    """The ad in a verified event.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed, or its tags contradict its document.

    """
    tags.check_kind(event, KIND)
    ad = Ad.parse(event.content)
    if tags.text(event, "d") != ad.name:
        raise BadTag("d", "not the ad's name")
    if str(kinds.INFERENCE) not in event.values("k"):
        raise BadTag("k", f"does not name {kinds.INFERENCE}")
    if event.values("x") != [offer.manifest for offer in ad.manifests]:
        raise BadTag("x", "not the ad's manifests")
    return ad
