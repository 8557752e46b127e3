"""A generation's tape: what comes and goes is kept as plain history.

It stands in front of a tape that keeps frames by their numbers (a spool, say). That gets the plain frames of a chunk
when it is closed (`protocol.speculation.plain_history`). A chunk is closed at this node when its driver has signed that
and no edge of the node's tasks lacks a row of it, whichever comes later. Of the guesses themselves the newest are in
memory as they went out, for a consumer whose link was made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, LinkLost
from nodewire.protocol.job.frame_refusal import driven
from nodewire.protocol.speculation.plain_history import CLOSED, History
from nodewire.protocol.tensors.frame import Array, Frame

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.wire.job.edge_window import Tape

MAX_AHEAD = 1_024
"""Chunks that a driver may sign before their rows are here, as to a node that still computes what came before."""

MAX_SENT_BYTES = 4 * 2**20
"""Of an edge's frames that are held as they went out; the newest is, however large."""

OnPlain = Callable[[str, int, Frame[Array]], None]
"""Told edge, chunk and frame of what is final."""


class GenerationTape:
    """Of one job. Edges from and to the customer, whose frames are no guesses, go straight to the tape."""

    def __init__(self, tape: Tape, request: str, manifest: Manifest, lookahead: int) -> None:
        self._tape = tape
        self._request = request
        self._manifest = manifest
        self._lookahead = lookahead
        self.inner = frozenset(edge.name for edge in manifest.inner_edges)
        """The edges between tasks."""
        self._histories: dict[str, History] = {}
        self._sent: dict[str, _SentFrames] = {}
        self._edges: Collection[str] = ()
        self._plain: OnPlain = lambda edge, chunk, frame: None
        self._closed: Callable[[int], None] = lambda chunk: None
        self._signed: dict[int, int | None] = {}
        """Chunks that are signed and not closed: how many of their positions count."""

    def attend(
        self, edges: Collection[str], plain: OnPlain, closed: Callable[[int], None] = lambda chunk: None
    ) -> None:
        """`edges`: those of the tasks that this node has; `plain` and `closed` are told what is final."""
        self._edges = [edge.name for edge in self._manifest.edges if edge.name in edges]
        self._plain, self._closed = plain, closed

    # The tape (`wire.job.edge_window.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """A frame goes out. Raises as `record_frame`, and as the tape's."""
        if edge not in self.inner:
            self._tape.write(request, edge, attempt, frame)
            return
        self._sent.setdefault(edge, _SentFrames(edge)).add(frame)
        self.record_frame(edge, frame)

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        """(attempt, frame) from number `first` on; of an inner edge what this node put out.

        Raises LinkLost: guesses from `first` on are not held any more; and as the tape's.
        """
        if edge not in self.inner:
            return self._tape.read(request, edge, first)
        sent = self._sent.get(edge)
        return ((0, frame) for frame in sent.since(first)) if sent is not None else iter(())

    # What the job tells.

    def record_frame(self, edge: str, frame: Frame[Array]) -> None:
        """A frame has come, or goes out, on an inner edge.

        Raises BadFrame, naming the edge, or one of the driver's if it is of a chunk that this has closed.
        """
        history = self._histories.get(edge)
        if history is None:
            history = History(edge, chunk=self._manifest.chunk, lookahead=self._lookahead)
        elif frame.seq <= history.last_seq:
            return  # both ends of the edge are here
        try:
            history.append(frame)
        except BadFrame as error:
            named = driven(self._manifest) if error.field == CLOSED else edge
            raise BadFrame(named, str(error)) from error
        self._histories[edge] = history
        self._advance()

    def check(self, chunk: int) -> None:
        """Raises BadFrame: much too early to close this chunk."""
        newest = max((history.closed for history in self._histories.values()), default=0)
        if chunk >= newest + MAX_AHEAD:
            raise BadFrame("chunk", f"{chunk} is closed, {newest} is the newest here")

    def on_signed(self, chunk: int, positions: int | None = None) -> None:
        """The driver has signed that a chunk is over, of which `positions` count, or all."""
        self._signed[chunk] = positions
        self._advance()

    def is_past(self, chunk: int) -> bool:
        """Whether a chunk is whole here, and the driver must have accepted it, which it has not signed."""
        found = [self._histories.get(edge) for edge in self._edges]
        histories = [one for one in found if one is not None]
        return (
            len(histories) == len(found)
            and not any(one.closed < chunk and one.lacks(chunk) for one in histories)
            and any(one.is_past(chunk) for one in histories)
        )

    # Inside.

    def _advance(self) -> None:
        """Close what can be, the oldest chunk first. Raises BadFrame, naming an edge of the driver's."""
        while self._close_next():
            pass

    def _close_next(self) -> bool:
        edges = self._edges
        histories = [self._histories.get(edge) for edge in edges]
        oldest = 1 + min((one.closed if one is not None else -1 for one in histories), default=self._newest)
        self._tell(oldest)
        if not edges or oldest > self._newest:
            return False
        positions = self._signed.get(oldest)
        found = zip(edges, histories, strict=True)
        closing = [(edge, one) for edge, one in found if one is None or one.closed < oldest]
        lacking = [one is None or one.lacks(oldest, positions) for _, one in closing]
        if any(lacking):
            return False
        self._check_same([one for _, one in closing if one is not None], oldest, positions)
        for edge, one in closing:
            assert one is not None
            for frame in one.close(oldest, positions):
                self._tape.write(self._request, edge, 0, frame)
                self._plain(edge, oldest, frame)
        return True

    @property
    def _newest(self) -> int:
        """The newest chunk that is signed."""
        return max(self._signed, default=-1)

    def _tell(self, oldest: int) -> None:
        """Of the signed chunks, tell those before `oldest`: they are closed."""
        for chunk in sorted(chunk for chunk in self._signed if chunk < oldest):
            del self._signed[chunk]
            self._closed(chunk)

    def _check_same(self, histories: list[History], chunk: int, positions: int | None) -> None:
        """That a chunk's rows came of the same frames on all edges; if not, one is under way that makes some void.

        Raises:
            BadFrame: that follows the driver's word that they count.

        """
        numbers = [one.came_in(chunk, positions) for one in histories]
        if all(one == numbers[0] for one in numbers):
            return
        raise BadFrame(driven(self._manifest), f"makes rows of chunk {chunk} void, which the driver has closed")


class _SentFrames:
    """The newest frames of an edge, as they went out."""

    def __init__(self, edge: str) -> None:
        self._edge = edge
        self._frames: deque[Frame[Array]] = deque()
        self._bytes = 0

    def add(self, frame: Frame[Array]) -> None:
        copied = Frame(frame.edge, frame.seq, tuple(array.copied() for array in frame.tensors), frame.meta)
        self._frames.append(copied)
        self._bytes += _bytes_of(copied)
        while self._bytes > MAX_SENT_BYTES and len(self._frames) > 1:
            self._bytes -= _bytes_of(self._frames.popleft())

    def since(self, first: int) -> list[Frame[Array]]:
        """Those from number `first` on. Raises LinkLost."""
        if self._frames and self._frames[0].seq > first:
            raise LinkLost(self._edge, f"gone with guesses from frame {first} on, which nobody holds any more")
        return [frame for frame in self._frames if frame.seq >= first]


def _bytes_of(frame: Frame[Array]) -> int:
    return sum(array.nbytes for array in frame.tensors)
