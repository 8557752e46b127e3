"""Frames over which guesses travelled, once more: for who enters in place of another, or has lost some. NIPS.md, 5.2.

Up to the last frame with a row of a closed chunk, the *cut*, who lacks any lacks all: what was void by then is left
out. Of the frames behind it a consumer may have all but the last ones, and it knows live cells by their numbers: a void
cell keeps its place, with zeros, unless a frame of a greater epoch makes void all that has come since.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from nodewire.errors import LinkLost, NotFound
from nodewire.protocol.cells import Came, Row, left
from nodewire.protocol.frame import Array, Frame, Meta
from nodewire.protocol.guesses import AGAIN, Fences, Step, packed

Plain = Callable[[int], Iterator[Frame[Array]]]
"""The plain frames of closed chunks from a seq on, out of wherever they are kept."""


@dataclass(slots=True)
class Settled:
    """Frames of which only rows of closed chunks are left, as plain history has them: of each a few numbers."""

    seqs: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))
    """Their `pos`."""
    epochs: array[int] = field(default_factory=lambda: array("Q"))
    begins: array[int] = field(default_factory=lambda: array("Q"))
    """The plain frame of the first row that is left."""
    rows: array[int] = field(default_factory=lambda: array("H"))
    kept: array[int] = field(default_factory=lambda: array("H"))
    """Of the cells that they keep, how many are left: all of them stand on one way."""
    trees: array[int] = field(default_factory=lambda: array("B"))
    """1 where rows are cells."""
    positions: int = 0
    """That have a row."""
    live: int = 0
    """Of these rows, how many are kept by frames that are not settled."""

    @property
    def last(self) -> int:
        return self.seqs[-1] if self.seqs else -1

    def note_prompt(self) -> None:
        self._note(Step(0, 0, 1, 0), 0, 1, 0)

    def note(self, came: Came, end: int) -> None:
        """The next frame, of which no row is open, or was void only behind the cut. `end`: the prompt's."""
        step = came.step
        rows = sum(row.closed for row in came.rows)
        kept = sum(row.closed for row in came.keep)
        begin = 1 + (step.pos - end if came.repeated else self.positions)
        self._note(step, begin, rows, kept)
        self.positions += rows - came.repeated
        self.live += (rows if step.parents is not None else 0) - kept
        for row in came.keep:
            row.parent = None  # else all that ever was is held

    def _note(self, step: Step, begin: int, rows: int, kept: int) -> None:
        self.seqs.append(step.seq)
        self.places.append(step.pos - (len(step.keep) - kept))
        self.epochs.append(step.epoch)
        self.begins.append(begin)
        self.rows.append(rows)
        self.kept.append(kept)
        self.trees.append(step.parents is not None)

    def has_tree(self, first: int) -> bool:
        """Whether any of the frames from number `first` on has, or keeps, cells."""
        index = bisect_left(self.seqs, first)
        return any(self.trees[index:]) or any(self.kept[index:])


@dataclass(slots=True)
class Edge:
    """What all frames of an edge have in common."""

    name: str
    dtype: str
    width: int
    nbytes: int
    """Of a row."""
    chunk_at: Callable[[int], int]
    """A position's chunk."""

    def frame(self, step: Step, rows: Sequence[bytes], *, again: bool = False) -> Frame[Array]:
        """`again`: cells that were void later are left out, here and before."""
        meta: Meta = {"pos": step.pos, "chunk": step.chunk, "tokens": len(rows)}
        if again:
            meta = {**meta, AGAIN: True}
        if step.epoch:
            meta = {**meta, "epoch": step.epoch}
        if rows and step.parents is not None:
            meta = {**meta, "parents": packed(step.parents)}
        if step.keep:
            meta = {**meta, "keep": packed(step.keep)}
        return Frame(self.name, step.seq, (Array(self.dtype, (1, len(rows), self.width), b"".join(rows)),), meta)


