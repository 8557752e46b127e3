"""Rows that came over an edge with guesses, and what follows what among those of a tree. nips/13-speculation.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import DEPTH, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(slots=True, eq=False)
class Row:
    seq: int
    """Of the frame that it came in."""
    data: bytes
    parent: Row | None = None
    """The cell that it follows; None for the run's end, and in the run."""
    in_run: bool = False

    def join(self) -> None:
        """It is of the run now, and no cell any more."""
        self.in_run, self.parent = True, None

    def follows(self, cell: Row | None) -> bool:
        """Whether it stands behind `cell`, or the run's end."""
        if cell is not None:
            return self.parent is cell
        return self.parent is None or self.parent.in_run


def way(live: Sequence[Row], keep: Sequence[int]) -> list[Row]:
    """The cells that a frame keeps. Raises BadFrame: no way from the run's end through `live`."""
    found: list[Row] = []
    for number in keep:
        if not 0 <= number < len(live) or not live[number].follows(found[-1] if found else None):
            raise BadFrame("keep", "not a way from the root through live cells")
        found.append(live[number])
    return found


def remaining_rows(live: list[Row], kept: Sequence[Row]) -> list[Row]:
    """The live cells that follow what is kept, in their order."""
    if not kept:
        return live
    behind = {id(kept[-1])}
    found = []
    for cell in live:
        if id(cell.parent) in behind:
            behind.add(id(cell))
            found.append(cell)
    return found


def check_grown(live: Collection[Row], parents: Sequence[int], lookahead: int) -> None:
    """Raises BadFrame: cells with these `parents` cannot stand behind those of `live`."""
    depths: dict[int, int] = {}
    for cell in live:
        depths[id(cell)] = 1 + depths.get(id(cell.parent), 0)
    found = list(depths.values())
    for number, parent in enumerate(parents, len(found)):
        if not -1 <= parent < number:
            raise BadFrame("parents", "not live cells before their own")
        found.append(1 + (found[parent] if parent >= 0 else 0))
    if max(found) > DEPTH * lookahead:
        raise BadFrame("parents", f"{max(found)} cells after another, at most {DEPTH * lookahead}")


def grown(step: Step, live: Sequence[Row], data: Sequence[bytes]) -> list[Row]:
    """The cells that a frame's rows become, behind those that are live."""
    assert step.parents is not None
    cells = list(live)
    for parent, row in zip(step.parents, data, strict=True):
        cells.append(Row(step.seq, row, cells[parent] if parent >= 0 else None))
    return cells[len(live) :]
