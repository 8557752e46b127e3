"""NIP-01: the event, its id and its signature.

https://github.com/nostr-protocol/nips/blob/master/01.md
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadEvent, BadSignature, TooLarge
from nodewire.nostr import keys as _keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.keys import Keys

MAX_BYTES = 65_536  # of the serialized event; larger content is cited as a blob
MAX_TAGS = 2_000

Tags = tuple[tuple[str, ...], ...]
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Event:
    """A signed event. Built by `sign` or `parse`; both leave it verified or say so."""

    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: Tags
    content: str
    sig: str

    def tag(self, name: str) -> str | None:
        """The first value of the first tag called `name`, or None."""
        return next((t[1] for t in self.tags if len(t) > 1 and t[0] == name), None)

    def values(self, name: str) -> list[str]:
        """The first values of all tags called `name`, in order."""
        return [t[1] for t in self.tags if len(t) > 1 and t[0] == name]

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "pubkey": self.pubkey,
            "created_at": self.created_at,
            "kind": self.kind,
            "tags": [list(t) for t in self.tags],
            "content": self.content,
            "sig": self.sig,
        }

    def to_json(self) -> str:
        return orjson.dumps(self.as_dict()).decode()

    def hashed(self) -> bytes:
        """The bytes whose SHA-256 is the id: as a blob the event has its own id for its address."""
        return serialize(self.pubkey, self.created_at, self.kind, self.tags, self.content)


def serialize(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> bytes:
    """The bytes whose SHA-256 is the event's id.

    Raises:
        BadEvent: a string is not valid Unicode (a lone surrogate).

    """
    # NIP-01 names seven escapes and wants everything else verbatim. orjson writes the other control characters below
    # U+0020 as \u00XX; so do JSON.stringify (nostr-tools) and serde_json (rust-nostr), and ids must equal theirs.
    try:
        return orjson.dumps([0, pubkey, created_at, kind, tags, content])
    except orjson.JSONEncodeError as error:
        raise BadEvent("content", "not valid Unicode") from error


def utf8_bytes(text: str | bytes) -> int:
    """The length of `text` in UTF-8."""
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def event_id(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> str:
    return hashlib.sha256(serialize(pubkey, created_at, kind, tags, content)).hexdigest()


def sign(keys: Keys, kind: int, *, created_at: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Event:
    """A new event by `keys`; `created_at` in unix seconds."""
    frozen: Tags = tuple(tuple(t) for t in tags)
    digest = event_id(keys.public, created_at, kind, frozen, content)
    return Event(digest, keys.public, created_at, kind, frozen, content, keys.sign(bytes.fromhex(digest)).hex())


def parse(data: bytes | str | object, *, max_bytes: int = MAX_BYTES) -> Event:
    """The event in JSON text or in an already decoded object, its id and signature checked.

    Raises:
        TooLarge: more than `max_bytes` of text or more than 2,000 tags.
        BadEvent: a field is missing or of the wrong type.
        BadSignature: the id is not the hash, or the signature is not the author's.

    """
    event = parse_unverified(data, max_bytes=max_bytes)
    verify(event)
    return event


def _loaded(data: bytes | str, max_bytes: int) -> object:
    """What stands in JSON that is not longer than an event may be."""
    if (size := utf8_bytes(data)) > max_bytes:
        raise TooLarge("event", f"{size} bytes, at most {max_bytes}")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadEvent("event", "not JSON") from error


def parse_unverified(data: bytes | str | object, *, max_bytes: int = MAX_BYTES) -> Event:
    """As `parse`, without the check of id and signature; the caller checks with `verify`."""
    if isinstance(data, str | bytes):
        data = _loaded(data, max_bytes)
    if not isinstance(data, dict):
        raise BadEvent("event", "not an object")
    for field, length in (("id", 64), ("pubkey", 64), ("sig", 128)):
        value = data.get(field)
        if not (isinstance(value, str) and len(value) == length and _HEX.issuperset(value)):
            raise BadEvent(field, f"not {length} lowercase hex digits")
    created_at, kind, tags, content = (data.get(f) for f in ("created_at", "kind", "tags", "content"))
    if type(created_at) is not int or not 0 <= created_at < 2**53:
        raise BadEvent("created_at", "not a unix time in seconds")
    if type(kind) is not int or not 0 <= kind <= 65_535:
        raise BadEvent("kind", "not an integer from 0 to 65535")
    if not isinstance(content, str):
        raise BadEvent("content", "not a string")
    if not isinstance(tags, list):
        raise BadEvent("tags", "not an array")
    if len(tags) > MAX_TAGS:
        raise TooLarge("tags", f"{len(tags)}, at most {MAX_TAGS}")
    for tag in tags:
        if not isinstance(tag, list) or not tag or not all(isinstance(v, str) for v in tag):
            raise BadEvent("tags", "a tag is not a non-empty array of strings")
    return Event(data["id"], data["pubkey"], created_at, kind, tuple(tuple(t) for t in tags), content, data["sig"])


def of_hashed(data: bytes) -> Event:
    """The event whose `hashed` bytes these are, with an empty `sig`: whoever cites its id has checked that.

    Raises:
        TooLarge, BadEvent: as `parse`, or the bytes are not the ones that NIP-01 hashes.

    """
    if len(data) > MAX_BYTES:
        raise TooLarge("event", f"{len(data)} bytes, at most {MAX_BYTES}")
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadEvent("event", "not JSON") from error
    if not (isinstance(fields, list) and len(fields) == 6 and fields[0] == 0):
        raise BadEvent("event", "not the array that NIP-01 hashes")
    names = dict(zip(("pubkey", "created_at", "kind", "tags", "content"), fields[1:], strict=True))
    found = parse_unverified({**names, "id": hashlib.sha256(data).hexdigest(), "sig": "0" * 128})
    if found.hashed() != data:
        raise BadEvent("event", "not serialized as NIP-01 says")
    return replace(found, sig="")


def verify(event: Event) -> None:
    """Check the event's id and signature.

    Raises:
        BadSignature: one of them is wrong.

    """
    if event_id(event.pubkey, event.created_at, event.kind, event.tags, event.content) != event.id:
        raise BadSignature("id", "not the hash of the event")
    if not _keys.verify(event.pubkey, bytes.fromhex(event.id), bytes.fromhex(event.sig)):
        raise BadSignature("sig", "not the author's signature")
