"""NIP-89: handler information, how a service says which kinds it serves.

https://github.com/nostr-protocol/nips/blob/master/89.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadEvent, BadTag, TooLarge
from nodewire.nostr.event import Event, Tags, sign

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = 31_990
MAX_KINDS = 256


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler of an author: `d` tells it from the author's others, `kinds` are what it serves.

    `content` is empty or JSON; `others` are all further tags (`web`, and those of a microstandard).
    """

    d: str
    kinds: tuple[int, ...]
    content: str = ""
    others: Tags = ()


def build(keys: Keys, handler: Handler, *, created_at: int) -> Event:
    """The event in which `keys` announce `handler`; it replaces their former one with the same `d`.

    Raises:
        BadTag: no kind at all, a kind out of range, or `others` that say `d` or `k` again.

    """
    if any(tag[:1] in (("d",), ("k",)) for tag in handler.others):
        raise BadTag("others", "d and k have fields of their own")
    tags = [["d", handler.d], *(["k", str(kind)] for kind in _checked(handler.kinds)), *handler.others]
    return sign(keys, KIND, created_at=created_at, content=handler.content, tags=tags)


def parse(event: Event) -> Handler:
    """The handler that a verified event announces.

    Raises:
        BadEvent: not kind 31990.
        BadTag: no `d`, or `k` tags that are not kinds.

    """
    if event.kind != KIND:
        raise BadEvent("kind", f"{event.kind} instead of {KIND}")
    d = event.tag("d")
    if d is None:
        raise BadTag("d", "missing")
    kinds = []
    for text in event.values("k"):
        if not (text.isascii() and text.isdecimal() and len(text) <= 5):
            raise BadTag("k", f"{text[:20]!r} is not a kind")
        kinds.append(int(text))
    others = tuple(tag for tag in event.tags if tag[0] not in ("d", "k"))
    return Handler(d, _checked(tuple(kinds)), event.content, others)


def _checked(kinds: tuple[int, ...]) -> tuple[int, ...]:
    if not kinds:
        raise BadTag("k", "a handler serves at least one kind")
    if len(kinds) > MAX_KINDS:
        raise TooLarge("k", f"{len(kinds)} kinds, at most {MAX_KINDS}")
    if not all(0 <= kind <= 65_535 for kind in kinds):
        raise BadTag("k", "not integers from 0 to 65535")
    return kinds
