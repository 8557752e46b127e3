"""An offer to meet, and its answer: rumors (28843) in ephemeral gift wraps. nips/24-reach.md.

Both say where their end's connection to the splice comes from, as the splice sees it and as the end itself does: there
the other end knocks, at the very moment at which this one does. If nobody opens, the splice joins both connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput
from nodewire.nostr.nips import nip59
from nodewire.protocol import kinds
from nodewire.protocol.encoding.address import IpPort, SpliceText
from nodewire.protocol.encoding.schema import Hex32, Schema, Seconds

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

LIFETIME_S = 30
MAX_AHEAD_S = 120
"""How far an offer's expiry may lie ahead: its lifetime, and what clocks differ by."""
MAX_PLACES = 4


class Offer(Schema):
    MAX_BYTES: ClassVar[int] = 2_048
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    type: Literal["offer", "answer"]
    session: Hex32
    """Of an answer: the offer's."""
    room: Hex32
    """Where both meet at the splice; nobody else knows it."""
    splice: SpliceText
    places: tuple[IpPort, ...] = Field(max_length=MAX_PLACES)
    """Where this end's knocks come from, and where it is knocked at: as the splice sees it first."""
    splice_ms: Annotated[int, Field(ge=0, le=60_000)]
    """The round trip from here to the splice."""
    expires_s: Seconds


def wrap(offer: Offer, keys: Keys, peer: str, *, now_s: float) -> Event:
    """The offer for `peer` alone, under a new one-time key, with its true time."""
    rumor = nip59.rumor(keys.public, kinds.OFFER, created_at=int(now_s), content=offer.to_json())
    tags = [("expiration", str(offer.expires_s))]
    return nip59.wrap(rumor, keys, peer, now_s=int(now_s), ephemeral=True, tags=tags)


def unwrap(event: Event, keys: Keys, *, now_s: float) -> tuple[str, Offer] | None:
    """Who offers, and what; None for a wrap of something else.

    Raises:
        BadInput: the wrap or the offer is malformed, or its time is over or far ahead.

    """
    rumor = nip59.unwrap(event, keys)
    if rumor.kind != kinds.OFFER:
        return None
    offer = Offer.parse(rumor.content)
    if not now_s < offer.expires_s <= now_s + MAX_AHEAD_S:
        raise BadEvent("expires_s", "over, or far ahead")
    return rumor.pubkey, offer
