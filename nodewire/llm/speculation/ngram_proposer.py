"""Prompt lookup: what followed when the last tokens came before.

https://github.com/apoorvumang/prompt-lookup-decoding has the idea. Earlier places are found as LZ77 compressors do (RFC
1951, section 4): a table of the last place by hash of the last few tokens, and a chain to the one before. So a token
costs the same however long the text.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.llm.speculation.proposer import Candidate

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 2
"""Tokens that must agree for a match."""
_BUCKETS = 1 << 14
_VISITS = 16  # places that are looked at
_MATCHES = 8  # of them kept
_LONGEST = 32  # beyond it a match is as good as any
_LENGTHS = (3, 5, 8, 16, _LONGEST)  # where confidence steps up
_RANKS = 3
_PRIORS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85)
SORTS = len(_PRIORS) * (_RANKS + 1)


@dataclass(frozen=True, slots=True)
class Match:
    """`at` is where the token after an earlier occurrence stands, of which `length` tokens agree, `back` tokens ago.

    Text that repeats itself is expected to go on: after its end a match goes on `back` tokens before.
    """

    at: int
    length: int
    back: int


Matches = tuple[Match, ...]


class NgramDrafter:
    """A Drafter of the session's own text: 8 bytes of memory for every token, and 64 KiB."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._before = array("i")  # by token, where the one before it in its bucket stands
        self._last = array("i", [-1]) * _BUCKETS
        self._root: Matches | None = None

    def accept(self, token: int) -> None:
        self._tokens.append(token)
        self._root = None
        end = len(self._tokens) - 1
        bucket = self._bucket(end) if end >= LEAST - 1 else None
        self._before.append(-1 if bucket is None else self._last[bucket])
        if bucket is not None:
            self._last[bucket] = end

    def root(self) -> Matches:
        if self._root is None:
            self._root = self._found()
        return self._root

    def after(self, place: Matches, token: int) -> Matches:
        """Matches that foretold the token go on; where none did, nothing is known."""
        return tuple(self._next(match) for match in place if self._tokens[match.at] == token)

    def _next(self, match: Match) -> Match:
        at = match.at + 1 if match.at + 1 < len(self._tokens) else match.at + 1 - match.back
        return Match(at, min(match.length + 1, _LONGEST), match.back)

    def candidates(self, place: Matches) -> Sequence[Candidate]:
        """By length of match, the latest first among equals; the first is surer if the others agree with it."""
        found: dict[int, int] = {}
        for match in place:
            found.setdefault(self._tokens[match.at], match.length)
        ranked = list(found.items())[:_RANKS]
        return [self._candidate(token, length, rank, len(found) > 1) for rank, (token, length) in enumerate(ranked)]

    def _candidate(self, token: int, length: int, rank: int, contested: bool) -> Candidate:
        step = sum(length >= least for least in _LENGTHS)
        place = rank + 1 if contested else 0
        return Candidate(token, step * (_RANKS + 1) + place, _PRIORS[step] / (1 + place))

    def _bucket(self, end: int) -> int:
        return hash((self._tokens[end - 1], self._tokens[end])) % _BUCKETS

    def _found(self) -> Matches:
        """Places after what agrees with the text's end, the longest first."""
        if len(self._tokens) < LEAST:
            return ()
        end, tokens = len(self._tokens) - 1, self._tokens
        found, at = [], self._before[end]
        for _ in range(_VISITS):
            if at < 0:
                break
            length = 0
            while length < min(_LONGEST, at + 1) and tokens[at - length] == tokens[end - length]:
                length += 1
            if length >= LEAST:  # else only the hash agreed
                found.append(Match(at + 1, length, end - at))
            at = self._before[at]
        found.sort(key=lambda match: (-match.length, -match.at))
        return tuple(found[:_MATCHES])
