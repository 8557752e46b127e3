"""A job's tape where its driver guesses: what comes and goes is kept as plain history, and sent again out of that.

It stands in front of a tape that keeps frames by their numbers (a spool, say). That gets the plain frames of a chunk
when it is closed (`protocol.history`); what is written or taken before that is in memory. A chunk is closed at this
node when its driver has said so and no edge of the node's tasks lacks a row of it, whichever comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from nodewire.errors import BadFrame
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.history import History
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import Plan
from nodewire.protocol.takeover import Takeover
from nodewire.wire.edges import Tape

MAX_AHEAD = 1_024
"""Chunks that a driver may close before their rows are here, as to a node that still computes what came before."""

OnPlain = Callable[[str, int, Frame[Array]], None]
"""Told edge, chunk and frame of what is final."""


class Record:
    """Of one job. Edges from and to the customer, whose frames are no guesses, go straight to the tape."""

    def __init__(self, tape: Tape, request: str, manifest: Manifest, lookahead: int) -> None:
        self._tape = tape
        self._request = request
        self._manifest = manifest
        self._lookahead = lookahead
        self.inner = inner_edges(manifest)
        """The edges between tasks."""
        self._histories: dict[str, History] = {}
        self._attempts: dict[str, int] = {}
        """By edge, of the frame that came last."""
        self._edges: Callable[[], Collection[str]] = lambda: ()
        self._plain: OnPlain = lambda edge, chunk, frame: None
        self._closed: Callable[[int], None] = lambda chunk: None
        self._wanted: dict[int, int | None] = {}
        """Chunks that the driver has closed: how many of their positions count."""
        self._before = 0
        """Those below are closed, whoever heard it."""

    def attend(
        self, edges: Callable[[], Collection[str]], plain: OnPlain, closed: Callable[[int], None] = lambda chunk: None
    ) -> None:
        """`edges`: those of the tasks that this node has now; `plain` and `closed` are told what is final."""
        self._edges, self._plain, self._closed = edges, plain, closed

    # The tape (`wire.edges.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """A frame goes out. Raises BadFrame, and as the tape's."""
        if edge in self.inner:
            self.came(edge, attempt, frame)
        else:
            self._tape.write(request, edge, attempt, frame)

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        """(attempt, frame) from number `first` on, without rows that are void. Raises NotFound, and as the tape's."""
        history = self._histories.get(edge)
        if edge not in self.inner:
            yield from self._tape.read(request, edge, first)
        elif history is not None:
            for frame in history.again(first, lambda seq: (one for _, one in self._tape.read(request, edge, seq))):
                yield self._attempts[edge], frame

    # What the job tells.

    def came(self, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """A frame has come on an inner edge, or goes out on one. Raises BadFrame, naming the edge."""
        history = self._histories.get(edge)
        if history is None:
            history = History(edge, chunk=self._manifest.chunk, lookahead=self._lookahead)
        elif frame.seq <= history.last_seq:
            return  # both ends of the edge are here
        try:
            history.take(frame)
        except BadFrame as error:
            raise BadFrame(edge, str(error)) from error
        self._histories[edge], self._attempts[edge] = history, attempt
        while history.closed + 1 < self._before and not history.lacks(history.closed + 1):
            self._close(edge, history, None)
        self._advance()

    def check(self, chunk: int) -> None:
        """Raises BadFrame: much too early to close this chunk."""
        newest = max((history.closed for history in self._histories.values()), default=0)
        if chunk >= newest + MAX_AHEAD:
            raise BadFrame("chunk", f"{chunk} is closed, {newest} is the newest here")

    def close(self, chunk: int, positions: int | None = None) -> None:
        """The driver says that a chunk is over, of which `positions` count, or all."""
        self._wanted[chunk] = positions
        self._advance()

    def closed_before(self, chunk: int) -> None:
        """By a takeover, all chunks before `chunk` are closed."""
        self._before = max(self._before, chunk)
        for edge, history in self._histories.items():
            while history.closed + 1 < self._before and not history.lacks(history.closed + 1):
                self._close(edge, history, None)

    # Inside.

    def _advance(self) -> None:
        """Close what can be, the oldest chunk first."""
        while self._wanted:
            chunk = min(self._wanted)
            positions, edges = self._wanted[chunk], self._edges()
            if any(self._lacks(edge, chunk, positions) for edge in edges):
                return
            del self._wanted[chunk]
            for edge in self._manifest_order(edges):
                history = self._histories[edge]
                while history.closed < chunk:
                    self._close(edge, history, positions if history.closed + 1 == chunk else None)
            self._closed(chunk)

    def _lacks(self, edge: str, chunk: int, positions: int | None) -> bool:
        history = self._histories.get(edge)
        return history is None or (history.closed < chunk and history.lacks(chunk, positions))

    def _manifest_order(self, edges: Collection[str]) -> list[str]:
        return [edge.name for edge in self._manifest.edges if edge.name in edges]

    def _close(self, edge: str, history: History, positions: int | None) -> None:
        chunk = history.closed + 1
        for frame in history.close(chunk, positions):
            self._tape.write(self._request, edge, self._attempts[edge], frame)
            self._plain(edge, chunk, frame)


def restarted(manifest: Manifest, plan: Plan, takeover: Takeover | None) -> frozenset[str]:
    """The edges on which numbers begin anew, since a driver that may guess was replaced."""
    replaced = takeover.replaced if takeover is not None else ()
    is_so = plan.terms.lookahead > 1 and any(task == manifest.driver.name for task, *_ in replaced)
    return inner_edges(manifest) if is_so else frozenset()


def inner_edges(manifest: Manifest) -> frozenset[str]:
    """The edges between tasks: those over which guesses travel."""
    return frozenset(edge.name for edge in manifest.edges if CUSTOMER not in (edge.source, edge.target))
