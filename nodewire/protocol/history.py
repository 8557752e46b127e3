"""An edge's guessed frames as plain ones: what would have come if the driver had never guessed. NIPS.md, "Speculation".

What is committed to, signed, kept and verified is plain: frame 0 as it came, then a frame for every position, with seq
pos - P + 1 behind a prompt that ends at P. A position's row is the last that came for it, or in a tree the one that was
kept; it is final when the driver has closed its chunk. Held in memory are the rows of open chunks, and of each frame
that came a few integers: with the plain frames of closed chunks, which others keep, that is enough to send everything
again under the numbers it had (`again`), but for rows that are void.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from nodewire.errors import BadFrame, NotFound
from nodewire.protocol.frame import Array, Frame, Meta
from nodewire.protocol.guesses import AHEAD_CHUNKS, DEPTH, SLACK_ROWS, Step, rows_of, step_of

Plain = Callable[[int], Iterator[Frame[Array]]]
"""The plain frames of closed chunks from a seq on, out of wherever they are kept."""


@dataclass(slots=True, eq=False)
class _Came:
    """A frame: its rows, None for each that is void."""

    step: Step
    rows: list[bytes | None]
    kept: int = -1
    """The first frame of which it keeps a cell, if it keeps any."""


@dataclass(slots=True)
class _Cell:
    """A row's place: in the run, or in the tree behind its parent."""

    came: _Came
    row: int
    parent: int = -1

    def void(self) -> None:
        self.came.rows[self.row] = None

    @property
    def data(self) -> bytes:
        found = self.came.rows[self.row]
        assert found is not None
        return found


@dataclass(slots=True)
class _Settled:
    """Frames of which only rows of closed chunks are left: their numbers, how many plain frames are left of each, from
    which on, and their epochs."""

    seqs: array[int] = field(default_factory=lambda: array("Q"))
    rows: array[int] = field(default_factory=lambda: array("Q"))
    begins: array[int] = field(default_factory=lambda: array("Q"))
    epochs: array[int] = field(default_factory=lambda: array("Q"))
    kept: array[int] = field(default_factory=lambda: array("q"))
    """As _Came's."""


