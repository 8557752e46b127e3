"""What an emulated stage of `bench.decode` keeps of a session, and the frames that say how it grows.

A frame's rows continue the session's committed run at `pos`; a smaller `pos` than before voids what stood from there
on. With `parents` the rows are a tree's: each says which live cell it follows, -1 being the run's end, and stays live
until a later frame's `keep` makes it part of the run. Then live cells that do not descend from the last kept one are
void, and the others are numbered anew, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.decode.emulation.truth import mixed


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame as an arm sends it: `seq` counts an arm's frames."""

    seq: int
    pos: int
    tokens: tuple[int, ...]
    epoch: int = 0
    parents: tuple[int, ...] | None = None
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Back:
    """A frame as it comes back: the decoder's token after each row; none if no stage computed it to its end."""

    seq: int
    tokens: tuple[int, ...]


def is_dead(frame: Sent, behind: Sequence[Sent]) -> bool:
    """Whether a frame that waits behind this one voids all of it."""
    return not frame.keep and any(other.epoch > frame.epoch and other.pos <= frame.pos for other in behind)


class Cells:
    """One session's lane in one stage."""

    def __init__(self) -> None:
        self.run: list[int] = []
        self.live: list[tuple[int, int]] = []
        """Numbers, and the live cell that each follows."""
        self._epoch = 0

    def rows(self, frame: Sent, xs: Sequence[int]) -> list[int]:
        """A frame's rows computed. Raises ValueError: it does not fit what came before."""
        if not xs and not frame.keep:
            return []
        if frame.keep:
            self._keep(frame.keep)
        if frame.pos > len(self.run):
            raise ValueError(f"pos {frame.pos} after {len(self.run)}")
        stays = frame.keep or (frame.pos == len(self.run) and frame.epoch == self._epoch)
        self._epoch = frame.epoch
        if not stays or frame.parents is None:
            del self.run[frame.pos :]
            self.live.clear()
        last = self.run[-1] if self.run else 0
        if frame.parents is None:
            for x in xs:
                last = mixed(x, last)
                self.run.append(last)
            return self.run[frame.pos :]
        first = len(self.live)
        for x, parent in zip(xs, frame.parents, strict=True):
            if not -1 <= parent < len(self.live):
                raise ValueError(f"parent {parent} of {len(self.live)}")
            self.live.append((mixed(x, last if parent < 0 else self.live[parent][0]), parent))
        return [y for y, _ in self.live[first:]]

    def _keep(self, keep: Sequence[int]) -> None:
        before = -1
        for cell in keep:
            if self.live[cell][1] != before:
                raise ValueError(f"cell {cell} does not follow {before}")
            self.run.append(self.live[cell][0])
            before = cell
        numbers = descendants([parent for _, parent in self.live], before)
        self.live = [(self.live[old][0], numbers.get(self.live[old][1], -1)) for old in numbers]


def descendants(parents: Sequence[int], root: int) -> dict[int, int]:
    """The live cells that descend from `root`, in order, and their new numbers."""
    numbers: dict[int, int] = {}
    for cell, parent in enumerate(parents):
        if parent == root or parent in numbers:
            numbers[cell] = len(numbers)
    return numbers
