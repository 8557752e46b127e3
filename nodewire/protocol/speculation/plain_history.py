"""An edge's guessed frames as plain ones: what would have come if the driver had never guessed. nips/13-speculation.md.

What is committed to, signed, kept and verified is plain: frame 0 as it came, then a frame for every position, with seq
pos - P + 1 behind a prompt that ends at P. A position's row is the last that came for it, or in a tree the one that was
kept; it is final when the driver has closed its chunk. Only rows of open chunks are held in memory.
"""

from __future__ import annotations

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import AHEAD_CHUNKS, DEPTH, Step, most_rows, rows_of, step_of
from nodewire.protocol.speculation.tree import Row, check_grown, grown, remaining_rows, way
from nodewire.protocol.tensors.frame import Array, Frame, Meta

CLOSED = "closed"
"""The field of the error about a frame that comes for what the driver has said is over."""


class History:
    """One edge between tasks. Give it every frame in order (`append`), and every chunk that is closed (`close`)."""

    def __init__(self, edge: str, *, chunk: int, lookahead: int) -> None:
        """`chunk` is the positions of one, and `lookahead` the plan's.

        At most so many rows are in a frame, and times a chunk's positions in all frames of a chunk.
        """
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
        self._dtype, self._width = "", 0
        self._first = 0
        """The first position that is not closed."""
        self._run: list[Row] = []
        """From there on."""
        self._live: list[Row] = []
        """The tree beyond the run."""
        self._reach = 0
        """The first position that no row has come for."""
        self._counted: dict[int, int] = {}
        """By open chunk, and the last that is closed, the rows that came."""

    def append(self, frame: Frame[Array]) -> None:
        """The edge's next frame.

        Raises:
            BadFrame: it cannot follow those before it; the field says why, and nothing has changed.

        """
        step = step_of(frame, self._lookahead)
        if self.last_seq < 0:
            self._begin(step, frame)
            return
        self._check(step, frame)
        kept = way(self._live, step.keep)
        if step.parents is not None:
            check_grown([] if self._drops(step) else remaining_rows(self._live, kept), step.parents, self._lookahead)
        rows = max(step.rows, 1) + self._counted.get(step.chunk, 0)
        if rows > most_rows(self._chunk, self._lookahead):
            raise BadFrame("lookahead", f"more than {self._lookahead} rows for each position of chunk {step.chunk}")
        self._counted[step.chunk] = rows
        self._join(step, kept, list(rows_of(frame.tensors[0])))
        self.last_seq, self._epoch = step.seq, step.epoch
        self._reach = max(self._reach, step.pos + (step.rows if step.parents is None else 0))

    def lacks(self, chunk: int, positions: int | None = None) -> bool:
        """Whether rows of a chunk that is closed have still to come (`positions` of it count, or all)."""
        if self._prompt is None and self.closed < 0:
            return True
        return self._length < self._bound(chunk, positions)

    def came_in(self, chunk: int, positions: int | None = None) -> list[int]:
        """Of the next chunk, of which nothing lacks, the number of the frame that each row came in."""
        if chunk == 0:
            return [0]
        return [row.seq for row in self._run[: self._bound(chunk, positions) - self._first]]

    def is_past(self, chunk: int) -> bool:
        """Whether what came says that a chunk was accepted, though the driver has not closed it.

        Nobody guesses so far ahead (of chunk 0, that anything came after it).
        """
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
            return plain
        count = self._bound(chunk, positions) - self._first
        rows, self._run = self._run[:count], self._run[count:]
        plain = [self._plain(self._first + i, chunk, row) for i, row in enumerate(rows)]
        self._first += count
        return plain

    # Inside.

    def _begin(self, step: Step, frame: Frame[Array]) -> None:
        if step.seq != 0 or step.chunk != 0:
            raise BadFrame("chunk", "the first frame is 0, of chunk 0")
        tensor = frame.tensors[0]
        self._end = self._first = step.pos + step.rows
        self._dtype, self._width = tensor.dtype, tensor.shape[2]
        meta: Meta = {"pos": step.pos, "chunk": 0, "tokens": step.rows}
        self._prompt = Frame(self._edge, 0, (tensor.copied(),), meta)
        self.last_seq, self._epoch = 0, step.epoch

    def _check(self, step: Step, frame: Frame[Array]) -> None:
        """Raises BadFrame."""
        tensor = frame.tensors[0]
        if step.seq != self.last_seq + 1:
            raise BadFrame("seq", f"{step.seq} after {self.last_seq}")
        if (tensor.dtype, tensor.shape[2]) != (self._dtype, self._width):
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
        if step.pos < self._first:
            raise BadFrame(CLOSED, f"{step.pos} is of a chunk that is closed")
        if step.pos >= self._first + AHEAD_CHUNKS * self._chunk + DEPTH * self._lookahead:
            raise BadFrame("pos", f"{step.pos}, and {self._first} is not closed")

    def _join(self, step: Step, kept: list[Row], data: list[bytes]) -> None:
        drops = self._drops(step)
        self._live = remaining_rows(self._live, kept)
        for row in kept:
            row.join()
        self._run += kept
        if drops or (step.rows and step.parents is None):
            del self._run[max(0, step.pos - self._first) :]
            self._live = []
        if step.parents is not None:
            self._live = [*self._live, *grown(step, self._live, data)]
        else:
            self._run += [Row(step.seq, one, in_run=True) for one in data]

    def _drops(self, step: Step) -> bool:
        """Whether a frame leaves nothing of the tree: it rewinds, or what it voids others may have left out."""
        return not step.keep and (step.pos < self._length or step.epoch > self._epoch)

    @property
    def _length(self) -> int:
        """Where the run ends."""
        return self._first + len(self._run)

    def _chunk_at(self, pos: int) -> int:
        return 1 + (pos - self._end) // self._chunk

    def _bound(self, chunk: int, positions: int | None) -> int:
        """The first position behind a chunk."""
        if chunk == 0:
            return self._end
        return self._end + (chunk - 1) * self._chunk + (self._chunk if positions is None else positions)

    def _plain(self, pos: int, chunk: int, row: Row) -> Frame[Array]:
        meta: Meta = {"pos": pos, "chunk": chunk, "tokens": 1}
        array = Array(self._dtype, (1, 1, self._width), row.data)
        return Frame(self._edge, pos - self._end + 1, (array,), meta)
