"""How long frames take around the ring, as measured: what a turn takes, and what each further row and frame add.

Rows of one frame are computed together, one stage after the other; of several frames each follows the one before it by
the slowest stage's time. So frames are best as wide as rows are cheap there, and as many as keep that stage at work.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.llm.speculation.in_flight_tree import InFlightFrame

FILL = 0.8
"""How much of a turn the slowest stage is given to do: what is more only waits, and then makes others wait."""
_FADE = 0.97
_TRUST = 4.0  # of a prior, as so many squared rows
_TURN_PRIOR = 0.01  # a row's time in turns before it is measured
_GAP_PRIOR = 0.06  # and at a stage, in a frame's
_UNKNOWN = 3.0  # frames in flight before it is known how many there is room for


class _Line:
    """Least squares: a frame of n rows takes `first` + `row` * (n - 1)."""

    def __init__(self, prior: float) -> None:
        """`prior`: a row in first ones, before it is measured."""
        self._prior = prior
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def learn(self, rows: int, took_ns: float) -> None:
        x = rows - 1
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + x
        self._y = self._y * _FADE + took_ns
        self._xx = self._xx * _FADE + x * x
        self._xy = self._xy * _FADE + x * took_ns

    @property
    def row(self) -> float:
        if not self._weight:
            return 0.0
        mean = self._y / self._weight
        spread = self._xx - self._x * self._x / self._weight
        covers = self._xy - self._x * mean
        prior = mean * self._prior / (1 + self._prior * self._x / self._weight)
        return min(max(0.0, (covers + _TRUST * prior) / (spread + _TRUST)), mean)

    @property
    def first(self) -> float:
        """0 before anything is measured."""
        return max(0.0, (self._y - self.row * self._x) / self._weight) if self._weight else 0.0

    def predict(self, rows: int) -> float:
        return self.first + self.row * (rows - 1)


class Pace:
    def __init__(self) -> None:
        self._turn, self._gap = _Line(_TURN_PRIOR), _Line(_GAP_PRIOR)
        self._bursts: dict[int, tuple[int, bool]] = {}  # by seq: when it was sent, and whether first of its burst
        self._back: tuple[int, int] | None = None  # when the last return came, and when its frame was sent
        self._clear_ns = 0.0  # when the slowest stage will have done all that was sent

    def sent(self, frames: list[InFlightFrame], now_ns: int) -> None:
        waits = now_ns < self._clear_ns
        for number, frame in enumerate(frames):
            self._bursts[frame.seq] = now_ns, number == 0 and not waits
        self._clear_ns = max(self._clear_ns, now_ns) + sum(self._gap.predict(len(frame.nodes)) for frame in frames)

    def returned(self, frame: InFlightFrame, now_ns: int) -> None:
        sent_ns, leads = self._bursts.pop(frame.seq, (None, False))
        before, self._back = self._back, None if sent_ns is None else (now_ns, sent_ns)
        if sent_ns is None or not frame.awaited:
            self._back = None  # a stage may have skipped it
        elif leads:
            self._turn.learn(len(frame.nodes), now_ns - sent_ns)
        elif before is not None and before[1] == sent_ns:
            self._gap.learn(len(frame.nodes), now_ns - before[0])

    @property
    def turn_ns(self) -> float:
        """A frame of one row, there and back; 0 before the first is."""
        return self._turn.first

    @property
    def row(self) -> float:
        """What one more row of a frame costs, in turns."""
        return self._turn.row / self.turn_ns if self.turn_ns else _TURN_PRIOR

    def width(self, lookahead: int) -> int:
        """Rows to a frame, where at most `lookahead` are awaited.

        They are so many that they take a stage twice a row's time, and no more than leave enough for the frames behind
        it.
        """
        most = sqrt(lookahead / 2)
        if not self._gap.first:
            return max(1, round(most))
        most = max(most, lookahead / self.window(max(1, round(most))))
        if (row_ns := self._gap.row) > 0:
            most = min(most, 1 + self._gap.first / row_ns)
        return max(1, round(most))

    def window(self, rows: int) -> float:
        """How many frames of `rows` keep the slowest stage at work for FILL of a turn; some before it is known."""
        gap_ns = self._gap.predict(rows)
        return max(1.0, FILL * self._turn.predict(rows) / gap_ns) if gap_ns and self.turn_ns else _UNKNOWN
