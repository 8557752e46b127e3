"""Turns on an event loop for what peers have it do: short work at once, the rest in turn, origin by origin.

It is the rule of fair queues with a fast lane for sparse flows (RFC 8290): a heartbeat does not wait behind a link that
sends as fast as it can, and of two origins with work to do each has half, however many links they have.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TURN_S = 0.004
"""For work that did not wait, and as much for work that did, before the loop looks for other things to do."""
_SLICE_S = 0.001
_NEGLIGIBLE_S = 0.000_2

_all: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """The turns of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._spent_s = 0.0
        self._is_ending = False
        self._is_serving = False
        self._waiting: OrderedDict[str, _Origin] = OrderedDict()
        """The next one first."""

    @classmethod
    def here(cls) -> Turns:
        """The turns of the running loop."""
        loop = asyncio.get_running_loop()
        if (found := _all.get(loop)) is None:
            found = _all[loop] = cls(loop)
        return found

    @property
    def has_time(self) -> bool:
        """Whether work may be done at once; else it is to `wait`."""
        return self._spent_s < TURN_S

    def end_s(self) -> float:
        """The time, by time.perf_counter, at which a turn that begins now is over."""
        return self._clock() + _SLICE_S

    def spent(self, end_s: float) -> None:
        """Count the time that work took, whose turn was to be over at `end_s`."""
        self._spend(self._clock() - end_s + _SLICE_S)

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        if self._spent_s >= _NEGLIGIBLE_S and not (self._is_ending or self._is_serving):
            self._is_ending = True
            self._loop.call_soon(self._ended)

    def wait(self, origin: str, work: Callable[[], None], *, again: bool = False) -> None:
        """Have `work` done in a turn of its origin, before what has had a turn and waits `again`."""
        if not self._waiting and not self._is_serving:
            self._loop.call_soon(self._serve)
        works = self._waiting.setdefault(origin, _Origin())
        (works.further if again else works.first).append(work)

    async def due(self, origin: str) -> None:
        """Return when it is the turn of `origin` to do a little."""
        if self.has_time and not self._waiting:
            self._spend(_NEGLIGIBLE_S)
            return
        come: asyncio.Future[None] = self._loop.create_future()
        self.wait(origin, lambda: None if come.done() else come.set_result(None))
        await come

    async def done(self, origin: str, work: Callable[[], T]) -> T:
        """What `work` returns or raises, done at once or in a turn of its origin."""
        if self.has_time and not self._waiting:
            end_s = self.end_s()
            try:
                return work()
            finally:
                self.spent(end_s)
        result: asyncio.Future[T] = self._loop.create_future()

        def do() -> None:
            if result.done():  # nobody waits for it any more
                return
            end_s = self.end_s()
            try:
                result.set_result(work())
            except Exception as error:  # noqa: BLE001 - it is raised to who asked for the work
                result.set_exception(error)
            finally:
                self.spent(end_s)

        self.wait(origin, do)
        return await result

    def _ended(self) -> None:
        """The loop has looked for other things to do."""
        self._is_ending = False
        self._spent_s = 0.0

    def _serve(self) -> None:
        before_s, self._spent_s, self._is_serving = self._spent_s, 0.0, True
        try:
            while self._waiting and self.has_time:
                origin, works = self._waiting.popitem(last=False)
                work = (works.first or works.further).popleft()
                if works.first or works.further:
                    self._waiting[origin] = works
                began_s = self._spent_s
                work()
                if self._spent_s == began_s:  # it has not said what it took
                    self._spent_s += _NEGLIGIBLE_S
        finally:
            self._is_serving, self._spent_s = False, before_s
            if self._waiting:
                self._loop.call_soon(self._serve)


@dataclass(slots=True)
class _Origin:
    """The work of one origin that waits for a turn: work that has had none, and work that goes on."""

    first: deque[Callable[[], None]] = field(default_factory=deque)
    further: deque[Callable[[], None]] = field(default_factory=deque)
