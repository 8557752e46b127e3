"""NIP-42: a client proves to a relay whose key it holds.

https://github.com/nostr-protocol/nips/blob/master/42.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nodewire.errors import BadEvent, BadTag
from nodewire.nostr.event import Event, sign

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = 22_242
WINDOW_S = 600  # how far the event's time may be from the relay's
AUTH_REQUIRED = "auth-required"  # prefix of OK and CLOSED: authenticate and try again


def build(keys: Keys, *, relay_url: str, challenge: str, now_s: int) -> Event:
    """The answer of `keys` to the `challenge` of the relay at `relay_url`."""
    return sign(keys, KIND, created_at=now_s, tags=[["relay", relay_url], ["challenge", challenge]])


def check(event: Event, *, relay_url: str, challenge: str, now_s: int) -> None:
    """Check a verified event as the answer to `challenge`, by the relay at `relay_url`.

    Of the relay's URL only host and port count.

    Raises:
        BadEvent: wrong kind, or more than ten minutes from `now_s`.
        BadTag: another relay's or another challenge's answer.

    """
    if event.kind != KIND:
        raise BadEvent("kind", f"{event.kind} instead of {KIND}")
    if abs(event.created_at - now_s) > WINDOW_S:
        raise BadEvent("created_at", f"more than {WINDOW_S} s from the relay's clock")
    if event.tag("challenge") != challenge:
        raise BadTag("challenge", "not the one that was sent")
    if _origin(event.tag("relay") or "") != _origin(relay_url):
        raise BadTag("relay", "names another relay")


def _origin(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadTag("relay", "not a URL") from error
    if not host or parts.scheme not in ("ws", "wss"):
        raise BadTag("relay", "not a websocket URL")
    return host, port or (443 if parts.scheme == "wss" else 80)
