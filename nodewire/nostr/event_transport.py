"""How events come to others and from them.

They come over relays (`nodewire.nostr.pool`), or over the links of those who know each other
(`nodewire.wire.swarm.event_relay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodewire.nostr.subscription import MAX_QUEUED_EVENTS, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.event import Event
    from nodewire.nostr.nips.nip01 import Filter


class EventTransport(Protocol):
    """As `Pool` has it, whoever carries the events. What comes is verified."""

    def subscribe(self, filters: Iterable[Filter], *, max_queued: int = MAX_QUEUED_EVENTS) -> Subscription:
        """What matches any of `filters`, until closed."""

    async def fetch(
        self, filters: Iterable[Filter], timeout_s: float = 10.0, *, max_events: int = MAX_QUEUED_EVENTS
    ) -> list[Event]:
        """What is stored where events are, newest first."""

    async def fetch_all(
        self, filters: Iterable[Filter], timeout_s: float = 30.0, *, max_events: int = 16 * MAX_QUEUED_EVENTS
    ) -> list[Event]:
        """As `fetch`, however much it is."""

    async def publish(self, event: Event, timeout_s: float = 10.0) -> object:
        """Returns when it is on its way. Raises RelayRefused, TimedOut, LinkLost."""
