"""NIP-01: filters, classes of kinds, and the messages between client and relay (with NIP-42's AUTH, NIP-45's COUNT).

https://github.com/nostr-protocol/nips/blob/master/01.md, 42.md, 45.md

Everything here is sans-I/O: text in, frozen values out, and back by `to_json`. Events inside messages are parsed but
not verified, so that a relay or a pool decides when to pay for the signature check. A caller that must answer even a
malformed message by its id decodes it first (`decode`), then hands the array to `parse_client` or `parse_relay`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from nodewire.errors import BadInput, TooLarge, Unsupported
from nodewire.nostr import event as _event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from nodewire.nostr.event import Event

MAX_MESSAGE_BYTES = 131_072
MAX_RELAY_FRAME_BYTES = 2**20
"""The most that a relay may send at once. Events between the two bounds are passed over: other relays keep them."""
MAX_FILTERS = 64  # in one REQ or COUNT
MAX_FILTER_VALUES = 2_048  # ids, authors, kinds and tag values of one filter together
MAX_FILTER_VALUE_BYTES = 1_024
MAX_SUB_ID_CHARS = 64
_LATEST_S = 2**53 - 1  # the largest integer that JSON numbers carry exactly
_HEX = frozenset("0123456789abcdef")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_T = TypeVar("_T")


# Classes of kinds


def is_replaceable(kind: int) -> bool:
    """Whether only the newest event per (author, kind) is kept."""
    return 10_000 <= kind < 20_000 or kind in (0, 3)


def is_ephemeral(kind: int) -> bool:
    """Whether relays pass the event on without storing it."""
    return 20_000 <= kind < 30_000


def is_addressable(kind: int) -> bool:
    """Whether only the newest event per (author, kind, `d` tag) is kept."""
    return 30_000 <= kind < 40_000


def address(event: Event) -> str | None:
    """What an `a` tag cites the event by, "kind:pubkey:d" ("kind:pubkey:" if replaceable); None for other kinds."""
    if is_addressable(event.kind):
        return f"{event.kind}:{event.pubkey}:{event.tag('d') or ''}"
    return f"{event.kind}:{event.pubkey}:" if is_replaceable(event.kind) else None


def newest_first(event: Event) -> tuple[int, str]:
    """Sort key of stored events: newest first, ties by the lowest id."""
    return -event.created_at, event.id


def supersedes(new: Event, old: Event) -> bool:
    """Whether `new` takes the place of `old` at the same address; of two as new as each other the lower id stays."""
    return newest_first(new) < newest_first(old)


# Filters


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a subscription wants: every condition that is not None must hold.

    `tags` maps a single letter to the wanted values of that tag. `since` and `until` are unix seconds, both inclusive.
    `limit` only bounds the first answer and plays no part in `matches`. An empty set matches nothing.
    """

    ids: AbstractSet[str] | None = None
    authors: AbstractSet[str] | None = None
    kinds: AbstractSet[int] | None = None
    tags: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "authors", "kinds"):
            values = getattr(self, name)
            object.__setattr__(self, name, None if values is None else frozenset(values))
        tags = {letter: frozenset(self.tags[letter]) for letter in sorted(self.tags)}
        object.__setattr__(self, "tags", MappingProxyType(tags))

    def matches(self, event: Event) -> bool:
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self.authors is not None and event.pubkey not in self.authors:
            return False
        if self.ids is not None and event.id not in self.ids:
            return False
        if self.since is not None and event.created_at < self.since:
            return False
        if self.until is not None and event.created_at > self.until:
            return False
        return all(
            any(len(tag) > 1 and tag[0] == letter and tag[1] in wanted for tag in event.tags)
            for letter, wanted in self.tags.items()
        )

    def as_dict(self) -> dict[str, object]:
        out: dict[str, object] = {}
        for name in ("ids", "authors", "kinds"):
            values = getattr(self, name)
            if values is not None:
                out[name] = sorted(values)
        out.update((f"#{letter}", sorted(values)) for letter, values in self.tags.items())
        for name in ("since", "until", "limit"):
            if (number := getattr(self, name)) is not None:
                out[name] = number
        return out


