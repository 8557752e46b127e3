"""How long a call takes, before anybody has run it: the roofline, fitted to what a node was measured to do.

    us = call_us + slower * max(flops / flops_per_s, bytes / bytes_per_s) * 10^6

`flops_per_s` and `bytes_per_s` are what the node's best kernels reach; `slower` is how far from them its real tasks
run, one number for each node. It is good for a first placement; from then on what was measured counts.
Williams, Waterman, Patterson: Roofline. CACM 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median

from nodewire.errors import BadInput


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


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted rates, and how far predictions are from measurements: the factor that half of them, and nine in ten of
    them, stay within (1.25: a quarter too high or too low)."""

    rates: Rates
    within_half: float
    within_most: float


def fit(rates: Rates, measured: Sequence[tuple[Work, float]]) -> Fit:
    """`rates` with the `slower` under which `measured` (work, microseconds) is missed least: the median of the ratios.

    Raises:
        BadInput: nothing was measured, or not above 0.
    """
    if not measured or min(us for _, us in measured) <= 0:
        raise BadInput("measured", "nothing above 0")
    ratios = [max(us - rates.call_us, us * 0.01) / rates.roof_us(w) for w, us in measured if rates.roof_us(w) > 0]
    fitted = replace(rates, slower=median(ratios)) if ratios else rates
    misses = sorted(abs(log(us / fitted.predicted_us(work))) for work, us in measured)
    return Fit(fitted, exp(median(misses)), exp(misses[min(len(misses) - 1, len(misses) * 9 // 10)]))
