"""What becomes of payments on the simulated network: how long each takes, and whether it arrives. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

_MILLION = 1_000_000
_DRAW_DIGITS = 16
"""Hex digits of a payment hash that one draw takes."""


@dataclass(frozen=True, slots=True)
class Fate:
    """A payment is under way for `after_s`. Then it has arrived, or goes back to its payer."""

    after_s: float
    arrives: bool
    is_stuck: bool


AT_ONCE = Fate(0.0, arrives=True, is_stuck=False)


@dataclass(frozen=True, slots=True)
class Conditions:
    """A payment takes `payment_s` to `most_s` seconds. Of a million payments `failing_ppm` find no route by then.

    Others, `stuck_ppm` of a million, are held for `stuck_s` more, and half of these go back.

    A fate follows from the payment hash alone. So it is the same after a restart, and whoever knows the hash knows it.
    """

    payment_s: float = 0.0
    most_s: float = 0.0
    failing_ppm: int = 0
    stuck_ppm: int = 0
    stuck_s: float = 0.0

    def fate(self, payment_hash: str) -> Fate:
        """What becomes of a payment by this hash (64 hex digits)."""
        length, trouble, outcome = (_drawn(payment_hash, place) for place in range(3))
        after_s = self.payment_s + length * max(0.0, self.most_s - self.payment_s)
        if trouble * _MILLION < self.failing_ppm:
            return Fate(after_s, arrives=False, is_stuck=False)
        if trouble * _MILLION < self.failing_ppm + self.stuck_ppm:
            return Fate(after_s + self.stuck_s, arrives=outcome < 0.5, is_stuck=True)
        return Fate(after_s, arrives=True, is_stuck=False)


NO_TROUBLE = Conditions()


def _drawn(payment_hash: str, place: int) -> float:
    """A number from 0 to 1, 1 excluded: hashes are uniform."""
    digits = payment_hash[place * _DRAW_DIGITS : (place + 1) * _DRAW_DIGITS]
    return (int(digits, 16) >> 11) / 2.0**53
