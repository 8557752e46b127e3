"""Whose call a worker computes next: a pure machine, which is told the time in microseconds and has none of its own.

Customers share a worker, a customer's sessions share what it gets: at both levels whoever has had least of the
worker's time goes first (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996; who comes anew begins with the
least of those that wait), so that a long call delays another session's next one by no more than itself. To wait counts
as well: AGE microseconds are worth one that was computed, which no stream of newcomers outruns. Within a session the
call with the longest path to the job's end goes first, less what others have waited longer. Calls of one task and
session stay in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import Busy, TooLarge

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

AGE = 16
MAX_PATH_US = 10_000_000
"""A longer path counts as this one: so long may a call of a session be passed over by those that come after it."""
MAX_CALLS = 4_096
MAX_SESSION_CALLS = 256
MAX_BYTES = 512 * 2**20
_MAX_IDLE = 4_096
_SHAPES = 4_096


@dataclass(eq=False, slots=True)
class Entry:
    """A call that waits. `like`: what calls of several sessions must have in common to be computed as one, if they may.

    `what` belongs to who offered it.
    """

    task: str
    session: str
    customer: str = ""
    remaining_us: int = 0
    nbytes: int = 0
    like: Hashable = None
    rows: int = 0
    block: int = 0
    """How many rows it has, and how many there may be in calls that are computed as one; 0 if that has no bound."""
    what: Any = None
    entered_us: int = 0
    expected_us: int = 0
    """What it was charged when it was taken."""

    @property
    def due_us(self) -> int:
        """Earlier goes first.

        With every microsecond that passes a call gains as much as one that is farther from its job's end by a
        microsecond.
        """
        return self.entered_us - min(self.remaining_us, MAX_PATH_US)


class _Share:
    __slots__ = ("had_us", "place", "since_us", "waiting")

    def __init__(self, had_us: int) -> None:
        self.had_us = had_us
        """Of the worker's time, on a scale that newcomers join where the least of those that wait is."""
        self.since_us = self.place = 0
        self.waiting = 0

    def add(self, us: int, since_us: int) -> None:
        """It had so much more; it waits since then."""
        self.had_us += us
        self.since_us = since_us
        self.place = self.had_us + since_us // AGE


