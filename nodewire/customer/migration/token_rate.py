"""How quick a ring is, as who reads its tokens sees it."""

from __future__ import annotations

from collections import deque
from statistics import median

_TOKENS = 4
"""That are timed together: guesses come several at a time."""
_GROUPS = 3
"""By whose median it is known how quick it is now: one pause is none of the ring's speed."""


class Pace:
    """Of one job. A token that waits for its reader tells nothing."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_GROUPS)
        self._since_s: float | None = None
        self._count = 0
        self._waited_s = 0.0

    def record(self, now_s: float, waited_s: float) -> None:
        """A token has come, for which its reader waited so long."""
        if self._since_s is None:  # the first waits for the prompt, too
            self._since_s = now_s
            return
        self._count += 1
        self._waited_s += waited_s
        if self._count < _TOKENS:
            return
        took_s = now_s - self._since_s
        if self._waited_s >= took_s / 2:
            self._newest.append(took_s / self._count)
        self._since_s, self._count, self._waited_s = now_s, 0, 0.0

    @property
    def step_s(self) -> float | None:
        """What a token takes now; None if too few have come."""
        return median(self._newest) if len(self._newest) == _GROUPS else None
