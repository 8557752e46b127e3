"""How much of something a key or an address may have: so many a minute, so many at a time, so many bytes a second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from nodewire.errors import Busy, TooLarge

_MAX_NAMES = 4_096


@dataclass(slots=True)
class PerMinute:
    """So many a minute by name, saved up for a minute at most. Of too many names the oldest is forgotten."""

    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, name: str, most: int) -> None:
        """Raises Busy: `name` has had its `most` of this minute."""
        now_s = self.clock()
        left, at_s = self._left.pop(name, (float(most), now_s))
        left = min(float(most), left + (now_s - at_s) * most / 60)
        self._left[name] = (left - 1 if left >= 1 else left, now_s)
        while len(self._left) > _MAX_NAMES:
            self._left.popitem(last=False)
        if left < 1:
            raise Busy("requests", f"more than {most} a minute")


@dataclass(slots=True)
class AtATime:
    """So many at a time by name."""

    what: str
    _held: Counter[str] = field(default_factory=Counter)

    def take(self, name: str, most: int) -> None:
        """Raises Busy: `name` has `most` already."""
        if self._held[name] >= most:
            raise Busy(self.what, f"{most} at a time")
        self._held[name] += 1

    def held(self, name: str) -> int:
        return self._held[name]

    def give(self, name: str) -> None:
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]


class Meter:
    """Counts bytes and holds them up, so that no more go through than `per_s` on average, and `most` in all."""

    def __init__(self, per_s: int, most: int) -> None:
        self._per_s = per_s
        self._most = most
        self._clock = asyncio.get_running_loop().time
        self.at_s = self._clock()
        """When bytes last came."""
        self._free_s = self.at_s - 1.0
        self.nbytes = 0

    async def spend(self, nbytes: int) -> None:
        """Wait until `nbytes` may go on. Raises TooLarge: they would be too many."""
        self.at_s = self._clock()
        self.nbytes += nbytes
        if self.nbytes > self._most:
            raise TooLarge("bytes", f"{self._most} have gone through")
        # A second's worth may come at once.
        self._free_s = max(self._free_s, self.at_s - 1.0) + nbytes / self._per_s
        if self._free_s > self.at_s:
            await asyncio.sleep(self._free_s - self.at_s)
            self.at_s = self._clock()
