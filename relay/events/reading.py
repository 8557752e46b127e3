"""Queries against the database, in fair turns and at a measured price.

A query's price is the steps of SQLite's virtual machine that it took. It is tried on the event loop first, for about
a millisecond; then on a thread, for a few; then, once more from the start, on a thread for long ones. Between queries
it is the turn of the origin for which least has been done. So a short query waits for one short piece of another's
work, and a client that asks for much waits for itself. A query past its budget is broken off.

To interrupt a long query and go on with it later was considered: it holds its snapshot and its connection meanwhile,
and so needs a bound of its own on how many wait. To begin again costs at most a few milliseconds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nodewire.errors import TimedOut
from nodewire.net.origin_turns import Turns
from relay.events import schema
from relay.events.querying import Found, Page, Reader, Statements, count, find, load
from relay.turns import queueing

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.nostr.nips.nip01 import Filter
    from relay.limits import Limits

_TICK_STEPS = 1_000
_STATEMENT_STEPS = 100
_GLANCE_STEPS = 20_000
_SHORT_STEPS = 100_000

T = TypeVar("T")
Work = Callable[[Statements], T]
Charge = Callable[[queueing.Path, int], None]


class TooLong(Exception):
    """A query took more steps than it was given."""


class Meter(Generic[T]):
    """One connection whose work is counted in steps, and broken off above a number of them.

    A statement counts for some before its first: most of what a query of many small ranges costs is to begin each.
    """

    def __init__(self, path: Path) -> None:
        self.db = schema.open_reader(path)
        self.steps = 0
        """Of the last work."""
        self._most, self._until_s = 0, 0.0
        self.db.set_progress_handler(self._tick, _TICK_STEPS)

    def run(self, work: Work[T], most_steps: int, most_s: float) -> T:
        """Raises TooLong, or sqlite3.Error."""
        self.steps, self._most, self._until_s = 0, most_steps, time.monotonic() + most_s
        self.db.execute("BEGIN")  # one snapshot for all statements of a query
        try:
            return work(self)
        except sqlite3.OperationalError as error:
            if self._is_over():
                raise TooLong from error
            raise
        finally:
            steps = self.steps
            if self.db.in_transaction:
                # Or what broke the query off breaks off its end, too, and the connection is lost.
                self._most, self._until_s = self.steps + 1_000 * _TICK_STEPS, float("inf")
                self.db.execute("ROLLBACK")
            self.steps = steps

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Raises TooLong, or sqlite3.Error."""
        self.steps += _STATEMENT_STEPS
        if self._is_over():
            raise TooLong
        return self.db.execute(sql, parameters)

    def _tick(self) -> bool:
        self.steps += _TICK_STEPS
        return self._is_over()

    def _is_over(self) -> bool:
        return self.steps > self._most or time.monotonic() > self._until_s


@dataclass(eq=False, slots=True)
class _Query(Generic[T]):
    path: queueing.Path
    work: Work[T]
    answer: asyncio.Future[T]


class _Lane:
    """Threads that take queries in turns, each for so many steps at most."""

    def __init__(self, path: Path, name: str, threads: int, steps: int, seconds: float, charge: Charge) -> None:
        self._free = [Meter[Any](path) for _ in range(threads)]
        self._all = tuple(self._free)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._turns: queueing.Turns[_Query[Any]] = queueing.Turns()
        self._steps, self._seconds, self._charge = steps, seconds, charge
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, path: queueing.Path, work: Work[T]) -> T:
        """Raises TooLong, or sqlite3.Error."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._turns.add(path, _Query(path, work, answer))
        self._begin()
        return await answer

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.to_thread(self._pool.shutdown)
        for meter in self._all:
            meter.db.close()

    def _begin(self) -> None:
        while self._free and self._turns.waits:
            query = self._turns.take()
            if not query.answer.done():  # or the client has left
                task = asyncio.create_task(self._answer(query, self._free.pop()))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _answer(self, query: _Query[Any], meter: Meter[Any]) -> None:
        running = asyncio.get_running_loop().run_in_executor(
            self._pool, meter.run, query.work, self._steps, self._seconds
        )
        try:
            answer = await running
            if not query.answer.done():
                query.answer.set_result(answer)
        except Exception as error:  # noqa: BLE001 - it is raised to who asked
            if not query.answer.done():
                query.answer.set_exception(error)
        finally:
            self._free.append(meter)
            query.answer.cancel()  # of a relay that is closing; nothing to one that has been answered
        self._turns.charge(query.path, meter.steps)
        self._charge(query.path, meter.steps)
        self._begin()


class Archive:
    """Answers queries from the database at `path`. `charge` is told of which origin each was, and what it took."""

    def __init__(self, path: Path, limits: Limits, charge: Charge = lambda path, steps: None) -> None:
        self._most, self._charge, self._limits = limits.query_limit, charge, limits
        self._glance = Meter[Any](path)
        self._short = _Lane(path, "relay-short", 1, _SHORT_STEPS, limits.query_s, charge)
        self._long = _Lane(path, "relay-long", 1, limits.query_steps, limits.query_s, charge)

    async def find(self, filters: Sequence[Filter], reader: Reader) -> Found:
        """All stored events that match any of `filters`, each filter cut at its own limit.

        Raises:
            TimedOut: the query looked at too many events, or for too long.

        """
        return await self._run(lambda db: find(db, filters, reader, self._most), reader.path, _is_small(filters))

    async def load(self, seqs: Sequence[int], reader: Reader) -> Page:
        """The first page of these events, in this order."""
        return await self._run(lambda db: load(db, seqs), reader.path, False)

    async def count(self, filters: Sequence[Filter], reader: Reader) -> int:
        """How many stored events match any of `filters`, limits aside (NIP-45).

        Raises:
            TimedOut: the query looked at too many events, or for too long.

        """
        return await self._run(lambda db: count(db, filters, reader), reader.path, _is_small(filters))

    async def close(self) -> None:
        await self._short.close()
        await self._long.close()
        self._glance.db.close()

    async def _run(self, work: Work[T], path: queueing.Path, small: bool) -> T:
        if small:
            try:
                answer: T = await Turns.here().done(path[0] if path else "", partial(self._glanced, work, path))
                return answer
            except TooLong:
                pass
        try:
            return await self._short.run(path, work)
        except TooLong:
            pass
        try:
            return await self._long.run(path, work)
        except TooLong as error:
            raise TimedOut("query", "it looks at too many events; narrow the filter (authors, kinds, since)") from error

    def _glanced(self, work: Work[T], path: queueing.Path) -> T:
        """Raises TooLong."""
        try:
            answer: T = self._glance.run(work, _GLANCE_STEPS, self._limits.query_s)
            return answer
        finally:
            self._charge(path, self._glance.steps)


def _is_small(filters: Sequence[Filter]) -> bool:
    """Whether a glance is long enough to begin all ranges of an index that answer the filters."""
    ranges = 0
    for filter_ in filters:
        ranges += len(filter_.authors or "1") * len(filter_.kinds or "1")
        ranges += sum(len(wanted) for wanted in filter_.tags.values())
    return ranges * _STATEMENT_STEPS < _GLANCE_STEPS
