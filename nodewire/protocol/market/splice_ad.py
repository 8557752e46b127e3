"""Splices as events: the ad by which one is found (kind 31990), and what an end asks of it (28844). nips/24-reach.md.

Ad: `d` = name, `k` = 28844; content = the document as JSON. A request to a splice is never published: tags `p` = the
splice, a `salt`, `v` = 1, and, if more is wanted than how the splice sees the end, `room` = 64 hex digits that only the
two ends know, or `dial` = a port at which the splice dials the end back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadPeer, BadTag, BadVersion
from nodewire.nostr import event as events
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.address import HostPort
from nodewire.protocol.encoding.schema import Count, Label, Name, Schema

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

VERSION = "1"
MAX_REQUEST_BYTES = 1_024
CLOCK_SKEW_S = 60
LEAST_PORT = 1_024
"""That is knocked at on somebody's word: below are other services' ports."""


class Splice(Schema):
    """What a splice does for keys that it does not know; it is free, and less for nobody."""

    MAX_BYTES: ClassVar[int] = 4_096
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    name: Name
    at: tuple[HostPort, ...] = Field(min_length=1, max_length=4)
    bytes_per_s: int = Field(ge=1, le=2**40)
    """Of one pair, both ways together."""
    most_bytes: Count
    """That one pair may send before it has to meet again."""
    region: Label = ""


def build(keys: Keys, splice: Splice, *, created_at: int) -> Event:
    said = [("d", splice.name), ("k", str(kinds.SPLICE))]
    return sign(keys, kinds.AD, created_at=created_at, content=splice.to_json(), tags=said)


def parse(event: Event) -> Splice:
    """The splice in a verified event.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed, or its tags contradict its document.

    """
    tags.check_kind(event, kinds.AD)
    splice = Splice.parse(event.content)
    if tags.text(event, "d") != splice.name:
        raise BadTag("d", "not the splice's name")
    if event.values("k") != [str(kinds.SPLICE)]:
        raise BadTag("k", f"does not name {kinds.SPLICE}")
    return splice


@dataclass(frozen=True, slots=True)
class Request:
    """A verified request: its id, whose it is, the room or the port that it names, if any."""

    id: str
    public: str
    room: str | None
    port: int | None


def request(
    keys: Keys, splice: str, *, salt: str, now_s: float, room: str | None = None, port: int | None = None
) -> Event:
    """What `keys` ask of the splice with the public key `splice`.

    It is to be met in `room`, to be dialled back at `port`, or only how the splice sees them.

    `salt` tells requests of the same second apart.
    """
    wanted = [["room", room]] if room is not None else []
    wanted += [["dial", str(port)]] if port is not None else []
    said = [["p", splice], *wanted, ["salt", salt], ["v", VERSION]]
    return sign(keys, kinds.SPLICE, created_at=int(now_s), tags=said)


def check_request(data: bytes, splice: str, now_s: float) -> Request:
    """The request in JSON, verified.

    Raises:
        BadPeer: malformed, ill-signed, for another splice, or over 60 s old or early.
        BadVersion: its `v` is not ours.

    """
    try:
        event = events.parse(data, max_bytes=MAX_REQUEST_BYTES)
        tags.check_kind(event, kinds.SPLICE)
        room = tags.hex32(event, "room") if event.values("room") else None
        port = tags.number("dial", tags.text(event, "dial"), 65_535) if event.values("dial") else None
    except BadInput as error:
        raise BadPeer(error.field, error.reason) from error
    if event.tag("v") != VERSION:
        raise BadVersion.from_versions(event.tag("v"), VERSION)
    if event.values("p") != [splice]:
        raise BadPeer("p", "made for another splice")
    if port is not None and (port < LEAST_PORT or room is not None):
        raise BadPeer("dial", f"a port from {LEAST_PORT} on, and no room beside it")
    if abs(event.created_at - now_s) > CLOCK_SKEW_S:
        raise BadPeer("created_at", f"not within {CLOCK_SKEW_S} s of now")
    return Request(event.id, event.pubkey, room, port)
