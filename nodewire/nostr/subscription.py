"""One subscription over all relays of a pool: verified events, each once, in a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from nodewire.core.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.link import Standing
    from nodewire.nostr.nips.nip01 import Filter

MAX_QUEUED_EVENTS = 4_096  # per subscription
MAX_QUEUED_BYTES = 16 << 20  # per subscription, as the events came over the wire
_SEEN_IDS = 16_384  # per subscription, to deliver an event once


class Subscription:
    """Events that match any of its filters, from all relays: an async iterator.

    It ends with `close`, with the pool, or when every relay has refused it. `standing` tells how far each relay is,
    `closed` the last words of those that refused or ended it. `dropped` counts events that a slow reader lost, `unread`
    messages that cannot be read.
    """

    def __init__(
        self,
        sub_id: str,
        filters: tuple[Filter, ...],
        urls: Iterable[str],
        max_events: int,
        *,
        is_genuine: Callable[[Event], bool],
        on_close: Callable[[str], None],
    ) -> None:
        self.id = sub_id
        self.filters = filters
        self.dropped = 0
        self.unread = 0
        self._is_genuine = is_genuine
        self._on_close = on_close
        self._standing: dict[str, Standing] = dict.fromkeys(urls, "pending")
        self._closed: dict[str, str] = {}
        self._seen = Recent(_SEEN_IDS)
        self._queue: deque[tuple[Event, int]] = deque()
        self._queued_bytes = 0
        self._max_events = max_events
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._ended = False

    @property
    def eose(self) -> Awaitable[object]:
        """`await subscription.eose`: until every relay in reach has sent what it had stored, and at least one has.

        Relays that are down or refused are not waited for; with all of them down, it waits for the first to come up.
        """
        return self._settled.wait()

    @property
    def standing(self) -> Mapping[str, Standing]:
        return MappingProxyType(self._standing)

    @property
    def closed(self) -> Mapping[str, str]:
        return MappingProxyType(self._closed)

    @property
    def queued(self) -> int:
        """How many events wait to be read."""
        return len(self._queue)

    def close(self) -> None:
        """End it here and on the relays. What is queued can still be read."""
        self._on_close(self.id)
        self._end()

    def drain(self) -> list[Event]:
        """What is queued at this moment, without waiting."""
        events = [event for event, _ in self._queue]
        self._queue.clear()
        self._queued_bytes = 0
        return events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        event, size = self._queue.popleft()
        self._queued_bytes -= size
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # As a link's listener

    def accept(self, event: Event, size: int) -> bool:
        if event.id in self._seen:
            return True
        if not any(wanted.matches(event) for wanted in self.filters) or not self._is_genuine(event):
            return False
        self._seen.add(event.id)
        self._queue.append((event, size))
        self._queued_bytes += size
        while len(self._queue) > self._max_events or (self._queued_bytes > MAX_QUEUED_BYTES and len(self._queue) > 1):
            self._queued_bytes -= self._queue.popleft()[1]
            self.dropped += 1
        self._wake.set()
        return True

    def lose(self) -> None:
        self.unread += 1

    def stand(self, url: str, standing: Standing, reason: str) -> None:
        # What a relay has once sent to the end stays sent, whatever becomes of the connection.
        if self._standing[url] != "eose" or standing in ("closed", "refused"):
            self._standing[url] = standing
        if standing in ("closed", "refused"):
            self._closed[url] = reason
        now = set(self._standing.values())
        if "pending" not in now and ("eose" in now or now <= {"closed", "refused"}):
            self._settled.set()
        if now == {"refused"}:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._settled.set()
        self._wake.set()


class Recent:
    """The last `size` things that were added or asked for."""

    def __init__(self, size: int) -> None:
        self._items = BoundedDict[Hashable, None](size)

    def __contains__(self, item: Hashable) -> bool:
        if item not in self._items:
            return False
        self._items.move_to_end(item)
        return True

    def add(self, item: Hashable) -> None:
        self._items[item] = None
