"""How much of something a key, an address or a link may have: a minute, at a time, in bytes, in bytes a second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.core.budget import Budget
from nodewire.errors import Busy, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_NAMES = 4_096


class PerMinute:
    """At most `most` a minute by name, saved up for a minute."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._budget = most, Budget(most / 60, most, clock)

    def acquire(self, name: str) -> None:
        """Raises Busy: `name` has had its part of this minute."""
        if not self._budget.spend(name):
            raise Busy("requests", f"more than {self._most} a minute")


@dataclass(slots=True)
class AtATime:
    """So many at a time by name."""

    what: str
    _held: Counter[str] = field(default_factory=Counter)

    def acquire(self, name: str, most: int) -> None:
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


_FRAME_BYTES = 4_096
_PARSED = 8
VALUE_BYTES = 1_024
"""What a document pays for each value in it: to read one takes as long as to decrypt that."""
_MAX_EXCUSED_BYTES = 512 * 2**20


def stray_bytes(parsed_bytes: int, payload_bytes: int) -> int:
    """The price of a frame that no job expects: its bytes, those that are parsed eightfold, and 4 KiB for the frame.

    That is about the work on it: an empty frame takes as long as the decryption of its price.
    """
    return _FRAME_BYTES + _PARSED * parsed_bytes + payload_bytes


class Allowance:
    """Bytes that may come though no job expects them: `per_s` of them, saved up to `most`.

    `above` is the allowance of an origin, and pays the same for each of its links. Once it is used up, a link may send
    half of its own: so a flood's origin is done with, and a neighbour behind the same router keeps its link.
    """

    def __init__(self, per_s: int, most: int, clock: Callable[[], float], above: Allowance | None = None) -> None:
        self.above = above
        self._per_s, self._most, self._clock = per_s, most, clock
        self._left = float(most)
        self._at_s = clock()

    @property
    def left_bytes(self) -> int:
        """What may come now."""
        now_s = self._clock()
        self._left = max(self._left, min(self._most, self._left + (now_s - self._at_s) * self._per_s))
        self._at_s = now_s
        return int(self._left)

    def spend(self, nbytes: int) -> None:
        """Raises Busy: so much may not come."""
        least = nbytes if self.above is None or self.above.left_bytes >= nbytes else self._most // 2
        if self.left_bytes < least:
            raise Busy("link", f"more than {self._per_s} bytes a second that no job expects")
        self.charge(nbytes)

    def charge(self, nbytes: int) -> None:
        """So much has come, or was worked for: it need not be left."""
        self._left = max(0, self.left_bytes - nbytes)
        if self.above is not None:
            self.above.charge(nbytes)

    def excuse(self, nbytes: int) -> None:
        """So much more may come: a job has expected it after all, or did when it was sent."""
        self._left = min(self.left_bytes + nbytes, self._most + _MAX_EXCUSED_BYTES)
        if self.above is not None:
            self.above.excuse(nbytes)


class Allowances:
    """One for each origin, of the same size. Of too many origins the oldest is forgotten."""

    def __init__(self, per_s: int, most: int, clock: Callable[[], float]) -> None:
        self._per_s, self._most, self._clock = per_s, most, clock
        self._of = BoundedDict[str, Allowance](_MAX_NAMES)

    def get(self, origin: str) -> Allowance:
        found = self._of.pop(origin, None) or Allowance(self._per_s, self._most, self._clock)
        self._of[origin] = found
        return found


class Meter:
    """Counts bytes and holds them up: `per_s` go through on average, a second's worth at once, and `most` in all."""

    def __init__(self, per_s: int, most: int) -> None:
        self._most = most
        self._clock = asyncio.get_running_loop().time
        self._pace = Budget(per_s, per_s, self._clock)
        self.at_s = self._clock()
        """When bytes last came."""
        self.nbytes = 0

    async def spend(self, nbytes: int) -> None:
        """Wait until `nbytes` may go on. Raises TooLarge: they would be too many."""
        self.at_s = self._clock()
        self.nbytes += nbytes
        if self.nbytes > self._most:
            raise TooLarge("bytes", f"{self._most} have gone through")
        if debt_s := self._pace.charge("", nbytes):
            await asyncio.sleep(debt_s)
            self.at_s = self._clock()