def parse_filter(data: object) -> Filter:
    """The filter in a decoded JSON object; symmetric with `Filter.as_dict`.

    Raises:
        BadInput: a value is of the wrong type or form; the field is named.
        TooLarge: more than 2,048 values in all, or a value longer than 1,024 bytes.
        Unsupported: an element that is not NIP-01's (NIP-50's `search`, say).

    """
    if not isinstance(data, dict):
        raise BadInput("filter", "not an object")
    if len(data) > MAX_FILTER_VALUES:
        raise TooLarge("filter", f"{len(data)} elements, at most {MAX_FILTER_VALUES}")
    total = 0
    sets: dict[str, AbstractSet[Any]] = {}
    tags: dict[str, AbstractSet[str]] = {}
    numbers: dict[str, int] = {}
    for name, value in data.items():
        if name in ("since", "until", "limit"):
            numbers[name] = _natural(value, name)
            continue
        check = _VALUE_CHECKS.get(name)
        if check is None and not (len(name) == 2 and name[0] == "#" and name[1] in _LETTERS):
            raise Unsupported(name[:32], "an unknown element of a filter")
        if not isinstance(value, list):
            raise BadInput(name, "not an array")
        total += len(value)
        if total > MAX_FILTER_VALUES:
            raise TooLarge(name, f"more than {MAX_FILTER_VALUES} values in one filter")
        items = _all(value, name, check or _short_text)
        if name[0] == "#":
            tags[name[1]] = items
        else:
            sets[name] = items
    return Filter(tags=tags, **sets, **numbers)  # type: ignore[arg-type]


# Messages from client to relay


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Publish `event`; answered by `Ok`."""

    event: Event

    def to_json(self) -> str:
        return f'["EVENT",{self.event.to_json()}]'


@dataclass(frozen=True, slots=True)
class Req:
    """Send what matches any of `filters`, stored events first, until closed."""

    sub_id: str
    filters: tuple[Filter, ...]

    def to_json(self) -> str:
        return _dump("REQ", self.sub_id, *(f.as_dict() for f in self.filters))


@dataclass(frozen=True, slots=True)
class Close:
    sub_id: str

    def to_json(self) -> str:
        return _dump("CLOSE", self.sub_id)


@dataclass(frozen=True, slots=True)
class ClientAuth:
    """NIP-42: the signed answer to the relay's challenge; answered by `Ok`."""

    event: Event

    def to_json(self) -> str:
        return f'["AUTH",{self.event.to_json()}]'


@dataclass(frozen=True, slots=True)
class ClientCount:
    """NIP-45: how many stored events match any of `filters`; answered by `RelayCount` or `ClosedMessage`."""

    sub_id: str
    filters: tuple[Filter, ...]

    def to_json(self) -> str:
        return _dump("COUNT", self.sub_id, *(f.as_dict() for f in self.filters))


ClientMessage = ClientEvent | Req | Close | ClientAuth | ClientCount


# Messages from relay to client


@dataclass(frozen=True, slots=True)
class RelayEvent:
    sub_id: str
    event: Event

    def to_json(self) -> str:
        return f'["EVENT",{orjson.dumps(self.sub_id).decode()},{self.event.to_json()}]'


@dataclass(frozen=True, slots=True)
class Ok:
    """Whether an event was taken. `message` reads "prefix: reason" where it was not."""

    event_id: str
    accepted: bool
    message: str = ""

    def to_json(self) -> str:
        return _dump("OK", self.event_id, self.accepted, self.message)


@dataclass(frozen=True, slots=True)
class Eose:
    """All stored events have been sent; what follows is new."""

    sub_id: str

    def to_json(self) -> str:
        return _dump("EOSE", self.sub_id)


@dataclass(frozen=True, slots=True)
class ClosedMessage:
    """The relay refused or ended a subscription (or refused a count)."""

    sub_id: str
    message: str = ""

    def to_json(self) -> str:
        return _dump("CLOSED", self.sub_id, self.message)


@dataclass(frozen=True, slots=True)
class Notice:
    message: str

    def to_json(self) -> str:
        return _dump("NOTICE", self.message)


@dataclass(frozen=True, slots=True)
class RelayAuth:
    """NIP-42: sign this challenge; valid as long as the connection, or until the next one."""

    challenge: str

    def to_json(self) -> str:
        return _dump("AUTH", self.challenge)


@dataclass(frozen=True, slots=True)
class RelayCount:
    sub_id: str
    count: int
    approximate: bool = False

    def to_json(self) -> str:
        body = {"count": self.count, "approximate": True} if self.approximate else {"count": self.count}
        return _dump("COUNT", self.sub_id, body)


RelayMessage = RelayEvent | Ok | Eose | ClosedMessage | Notice | RelayAuth | RelayCount


def prefix(message: str) -> str:
    """The machine-readable word before the colon of an OK or CLOSED message ("duplicate", "auth-required"), or ""."""
    head, colon, _ = message.partition(":")
    return head if colon and head.isascii() and head.replace("-", "").isalnum() else ""


