"""How long a result is waited for: what others took, and a margin that grows with how unlike they were."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_S = 10.0
_SPREADS = 6
_TIMES = 3
_NEEDED = 2
LINGER_LEAST_S = 0.5
"""Once enough results are there."""
_LINGER_TIMES = 1.5
_LINGER_SPREADS = 3
QUIET_S = 25.0
"""After so long without a word somebody else gets the shard, too; who works says at least every 10 s that it does."""
SILENT_S = 45.0
"""After so long without a word a late provider is gone."""
GRACE_S = 5.0
"""Clocks differ, and relays take their time: what comes so long after its deadline came by it."""


def patience_s(took_ms: Sequence[int], deadline_s: int) -> float:
    """Seconds from the request on: 3 medians + 6 median deviations of what came before, within 10 s and the deadline.

    Until two results have come, the deadline.
    """
    if len(took_ms) < _NEEDED:
        return float(deadline_s)
    middle, spread = _usual(took_ms)
    return min(float(deadline_s), max(LEAST_S, (_TIMES * middle + _SPREADS * spread) / 1000))


def linger_s(took_ms: Sequence[int], deadline_s: int) -> float:
    """Seconds from the round's first request on that the rest is waited for when enough results are there.

    They are 1.5 medians + 3 median deviations, at least 0.5 s. One result is enough to go by.
    """
    if not took_ms:
        return float(deadline_s)
    middle, spread = _usual(took_ms)
    return min(float(deadline_s), max(LINGER_LEAST_S, (_LINGER_TIMES * middle + _LINGER_SPREADS * spread) / 1000))


def _usual(took_ms: Sequence[int]) -> tuple[float, float]:
    """Median, and median deviation from it."""
    middle = median(took_ms)
    return middle, median(abs(one - middle) for one in took_ms)