def settled_again(edge: Edge, settled: Settled, first: int, plain: Plain, *, again: bool) -> Iterator[Frame[Array]]:
    """Those that are settled from number `first` on; more may be while this is read. `again`: they say what they are.

    Raises NotFound: `plain` lacks some of them.
    """
    index, at, live = bisect_left(settled.seqs, first), -1, 0
    read = iter(list[Frame[Array]]())
    while index < len(settled.seqs):
        begin, count, kept = settled.begins[index], settled.rows[index], settled.kept[index]
        found = list(islice(read, count)) if begin == at else []
        if len(found) < count:  # it may have grown since that reading ended
            read = plain(begin + len(found))
            found += islice(read, count - len(found))
        at = begin + count
        if [one.seq for one in found] != list(range(begin, at)):
            raise NotFound(edge.name, f"plain frames from {begin} on have not been kept")
        index += 1
        if begin == 0:
            yield found[0]
            continue
        live -= kept
        parents = None
        if settled.trees[index - 1]:
            parents = tuple(range(live - 1, live - 1 + count))
            live += count
        pos = settled.places[index - 1]
        chunk = edge.chunk_at(pos if count or not kept else pos - 1)
        step = Step(settled.seqs[index - 1], pos, count, chunk, settled.epochs[index - 1], parents, tuple(range(kept)))
        yield edge.frame(step, [bytes(one.tensors[0].data) for one in found], again=again)


def open_again(
    edge: Edge, settled: Settled, came: Sequence[Came], end: int, cut: int, last: int, plain: Plain, again_to: int
) -> list[Frame[Array]]:
    """Those that are not settled, behind number `last`; `end` is the prompt's, and a consumer is sent all from `cut` on
    as they came. Those up to `again_to` say that cells are left out.

    Raises:
        LinkLost: what is void cannot be told from what counts, which no honest driver has made so.
        NotFound: as `settled_again`.
    """
    epoch = settled.epochs[-1] if settled.epochs else 0
    reader = _Reader(edge, end, end + settled.positions - settled.live, epoch, plain)
    reader.live = [row for one in came for row in one.keep if row.seq <= settled.last and row.closed]
    fences = Fences()
    for one in came:
        fences.note(edge.frame(one.step, ()))
    found = []
    for one in came:
        frame = reader.read(one, cut, is_fenced=fences.void(edge.frame(one.step, ())))
        if last < one.step.seq <= again_to:
            frame = replace(frame, meta={**frame.meta, AGAIN: True})
        if one.step.seq > last:
            found.append(frame)
    return found


