"""A job's tape where its driver guesses: what comes and goes is kept as plain history, and sent again out of that.

It stands in front of a tape that keeps frames by their numbers (a spool, say). That gets the plain frames of a chunk
when it is closed (`protocol.history`); what is written or taken before that is in memory. A chunk is closed at this
node when its driver has said so and no edge of the node's tasks lacks a row of it, whichever comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from nodewire.errors import BadFrame, LinkLost
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.history import CLOSED, History
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import Plan
from nodewire.protocol.refusal import driven
from nodewire.protocol.takeover import Takeover
from nodewire.wire.edges import RESTART, Tape

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
        self._made: dict[str, bool] = {}
        """By edge, whether its history is that of what this node puts out, and not of what comes to it. Where both ends
        are here one is enough, and a driver that entered counts what came before it in another way."""
        self._edges: Callable[[], Collection[str]] = lambda: ()
        self._plain: OnPlain = lambda edge, chunk, frame: None
        self._closed: Callable[[int], None] = lambda chunk: None
        self._wanted: dict[int, int | None] = {}
        """Chunks that the driver has closed: how many of their positions count."""
        self._before = 0
        """Those below are closed, whoever heard it."""
        self._restarted = False

    def attend(
        self, edges: Callable[[], Collection[str]], plain: OnPlain, closed: Callable[[int], None] = lambda chunk: None
    ) -> None:
        """`edges`: those of the tasks that this node has now; `plain` and `closed` are told what is final."""
        self._edges, self._plain, self._closed = edges, plain, closed

    # The tape (`wire.edges.Tape`).

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """A frame goes out. Raises as `came`, and as the tape's."""
        if edge not in self.inner:
            self._tape.write(request, edge, attempt, frame)
        elif self._made.setdefault(edge, True):
            self._take(edge, attempt, frame)

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
        """A frame has come on an inner edge. Raises BadFrame, naming the edge, or one of the driver's if it is of a
        chunk that this has closed; LinkLost: if that was replaced since, and as History.take."""
        if not self._made.setdefault(edge, False):
            self._take(edge, attempt, frame)

    def _take(self, edge: str, attempt: int, frame: Frame[Array]) -> None:
        history = self._histories.get(edge)
        if history is None:
            history = History(edge, chunk=self._manifest.chunk, lookahead=self._lookahead)
        elif frame.seq <= history.last_seq:
            return  # sent, or made, again
        try:
            history.take(frame)
        except BadFrame as error:
            if error.field == CLOSED and self._restarted and frame.seq < RESTART:
                raise LinkLost(edge, f"gone with a driver that took back what it had closed: {error}") from error
            named = driven(self._manifest) if error.field == CLOSED else edge
            raise BadFrame(named, str(error)) from error
        self._histories[edge], self._attempts[edge] = history, attempt
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

    def took_over(self, first: int, *, restarted: bool) -> set[int]:
        """By a takeover, all chunks before `first` are closed. `restarted`: the driver was replaced, too. What the new
        one puts out of what the other had sent before has numbers of its own; edges of one node may have either.

        The chunks that the other had closed, and of which rows are lacking here: they are not closed any more. The new
        one guesses in them, and says again that they are over.
        """
        self._before = max(self._before, first)
        open_again = {chunk for chunk in self._wanted if chunk >= first} if restarted and not self._restarted else set()
        for chunk in open_again:
            del self._wanted[chunk]
        self._restarted = self._restarted or restarted
        self._advance()
        return open_again

    def torn(self, tasks: Collection[str]) -> str | None:
        """An edge from one of these tasks, whose producer has just been replaced, on which this node has a part of what
        is sent again: another producer may number cells otherwise. None if there is none."""
        sources = {edge.name for edge in self._manifest.edges if edge.source in tasks}
        found = [edge for edge in self._edges() if edge in sources and edge in self._histories]
        return next((edge for edge in found if self._histories[edge].is_torn), None)

    def is_past(self, chunk: int) -> bool:
        """Whether a chunk is complete here, and the driver must have accepted it, which it has not closed."""
        found = [self._histories.get(edge) for edge in self._edges()]
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
        edges = self._manifest_order(self._edges())
        histories = [self._histories.get(edge) for edge in edges]
        oldest = 1 + min((one.closed if one is not None else -1 for one in histories), default=self._newest)
        self._tell(oldest)
        if not edges or (oldest >= self._before and oldest > self._newest):
            return False
        positions = self._wanted.get(oldest)
        found = zip(edges, histories, strict=True)
        closing = [(edge, one) for edge, one in found if one is None or one.closed < oldest]
        lacking = [one is None or one.lacks(oldest, positions) for _, one in closing]
        if any(lacking) or not self._agree([one for _, one in closing if one is not None], oldest, positions):
            return False
        for edge, one in closing:
            assert one is not None
            for frame in one.close(oldest, positions):
                self._tape.write(self._request, edge, self._attempts[edge], frame)
                self._plain(edge, oldest, frame)
        return True

    @property
    def _newest(self) -> int:
        """The newest chunk that the driver says is over."""
        return max(self._wanted, default=-1)

    def _tell(self, oldest: int) -> None:
        """Of the chunks that the driver has closed, tell those before `oldest`."""
        for chunk in sorted(chunk for chunk in self._wanted if chunk < oldest):
            del self._wanted[chunk]
            self._closed(chunk)

    def _agree(self, histories: list[History], chunk: int, positions: int | None) -> bool:
        """Whether a chunk's rows came of the same frames on all edges; if not, one is under way that makes some void.

        Raises:
            BadFrame: that follows the driver's word that they count.
        """
        numbers = [[self._number(seq) for seq in one.came_in(chunk, positions)] for one in histories]
        if all(one == numbers[0] for one in numbers):
            return True
        if chunk > self._newest:
            return False
        raise BadFrame(driven(self._manifest), f"makes rows of chunk {chunk} void, which the driver has closed")

    def _number(self, seq: int) -> int:
        return 0 if self._restarted and seq < RESTART else seq

    def _manifest_order(self, edges: Collection[str]) -> list[str]:
        return [edge.name for edge in self._manifest.edges if edge.name in edges]


def restarted(manifest: Manifest, plan: Plan, takeover: Takeover | None) -> frozenset[str]:
    """The edges on which numbers begin anew, since a driver that may guess was replaced."""
    replaced = takeover.replaced if takeover is not None else ()
    is_so = plan.terms.lookahead > 1 and any(task == manifest.driver.name for task, *_ in replaced)
    return inner_edges(manifest) if is_so else frozenset()


def inner_edges(manifest: Manifest) -> frozenset[str]:
    """The edges between tasks: those over which guesses travel."""
    return frozenset(edge.name for edge in manifest.edges if CUSTOMER not in (edge.source, edge.target))
