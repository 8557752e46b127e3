"""NIP-42: a client proves which keys it holds; what is hidden from others is then served to it.

https://github.com/nostr-protocol/nips/blob/master/42.md
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from nodewire.nostr.event import Event

KIND = 22242
WRAPS = frozenset({1059, 21059})  # NIP-59: who receives how many is nobody else's business
_WINDOW_S = 600


def new_challenge() -> str:
    return secrets.token_hex(16)


def fault(event: Event, challenge: str, host: str, now_s: int) -> str | None:
    """Why `event`, whose signature is checked, does not authenticate its author here; None if it does.

    `host` is the relay's own name and port, as in the URL that clients connect to.
    """
    if event.kind != KIND:
        return f"invalid: kind {event.kind}, not {KIND}"
    if abs(event.created_at - now_s) > _WINDOW_S:
        return "invalid: created_at is more than ten minutes away from now"
    if event.tag("challenge") != challenge:
        return "invalid: another challenge"
    if _host(event.tag("relay") or "") != host.lower():
        return f"invalid: for another relay, this is {host}"
    return None


def may_see(event: Event, authed: set[str], wraps_need_auth: bool) -> bool:
    """Whether a client with these keys is shown `event`."""
    return not wraps_need_auth or event.kind not in WRAPS or not authed.isdisjoint(event.values("p"))


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    default = {"ws": 80, "wss": 443}.get(parts.scheme)
    name = (parts.hostname or "").lower()
    return name if port in (None, default) else f"{name}:{port}"
