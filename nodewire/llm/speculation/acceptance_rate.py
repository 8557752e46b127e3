"""How often guesses of a sort are right, as measured; old guesses count less and less."""

from __future__ import annotations

MEMORY = 64
"""Guesses after which an old one counts for 1/e."""
_TRUST = 4.0  # guesses that a prior is worth


class Odds:
    """Of one drafter's sorts. Memory grows with the sorts that occur, of which a drafter has few."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, float]] = {}  # by sort: right, all

    def estimate(self, sort: int, prior: float) -> float:
        right, total = self._found.get(sort, (prior, 1.0))
        return right / total

    def learn(self, sort: int, prior: float, right: bool) -> None:
        before, total = self._found.get(sort, (prior * _TRUST, _TRUST))
        fade = 1 - 1 / MEMORY
        self._found[sort] = before * fade + right, total * fade + 1
