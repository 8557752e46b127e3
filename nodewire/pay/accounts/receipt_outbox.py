"""Zap receipts on their way: each until it stands at every relay that it is meant for, or until that relay refused it.

What waits is in the ledger's file, so that a restart forgets none. A relay that is away is asked again after growing
pauses, for a week at most; one that refuses a receipt for good is not asked again. Relays of one host share a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from yarl import URL

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput, Busy, LinkLost, NodewireError, TimedOut
from nodewire.nostr import relay_visit
from nodewire.nostr.event import Event
from nodewire.nostr.event import parse as parse_event

if TYPE_CHECKING:
    import sqlite3

Publish = Callable[[Event, tuple[str, ...]], Awaitable[None]]
"""Brings an event to the one relay that is named, or, where none is, to the provider's own, of which one must take it.

Raises Busy, LinkLost, TimedOut: it may be taken later. Any other typed error: that relay never takes it.
"""
State = Literal["waiting", "stands", "refused", "given up"]

OWN = ""
"""In the place of a relay's URL: the provider's own relays. They are asked without end, whatever they say."""
MAX_RELAYS = 8
"""That one request has receipts brought to: the first that it names."""
KEPT_S = 7 * 24 * 60 * 60
"""A relay that is away for so long gets a receipt no more."""
_AGAIN_S = 1.0
_LONGEST_S, _LONGEST_OWN_S = 600.0, 20.0
"""The first pause before a host is asked again, and the longest, which the provider's own relays have apart."""
_HOSTS_AT_ONCE, _EACH_AT_ONCE = 8, 4
_PAGE = 64
"""Receipts that are read at a time for one host."""
_REASON_CHARS = 300
_HOSTS = 4_096
log = logging.getLogger("nodewire.pay")

SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (id TEXT PRIMARY KEY, event TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS receipt_relays (
    receipt TEXT NOT NULL, relay TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, since_s INTEGER NOT NULL,
    PRIMARY KEY (receipt, relay)
) STRICT;
CREATE INDEX IF NOT EXISTS receipt_relays_waiting ON receipt_relays (relay) WHERE state = 'waiting'
"""


def relays_of(named: Iterable[str], own: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Where a receipt goes.

    To the first `MAX_RELAYS` relays that the request names, and to the provider's `own` (one of these is enough) where
    none of them is named. What is no relay's URL is passed over.
    """
    found: dict[str, None] = {}
    for text in named:
        try:
            found.setdefault(relay_visit.parse(text))
        except BadInput:
            continue
        if len(found) == MAX_RELAYS:
            break
    return tuple(found) if own.intersection(found) else (*found, OWN)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One receipt (its event id) for one relay, and when it was entered."""

    receipt: str
    relay: str
    since_s: int


class ReceiptBook:
    """The receipts' tables in the ledger's database. Every method is one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def enter(self, event: Event, relays: Iterable[str], now_s: float) -> None:
        """A receipt that is to stand at `relays`. Entered again it changes nothing."""
        rows = [(event.id, relay, int(now_s)) for relay in relays]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            sql = "INSERT INTO receipt_relays VALUES (?, ?, 'waiting', '', ?) ON CONFLICT DO NOTHING"
            if self._db.executemany(sql, rows).rowcount:
                self._db.execute(
                    "INSERT INTO receipts VALUES (?, ?) ON CONFLICT DO NOTHING", (event.id, event.to_json())
                )

    def event(self, receipt: str) -> Event | None:
        """The receipt while it waits for a relay."""
        row = self._db.execute("SELECT event FROM receipts WHERE id = ?", (receipt,)).fetchone()
        return None if row is None else parse_event(row[0])

    def relays(self) -> list[str]:
        """The relays that something waits for."""
        return [
            relay for (relay,) in self._db.execute("SELECT DISTINCT relay FROM receipt_relays WHERE state = 'waiting'")
        ]

    def waiting(self, relays: Iterable[str]) -> list[Delivery]:
        """What waits for these relays: a page of each, drawn by chance, so that none stands in the others' way."""
        sql = "SELECT receipt, relay, since_s FROM receipt_relays WHERE state = 'waiting' AND relay = ?"
        found = [self._db.execute(f"{sql} ORDER BY random() LIMIT {_PAGE}", (relay,)).fetchall() for relay in relays]
        return [Delivery(*row) for rows in found for row in rows]

    def end(self, one: Delivery, state: State, reason: str = "") -> None:
        """Nothing more is to be done for it. The event itself is kept only while it waits for another relay."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            sql = "UPDATE receipt_relays SET state = ?, reason = ? WHERE receipt = ? AND relay = ?"
            self._db.execute(sql, (state, reason[:_REASON_CHARS], one.receipt, one.relay))
            waits = "SELECT 1 FROM receipt_relays WHERE receipt = :id AND state = 'waiting'"
            self._db.execute(f"DELETE FROM receipts WHERE id = :id AND NOT EXISTS ({waits})", {"id": one.receipt})

    def standing(self, receipt: str) -> dict[str, tuple[State, str]]:
        """By relay, what became of a receipt there, and the relay's reason."""
        sql = "SELECT relay, state, reason FROM receipt_relays WHERE receipt = ? ORDER BY rowid"
        return {relay: (state, reason) for relay, state, reason in self._db.execute(sql, (receipt,))}


@dataclass(slots=True)
class _Pause:
    length_s: float
    until: float


class ReceiptCourier:
    """Brings what waits in `book` to its relays."""

    def __init__(self, book: ReceiptBook, publish: Publish, now_s: Callable[[], float]) -> None:
        self._book = book
        self._publish = publish
        self._now_s = now_s
        self._pauses = BoundedDict[str, _Pause](_HOSTS)
        self._more = asyncio.Event()

    def wake(self) -> None:
        """Something new waits."""
        self._more.set()

    async def run(self) -> None:
        """Bring receipts without end. One host that is slow or away keeps no other from its receipts."""
        hosts: dict[str, asyncio.Task[list[NodewireError]]] = {}
        places = asyncio.Semaphore(_HOSTS_AT_ONCE)

        async def bring(host: str, relays: list[str]) -> list[NodewireError]:
            if host == OWN:
                return await self._bring(host, relays)
            async with places:
                return await self._bring(host, relays)

        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._more.clear()
                next_s: float | None = None
                for host, relays in self._by_host().items():
                    pause = self._pauses.get(host)
                    if host in hosts:
                        continue
                    if pause is None or pause.until <= clock():
                        hosts[host] = asyncio.create_task(bring(host, relays))
                    else:
                        next_s = min(pause.until, next_s or pause.until)
                more = asyncio.ensure_future(self._more.wait())
                try:
                    wait_s = None if next_s is None else max(0.0, next_s - clock())
                    await asyncio.wait({more, *hosts.values()}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
                for host, task in [(host, task) for host, task in hosts.items() if task.done()]:
                    del hosts[host]
                    task.result()
        finally:
            for task in hosts.values():
                task.cancel()
            await asyncio.gather(*hosts.values(), return_exceptions=True)

    async def bring_all(self) -> list[NodewireError]:
        """Try each that waits once, whatever the pauses; why those that still wait do."""
        told = await asyncio.gather(*(self._bring(host, relays) for host, relays in self._by_host().items()))
        return [error for errors in told for error in errors]

    def _by_host(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for relay in self._book.relays():
            found.setdefault(URL(relay).host or OWN, []).append(relay)
        return found

    async def _bring(self, host: str, relays: list[str]) -> list[NodewireError]:
        """Bring a page of receipts to one host's relays, until it is away; why those that still wait do."""
        turns, errors, is_away = asyncio.Semaphore(_EACH_AT_ONCE), list[NodewireError](), False

        async def bring(one: Delivery) -> None:
            nonlocal is_away
            async with turns:
                event = self._book.event(one.receipt)
                if is_away or event is None:
                    return
                try:
                    await self._publish(event, (one.relay,) if one.relay else ())
                except NodewireError as error:
                    is_away = is_away or isinstance(error, LinkLost | TimedOut)
                    if not self._has_failed(one, error):
                        errors.append(error)
                else:
                    self._book.end(one, "stands")

        await asyncio.gather(*map(bring, self._book.waiting(relays)))
        self._pause(host, is_over=not errors)
        return errors

    def _has_failed(self, one: Delivery, error: NodewireError) -> bool:
        """Whether a receipt that was not taken is brought there no more; then that is written down."""
        if one.relay == OWN:
            return False
        is_final = not isinstance(error, Busy | LinkLost | TimedOut)
        if not is_final and self._now_s() - one.since_s < KEPT_S:
            return False
        self._book.end(one, "refused" if is_final else "given up", str(error))
        log.warning("a receipt will not stand at %s: %s", one.relay, ascii(str(error)[:_REASON_CHARS]))
        return True

    def _pause(self, host: str, *, is_over: bool) -> None:
        if is_over:
            self._pauses.pop(host, None)
            return
        known, longest_s = self._pauses.get(host), _LONGEST_OWN_S if host == OWN else _LONGEST_S
        length_s = _AGAIN_S if known is None else min(longest_s, 2 * known.length_s)
        self._pauses[host] = _Pause(length_s, asyncio.get_running_loop().time() + length_s)
