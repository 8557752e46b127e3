"""Since when providers are silent: a word is only missed by who could have heard it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.nostr.pool import Pool


class LifeSigns:
    """Of one training, as this process heard it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heard_s: dict[tuple[str, str], float] = {}
        self._deaf_s = time.monotonic()

    def record(self, request: str, provider: str) -> None:
        """There was a sign of life, or until now none was due."""
        self._heard_s[request, provider] = time.monotonic()

    def silent_since_s(self, request: str, provider: str) -> float:
        """Monotonic. While no relay is connected nobody is silent, as far as this is asked often enough to see it."""
        if not any(relay.state == "connected" for relay in self._pool.relays):
            self._deaf_s = time.monotonic()
        return max(self._deaf_s, self._heard_s.get((request, provider), 0.0))
