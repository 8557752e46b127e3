"""A heartbeat (kind 11998, replaceable, NIP-40): a node is alive, this free, and here on the network.

`last` is the digest of the newest certified body that the node knows (before the first, the committee's digest), so
that no beat can be signed ahead of time. `epoch` is the one in which it was signed.

Event: `c` = committee, `expiration`; content = the document as JSON.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag, TooLarge
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.committee.committee import Committee, Ppm
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.protocol.market.coordinates import Coordinates
from nodewire.protocol.market.observation import MAX_OBSERVED, Observation

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.BEAT
MAX_EVENT_BYTES = 4_096
"""Of the event as JSON: snapshots carry beats whole, and tags are anybody's to add."""


class Beat(Schema):
    TAG: ClassVar[str] = "nodewire/beat/1"
    MAX_BYTES: ClassVar[int] = 3_072
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    committee: Hex32
    last: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    ad: Hex32
    """Event id of the ad that holds now."""
    load_ppm: Ppm
    free: dict[Hex32, Annotated[int, Field(ge=0, le=4_096)]] = Field(max_length=16)
    """Free slots by manifest digest."""
    coordinates: Coordinates
    observed: tuple[Observation, ...] = Field(default=(), max_length=MAX_OBSERVED)
    """What it found of nodes that `last` drew it for; left out if there is none."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.observed:
            del said["observed"]
        return said

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if self.coordinates[2] < 0:
            raise ValueError("coordinates: the height is negative")
        if any(a.node >= b.node for a, b in pairwise(self.observed)):
            raise ValueError("observed: not sorted, or a node stands twice")
        return self


def expires_at_s(committee: Committee, epoch: int) -> int:
    """When a beat of `epoch` stops counting anywhere: the end of the last round that can list it, in unix seconds."""
    return -(-committee.close_ms(epoch + committee.live_epochs + 1) // 1000)


def build(keys: Keys, beat: Beat, *, created_at: int, expires_at_s: int) -> Event:
    tags_ = [("c", beat.committee), ("expiration", str(expires_at_s))]
    return sign(keys, KIND, created_at=created_at, content=beat.to_json(), tags=tags_)


def parse(event: Event) -> Beat:
    """The beat in a verified event.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed, or its tags contradict its document.

    """
    tags.check_kind(event, KIND)
    if (size := len(event.to_json().encode())) > MAX_EVENT_BYTES:
        raise TooLarge("beat", f"an event of {size} bytes, at most {MAX_EVENT_BYTES}")
    beat = Beat.parse(event.content)
    if tags.hex32(event, "c") != beat.committee:
        raise BadTag("c", "not the beat's committee")
    if any(one.node == event.pubkey for one in beat.observed):
        raise BadEvent("observed", "a node observes others, never itself")
    tags.text(event, "expiration")  # relays enforce it; a beat without one would outlive its node
    return beat
