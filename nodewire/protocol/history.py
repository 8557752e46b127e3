"""An edge's guessed frames as plain ones: what would have come if the driver had never guessed. NIPS.md, "Speculation".

What is committed to, signed, kept and verified is plain: frame 0 as it came, then a frame for every position, with seq
pos - P + 1 behind a prompt that ends at P. A position's row is the last that came for it, or in a tree the one that was
kept; it is final when the driver has closed its chunk. Held in memory are the rows of open chunks, and of each frame
that came a few integers: with the plain frames of closed chunks, which others keep, that is enough to send everything
again under the numbers it had (`again`), but for rows that are void.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodewire.errors import BadFrame, LinkLost
from nodewire.protocol.cells import Came, Row, check_grown, grown, left, way
from nodewire.protocol.frame import Array, Frame, Meta, bytes_of
from nodewire.protocol.guesses import AHEAD_CHUNKS, DEPTH, SLACK_ROWS, Step, is_again, rows_of, step_of
from nodewire.protocol.resending import Edge, Plain, Settled, open_again, settled_again

CLOSED = "closed"
"""The field of the error about a frame that comes for what the driver has said is over."""


class History:
    """One edge between tasks. Give it every frame in order (`take`), and every chunk that is closed (`close`)."""

    def __init__(self, edge: str, *, chunk: int, lookahead: int) -> None:
        """`chunk`: positions of one; `lookahead`: the plan's, at most so many rows of a frame, and times a chunk's
        positions of all frames of a chunk."""
        self.closed = -1
        """The newest chunk that is closed."""
        self.last_seq = -1
        self._chunk = chunk
        self._lookahead = lookahead
        self._epoch = 0
        self._has_tree = False
        """Whether cells ever came."""
        self._is_again = False
        self._again_to = 0
        """The last frame that came without the cells that were void later."""
        self._prompt: Frame[Array] | None = None
        """Frame 0, until its chunk is closed."""
        self._end = 0
        """Positions of the prompt."""
        self._rows = Edge(edge, "", 0, 0, self._chunk_at)
        self._first = 0
        """The first position that is not closed."""
        self._floor = 0
        """The first that rows may come for: below `first` where a driver entered since."""
        self._run: list[Row] = []
        """From there on."""
        self._live: list[Row] = []
        """The tree beyond the run."""
        self._again: int | None = None
        """Up to where closed positions have come once more, as long as not all have: their rows count for nothing."""
        self._began_anew = False
        self._cut = -1
        """The last frame with a row of a closed chunk."""
        self._reach = 0
        """The first position that no row has come for."""
        self._counted: dict[int, int] = {}
        """By open chunk, and the last that is closed, the rows that came."""
        self._open: list[Came] = []
        self._settled = Settled()
        self._readings: dict[object, int] = {}
        """Of those that are under way, the last number that was read as it came."""

    def take(self, frame: Frame[Array]) -> None:
        """The edge's next frame. Its number may be greater than the next one where a driver that entered begins.

        Raises:
            BadFrame: it cannot follow those before it; the field says why, and nothing has changed.
            LinkLost: it says other numbers of live cells than those before it, or a driver that entered builds on what
                is not here: the job has to begin anew.
        """
        step = step_of(frame, self._lookahead)
        if self.last_seq < 0:
            self._begin(step, frame)
            return
        begins_anew = self._check(step, frame)
        again = is_again(frame)
        goes_on = not self._has_tree or self.last_seq == self._again_to
        if again and step.is_tree and not goes_on:
            raise LinkLost(self._rows.name, "gone with a tree of guesses that had come in part")
        kept = self._grow(step)
        self._count(step, begins_anew)
        self._open.append(self._join(step, kept, list(rows_of(frame.tensors[0])), begins_anew))
        self.last_seq, self._epoch, self._is_again = step.seq, step.epoch, again
        self._again_to = step.seq if again and goes_on else self._again_to
        self._has_tree = self._has_tree or step.is_tree
        self._began_anew = self._began_anew or begins_anew
        self._reach = max(self._reach, step.pos + (step.rows if step.parents is None else 0))

    def lacks(self, chunk: int, positions: int | None = None) -> bool:
        """Whether rows of a chunk that is closed have still to come (`positions` of it count, or all)."""
        if self._prompt is None and self.closed < 0:
            return True
        return self._first + len(self._run) < self._bound(chunk, positions)

    @property
    def is_torn(self) -> bool:
        """Whether another producer may number live cells otherwise: the last frame that came says that it does."""
        return self._is_again

    def came_in(self, chunk: int, positions: int | None = None) -> list[int]:
        """Of the next chunk, of which nothing lacks, the number of the frame that each row came in."""
        if chunk == 0:
            return [0]
        return [row.seq for row in self._run[: self._bound(chunk, positions) - self._first]]

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
            raise BadFrame("chunk", f"{chunk} is closed before all of its rows came on {self._rows.name}")
        self.closed = chunk
        self._counted.pop(chunk - 1, None)
        if chunk == 0:
            assert self._prompt is not None
            plain, self._prompt = [self._prompt], None
            self._settled.note_prompt()
            self._cut = 0
        else:
            count = self._bound(chunk, positions) - self._first
            rows, self._run = self._run[:count], self._run[count:]
            plain = [self._plain(self._first + i, chunk, row) for i, row in enumerate(rows)]
            self._first += count
            for row in rows:
                row.closed = True
            self._floor, self._cut = self._first, rows[-1].seq
        self._settle()
        return plain

    def again(self, first: int, plain: Plain) -> Iterator[Frame[Array]]:
        """The frames from number `first` on, so that they can follow those before it, as far as they have come.

        While it is read, frames behind the last that was read as it came do not settle.

        Raises:
            NotFound: `plain` lacks some of them.
            LinkLost: they are of a tree that cannot be sent so: the job has to begin anew.
        """
        reading, last = object(), first - 1
        try:
            while last < self.last_seq:
                if reading in self._readings:
                    self._readings[reading] = last
                if self._prompt is not None and last < 0:
                    frames = iter([self._prompt])
                elif last < self._settled.last:
                    if first > 0 and self._settled.has_tree(last + 1):
                        raise LinkLost(self._rows.name, "gone with a tree of guesses that was sent in part")
                    frames = settled_again(self._rows, self._settled, last + 1, plain, again=self._has_tree)
                else:
                    cut = last if first > 0 or reading in self._readings else self._cut
                    self._readings[reading] = last
                    to = max(cut, self._again_to) if self._has_tree else 0
                    frames = iter(open_again(self._rows, self._settled, self._open, self._end, cut, last, plain, to))
                for frame in frames:
                    last = frame.seq
                    yield frame
        finally:
            self._readings.pop(reading, None)

    # Inside.

    def _begin(self, step: Step, frame: Frame[Array]) -> None:
        if step.seq != 0 or step.chunk != 0:
            raise BadFrame("chunk", "the first frame is 0, of chunk 0")
        tensor = frame.tensors[0]
        self._end = self._first = self._floor = step.pos + step.rows
        self._rows.dtype, self._rows.width = tensor.dtype, tensor.shape[2]
        self._rows.nbytes = bytes_of(tensor.dtype, (1, 1, tensor.shape[2]))
        meta: Meta = {"pos": step.pos, "chunk": 0, "tokens": step.rows}
        self._prompt = Frame(self._rows.name, 0, (tensor.copied(),), meta)
        self.last_seq, self._epoch = 0, step.epoch

    def _check(self, step: Step, frame: Frame[Array]) -> bool:
        """Whether the numbers begin anew with this frame. Raises BadFrame, LinkLost."""
        begins_anew = step.seq > self.last_seq + 1
        tensor = frame.tensors[0]
        if step.seq <= self.last_seq or (begins_anew and self._began_anew):
            raise BadFrame("seq", f"{step.seq} after {self.last_seq}")
        if (tensor.dtype, tensor.shape[2]) != (self._rows.dtype, self._rows.width):
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
        floor = self._first - self._chunk if begins_anew else self._floor
        if begins_anew and not floor <= step.pos <= length:
            raise LinkLost(self._rows.name, "gone with what the driver builds on that entered")
        if step.rows and step.pos > length:
            raise BadFrame("pos", f"{step.pos}, the run has {length}")
        if step.keep and step.pos != length:
            raise BadFrame("pos", f"{step.pos}, with what is kept the run has {length}")
        if step.pos < floor or (step.pos < self._first and step.is_tree):
            raise BadFrame(CLOSED, f"{step.pos} is of a chunk that is closed")
        if step.pos >= self._first + AHEAD_CHUNKS * self._chunk + DEPTH * self._lookahead:
            raise BadFrame("pos", f"{step.pos}, and {self._first} is not closed")
        return begins_anew

    def _grow(self, step: Step) -> list[Row]:
        """Check the places of a tree; the cells that are kept. Raises BadFrame."""
        kept = way(self._live, step.keep)
        if step.parents is not None:
            check_grown([] if self._drops(step) else left(self._live, kept), step.parents, self._lookahead)
        return kept

    def _count(self, step: Step, begins_anew: bool) -> None:
        """Raises BadFrame: more rows than a chunk may have."""
        rows = max(step.rows, 1) + (0 if begins_anew else self._counted.get(step.chunk, 0))
        if rows > self._lookahead * self._chunk + SLACK_ROWS:
            raise BadFrame("lookahead", f"more than {self._lookahead} rows for each position of chunk {step.chunk}")
        if begins_anew:  # by another driver, which does not know what the one before it has used up
            self._counted.clear()
        self._counted[step.chunk] = rows

    def _join(self, step: Step, kept: list[Row], data: list[bytes], begins_anew: bool) -> Came:
        drops, again, came = self._drops(step), self._length, Came(step, [], kept)
        stays = left(self._live, kept)
        self._void(set(self._live).difference(stays, kept), step.seq)
        self._run += kept
        for row in kept:
            row.in_run = True
        self._live = stays
        if drops or (step.rows and step.parents is None):
            self._void({*self._run[max(0, step.pos - self._first) :], *self._live}, step.seq)
            del self._run[max(0, step.pos - self._first) :]
            self._live = []
        if begins_anew:
            self._floor = self._first - self._chunk
        if step.pos < self._first:
            self._again = min(step.pos, again)
        if step.parents is not None:
            came.rows = grown(step, self._live, data)
            self._live = [*self._live, *came.rows]
            return came
        for one in data:
            if self._again is not None:
                came.rows.append(Row(step.seq, None, in_run=True, closed=True))
                came.repeated += 1
                self._again = self._again + 1 if self._again + 1 < self._first else None
            else:
                came.rows.append(Row(step.seq, one, in_run=True))
                self._run.append(came.rows[-1])
        return came

    @staticmethod
    def _void(rows: set[Row], seq: int) -> None:
        for row in rows:
            row.void(seq)

    def _drops(self, step: Step) -> bool:
        """Whether a frame leaves nothing of the tree: it rewinds, or what it voids others may have left out."""
        return not step.keep and (step.pos < self._length or step.epoch > self._epoch)

    def _settle(self) -> None:
        """Of frames whose rows are all closed, or were void at the cut, keep the numbers only."""
        done, last = 0, min(self._cut, *self._readings.values()) if self._readings else self._cut
        for came in self._open:
            if came.step.seq > last or not all(row.closed or row.was_void(self._cut) for row in came.rows):
                break
            self._settled.note(came, self._end)
            done += 1
        del self._open[:done]

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

    def _plain(self, pos: int, chunk: int, row: Row) -> Frame[Array]:
        meta: Meta = {"pos": pos, "chunk": chunk, "tokens": 1}
        assert row.data is not None
        array = Array(self._rows.dtype, (1, 1, self._rows.width), row.data)
        return Frame(self._rows.name, pos - self._end + 1, (array,), meta)
