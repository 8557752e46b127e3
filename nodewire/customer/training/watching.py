"""How long a result is waited for: what others took, and a margin that grows with how unlike they were."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LEAST_S = 10.0
_SPREADS = 6
_TIMES = 3
_NEEDED = 2


def patience_s(took_ms: Sequence[int], deadline_s: int) -> float:
    """Seconds from the request on: 3 medians + 6 median deviations of what came before, within 10 s and the deadline.

    Until two results have come, the deadline.
    """
    if len(took_ms) < _NEEDED:
        return float(deadline_s)
    middle = median(took_ms)
    spread = median(abs(one - middle) for one in took_ms)
    return min(float(deadline_s), max(LEAST_S, (_TIMES * middle + _SPREADS * spread) / 1000))
