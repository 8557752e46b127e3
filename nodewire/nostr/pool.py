"""A pool of relays that answers as one: publish to all, success at one OK; read the union, verified, each event once.

    async with Pool(["wss://relay.one", "wss://relay.two"], keys) as pool:
        await pool.publish(event)
        async for event in pool.subscribe([Filter(kinds={1})]):
            ...

Relays are connected to in the background, again and again with growing, jittered pauses. After a reconnection every
subscription is sent again as it was (events may be published late, so no `since` is moved up); what has been delivered
is recognized. A subscriber that is too slow never holds up a connection: the oldest events in its queue make room and
are counted in `dropped`.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.frames import CloseCode

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, RelayRefused, TimedOut, TooLarge
from nodewire.nostr import event as _event
from nodewire.nostr.link import Link, RelayStatus, check_taken
from nodewire.nostr.nips import nip01
from nodewire.nostr.nips.nip01 import Filter, Ok, RelayCount
from nodewire.nostr.subscription import MAX_QUEUED_EVENTS, Recent, Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from types import TracebackType

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_RELAYS = 64
_VERIFIED = 16_384  # per pool, to verify a signature once
_OUTBOX_MESSAGES = 1_024  # per relay; one that reads none of so many is stuck
_STEADY_S = 5.0  # a connection that lasted so long makes the next pause short again
_OPEN_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 1.0
_TOO_BIG = CloseCode.MESSAGE_TOO_BIG
_T = TypeVar("_T")


class Pool:
    """Connections to the relays at `urls` (ws:// or wss://), as long as its `async with` block.

    Args:
        keys: whom to be towards relays that ask (NIP-42). Without keys nothing is ever signed.
        now_s: unix time, for AUTH events.
        first_pause_s, last_pause_s: the pauses before reconnecting grow from the one to the other, each times 0.5 to 1.
        linger_s: how long leaving the block waits for relays that have yet to answer a publication.

    Raises:
        BadConfig: no relay, more than 64, or one whose URL is none of a websocket.

    """

    def __init__(
        self,
        urls: Iterable[str],
        keys: Keys | None = None,
        *,
        now_s: Callable[[], float] = time.time,
        first_pause_s: float = 0.25,
        last_pause_s: float = 60.0,
        linger_s: float = 1.0,
    ) -> None:
        self._links = {url: Link(url, keys, now_s) for url in _checked(urls)}
        self._first_pause_s = first_pause_s
        self._last_pause_s = last_pause_s
        self._linger_s = linger_s
        self._verified = Recent(_VERIFIED)
        self._subscriptions: dict[str, Subscription] = {}
        self._last_id = 0
        self._connections: list[asyncio.Task[None]] = []
        self._publications: set[asyncio.Task[Ok | None]] = set()

    async def __aenter__(self) -> Self:
        self._connections = [
            asyncio.create_task(self._stay_connected(link), name=f"relay {link.url}") for link in self._links.values()
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._publications and kind is None:
            await asyncio.wait(self._publications, timeout=self._linger_s)
        for subscription in list(self._subscriptions.values()):
            subscription.close()
        tasks: list[asyncio.Task[None] | asyncio.Task[Ok | None]] = [*self._connections, *self._publications]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            link.down("the pool is closed", final=True)
        for error in ended:
            if isinstance(error, Exception):  # a defect of ours; cancellation is no Exception
                raise error

    @property
    def relays(self) -> tuple[RelayStatus, ...]:
        """Every relay's health, in the order of the URLs."""
        return tuple(link.status for link in self._links.values())

    def subscribe(self, filters: Iterable[Filter], *, max_queued: int = MAX_QUEUED_EVENTS) -> Subscription:
        """Stored and new events that match any of `filters`, until closed.

        Raises:
            BadInput, TooLarge: no filter, or more than 64.

        """
        return self._open(_filters(filters), self._links, max_queued)

    async def fetch(
        self,
        filters: Iterable[Filter],
        timeout_s: float = 10.0,
        *,
        max_events: int = MAX_QUEUED_EVENTS,
        is_whole: bool = False,
    ) -> list[Event]:
        """The union, newest first, of what the relays answer at once; at most `max_events`, or 16 MiB, of it.

        Who answers within `timeout_s` counts. Relays cap an answer (often at 500 events): `fetch_all` asks on.

        Raises:
            RelayRefused: every relay refused.
            TimedOut: none answered to the end.
            TooLarge: `is_whole`, and a relay's answer has an event that cannot be read.

        """
        # Stored events come newest first, and a full queue drops what came first: relays must not send more than fits.
        bounded = [_limited(one, max_events) for one in _filters(filters)]
        async with self.subscribe(bounded, max_queued=max_events) as subscription:
            try:
                await asyncio.wait_for(subscription.eose, timeout_s)
            except TimeoutError:
                if "eose" not in subscription.standing.values():
                    raise TimedOut("relays", f"none answered within {timeout_s} s") from None
            if "eose" not in subscription.standing.values() and not subscription.queued:
                raise RelayRefused("filters", _reasons(subscription.closed))
            if is_whole and subscription.unread:
                raise TooLarge("event", "a relay's answer has one that is too large, or no event at all")
            return sorted(subscription.drain(), key=nip01.newest_first)

    async def fetch_all(
        self, filters: Iterable[Filter], timeout_s: float = 30.0, *, max_events: int = 16 * MAX_QUEUED_EVENTS
    ) -> list[Event]:
        """As `fetch`, but each relay is asked for older and older events until it sends nothing new.

        Relays that are down are not waited for once another has sent all. Filters' own `limit`s are ignored. What more
        than an answer's worth of events have the very same `created_at` may be incomplete.

        Raises:
            RelayRefused, TimedOut: as `fetch`.

        """
        wanted = tuple(replace(one, limit=None) for one in _filters(filters))
        found: dict[str, Event] = {}
        refusals: dict[str, str] = {}
        tasks = {
            asyncio.create_task(_within(timeout_s, self._pages(link, wanted, found, refusals, max_events))): link
            for link in self._links.values()
        }
        pending, finished = set(tasks), False
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                finished = finished or any(task.result() for task in done)
                if finished and all(tasks[task].status.state == "waiting" for task in pending):
                    break
        finally:
            for task in pending:
                task.cancel()
        if not finished and not found:
            raise (
                RelayRefused("filters", _reasons(refusals))
                if refusals
                else TimedOut("relays", f"none answered within {timeout_s} s")
            )
        return sorted(found.values(), key=nip01.newest_first)

    async def publish(self, event: Event, timeout_s: float = 10.0, *, wait_all: bool = False) -> dict[str, Ok]:
        """Send `event` to every relay; the answers by URL, as soon as one relay has taken it.

        The others are still being tried, in the background, until `timeout_s` is over; a relay that is reconnecting
        gets the event when it is back. `wait_all` waits for those as well.

        Raises:
            RelayRefused: all that answered refused (`reason` holds their words).
            TimedOut: none answered.

        """
        tasks = {asyncio.create_task(_within(timeout_s, link.publish(event))): url for url, link in self._links.items()}
        for task in tasks:
            self._publications.add(task)
            task.add_done_callback(self._publications.discard)
        answers: dict[str, Ok] = {}
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (ok := task.result()) is not None:
                    answers[tasks[task]] = ok
            if not wait_all and any(ok.accepted for ok in answers.values()):
                break
        if any(ok.accepted for ok in answers.values()):
            return answers
        if answers:
            raise RelayRefused("event", _reasons({url: ok.message for url, ok in answers.items()}))
        raise TimedOut("event", f"no relay answered within {timeout_s} s")

    async def publish_at(self, url: str, event: Event, timeout_s: float = 10.0) -> None:
        """Return once the relay at `url`, one of this pool's, has the event.

        Raises:
            RelayRefused: the relay's word that it takes no such event, now or later.
            Busy: it does not take the event now.
            TimedOut: it did not answer.

        """
        answer = await _within(timeout_s, self._links[url].publish(event))
        if answer is None:
            raise TimedOut("relay", f"{url} did not answer within {timeout_s:g} s")
        check_taken(url, answer)

    async def count(self, filters: Iterable[Filter], timeout_s: float = 10.0) -> dict[str, int]:
        """How many stored events match any of `filters` (NIP-45), by the URLs of the relays that counted.

        Raises:
            RelayRefused: all that answered refused.
            TimedOut: none answered.

        """
        wanted, sub_id = _filters(filters), self._next_id()
        asked = (_within(timeout_s, link.count(sub_id, wanted)) for link in self._links.values())
        answers = dict(zip(self._links, await asyncio.gather(*asked), strict=True))
        counts = {url: answer.count for url, answer in answers.items() if isinstance(answer, RelayCount)}
        refusals = {url: answer.message for url, answer in answers.items() if isinstance(answer, nip01.ClosedMessage)}
        if not counts and refusals:
            raise RelayRefused("filters", _reasons(refusals))
        if not counts:
            raise TimedOut("relays", f"none counted within {timeout_s} s")
        return counts

    async def _pages(
        self,
        link: Link,
        wanted: tuple[Filter, ...],
        found: dict[str, Event],
        refusals: dict[str, str],
        max_events: int,
    ) -> bool:
        """Put all that one relay has into `found`; False if it refused."""
        seen: set[str] = set()
        limit = max(1, MAX_QUEUED_EVENTS // len(wanted))
        while len(found) < max_events:
            asked = tuple(_limited(one, limit) for one in wanted)
            async with self._open(asked, {link.url: link}, MAX_QUEUED_EVENTS) as subscription:
                await subscription.eose
                if subscription.standing[link.url] != "eose":
                    refusals.update(subscription.closed)
                    return False
                page = subscription.drain()
            if subscription.dropped and limit > 1:  # the events are large: smaller pages
                limit = max(1, limit // 4)
                continue
            if all(event.id in seen for event in page):
                break
            seen.update(event.id for event in page)
            found.update((event.id, event) for event in page[: max_events - len(found)])
            # Each filter goes on from its own oldest event, for a relay may cap each by itself.
            wanted = tuple(_until_oldest(one, page) for one in wanted)
        return True

    def _open(self, wanted: tuple[Filter, ...], links: Mapping[str, Link], max_queued: int) -> Subscription:
        subscription = Subscription(
            self._next_id(), wanted, links, max_queued, is_genuine=self._is_genuine, on_close=self._unsubscribe
        )
        self._subscriptions[subscription.id] = subscription
        for link in links.values():
            link.subscribe(subscription.id, wanted, subscription)
        return subscription

    def _next_id(self) -> str:
        self._last_id += 1
        return f"n{self._last_id}"

    def _unsubscribe(self, sub_id: str) -> None:
        self._subscriptions.pop(sub_id, None)
        for link in self._links.values():
            link.unsubscribe(sub_id)

    def _is_genuine(self, event: Event) -> bool:
        """Whether id and signature are right; the signature is checked once, however many relays send the event."""
        try:
            if (event.id, event.sig) not in self._verified:
                _event.verify(event)
                self._verified.add((event.id, event.sig))
                return True
            tags = event.tags
            return _event.event_id(event.pubkey, event.created_at, event.kind, tags, event.content) == event.id
        except NodewireError:
            return False

    async def _stay_connected(self, link: Link) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            started_s = clock()
            try:
                socket = await connect(
                    link.url,
                    compression=None,  # a few bytes on the wire would fill the memory
                    max_size=nip01.MAX_RELAY_FRAME_BYTES,
                    open_timeout=_OPEN_TIMEOUT_S,
                    close_timeout=_CLOSE_TIMEOUT_S,
                    proxy=None,
                )
                try:
                    await self._talk(link, socket)
                finally:
                    try:
                        await socket.close()
                    finally:
                        socket.transport.abort()  # whatever interrupts the handshake, no connection is left behind
                reason = f"closed by the relay ({socket.close_code})"
            except (OSError, WebSocketException, LinkLost) as error:
                reason = f"{type(error).__name__}: {error}"
                if isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == _TOO_BIG:
                    link.exceed()
            link.down(reason)
            failures = 1 if clock() - started_s >= _STEADY_S else failures + 1
            pause_s = min(self._last_pause_s, self._first_pause_s * 2 ** min(failures - 1, 30))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - spreads reconnections

    async def _talk(self, link: Link, socket: ClientConnection) -> None:
        outbox: asyncio.Queue[str] = asyncio.Queue(_OUTBOX_MESSAGES)

        def send(text: str) -> None:
            try:
                outbox.put_nowait(text)
            except asyncio.QueueFull:
                socket.transport.abort()  # a close handshake would wait behind what the relay does not read

        async def write() -> None:
            while True:
                await socket.send(await outbox.get())

        writer = asyncio.create_task(write())
        link.up(send)
        try:
            async for data in socket:
                link.receive(data)
                if link.is_hostile:
                    socket.transport.abort()
                    raise LinkLost(link.url, "too many invalid messages")
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


async def _within(timeout_s: float, answer: Awaitable[_T]) -> _T | None:
    try:
        return await asyncio.wait_for(answer, timeout_s)
    except TimeoutError:
        return None


def _filters(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    wanted = tuple(filters)
    if not wanted:
        raise BadInput("filters", "none given")
    if len(wanted) > nip01.MAX_FILTERS:
        raise TooLarge("filters", f"{len(wanted)}, at most {nip01.MAX_FILTERS}")
    return wanted


def _limited(wanted: Filter, limit: int) -> Filter:
    return wanted if wanted.limit is not None and wanted.limit <= limit else replace(wanted, limit=limit)


def _until_oldest(wanted: Filter, page: list[Event]) -> Filter:
    return replace(
        wanted, until=min((event.created_at for event in page if wanted.matches(event)), default=wanted.until)
    )


def _checked(urls: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(urls))
    if not 0 < len(unique) <= MAX_RELAYS:
        raise BadConfig("relays", f"{len(unique)} of them; a pool takes from 1 to {MAX_RELAYS}")
    for url in unique:
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").encode("idna"), parts.port
        except ValueError as error:  # brackets, a port beyond 65535, a label that is empty or too long
            raise BadConfig("relays", f"{url[:200]!r} is not a URL") from error
        if parts.scheme not in ("ws", "wss") or not host:
            raise BadConfig("relays", f"{url[:200]!r} is not a ws:// or wss:// URL")
    return unique


def _reasons(words: Mapping[str, str]) -> str:
    return "; ".join(f"{url}: {said[:100]}" for url, said in words.items())
