"""A budget for each origin: so much a second, and so much saved up, of something that all origins share.

The table is bounded. Of too many origins the least recently used is forgotten, whose budget is mostly whole again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ORIGINS = 65_536


class Budget:
    """`per_s` of something for each origin, and `burst` of it at once. A `per_s` of 0 means no limit."""

    def __init__(
        self, per_s: float, burst: float, clock: Callable[[], float], *, max_origins: int = MAX_ORIGINS
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left = BoundedDict[str, tuple[float, float]](max_origins)

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, origin: str, amount: float = 1.0) -> bool:
        """Whether `origin` had `amount` left; then it is taken, else nothing is."""
        if not self._per_s:
            return True
        left = self._now(origin)
        if left < amount:
            return False
        self._set(origin, left - amount)
        return True

    def available(self, origin: str) -> float:
        """The amount that `origin` may take at once. Below 0 the origin is in debt."""
        return self._now(origin) if self._per_s else float("inf")

    def debt_s(self, origin: str) -> float:
        """The seconds until `origin` has paid all that was charged."""
        return max(0.0, -self.available(origin) / self._per_s) if self._per_s else 0.0

    def charge(self, origin: str, amount: float) -> float:
        """Take `amount`, which may make a debt; the seconds until `origin` has paid all of it."""
        if not self._per_s:
            return 0.0
        self._set(origin, self._now(origin) - amount)
        return self.debt_s(origin)

    def _now(self, origin: str) -> float:
        now_s = self._clock()
        left, then_s = self._left.get(origin, (self._burst, now_s))
        return min(self._burst, left + (now_s - then_s) * self._per_s)

    def _set(self, origin: str, left: float) -> None:
        self._left[origin] = (left, self._clock())
        self._left.move_to_end(origin)
