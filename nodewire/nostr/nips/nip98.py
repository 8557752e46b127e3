"""NIP-98: HTTP requests signed by a Nostr key (kind 27235).

https://github.com/nostr-protocol/nips/blob/master/98.md

The event names the URL, the method and the hash of the body, and is good for a minute. `Authorization: Nostr <base64>`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotAllowed
from nodewire.nostr.event import Event, sign
from nodewire.nostr.nips.nipb7 import from_header, to_header

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = 27_235
WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What was asked for: the absolute URL as the server is known by, the method, the body."""

    url: str
    method: str
    body: bytes = b""

    @property
    def payload(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def build(keys: Keys, asked: HttpRequest, *, now_s: int) -> Event:
    tags = [("u", asked.url), ("method", asked.method)]
    if asked.body:
        tags.append(("payload", asked.payload))
    return sign(keys, KIND, created_at=now_s, tags=tags)


def header(keys: Keys, asked: HttpRequest, *, now_s: int) -> str:
    """The value of the `Authorization` header by which `keys` ask."""
    return to_header(build(keys, asked, now_s=now_s))


def check(event: Event, asked: HttpRequest, *, now_s: float) -> str:
    """The public key of whoever signed for this request, in a verified event.

    A body must be covered by `payload`, which the NIP leaves open.

    Raises:
        NotAllowed: the event is for another request, or not of this minute; the field says which tag.

    """
    if event.kind != KIND:
        raise NotAllowed("kind", f"{event.kind} instead of {KIND}")
    if abs(now_s - event.created_at) > WINDOW_S:
        raise NotAllowed("created_at", f"more than {WINDOW_S} s from the server's clock")
    wanted = [("u", asked.url), ("method", asked.method)]
    if asked.body or event.values("payload"):
        wanted.append(("payload", asked.payload))
    for name, value in wanted:
        if event.values(name) != [value]:
            raise NotAllowed(name, f"{(event.tag(name) or 'nothing')[:200]!r} instead of {value[:200]!r}")
    return event.pubkey


def check_header(value: str | None, asked: HttpRequest, *, now_s: float) -> str:
    """As `check`, for the value of the header.

    Raises:
        NotAllowed: there is none, it is no signed event, or it is not for this request.

    """
    if value is None:
        raise NotAllowed("Authorization", "the request must be signed (NIP-98)")
    try:
        event = from_header(value)
    except NodewireError as error:
        raise NotAllowed("Authorization", str(error)[:200]) from error
    return check(event, asked, now_s=now_s)
