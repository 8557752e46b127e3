"""What an operator may want to know of a worker: how many calls waited, how long, and how long they took."""

from __future__ import annotations

from collections import deque

from nodewire.metrics.durations import Durations

_LAST = 1_024


class Figures:
    """Counts since the start; waiting times of the last calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.batches = 0
        """Of more than one call."""
        self.batched = 0
        """Calls in them."""
        self.longest = 0
        """Most calls that waited at once."""
        self.waits = Durations()
        self.computing = Durations()
        """Of calls on frames, as far as they have been answered."""
        self._waited_us: deque[int] = deque(maxlen=_LAST)

    def together(self, calls: int) -> None:
        """So many have left the queue at once."""
        if calls > 1:
            self.batches += 1
            self.batched += calls

    def took(self, waited_us: int, still_waiting: int) -> None:
        """A call has left the queue."""
        self.calls += 1
        self.longest = max(self.longest, still_waiting + 1)
        self._waited_us.append(waited_us)
        self.waits.add(waited_us)

    def __str__(self) -> str:
        half, most = (self.waited_us(percent) / 1_000 for percent in (50, 95))
        return (
            f"{self.calls:,} calls, {self.batched:,} of them in batches, waited {half:.1f} ms (95 %: {most:.1f} ms), "
            f"at most {self.longest} at once"
        )

    def waited_us(self, percent: int) -> int:
        """How long at most `percent` of the last calls waited; 0 of none."""
        ordered = sorted(self._waited_us)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0
