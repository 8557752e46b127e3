"""A drafter that knows the text, and is right as often as it is told to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodewire.llm.speculation.proposer import Candidate


class Knowing:
    """A Drafter of `width` guesses: the true one is among them where `right` says so, at the rank that `rank` says.
    Places are positions."""

    def __init__(
        self,
        text: Sequence[int],
        right: Callable[[int], bool],
        vocabulary: int,
        width: int = 1,
        rank: Callable[[int], int] | None = None,
    ) -> None:
        self._text, self._right, self._vocabulary, self._width = list(text), right, vocabulary, width
        self._rank = rank or (lambda place: place % width)
        self._count = 0

    def accept(self, token: int) -> None:
        self._count += 1

    def root(self) -> int:
        return self._count

    def after(self, place: int, token: int) -> int:
        return place + 1

    def candidates(self, place: int) -> list[Candidate]:
        truth = self._text[place] if place < len(self._text) else 1
        said = [(truth + step) % self._vocabulary for step in range(1, self._width + 1)]
        if self._right(place):
            said[self._rank(place)] = truth
        return [Candidate(token, rank, 0.9 / 2**rank) for rank, token in enumerate(said)]
