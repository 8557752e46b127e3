"""How long frames take around the ring, as measured: what a turn takes, and what each further row and frame add."""

from __future__ import annotations

from math import inf, sqrt

from nodewire.llm.speculation.flight import Sent

_FADE = 0.97
_PRIOR = 0.01
"""A row's time in turns before it is measured."""
_TRUST = 4.0  # of that prior, as so many squared rows


class Pace:
    """Least squares over the first frames of bursts that wait for none of their own.

    A frame of so many rows takes turn_ns + row_ns * (rows - 1).
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._bursts: dict[int, tuple[int, bool]] = {}  # by seq: when it was sent, and whether first of its burst
        self._gap_ns: float | None = None  # between two frames of a burst
        self._back: tuple[int, int] | None = None  # when the last return came, and when its frame was sent
        self._clear_ns = 0.0  # when the slowest stage will have done all that was sent

    def sent(self, frames: list[Sent], now_ns: int) -> None:
        waits = now_ns < self._clear_ns
        for number, frame in enumerate(frames):
            self._bursts[frame.seq] = now_ns, number == 0 and not waits
        self._clear_ns = max(self._clear_ns, now_ns) + len(frames) * (self._gap_ns or 0.0)

    def returned(self, frame: Sent, now_ns: int) -> None:
        sent_ns, leads = self._bursts.pop(frame.seq, (None, False))
        before, self._back = self._back, None if sent_ns is None else (now_ns, sent_ns)
        if sent_ns is None or not frame.awaited:
            self._back = None  # a stage may have skipped it
        elif leads:
            self._learn(len(frame.nodes) - 1, now_ns - sent_ns)
        elif before is not None and before[1] == sent_ns:
            gap_ns = now_ns - before[0]
            self._gap_ns = gap_ns if self._gap_ns is None else 0.9 * self._gap_ns + 0.1 * gap_ns

    def _learn(self, rows: int, took_ns: int) -> None:
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + rows
        self._y = self._y * _FADE + took_ns
        self._xx = self._xx * _FADE + rows * rows
        self._xy = self._xy * _FADE + rows * took_ns

    @property
    def turn_ns(self) -> float:
        """A frame of one row, there and back; 0 before the first is."""
        return max(0.0, (self._y - self._row_ns * self._x) / self._weight) if self._weight else 0.0

    @property
    def _row_ns(self) -> float:
        if not self._weight:
            return 0.0
        mean = self._y / self._weight
        spread = self._xx - self._x * self._x / self._weight
        covers = self._xy - self._x * mean
        return min(max(0.0, (covers + _TRUST * _PRIOR * mean) / (spread + _TRUST)), mean)

    @property
    def row(self) -> float:
        """What one more row of a frame costs, in turns."""
        turn_ns = self.turn_ns
        return self._row_ns / turn_ns if turn_ns else _PRIOR

    def room(self, now_ns: int) -> float:
        """How many frames the ring still has room for: more would have to wait, and then make others wait."""
        return max(0.0, self.turn_ns - max(0.0, self._clear_ns - now_ns)) / self._gap_ns if self._gap_ns else inf

    def rows(self, burst: int, now_ns: int) -> int:
        """How many rows to a frame let a burst of `burst` be back soonest: a frame's rows are computed one stage after
        the other, and each further frame follows by the slowest stage's time. Half of them, until that was measured."""
        if self._gap_ns is None:
            return max(1, -(-burst // 2))
        row_ns = self._row_ns
        if row_ns * burst <= self._gap_ns:
            return max(1, burst)
        most = max(1, int(min(burst, self.room(now_ns))))
        return max(1, round(sqrt(burst * self._gap_ns / row_ns)), -(-burst // most))
