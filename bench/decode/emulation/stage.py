"""An emulated stage of `bench.decode`: what waits, what is computed together, and how long that takes.

A forward of n rows takes t(1) times 1, 1.45 and 2.6 for n = 1, 8 and 32, as was measured of a small decoder on two
cores (field notes on inference, section 3); linear in between, and on with the last slope.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from bench.decode.emulation.cells import Cells, Sent, is_dead

_ROWS, _TIMES = (1, 8, 32), (1.0, 1.45, 2.6)
BATCH_ROWS = 256
"""Most that are computed together, unless one frame has more."""


def times(rows: int) -> float:
    """What a forward of so many rows takes, one row's being 1."""
    left = 0 if rows <= _ROWS[1] else 1
    slope = (_TIMES[left + 1] - _TIMES[left]) / (_ROWS[left + 1] - _ROWS[left])
    return _TIMES[left] + slope * (rows - _ROWS[left])


@dataclass(frozen=True, slots=True)
class Moving:
    """A frame on its way: its session, what it was sent as, and its rows as they are now; none if it is dead."""

    session: int
    sent: Sent
    xs: tuple[int, ...]


class Stage:
    """Frames in the order of their coming; with `batches`, the first of each session's together."""

    def __init__(self, ms: float, *, batches: bool = False) -> None:
        self._ms, self._batches = ms, batches
        self._waiting: list[Moving] = []
        self._cells: defaultdict[int, Cells] = defaultdict(Cells)
        self.computing: list[Moving] = []

    def come(self, frame: Moving) -> None:
        self._waiting.append(frame)

    def begin(self) -> float | None:
        """Take what is computed next, and say how many ms that takes; None: nothing waits."""
        if not self._waiting:
            return None
        taken: list[Moving] = []
        later: list[Moving] = []
        rows = 0
        sessions: set[int] = set()
        for number, frame in enumerate(self._waiting):
            if taken and (not self._batches or frame.session in sessions or rows + len(frame.xs) > BATCH_ROWS):
                later.append(frame)
                sessions.add(frame.session)
                continue
            behind = [other.sent for other in self._waiting[number + 1 :] if other.session == frame.session]
            alive = (frame.xs or frame.sent.keep) and not is_dead(frame.sent, behind)
            taken.append(frame if alive else Moving(frame.session, frame.sent, ()))
            rows += len(taken[-1].xs)
            sessions.add(frame.session)
        self._waiting, self.computing = later, taken
        return self._ms * times(rows) if rows else 0.0

    def end(self) -> list[Moving]:
        """What goes on to the next stage."""
        return [
            Moving(one.session, one.sent, tuple(self._cells[one.session].rows(one.sent, one.xs)))
            for one in self.computing
        ]

    def forget(self, session: int) -> None:
        self._cells.pop(session, None)
