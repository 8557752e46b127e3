"""Frames over which guesses travel: what their meta says, and what may not be. nips/13-speculation.md.

A driver that guesses sends rows before it knows that they are right, in frames of at most the plan's `lookahead` rows:

    pos      the position of the first row, or (trees) the length of the run that its rows build on; a smaller one than
             before rewinds
    epoch    raised whenever something that was sent is void: what has a lower one, and lies behind, may stay uncomputed
    parents  trees: int16 per row, which of the live cells a row follows, -1 the run's end
    keep     trees: int16, which live cells, root first, join the run before this frame's rows

A frame without rows that keeps nothing stands for one that was void before it was computed: it rewinds as that did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame
from nodewire.protocol.tensors.frame import Array, Frame, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_LOOKAHEAD = 256
SLACK_ROWS = 64
DEPTH = 2
"""Times a plan's `lookahead`, how many positions a driver's guesses may be ahead of what it has accepted."""
AHEAD_CHUNKS = 4
"""So many chunks from the first open one on, and that, may have rows: nobody computes further ahead of its pay."""
_MAX = 2**53


@dataclass(frozen=True, slots=True)
class Step:
    """What a frame says of its rows. `parents` is None for a chain, whose rows join the run at once."""

    seq: int
    pos: int
    rows: int
    chunk: int
    epoch: int = 0
    parents: tuple[int, ...] | None = None
    keep: tuple[int, ...] = ()

    def answers(self, sent: Step) -> bool:
        """Whether this may come back for what a driver sent: the same, of a prompt its last position, or no rows."""
        if sent.seq == 0:
            return self == replace(sent, pos=sent.pos + sent.rows - 1, rows=1)
        return self == sent or (not sent.keep and self == replace(sent, rows=0, parents=None))


def step_of(frame: Frame[Array], lookahead: int) -> Step:
    """What a frame of hidden states says, checked as far as that goes without those before it.

    Raises:
        BadFrame: something is lacking, of another type or shape, or more than `lookahead` rows; the field says what.

    """
    shape = frame.tensors[0].shape if len(frame.tensors) == 1 else ()
    if len(shape) != 3 or shape[0] != 1:
        raise BadFrame("shape", "not one tensor [1, n, width]")
    rows, pos, chunk, epoch = shape[1], _count(frame, "pos"), _count(frame, "chunk"), _count(frame, "epoch", 0)
    parents, keep = _cells(frame, "parents"), _cells(frame, "keep")
    if _count(frame, "tokens", rows) != rows:
        raise BadFrame("tokens", f"not {rows}, as many as there are rows")
    if frame.seq == 0:
        if not rows or parents is not None or keep is not None:
            raise BadFrame("rows", "the first frame is a prompt")
    elif rows > lookahead:
        raise BadFrame("rows", f"{rows} in frame {frame.seq}, at most {lookahead}")
    if parents is not None and len(parents) != rows:
        raise BadFrame("parents", f"{len(parents)} of {rows} rows")
    if keep == ():
        raise BadFrame("keep", "no cells")
    return Step(frame.seq, pos, rows, chunk, epoch, parents if rows else None, keep or ())


class Fences:
    """The frames that wait on one edge, as far as they make others void.

    Here they have not been checked; who passed them on has. A driver may mean ill all the same, and what is left when
    some are not computed must fit together: so only the first of an epoch makes anything void, as one that rewinds is,
    and nothing that stands before a `keep`, which may be of it.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, int]] = deque()
        """Numbers, epochs and positions. Between two keeps all are rising: what is behind a lower position rewinds
        nothing that this does not."""
        self._keeps: deque[int] = deque()
        """The numbers of frames with one."""
        self._epoch = 0
        """The newest that has been noted."""

    def note(self, frame: Frame[Array]) -> None:
        """A frame waits behind all others."""
        if frame.meta.get("keep") is not None:
            self._keeps.append(frame.seq)
        epoch, pos = frame.meta.get("epoch", 0), frame.meta.get("pos")
        if type(epoch) is not int or type(pos) is not int or epoch <= self._epoch:
            return
        self._epoch = epoch
        begin = self._keeps[-1] if self._keeps else -1
        while self._waiting and self._waiting[-1][0] > begin and self._waiting[-1][2] >= pos:
            self._waiting.pop()
        self._waiting.append((frame.seq, epoch, pos))

    def void(self, frame: Frame[Array]) -> bool:
        """Whether what waits behind `frame` makes it void."""
        epoch, pos = frame.meta.get("epoch", 0), frame.meta.get("pos")
        if type(epoch) is not int or type(pos) is not int:
            return False
        while self._keeps and self._keeps[0] <= frame.seq:
            self._keeps.popleft()
        while self._waiting and (self._waiting[0][0] <= frame.seq or self._waiting[0][1] <= epoch):
            self._waiting.popleft()
        if frame.seq == 0 or frame.meta.get("keep") is not None or not self._waiting:
            return False
        number, _, before = self._waiting[0]
        return before <= pos and not (self._keeps and self._keeps[0] <= number)


def most_rows(chunk: int, lookahead: int) -> int:
    """Rows that may come for a chunk of so many positions, frames without rows counted as one."""
    return lookahead * chunk + (SLACK_ROWS if lookahead > 1 else 0)


def is_computed(frame: Frame[Array]) -> bool:
    """Whether a frame is one to compute: it has rows, or keeps some that came before."""
    return any(array.nbytes for array in frame.tensors) or frame.meta.get("keep") is not None


def without_rows(edge: str, frame: Frame[Array], dtype: str, width: int) -> Frame[Array]:
    """What goes out on `edge`, whose rows are `dtype` [width], for a frame that is void: nothing is computed for it."""
    meta = {name: frame.meta[name] for name in ("pos", "chunk", "epoch") if name in frame.meta}
    return Frame(edge, frame.seq, (Array(dtype, (1, 0, width), b""),), {**meta, "tokens": 0})


def _count(frame: Frame[Array], name: str, default: int | None = None) -> int:
    value = frame.meta.get(name, default)
    if type(value) is not int or not 0 <= value < _MAX:
        raise BadFrame(name, "missing, or not a non-negative integer")
    return value


def _cells(frame: Frame[Array], name: str) -> tuple[int, ...] | None:
    """Numbers of cells, little-endian int16; None if the frame says none."""
    packed = frame.meta.get(name)
    if packed is None:
        return None
    if not isinstance(packed, bytes) or len(packed) % 2:
        raise BadFrame(name, "not int16 numbers")
    return tuple(int.from_bytes(packed[i : i + 2], "little", signed=True) for i in range(0, len(packed), 2))


def rows_of(tensor: Array) -> Iterator[bytes]:
    """Copies of the rows of a tensor [1, n, width]."""
    step = bytes_of(tensor.dtype, (1, 1, tensor.shape[2]))
    view = memoryview(tensor.data)
    return (bytes(view[i * step : (i + 1) * step]) for i in range(tensor.shape[1]))


def packed(cells: Sequence[int]) -> bytes:
    """Numbers of cells as `parents` and `keep` have them."""
    return b"".join(cell.to_bytes(2, "little", signed=True) for cell in cells)