class _Reader:
    """Who gets the frames: the length of its run, and its live cells."""

    def __init__(self, edge: Edge, end: int, length: int, epoch: int, plain: Plain) -> None:
        self.live: list[Row] = []
        """Up to the cut those that it has, behind it at least those."""
        self._edge = edge
        self._end = end
        self._length = length
        self._plain = plain
        self._epoch = epoch
        self._void_to = 0
        """Cells were kept that the frame with this number makes void, so that all before it is void as well."""

    def read(self, came: Came, cut: int, *, is_fenced: bool) -> Frame[Array]:
        """A frame, as it is to be sent: up to the cut of what was not void then, behind it as it came."""
        step = came.step
        if step.seq == self._void_to and step.epoch <= self._epoch:
            raise LinkLost(self._edge.name, "gone with cells under way that were kept, and are void")
        if step.seq < self._void_to:
            frame = self._empty(replace(step, pos=step.pos - len(step.keep)))
        elif step.seq > cut and is_fenced:
            frame = self._empty(step)
        elif not step.is_tree:
            frame = self._chain(came)
        elif any(cell.voided is not None and not cell.was_void(cut) for cell in came.keep):
            frame = self._kept_in_part(came, cut)
        elif step.seq <= cut:
            frame = self._early(came, cut)
        elif step.parents is None:
            frame = self._kept(step, came, came.keep)
        else:
            self.live = [*left(self.live, came.keep), *came.rows]
            frame = self._tree(step, came.rows)
        self._epoch = step.epoch
        return frame

    def _early(self, came: Came, cut: int) -> Frame[Array]:
        """Of a tree, up to the cut."""
        step, kept = self._still_kept(came, came.keep)
        if step.parents is None:
            return self._kept(step, came, kept)
        rows = [row for row in came.rows if not row.was_void(cut)]
        self.live = left(self.live, kept)
        known = {id(cell): number for number, cell in enumerate((*self.live, *rows))}
        self.live = [*self.live, *rows]
        return self._tree(replace(step, parents=tuple(known.get(id(row.parent), -1) for row in rows)), rows)

    def _kept_in_part(self, came: Came, cut: int) -> Frame[Array]:
        """Of the cells that it keeps those that are not void, alone: with zeros for others a chunk might be closed.

        Cells have other numbers after that, until what made the rest void leaves none.
        """
        kept = list(takewhile(lambda cell: cell.voided is None or cell.was_void(cut), came.keep))
        self._void_to = came.keep[len(kept)].voided or 0
        if came.step.seq <= cut:
            step, kept = self._still_kept(came, kept)
        else:
            pos = came.step.pos - (len(came.keep) - len(kept))
            step = replace(came.step, pos=pos, keep=came.step.keep[: len(kept)])
        self.live = left(self.live, kept)
        return self._tree(replace(step, parents=None), [])

    def _still_kept(self, came: Came, cells: Sequence[Row]) -> tuple[Step, list[Row]]:
        """A frame's step if it keeps `cells` as far as they are live, and these."""
        known = {id(cell): number for number, cell in enumerate(self.live)}
        kept = [cell for cell in cells if id(cell) in known]
        pos = came.step.pos - (len(came.step.keep) - len(kept))
        return replace(came.step, pos=pos, keep=tuple(known[id(cell)] for cell in kept)), kept

    def _empty(self, step: Step) -> Frame[Array]:
        """Without rows, and keeping nothing."""
        self.live = [] if self._drops(step) else self.live
        self._length = min(self._length, step.pos)
        return self._edge.frame(replace(step, keep=()), ())

    def _chain(self, came: Came) -> Frame[Array]:
        """Without its void rows, which are its last ones."""
        step = came.step
        rows = [row.data for row in came.rows[came.repeated :] if row.data is not None]
        if came.repeated:
            plain = self._plain(step.pos - self._end + 1)
            before = [bytes(one.tensors[0].data) for one in islice(plain, came.repeated)]
            if len(before) < came.repeated:
                raise NotFound(self._edge.name, f"rows from position {step.pos} on have not been kept")
            rows = [*before, *rows]
        self._check_voids(step, came, rows)
        if not rows:
            return self._empty(step)
        self._goes_on(step, len(rows))
        self.live = []
        return self._edge.frame(step, rows)

    def _kept(self, step: Step, came: Came, kept: Sequence[Row]) -> Frame[Array]:
        """Rows that join the run behind cells that do; without those that are void, as in a chain."""
        rows = [row for row in came.rows if row.data is not None]
        self.live = left(self.live, kept)
        self._check_voids(step, came, rows)
        self.live = [] if rows else self.live
        return self._tree(step, rows)

    def _tree(self, step: Step, rows: Sequence[Row]) -> Frame[Array]:
        if not rows and not step.keep:
            return self._empty(step)
        self._goes_on(step, len(rows) if step.parents is None else 0)
        return self._edge.frame(step, [self._data(row) for row in rows])

    def _check_voids(self, step: Step, came: Came, rows: Sequence[object]) -> None:
        """Whether a frame of whose rows those are left makes void what it did when it came."""
        if came.rows and not rows and self.live and not self._drops(step):
            raise LinkLost(self._edge.name, "gone with rows under way that void a tree, and are void")

    def _drops(self, step: Step) -> bool:
        """Whether it leaves nothing of the tree, even without its rows."""
        return not step.keep and (step.pos < self._length or step.epoch > self._epoch)

    def _goes_on(self, step: Step, rows: int) -> None:
        """Rows are put at `pos`, or cells: where the run ends, or below. So many `rows` join it."""
        end = self._length + len(step.keep)
        if step.pos > end:
            raise LinkLost(
                self._edge.name, "gone with cells under way that stand on void rows, which nobody sends again"
            )
        self._length = step.pos + rows

    def _data(self, row: Row) -> bytes:
        return row.data if row.data is not None else bytes(self._edge.nbytes)
