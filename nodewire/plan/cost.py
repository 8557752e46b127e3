"""How long a call takes, before anybody has run it: the roofline, fitted to what a node was measured to do.

    us = call_us + slower * max(flops / flops_per_s, bytes / bytes_per_s) * 10^6

`flops_per_s` and `bytes_per_s` are what the node's best kernels reach; `call_us` is what a call costs beside its work
(the worker's pipe, the start of every kernel), and `slower` how far from the best kernels its real tasks run: two
numbers for each node. It is good for a first placement; from then on what was measured counts.
Williams, Waterman, Patterson: Roofline. CACM 2009.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import TYPE_CHECKING

from nodewire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARTS = (0.5, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """What a call does: operations, and the bytes of weights and activations that it reads or writes."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """A node as the model sees it. `call_us` is what a call costs that does nothing."""

    flops_per_s: float
    bytes_per_s: float
    call_us: float
    slower: float = 1.0

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0 and self.call_us >= 0 and self.slower > 0):
            raise BadInput("rates", "not above 0")

    def roof_us(self, work: Work) -> float:
        """The least that `work` can take here, calls aside."""
        return max(work.flops / self.flops_per_s, work.bytes / self.bytes_per_s) * 1e6

    def predicted_us(self, work: Work) -> float:
        return self.call_us + self.slower * self.roof_us(work)

    def is_told_by(self, work: Work) -> bool:
        """Whether the operations of `work` take longer at best than a call that does nothing.

        Of a table that is looked up, or a text that is cut, the roofline says nothing.
        """
        return work.flops / self.flops_per_s * 1e6 > self.call_us


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted rates, and how far predictions are from the `count` measurements.

    These are the factors that half of them, and nine in ten of them, stay within (1.25: a quarter too high or too low).
    """

    rates: Rates
    within_half: float
    within_most: float
    count: int


def fit(rates: Rates, measured: Sequence[tuple[Work, float]]) -> Fit:
    """`rates` with the `call_us` and `slower` under which `measured` (work, microseconds) is missed least.

    It is least in the mean of factors. A call costs what `rates` say or a part of one that was measured; `slower` is
    the median of the rest.

    Raises:
        BadInput: nothing was measured that has work to do, or not above 0.

    """
    worked = [(work, us, roof) for work, us in measured if (roof := rates.roof_us(work)) > 0]
    if not worked or min(us for _, us, _ in worked) <= 0:
        raise BadInput("measured", "nothing above 0")
    tried = []
    for call_us in (rates.call_us, *sorted({us * part for _, us, _ in worked for part in _PARTS})):
        left = [(us - call_us) / roof for _, us, roof in worked if us > call_us * 1.01]
        if left:
            tried.append(replace(rates, call_us=call_us, slower=median(left)))
    tried = tried or [replace(rates, slower=median(us / roof for _, us, roof in worked))]
    best = min(tried, key=lambda one: round(sum(_missed(one, worked)), 6))
    misses = sorted(_missed(best, worked))
    most = misses[min(len(misses) - 1, len(misses) * 9 // 10)]
    return Fit(best, exp(median(misses)), exp(most), len(misses))


def _missed(rates: Rates, worked: Sequence[tuple[Work, float, float]]) -> list[float]:
    return [abs(log(us / rates.predicted_us(work))) for work, us, _ in worked]
