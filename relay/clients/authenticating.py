"""NIP-42 and NIP-59: what is addressed to some is shown to them alone, once they have proved their keys.

https://github.com/nostr-protocol/nips/blob/master/42.md
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from nodewire.nostr.nips.nip42 import AUTH_REQUIRED

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from nodewire.nostr.event import Event
    from nodewire.nostr.nips.nip01 import Filter

WRAPS = frozenset({1059, 21059})  # who receives how many is nobody else's business


def new_challenge() -> str:
    return secrets.token_hex(16)


def may_see(event: Event, authed: Set[str], wraps_need_auth: bool) -> bool:
    """Whether a client with these keys is shown `event`."""
    return not wraps_need_auth or event.kind not in WRAPS or not authed.isdisjoint(event.values("p"))


def refusal(filters: Sequence[Filter], authed: Set[str], wraps_need_auth: bool) -> str | None:
    """Why these filters are not answered to a client with these keys; None if they are."""
    if wraps_need_auth and not authed and any(filter_.kinds and filter_.kinds <= WRAPS for filter_ in filters):
        return f"{AUTH_REQUIRED}: wraps are shown to those they are addressed to"
    return None