class History:
    """One edge between tasks. Give it every frame in order (`take`), and every chunk that is closed (`close`)."""

    def __init__(self, edge: str, *, chunk: int, lookahead: int) -> None:
        """`chunk`: positions of one; `lookahead`: the plan's, at most so many rows of a frame, and times a chunk's
        positions of all frames of a chunk."""
        self.closed = -1
        """The newest chunk that is closed."""
        self.last_seq = -1
        self._edge = edge
        self._chunk = chunk
        self._lookahead = lookahead
        self._epoch = 0
        self._prompt: Frame[Array] | None = None
        """Frame 0, until its chunk is closed."""
        self._end = 0
        """Positions of the prompt."""
        self._tensor = "", 0
        """Dtype and width of all rows."""
        self._first = 0
        """The first position that is not closed."""
        self._run: list[_Cell] = []
        """From there on."""
        self._live: list[_Cell] = []
        """The tree beyond the run."""
        self._again: int | None = None
        """Up to where closed positions have come once more, as long as not all have: their rows count for nothing."""
        self._began_anew = False
        self._kept = -1
        """By the last frame, as _Came's."""
        self._reach = 0
        """The first position that no row has come for."""
        self._counted: dict[int, int] = {}
        """By open chunk, and the last that is closed, the rows that came."""
        self._open: list[_Came] = []
        self._settled = _Settled()

    def take(self, frame: Frame[Array]) -> None:
        """The edge's next frame. Its number may be greater than the next one where a driver that entered begins.

        Raises:
            BadFrame: it cannot follow those before it; the field says why, and nothing has changed.
        """
        step = step_of(frame, self._lookahead)
        if self.last_seq < 0:
            self._begin(step, frame)
            return
        begins_anew = self._check(step, frame)
        self._grow(step)
        self._count(step, begins_anew)
        came = _Came(step, list(rows_of(frame.tensors[0])))
        self._open.append(came)
        self._join(step, came, begins_anew)
        self.last_seq, self._epoch = step.seq, step.epoch
        self._began_anew = self._began_anew or begins_anew
        self._reach = max(self._reach, step.pos + (step.rows if step.parents is None else 0))

    def lacks(self, chunk: int, positions: int | None = None) -> bool:
        """Whether rows of a chunk that is closed have still to come (`positions` of it count, or all)."""
        if self._prompt is None and self.closed < 0:
            return True
        return self._first + len(self._run) < self._bound(chunk, positions)

    def came_in(self, chunk: int, positions: int | None = None) -> list[int]:
        """Of the next chunk, of which nothing lacks, the number of the frame that each row came in."""
        if chunk == 0:
            return [0]
        return [cell.came.step.seq for cell in self._run[: self._bound(chunk, positions) - self._first]]

    def is_past(self, chunk: int) -> bool:
        """Whether what came says that a chunk was accepted, though the driver has not closed it: nobody guesses so far
        ahead (of chunk 0, that anything came after it)."""
        if chunk == 0:
            return self.last_seq > 0
        return self._reach > self._bound(chunk, None) + DEPTH * self._lookahead

    def close(self, chunk: int, positions: int | None = None) -> list[Frame[Array]]:
        """The plain frames of the next chunk, which is final; of it `positions` count, or all.

        Raises:
            BadFrame: it is not the next one, or positions of it have no row.
        """
        if chunk != self.closed + 1 or not (positions is None or 0 < positions <= self._chunk):
            raise BadFrame("chunk", f"{chunk} is closed after {self.closed}, or of {positions} positions")
        if self.lacks(chunk, positions):
            raise BadFrame("chunk", f"{chunk} is closed before all of its rows came on {self._edge}")
        self.closed = chunk
        self._counted.pop(chunk - 1, None)
        if chunk == 0:
            assert self._prompt is not None
            plain, self._prompt = [self._prompt], None
        else:
            count = self._bound(chunk, positions) - self._first
            cells, self._run = self._run[:count], self._run[count:]
            plain = [self._plain(self._first + i, chunk, cell) for i, cell in enumerate(cells)]
            self._first += count
        self._settle()
        return plain

    def again(self, first: int, plain: Plain) -> Iterator[Frame[Array]]:
        """The frames from number `first` on, as they came, but without rows that are void now.

        Raises:
            NotFound: `plain` lacks some of them, or they are of a tree.
        """
        last, at, read = first - 1, -1, iter(list[Frame[Array]]())
        while True:
            index = bisect_right(self._settled.seqs, last)
            if index < len(self._settled.seqs):
                self._check_again(index, first)
                begin, count = self._settled.begins[index], self._settled.rows[index]
                found = list(islice(read, count)) if begin == at else []
                if len(found) < count:  # it may have grown since that reading ended
                    read = plain(begin + len(found))
                    found += islice(read, count - len(found))
                at = begin + count
                if [one.seq for one in found] != list(range(begin, at)):
                    raise NotFound(self._edge, f"plain frames from {begin} on have not been kept")
                frame = self._joined(index, found)
            elif self._prompt is not None and last < 0:
                frame = self._prompt
            elif (came := next((one for one in self._open if one.step.seq > last), None)) is not None:
                frame = self._sent(came)
            else:
                return
            last = frame.seq
            yield frame

    # Inside.

    def _begin(self, step: Step, frame: Frame[Array]) -> None:
        if step.seq != 0 or step.chunk != 0:
            raise BadFrame("chunk", "the first frame is 0, of chunk 0")
        tensor = frame.tensors[0]
        self._end = self._first = step.pos + step.rows
        self._tensor = tensor.dtype, tensor.shape[2]
        meta: Meta = {"pos": step.pos, "chunk": 0, "tokens": step.rows}
        self._prompt = Frame(self._edge, 0, (tensor.copied(),), meta)
        self.last_seq, self._epoch = 0, step.epoch

    def _check(self, step: Step, frame: Frame[Array]) -> bool:
        """Whether the numbers begin anew with this frame. Raises BadFrame."""
        begins_anew = step.seq > self.last_seq + 1
        tensor = frame.tensors[0]
        if step.seq <= self.last_seq or (begins_anew and self._began_anew):
            raise BadFrame("seq", f"{step.seq} after {self.last_seq}")
        if (tensor.dtype, tensor.shape[2]) != self._tensor:
            raise BadFrame("tensors", "of another dtype or width than the first frame's")
        if step.epoch < self._epoch:
            raise BadFrame("epoch", f"{step.epoch} after {self._epoch}")
        if step.pos < self._end:
            raise BadFrame("pos", f"{step.pos} is the prompt's")
        chunk = self._chunk_at(step.pos if step.rows or not step.keep else step.pos - 1)
        if step.chunk != chunk:
            raise BadFrame("chunk", f"{step.chunk} at position {step.pos}, which is of {chunk}")
        if step.keep and self._chunk_at(self._length) != chunk:
            raise BadFrame("keep", f"goes beyond the end of chunk {self._chunk_at(self._length)}")
        length = self._length + len(step.keep)
        if step.rows and step.pos > length:
            raise BadFrame("pos", f"{step.pos}, the run has {length}")
        if step.keep and step.pos != length:
            raise BadFrame("pos", f"{step.pos}, with what is kept the run has {length}")
        floor = self._first if self._again is None and not begins_anew else self._first - self._chunk
        if step.pos < floor or (step.pos < self._first and step.is_tree):
            raise BadFrame("pos", f"{step.pos} is of a chunk that is closed")
        if step.pos >= self._first + AHEAD_CHUNKS * self._chunk + DEPTH * self._lookahead:
            raise BadFrame("pos", f"{step.pos}, and {self._first} is not closed")
        return begins_anew

    def _grow(self, step: Step) -> None:
        """Check the places of a tree. Raises BadFrame."""
        follows = -1
        for number in step.keep:
            if not 0 <= number < len(self._live) or self._live[number].parent != follows:
                raise BadFrame("keep", "not a way from the root through live cells")
            follows = number
        if step.parents is None:
            return
        left = [] if self._drops(step) else self._left(step.keep)
        depths = list[int]()
        for number, parent in enumerate((*(cell.parent for cell in left), *step.parents)):
            if not -1 <= parent < number:
                raise BadFrame("parents", "not live cells before their own")
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        if max(depths) > DEPTH * self._lookahead:
            raise BadFrame("parents", f"{max(depths)} cells after another, at most {DEPTH * self._lookahead}")

    def _count(self, step: Step, begins_anew: bool) -> None:
        """Raises BadFrame: more rows than a chunk may have."""
        rows = max(step.rows, 1) + (0 if begins_anew else self._counted.get(step.chunk, 0))
        if rows > self._lookahead * self._chunk + SLACK_ROWS:
            raise BadFrame("lookahead", f"more than {self._lookahead} rows for each position of chunk {step.chunk}")
        if begins_anew:  # by another driver, which does not know what the one before it has used up
            self._counted.clear()
        self._counted[step.chunk] = rows

    def _join(self, step: Step, came: _Came, begins_anew: bool) -> None:
        drops, left, again = self._drops(step), self._left(step.keep), self._length
        stays = {(id(cell.came), cell.row) for cell in (*left, *(self._live[number] for number in step.keep))}
        for cell in self._live:
            if (id(cell.came), cell.row) not in stays:
                cell.void()
        came.kept = self._kept = min((self._live[number].came.step.seq for number in step.keep), default=-1)
        self._run += [replace(self._live[number], parent=-1) for number in step.keep]
        self._live = left
        if drops or (step.rows and step.parents is None):
            for cell in (*self._run[max(0, step.pos - self._first) :], *self._live):
                cell.void()
            del self._run[max(0, step.pos - self._first) :]
            self._live = []
        if step.pos < self._first and (begins_anew or self._again is not None):
            self._again = min(step.pos, again)
        if step.parents is not None:
            self._live += [_Cell(came, row, parent) for row, parent in enumerate(step.parents)]
            return
        for row in range(step.rows):
            if self._again is not None:
                came.rows[row] = None
                self._again = self._again + 1 if self._again + 1 < self._first else None
            else:
                self._run.append(_Cell(came, row))

    def _drops(self, step: Step) -> bool:
        """Whether a frame leaves nothing of the tree: it rewinds, or what it voids others may have left out."""
        return not step.keep and (step.pos < self._length or step.epoch > self._epoch)

    def _left(self, keep: Sequence[int]) -> list[_Cell]:
        """The live cells that follow what is kept, in new places."""
        if not keep:
            return self._live
        places, left = {keep[-1]: -1}, list[_Cell]()
        for number, cell in enumerate(self._live):
            if number not in keep and cell.parent in places:
                places[number] = len(left)
                left.append(replace(cell, parent=places[cell.parent]))
        return left

    def _settle(self) -> None:
        """Of frames whose rows are all closed, or void, keep the numbers only."""
        done, held = 0, {id(cell.came) for cell in (*self._run, *self._live)}
        if not self._settled.seqs:
            self._note(0, 1, 0, -1)
        while done < len(self._open) and id(self._open[done]) not in held:
            done += 1
        for came in self._open[:done]:
            self._note(came.step.seq, sum(row is not None for row in came.rows), came.step.epoch, came.kept)
        del self._open[:done]

    def _note(self, seq: int, rows: int, epoch: int, kept: int) -> None:
        begins = self._settled.begins[-1] + self._settled.rows[-1] if self._settled.begins else 0
        self._settled.begins.append(begins)
        self._settled.seqs.append(seq)
        self._settled.rows.append(rows)
        self._settled.epochs.append(epoch)
        self._settled.kept.append(kept)

    @property
    def _length(self) -> int:
        return self._again if self._again is not None else self._first + len(self._run)

    def _chunk_at(self, pos: int) -> int:
        return 1 + (pos - self._end) // self._chunk

    def _bound(self, chunk: int, positions: int | None) -> int:
        """The first position behind a chunk."""
        if chunk == 0:
            return self._end
        return self._end + (chunk - 1) * self._chunk + (self._chunk if positions is None else positions)

    def _plain(self, pos: int, chunk: int, cell: _Cell) -> Frame[Array]:
        meta: Meta = {"pos": pos, "chunk": chunk, "tokens": 1}
        return Frame(self._edge, pos - self._end + 1, (self._array([cell.data]),), meta)

    def _array(self, rows: Sequence[bytes]) -> Array:
        dtype, width = self._tensor
        return Array(dtype, (1, len(rows), width), b"".join(rows))

    def _sent(self, came: _Came) -> Frame[Array]:
        """A frame that is not settled, once more."""
        step = came.step
        if step.is_tree:
            raise NotFound(self._edge, "a tree of guesses is under way, which nobody sends again")
        skipped = next((i for i, row in enumerate(came.rows) if row is not None), 0)
        left = [row for row in came.rows if row is not None]
        return self._frame(step.seq, step.pos + skipped, step.epoch, left)

    def _check_again(self, index: int, first: int) -> None:
        """A settled frame is no tree's any more: who has cells as they came cannot keep them by it, nor who has them of
        it by a frame that is only going out. Raises NotFound."""
        seq, kept = self._settled.seqs[index], self._settled.kept[index]
        if 0 <= kept < first or 0 <= self._kept <= seq < self.last_seq:
            raise NotFound(self._edge, "a tree of guesses has been sent in part, which nobody sends again")

    def _joined(self, index: int, found: Sequence[Frame[Array]]) -> Frame[Array]:
        """A settled frame, once more."""
        if index == 0:
            return found[0]
        pos = self._end + self._settled.begins[index] - 1
        rows = [bytes(one.tensors[0].data) for one in found]
        return self._frame(self._settled.seqs[index], pos, self._settled.epochs[index], rows)

    def _frame(self, seq: int, pos: int, epoch: int, rows: Sequence[bytes]) -> Frame[Array]:
        meta: Meta = {"pos": pos, "chunk": self._chunk_at(pos), "tokens": len(rows)}
        if epoch:
            meta = {**meta, "epoch": epoch}
        return Frame(self._edge, seq, (self._array(rows),), meta)