class _Shares:
    """Who shares at one level, by name."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Share] = {}
        self._idle = BoundedDict[str, _Share](_MAX_IDLE)
        """What they had counts when they come again; the last ones."""
        self._least_us = 0

    def joins(self, name: str, now_us: int) -> None:
        share = self._waiting.get(name)
        if share is None:
            known = self._idle.pop(name, None)
            share = self._waiting[name] = known or _Share(self._least_us)
            share.add(max(0, self._least_us - share.had_us), now_us)
        share.waiting += 1

    def leaves(self, name: str) -> None:
        share = self._waiting[name]
        share.waiting -= 1
        if not share.waiting:
            self._idle[name] = self._waiting.pop(name)

    def first(self) -> str | None:
        """The name whose turn it is: of equals the one that waits longest."""
        if len(self._waiting) < 2:
            return next(iter(self._waiting), None)
        return min((share.place, share.since_us, name) for name, share in self._waiting.items())[2]

    def served(self, name: str, us: int, now_us: int) -> None:
        self._least_us = max(self._least_us, min([share.had_us for share in self._waiting.values()]))
        self._waiting[name].add(us, now_us)

    def corrected(self, name: str, us: int) -> None:
        if share := self._waiting.get(name) or self._idle.get(name):
            share.add(us, share.since_us)


@dataclass(slots=True)
class _Customer:
    calls: int = 0
    nbytes: int = 0
    shares: _Shares = field(default_factory=_Shares)
    lanes: dict[str, dict[str, deque[Entry]]] = field(default_factory=dict)
    """By session and task, calls in their order."""


class Queue:
    """Calls that wait, at most `max_calls` and `max_bytes` of them.

    Of one customer's at most half of that, and what is free: customers who fill it up leave room for the next.
    """

    def __init__(self, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self.max_calls, self.max_bytes = max_calls, max_bytes
        self.calls = 0
        self.nbytes = 0
        self._shares = _Shares()
        self._customers: dict[str, _Customer] = {}

    def has_room(self, customer: str, nbytes: int) -> bool:
        """Whether a call of that size could be offered now. Raises TooLarge: it never can."""
        if nbytes > self.max_bytes // 2:
            raise TooLarge("call", f"{nbytes} bytes, at most {self.max_bytes // 2} of a customer's may wait")
        of = self._customers.get(customer)
        had, had_bytes = (0, 0) if of is None else (of.calls, of.nbytes)
        calls, most_bytes = self.max_calls - self.calls, self.max_bytes - self.nbytes
        return had < min(calls, self.max_calls // 2) and had_bytes + nbytes <= min(most_bytes, self.max_bytes // 2)

    def is_free(self, entry: Entry) -> bool:
        """Whether `entry` would wait here alone, so that it need not come in."""
        return not self.calls and entry.nbytes <= self.max_bytes // 2

    def passed(self, entry: Entry, now_us: int, expected_us: int = 0) -> None:
        """Note what has gone by while the queue was free, as if it had been offered and taken."""
        self.offer(entry, now_us)
        self.pop(entry, now_us, expected_us)

    def offer(self, entry: Entry, now_us: int) -> None:
        """Take `entry` in.

        Raises:
            TooLarge: it is larger than all that may wait.
            Busy: there is no room now, or too many calls of its session wait.

        """
        if not self.has_room(entry.customer, entry.nbytes):
            raise Busy("queue", f"{self.calls} calls of {self.nbytes} bytes wait already")
        customer = self._customers.get(entry.customer) or _Customer()
        lanes = customer.lanes.setdefault(entry.session, {})
        if sum(map(len, lanes.values())) >= MAX_SESSION_CALLS:
            raise Busy("session", f"{MAX_SESSION_CALLS} of its calls wait already")
        self._customers[entry.customer] = customer
        entry.entered_us = now_us
        lanes.setdefault(entry.task, deque()).append(entry)
        self._shares.joins(entry.customer, now_us)
        customer.shares.joins(entry.session, now_us)
        for one in (self, customer):
            one.calls += 1
            one.nbytes += entry.nbytes

    def first(self) -> Entry | None:
        """The call whose turn it is; it stays."""
        name = self._shares.first()
        if name is None:
            return None
        customer = self._customers[name]
        session = customer.shares.first()
        assert session is not None
        return min((lane[0] for lane in customer.lanes[session].values()), key=lambda entry: entry.due_us)

    def pop(self, first: Entry, now_us: int, expected_us: int = 0, most: int = 1) -> list[Entry]:
        """Take out `first`, and up to `most` - 1 calls of other sessions that are computed with it, as one."""
        taken = [first]
        if first.like is not None and most > 1:
            others = (lane[0] for session, lane in self._lanes(first.task) if session != first.session)
            rows = first.rows
            for other in sorted((e for e in others if e.like == first.like), key=lambda e: e.due_us):
                if len(taken) < most and (not first.block or rows + other.rows <= first.block):
                    taken.append(other)
                    rows += other.rows
        for entry in taken:
            entry.expected_us = expected_us // len(taken)
            self._shares.served(entry.customer, entry.expected_us, now_us)
            self._customers[entry.customer].shares.served(entry.session, entry.expected_us, now_us)
        for entry in taken:
            self._remove(entry)
        return taken

    def done(self, entry: Entry, took_us: int) -> None:
        """What was taken has been computed, and took so long."""
        self._shares.corrected(entry.customer, took_us - entry.expected_us)
        if customer := self._customers.get(entry.customer):
            customer.shares.corrected(entry.session, took_us - entry.expected_us)

    def cancel(self, entry: Entry) -> bool:
        """Take a call out that nobody waits for any more; whether it was still here."""
        lane = self._lane(entry)
        if lane is None or entry not in lane:
            return False
        self._remove(entry)
        return True

    def drop(self, task: str, session: str) -> list[Entry]:
        """Take out all calls of a task's session."""
        found = [entry for name, lane in self._lanes(task) if name == session for entry in lane]
        for entry in found:
            self._remove(entry)
        return found

    def clear(self) -> list[Entry]:
        """Take out everything."""
        lanes = [lane for c in self._customers.values() for of in c.lanes.values() for lane in of.values()]
        found = [entry for lane in lanes for entry in lane]
        for entry in found:
            self._remove(entry)
        return found

    def _lanes(self, task: str) -> Iterator[tuple[str, deque[Entry]]]:
        for customer in self._customers.values():
            for session, lanes in customer.lanes.items():
                if task in lanes:
                    yield session, lanes[task]

    def _lane(self, entry: Entry) -> deque[Entry] | None:
        customer = self._customers.get(entry.customer)
        return customer.lanes.get(entry.session, {}).get(entry.task) if customer else None

    def _remove(self, entry: Entry) -> None:
        customer = self._customers[entry.customer]
        lanes = customer.lanes[entry.session]
        lanes[entry.task].remove(entry)
        if not lanes[entry.task]:
            del lanes[entry.task]
        if not lanes:
            del customer.lanes[entry.session]
        customer.shares.leaves(entry.session)
        self._shares.leaves(entry.customer)
        if not customer.lanes:
            del self._customers[entry.customer]
        for one in (self, customer):
            one.calls -= 1
            one.nbytes -= entry.nbytes


class CallEstimates:
    """How long calls take, by task and size: what the last ones took."""

    def __init__(self) -> None:
        self._us = BoundedDict[tuple[str, int], int](_SHAPES)

    def us(self, task: str, nbytes: int) -> int | None:
        """In microseconds; None where none like it has been seen."""
        return self._us.get((task, nbytes.bit_length()))

    def seen(self, task: str, nbytes: int, took_us: int) -> None:
        key = task, nbytes.bit_length()
        before = self._us.pop(key, took_us)
        self._us[key] = before + (took_us - before) // 4
