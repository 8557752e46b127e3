"""The relay pool as those know it that publish events and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.nips.nip01 import Filter


class Relays(Protocol):
    """`nodewire.nostr.pool.Pool`, or what stands for it. Events come verified."""

    async def publish(self, event: Event, timeout_s: float = 10.0) -> object:
        """Raises RelayRefused, TimedOut: no relay has taken it."""

    def subscribe(self, filters: Sequence[Filter]) -> AsyncIterator[Event]:
        """A subscription: stored events that match any of `filters`, then new ones."""

    async def fetch(self, filters: Sequence[Filter]) -> Sequence[Event]:
        """The stored events that the relays send at once, newest first. Raises RelayRefused, TimedOut."""

    async def fetch_all(self, filters: Sequence[Filter]) -> Sequence[Event]:
        """All stored events: relays are asked for older ones until nothing new comes. Raises as `fetch`."""
