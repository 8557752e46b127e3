"""The line in front of the desk: the requests that are bought for now, and those that wait, in turn by owner."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from nodewire.errors import Busy


class TooMany(Busy):
    """A key has as many requests under way as it may."""


class Line:
    """`most` requests have a place, and `most_waiting` wait for one, each for `wait_s` seconds at most.

    An owner is a key, or an address where there are no keys. When too many wait, the youngest goes of the owner that
    has most: so one owner, however much it asks, is neither all of the line nor in others' way.
    """

    def __init__(self, most: int, most_waiting: int, wait_s: float) -> None:
        self._most, self._most_waiting, self._wait_s = most, most_waiting, wait_s
        self._has_place: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner; the next one first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def acquire(self, owner: str, at_a_time: int | None = None) -> None:
        """Wait for a place, and take it.

        Raises:
            TooMany: the owner has or waits for `at_a_time` already.
            Busy: others wait, or no place is free in time.

        """
        mine = self._waiting.get(owner, ())
        if at_a_time is not None and self._has_place[owner] + len(mine) >= at_a_time:
            raise TooMany("api_key", f"{at_a_time} requests at a time")
        if not self._waiting and self._has_place.total() < self._most:
            self._has_place[owner] += 1
            return
        if self.waiting >= self._most_waiting:
            self._make_room(len(mine))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # a place came, and is not taken
                self.give(owner)
            self._forget(owner, turn)
            if isinstance(error, TimeoutError):
                raise Busy("requests", f"{self._most} are under way; none has ended in {self._wait_s:g} s") from None
            raise

    def give(self, owner: str) -> None:
        """A place is free again; the next owner's first request has it."""
        self._has_place[owner] -= 1
        if not self._has_place[owner]:
            del self._has_place[owner]
        while self._waiting and self._has_place.total() < self._most:
            other, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[other] = turns
            if not turn.done():
                self._has_place[other] += 1
                turn.set_result(None)

    def close(self) -> None:
        """End all waiting."""
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(Busy("gateway", "it stops"))

    def _make_room(self, mine: int) -> None:
        crowd = max(self._waiting.values(), key=len, default=deque())
        busy = Busy("requests", f"{self._most} are under way, and {self._most_waiting} wait")
        if len(crowd) <= mine + 1:
            raise busy
        turn = crowd.pop()
        if not turn.done():
            turn.set_exception(busy)

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[owner]
