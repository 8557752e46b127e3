"""Chooses who guesses, how wide and how deep, from what was measured: rates of right guesses and the ring's pace.

A row is worth sending while its chance of being right exceeds what it costs. With E tokens expected of a turn of n rows
that each add the share c to it, E/(1 + c n) is largest where the next row's chance falls under c E / (1 + c n). That
holds of the rows beside the head's. Of those in frames behind it one in each adds c once, as long as the ring is not
full. Where guesses are bad, or rows dear, no row passes: then decoding is plain, and guesses are only compared with
what came.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.llm.speculation.acceptance_rate import Odds
from nodewire.llm.speculation.ring_times import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodewire.llm.speculation.in_flight_tree import Flight, InFlightFrame, Node
    from nodewire.llm.speculation.proposer import Candidate, Drafter

LEAST_CHANCE = 1 / 1024
"""Below it nothing is sent, however cheap: others compute it."""
MOST_GUESSES = 5
"""After one token."""
_UNKNOWN = 0.5  # the odds of a drafter that was never asked
_NARROW = 4  # bursts after which one is of frames of half as many rows, which tells what rows take
_TRIES = 32  # tokens after which one that does not pay is asked again


@dataclass(frozen=True, slots=True)
class ScoredGuess:
    """A candidate with its measured odds: a Guess (in_flight_tree.py)."""

    token: int
    odds: float
    drafter: int
    candidate: Candidate


class DraftScheduler:
    """One session's drafters, the fast ones first. All are asked for the same places; the surest words count."""

    def __init__(
        self,
        drafters: Sequence[Drafter[Any]],
        ends: frozenset[int] = frozenset(),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`ends` are tokens after which nothing comes: nobody needs their rows."""
        self._ends = ends
        self._drafters = tuple(drafters)
        self._odds = tuple(Odds() for _ in drafters)
        self._best = tuple(Odds() for _ in drafters)  # of each one's likeliest
        self._took_ns = [0.0] * len(self._drafters)  # to be asked once
        self._clock_ns = clock_ns
        self._count = self._bursts = 0
        self.pace = Pace()
        self.width = 1
        """Rows to a frame."""
        self._frames = 1.0  # that may be in flight

    def accept(self, token: int, guesses: Sequence[Any] | None = None) -> None:
        """`token` came; `guesses` are what `expand` said of its place, if it was asked."""
        for drafter in self._drafters:
            drafter.accept(token)
        self._count += 1
        told: set[int] = set()
        for guess in guesses or ():
            if guess.drafter not in told:
                told.add(guess.drafter)
                self._best[guess.drafter].learn(0, _UNKNOWN, guess.token == token)
            candidate = guess.candidate
            self._odds[guess.drafter].learn(candidate.sort, candidate.prior, candidate.token == token)

    def expand(self, node: Node) -> Sequence[ScoredGuess]:
        """What may follow a node, the likeliest first; where drafters agree, the better odds are believed."""
        if node.place is None:
            if node.parent is None:
                node.place = tuple(drafter.root() for drafter in self._drafters)
            else:
                places = node.parent.place
                assert isinstance(places, tuple)
                found = zip(self._drafters, places, strict=True)
                node.place = tuple(drafter.after(place, node.token) for drafter, place in found)
        assert isinstance(node.place, tuple)
        best: dict[int, ScoredGuess] = {}
        for number, (drafter, place) in enumerate(zip(self._drafters, node.place, strict=True)):
            if not self._is_worth_asking(number, node, max((scored.odds for scored in best.values()), default=0.0)):
                continue
            for candidate in self._asked(number, drafter, place):
                if candidate.token in self._ends:
                    continue
                scored = self._scored(number, candidate)
                if candidate.token not in best or best[candidate.token].odds < scored.odds:
                    best[candidate.token] = scored
        ranked = sorted(best.values(), key=lambda scored: -scored.odds)
        return ranked[:MOST_GUESSES]

    def _is_worth_asking(self, number: int, node: Node, found: float) -> bool:
        """Whether the time is well spent: likely enough to be better than what others have said already.

        Now and then one is asked all the same, to see whether it has become better.
        """
        turn_ns = self.pace.turn_ns
        if not turn_ns or self._took_ns[number] < turn_ns / 1_000 or (node.parent is None and not self._count % _TRIES):
            return True
        gain = self._best[number].estimate(0, _UNKNOWN) - found
        return node.chance * gain * turn_ns > self._took_ns[number]

    def _asked(self, number: int, drafter: Drafter[Any], place: Any) -> Sequence[Candidate]:
        began_ns = self._clock_ns()
        found = drafter.candidates(place)
        self._took_ns[number] += (self._clock_ns() - began_ns - self._took_ns[number]) / 8
        return found

    def _scored(self, number: int, candidate: Candidate) -> ScoredGuess:
        odds = self._odds[number].estimate(candidate.sort, candidate.prior)
        return ScoredGuess(candidate.token, odds, number, candidate)

    def worth(self, chance: float, expected: float, rows: int) -> bool:
        if chance < LEAST_CHANCE:
            return False
        cost = self.pace.row / (self._frames if rows >= self.width else 1.0)
        return chance * (1 + cost * rows) > cost * max(1.0, expected)

    def room(self, flight: Flight) -> int:
        """How many rows may go out now, in frames of `width`."""
        self.width = self.pace.width(flight.lookahead)
        if not flight.under_way:
            self._bursts += 1
            if not self._bursts % _NARROW:
                self.width = -(-self.width // 2)
        self._frames = min(self.pace.window(self.width), max(1.0, flight.lookahead / self.width))
        return max(0, round(self._frames - flight.under_way) * self.width)

    def sent(self, frames: list[InFlightFrame]) -> None:
        self.pace.sent(frames, self._clock_ns())

    def returned(self, frame: InFlightFrame) -> None:
        self.pace.returned(frame, self._clock_ns())
