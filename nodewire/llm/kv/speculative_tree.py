"""The live cells of a lane: positions that were computed beyond its committed run, as branches of a tree.

A cell's number is its place among the live ones. -1 stands for the end of the committed run, from which roots grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LIVE_CELLS = 512
"""The most live cells of one lane (nips/13-speculation.md)."""


@dataclass(frozen=True, slots=True)
class Tree:
    """By cell: the one it follows, a bit for itself and each of those that lead to it, and its position."""

    parents: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.parents)

    def grown(self, parents: Sequence[int], length: int) -> Tree:
        """With further cells, each after the cell of its number in `parents`, on a committed run of `length`.

        Raises:
            BadFrame: a parent that does not stand before its row.
            TooLarge: over MAX_LIVE_CELLS cells.

        """
        if len(self) + len(parents) > MAX_LIVE_CELLS:
            raise TooLarge("meta.parents", f"{len(self) + len(parents)} live cells, at most {MAX_LIVE_CELLS}")
        seen, positions = list(self.seen), list(self.positions)
        for cell, parent in enumerate(parents, start=len(self)):
            if not -1 <= parent < cell:
                raise BadFrame("meta.parents", f"{parent} of cell {cell}, not one before it, nor -1")
            seen.append(1 << cell | (seen[parent] if parent >= 0 else 0))
            positions.append(positions[parent] + 1 if parent >= 0 else length)
        return Tree((*self.parents, *parents), tuple(seen), tuple(positions))

    def kept(self, path: Sequence[int]) -> tuple[Tree, list[int]]:
        """What is live after the cells of `path`, root first, have joined the committed run; and the cells left.

        Live is what descends from the last of them, numbered anew. The cells that are left, by their old numbers, are
        the path, then those.

        Raises:
            BadFrame: it is no path of live cells from the run's end.

        """
        before = -1
        for cell in path:
            if not 0 <= cell < len(self):
                raise BadFrame("meta.keep", f"cell {cell}, there are {len(self)} live ones")
            if self.parents[cell] != before:
                raise BadFrame("meta.keep", f"cell {cell} follows {self.parents[cell]}, not {before}")
            before = cell
        if not path:
            return self, list(range(len(self)))
        left = [cell for cell, seen in enumerate(self.seen) if cell != before and seen >> before & 1]
        number = {before: -1} | {cell: place for place, cell in enumerate(left)}
        length = self.positions[before] + 1
        return Tree().grown([number[self.parents[cell]] for cell in left], length), [*path, *left]