def decode(data: str | bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> list[Any]:
    """The JSON array in a message's text, whose first element is its verb.

    Raises:
        TooLarge: more than `max_bytes` of UTF-8.
        BadInput: not JSON, or not a non-empty array that starts with a string.

    """
    if _event.utf8_bytes(data) > max_bytes:
        raise TooLarge("message", f"more than {max_bytes} bytes")
    try:
        array = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadInput("message", "not JSON") from error
    if not isinstance(array, list) or not array or not isinstance(array[0], str):
        raise BadInput("message", "not an array that starts with a verb")
    return array


def parse_client(data: str | bytes | list[Any], *, max_bytes: int = MAX_MESSAGE_BYTES) -> ClientMessage:
    """The message that a client sent, as text or already decoded.

    Raises:
        BadInput, TooLarge: it is malformed or beyond a bound.
        Unsupported: a verb or filter element that is not known here.

    """
    match decode(data, max_bytes=max_bytes) if isinstance(data, str | bytes) else data:
        case ["EVENT", raw]:
            return ClientEvent(_event.parse_unverified(raw))
        case ["REQ", sub_id, *filters]:
            return Req(_sub_id(sub_id), _filters(filters))
        case ["CLOSE", sub_id]:
            return Close(_sub_id(sub_id))
        case ["AUTH", raw]:
            return ClientAuth(_event.parse_unverified(raw))
        case ["COUNT", sub_id, *filters]:
            return ClientCount(_sub_id(sub_id), _filters(filters))
        case ["EVENT" | "REQ" | "CLOSE" | "AUTH" | "COUNT" as verb, *_]:
            raise BadInput(verb, "wrong number of elements")
        case [verb, *_]:
            raise Unsupported("message", f"unknown verb {str(verb)[:32]!r}")
    raise BadInput("message", "an empty array")


def parse_relay(data: str | bytes | list[Any], *, max_bytes: int = MAX_MESSAGE_BYTES) -> RelayMessage:
    """The message that a relay sent, as text or already decoded. Elements beyond the known ones are ignored.

    Raises:
        BadInput, TooLarge: it is malformed or beyond a bound.
        Unsupported: a verb that is not known here.

    """
    match decode(data, max_bytes=max_bytes) if isinstance(data, str | bytes) else data:
        case ["EVENT", sub_id, raw, *_]:
            return RelayEvent(_sub_id(sub_id), _event.parse_unverified(raw))
        case ["OK", str(event_id), bool(accepted)]:  # the fourth element is due, yet some relays leave it out
            return Ok(_hex64(event_id, "OK"), accepted)
        case ["OK", str(event_id), bool(accepted), str(message), *_]:
            return Ok(_hex64(event_id, "OK"), accepted, message)
        case ["EOSE", sub_id, *_]:
            return Eose(_sub_id(sub_id))
        case ["CLOSED", sub_id]:
            return ClosedMessage(_sub_id(sub_id))
        case ["CLOSED", sub_id, str(message), *_]:
            return ClosedMessage(_sub_id(sub_id), message)
        case ["NOTICE", str(message), *_]:
            return Notice(message)
        case ["AUTH", str(challenge), *_]:
            return RelayAuth(challenge)
        case ["COUNT", sub_id, {"count": count, **rest}, *_]:
            return RelayCount(_sub_id(sub_id), _natural(count, "count"), rest.get("approximate") is True)
        case ["EVENT" | "OK" | "EOSE" | "CLOSED" | "NOTICE" | "AUTH" | "COUNT" as verb, *_]:
            raise BadInput(verb, "elements are missing or of the wrong type")
        case [verb, *_]:
            raise Unsupported("message", f"unknown verb {str(verb)[:32]!r}")
    raise BadInput("message", "an empty array")


def _dump(*elements: object) -> str:
    return orjson.dumps(elements).decode()


def _sub_id(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_SUB_ID_CHARS:
        raise BadInput("subscription id", f"not a string of 1 to {MAX_SUB_ID_CHARS} characters")
    return value


def _filters(raw: Sequence[object]) -> tuple[Filter, ...]:
    if not raw:
        raise BadInput("filters", "none given")
    if len(raw) > MAX_FILTERS:
        raise TooLarge("filters", f"{len(raw)}, at most {MAX_FILTERS}")
    return tuple(parse_filter(item) for item in raw)


def _all(values: list[Any], name: str, check: Callable[[object, str], _T]) -> frozenset[_T]:
    return frozenset(check(value, name) for value in values)


def _hex64(value: object, name: str) -> str:
    if not (isinstance(value, str) and len(value) == 64 and _HEX.issuperset(value)):
        raise BadInput(name, "not 64 lowercase hex digits")
    return value


def _kind(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= 65_535:
        raise BadInput(name, "not integers from 0 to 65535")
    return value


def _short_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise BadInput(name, "not strings")
    if _event.utf8_bytes(value) > MAX_FILTER_VALUE_BYTES:
        raise TooLarge(name, f"a value of more than {MAX_FILTER_VALUE_BYTES} bytes")
    return value


def _natural(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _LATEST_S:
        raise BadInput(name, "not an integer from 0 to 2**53 - 1")
    return value


_VALUE_CHECKS: dict[str, Callable[[object, str], Any]] = {
    "ids": _hex64,
    "authors": _hex64,
    "kinds": _kind,
    "#e": _hex64,
    "#p": _hex64,
}
