"""Reading what nodewire's own events share: the tags committee `c`, topic `n`, digest `x`, type `t`; JSON content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadEvent, BadTag, BadVersion
from nodewire.nostr.nips import nip40

if TYPE_CHECKING:
    from nodewire.nostr.event import Event

_HEX = frozenset("0123456789abcdef")
MAX_EPOCH = 2**40
MAX_RELAYS = 8
"""Of a request."""


def check_kind(event: Event, kind: int) -> None:
    """Raises BadEvent unless the event is of `kind`."""
    if event.kind != kind:
        raise BadEvent("kind", f"{event.kind}, expected {kind}")


def text(event: Event, name: str) -> str:
    """The value of a tag that must be there, once. Raises BadTag."""
    values = event.values(name)
    if len(values) != 1:
        raise BadTag(name, f"stands {len(values)} times, expected once")
    return values[0]


def hex32(event: Event, name: str) -> str:
    """As `text`, 64 lowercase hex digits."""
    return is_hex32(name, text(event, name))


def is_hex32(name: str, value: str) -> str:
    if len(value) != 64 or not _HEX.issuperset(value):
        raise BadTag(name, "not 64 lowercase hex digits")
    return value


def number(name: str, value: str, most: int = 10**15 - 1) -> int:
    """The decimal number that a tag's value is, from 0 to `most`. Raises BadTag."""
    if not (value.isascii() and value.isdecimal() and len(value) <= 19 and int(value) <= most):
        raise BadTag(name, f"{value[:20]!r} is not a decimal number up to {most}")
    return int(value)


def relays(event: Event) -> tuple[str, ...]:
    """Where a request's customer listens; empty if it does not say. Raises BadTag: more than MAX_RELAYS."""
    found = next((tag[1:] for tag in event.tags if tag[0] == "relays"), ())
    if len(found) > MAX_RELAYS:
        raise BadTag("relays", f"more than {MAX_RELAYS}")
    return tuple(found)


def expiration(expires_at_s: int | None) -> list[tuple[str, str]]:
    """The tag of NIP-40, or none for what is to stay."""
    return [] if expires_at_s is None else [(nip40.TAG, str(expires_at_s))]


def epoch_topic(epoch: int) -> str:
    """The topic of everything that an epoch's round says: `epoch/<n>`."""
    return f"epoch/{epoch}"


def epoch_of(event: Event) -> int:
    """The epoch that the topic tag `n` names. Raises BadTag."""
    value = text(event, "n")
    digits = value.removeprefix("epoch/")
    if digits == value or not (digits.isascii() and digits.isdecimal() and len(digits) <= 13):
        raise BadTag("n", f"{value[:20]!r} is not epoch/<number>")
    epoch = int(digits)
    if epoch > MAX_EPOCH or value != epoch_topic(epoch):
        raise BadTag("n", f"{value[:20]!r} is not epoch/<number>")
    return epoch


def document(event: Event, fields: set[str]) -> dict[str, Any]:
    """The JSON object of version 1 with just these fields in an event's content. Raises BadEvent, BadVersion."""
    try:
        document = orjson.loads(event.content)
    except orjson.JSONDecodeError as error:
        raise BadEvent("content", "not JSON") from error
    if not isinstance(document, dict):
        raise BadEvent("content", "not an object")
    BadVersion.check(document.get("v"), 1)
    if set(document) != fields:
        raise BadEvent("content", f"fields are not {', '.join(sorted(fields))}")
    return document
