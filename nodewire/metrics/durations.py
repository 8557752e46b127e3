"""How long something took, counted in powers of two: a few integers, cheap enough for what happens at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_POWERS = 64
"""2^63 us are longer than any clock runs."""
EDGES = range(6, 33, 2)
"""Buckets as they are shown: from 2^6 us (64 us) on, each four times the one before, to 2^32 us (72 minutes)."""


class Durations:
    """`counts[n]` have taken less than 2^n microseconds, and not less than half of that."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * _POWERS
        self.total_us = 0

    def add(self, us: int) -> None:
        """One has taken `us` whole microseconds."""
        self.counts[us.bit_length()] += 1
        self.total_us += us

    def buckets(self) -> Iterator[tuple[str, int]]:
        """As Prometheus has them: an upper bound in seconds, and how many took no longer; "+Inf" at last."""
        for edge in EDGES:
            yield str(2**edge / 1e6), sum(self.counts[: edge + 1])
        yield "+Inf", sum(self.counts)
