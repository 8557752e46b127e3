"""A decoder of a few multiplications for `bench.decode`, and a drafter that is right as often as it is told.

Every stage keeps a number for each position, and a row's number depends on its token and on those of all positions
before it, through every stage: a lane that forgot to rewind, or took another row for a parent, gives other tokens.

The drafter foretells the decoder's own next token with probability `alpha`. Of the misses it has the token as its
second to fifth guess in .40, .15, .08 and .04. What is foretold at a position is drawn from the seed and the position
alone, so all arms have the same luck. Off the true path its guesses are as sure of themselves, and all wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

VOCABULARY = 50_000
STAGES = 6
SHARES = (0.40, 0.15, 0.08, 0.04)
"""Of the misses: how often the token is the second guess, the third ..."""
_PRIME = 2**61 - 1
_A, _B, _C = 0x9E3779B97F4A7C15 % _PRIME, 0xC2B2AE3D27D4EB4F % _PRIME, 0x165667B19E3779F9 % _PRIME


def mixed(x: int, parent: int) -> int:
    """What a stage makes of a row: `parent` is the number of the position before it, 0 of none."""
    return (x * _A + parent * _B + _C) % _PRIME


def token_of(y: int) -> int:
    """What a driver makes of the last stage's row."""
    return y % VOCABULARY


class Truth:
    """What plain decoding gives, and at which rank a drafter has it. Positions count from the first token, 0."""

    def __init__(self, seed: int, alpha: float, stages: int = STAGES) -> None:
        self._seed = seed
        self.chances = (alpha, *((1 - alpha) * share for share in SHARES))
        self._cells = [0] * stages
        self._tokens = [token_of(mixed(seed, _C))]
        self._ranks: list[int | None] = [0]
        self._draws = Random(seed)

    def token(self, pos: int) -> int:
        while len(self._tokens) <= pos:
            x = self._tokens[-1]
            for stage, parent in enumerate(self._cells):
                x = self._cells[stage] = mixed(x, parent)
            self._tokens.append(token_of(x))
        return self._tokens[pos]

    def tokens(self, count: int) -> list[int]:
        return [self.token(pos) for pos in range(count)]

    def rank(self, pos: int) -> int | None:
        """Which of a drafter's guesses at `pos` is right; None: no one of them."""
        while len(self._ranks) <= pos:
            draw, rank = self._draws.random(), None
            for number, chance in enumerate(self.chances):
                draw -= chance
                if draw < 0:
                    rank = number
                    break
            self._ranks.append(rank)
        return self._ranks[pos]


@dataclass(frozen=True)
class Scripted:
    """Where a drafter stands: `token` at `pos`, after a path that is the true one or not."""

    truth: Truth
    token: int
    pos: int
    is_true: bool

    @staticmethod
    def begin(truth: Truth) -> Scripted:
        return Scripted(truth, truth.token(0), 0, True)

    def then(self, token: int) -> Scripted:
        pos = self.pos + 1
        return Scripted(self.truth, token, pos, self.is_true and token == self.truth.token(pos))

    @cached_property
    def guesses(self) -> Sequence[tuple[int, float]]:
        """Tokens that may follow and how likely, the likeliest first."""
        pos = self.pos + 1
        right = self.truth.token(pos) if self.is_true else None
        rank = self.truth.rank(pos) if right is not None else None
        tokens = [mixed(self.token + number, pos) % VOCABULARY for number in range(len(self.truth.chances))]
        if right is not None:
            tokens = [(token + 1) % VOCABULARY if token == right else token for token in tokens]
            if rank is not None:
                tokens[rank] = right
        return list(zip(tokens, self.truth.chances, strict=True))
