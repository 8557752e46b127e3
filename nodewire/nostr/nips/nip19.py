"""NIP-19: events and addresses as bech32 text for people to copy. Keys' npub and nsec stand in keys.py.

https://github.com/nostr-protocol/nips/blob/master/19.md

Display and input only: none of these may stand inside an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, TooLarge
from nodewire.nostr import bech32_text

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CHARS = 5_000
_SPECIAL, _RELAY, _AUTHOR, _KIND = range(4)
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Note:
    """A bare event id (64 hex digits)."""

    id: str


@dataclass(frozen=True, slots=True)
class Nevent:
    """An event and where it may be found."""

    id: str
    relays: tuple[str, ...] = ()
    author: str | None = None
    kind: int | None = None


@dataclass(frozen=True, slots=True)
class Naddr:
    """A replaceable (`d` empty) or addressable event and where it may be found."""

    kind: int
    pubkey: str
    d: str
    relays: tuple[str, ...] = ()


Entity = Note | Nevent | Naddr


def build(entity: Entity) -> str:
    """The bech32 text of `entity`.

    Raises:
        BadInput: an id or a key is not 64 hex digits, or a kind not an unsigned 32-bit integer.
        TooLarge: a relay or `d` has more than 255 bytes, or all of it more than 5,000 characters.

    """
    match entity:
        case Note(event_id):
            return _bech32("note", _key(event_id, "id"))
        case Nevent(event_id, relays, author, kind):
            items = [(_SPECIAL, _key(event_id, "id")), *((_RELAY, relay.encode()) for relay in relays)]
            if author is not None:
                items.append((_AUTHOR, _key(author, "author")))
            if kind is not None:
                items.append((_KIND, _u32(kind)))
            return _bech32("nevent", _tlv(items))
        case Naddr(kind, pubkey, d, relays):
            items = [(_SPECIAL, d.encode()), *((_RELAY, relay.encode()) for relay in relays)]
            return _bech32("naddr", _tlv([*items, (_AUTHOR, _key(pubkey, "pubkey")), (_KIND, _u32(kind))]))


def parse(text: str) -> Entity:
    """The entity in bech32 text (also behind NIP-21's "nostr:"); unknown TLV items are ignored.

    Raises:
        TooLarge: more than 5,000 characters.
        BadInput: it is no note, nevent or naddr, or a part is missing.

    """
    if len(text) > MAX_CHARS:
        raise TooLarge("bech32", f"{len(text)} characters, at most {MAX_CHARS}")
    prefix, data = bech32_text.decode(text.removeprefix("nostr:"))
    if prefix == "note":
        return Note(_hex(data, "id"))
    if prefix not in ("nevent", "naddr"):
        raise BadInput("bech32", f"{prefix} is not note, nevent or naddr")
    items = list(_items(data))
    first = dict(reversed(items))
    relays = tuple(_text(value, "relay") for kind, value in items if kind == _RELAY)
    author = _hex(first[_AUTHOR], "author") if _AUTHOR in first else None
    number = _number(first[_KIND]) if _KIND in first else None
    if _SPECIAL not in first:
        raise BadInput(prefix, "names no event")
    if prefix == "nevent":
        return Nevent(_hex(first[_SPECIAL], "id"), relays, author, number)
    if author is None or number is None:
        raise BadInput("naddr", "author or kind is missing")
    return Naddr(number, author, _text(first[_SPECIAL], "d"), relays)


def _bech32(prefix: str, data: bytes) -> str:
    text = bech32_text.encode(prefix, data)
    if len(text) > MAX_CHARS:
        raise TooLarge("bech32", f"{len(text)} characters, at most {MAX_CHARS}")
    return text


def _tlv(items: Iterable[tuple[int, bytes]]) -> bytes:
    out = bytearray()
    for kind, value in items:
        if len(value) > 255:
            raise TooLarge("d" if kind == _SPECIAL else "relay", f"{len(value)} bytes, at most 255")
        out += bytes([kind, len(value)]) + value
    return bytes(out)


def _items(data: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if at + 2 > len(data) or at + 2 + data[at + 1] > len(data):
            raise BadInput("bech32", "an item is cut off")
        yield data[at], data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]


def _key(text: str, field: str) -> bytes:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise BadInput(field, "not 64 lowercase hex digits")
    return bytes.fromhex(text)


def _hex(data: bytes, field: str) -> str:
    if len(data) != 32:
        raise BadInput(field, f"{len(data)} bytes instead of 32")
    return data.hex()


def _text(data: bytes, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(field, "not UTF-8") from error


def _u32(kind: int) -> bytes:
    if not 0 <= kind < 1 << 32:
        raise BadInput("kind", "not an unsigned 32-bit integer")
    return kind.to_bytes(4, "big")


def _number(data: bytes) -> int:
    if len(data) != 4:
        raise BadInput("kind", f"{len(data)} bytes instead of 4")
    return int.from_bytes(data, "big")
