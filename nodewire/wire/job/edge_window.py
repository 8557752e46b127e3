"""The two ends of an edge, without I/O: what has come and what may still come; what has gone and what goes next.

Counts are of frames' costs since both ends began to count: when the job began, or when the link between them was made
again. Then the consumer says from which frame on it lacks (`resume`), and the producer sends nothing before it has
heard that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadFrame, TooLarge
from nodewire.wire.framing.headers import FRAME_COST_BYTES, DataHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nodewire.protocol.tensors.frame import Array, Frame

INITIAL_WINDOW_BYTES = 2**20
WINDOW_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Route:
    """Who sends and who receives on an edge (public keys, 64 hex digits)."""

    producer: str
    consumer: str


class Tape(Protocol):
    """Where a mailbox keeps what it puts, and takes it from to send it again: a `wire.evidence.spool.Spool`, say."""

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None: ...

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]: ...


@dataclass(slots=True)
class IncomingEdge:
    """An edge that leads here."""

    edge: str
    producer: str
    limit: int
    """Of one frame, in bytes."""
    anew: bool = False
    """The producer may not know what is lacking here, and is told."""
    next_seq: int = 0
    under_way: DataHeader | None = None
    received: int = 0
    taken: int = 0
    """By `get`; below zero while frames from before the counts began are unread."""
    unread: int = 0
    granted: int = INITIAL_WINDOW_BYTES
    window: int = 0

    def __post_init__(self) -> None:
        # Twice the largest frame: a grant may lag by a quarter of the window, and a frame must still fit.
        self.window = max(WINDOW_BYTES, 2 * (self.limit + FRAME_COST_BYTES))

    def admit(self, header: DataHeader) -> None:
        """A frame begins. Raises BadFrame, TooLarge: it is not the next one, or more than was granted."""
        if self.under_way is not None or header.seq != self.next_seq:
            raise BadFrame("seq", f"{header.seq}, {self.next_seq} is next on {self.edge}")
        if header.nbytes > self.limit:
            raise TooLarge("frame", f"{header.nbytes} bytes, at most {self.limit} on {self.edge}")
        received = self.received + header.cost
        if received > self.granted:
            raise BadFrame("window", "more than was granted")
        self.received = received
        self.next_seq = header.seq + 1
        self.under_way = header

    def end(self, header: DataHeader) -> bool:
        """A frame that was admitted is complete; False if the edge has begun to count anew meanwhile."""
        is_current = self.under_way is header
        if is_current:
            self.under_way = None
        return is_current

    @property
    def lacking(self) -> int | None:
        """The frame from which on the producer is to send; None if it knows."""
        return self.next_seq if self.anew and not self.received else None

    def consume(self, cost: int) -> int | None:
        """A frame has been read: the limit up to which more is granted now, if that is worth a message."""
        self.unread -= cost
        self.taken += cost
        limit = self.taken + self.window
        if limit - self.granted < self.window // 4:
            return None
        self.granted = limit
        return limit

    def restart(self) -> None:
        """Count anew; what came whole stays."""
        if self.under_way is not None:
            self.under_way = None
            self.next_seq -= 1
        self.anew = True
        self.received = 0
        self.taken = -self.unread
        self.granted = max(INITIAL_WINDOW_BYTES, self.taken + self.window)


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class Window:
    """The consumer of an edge: which frame it gets next, and how much it has granted."""

    consumer: str
    next_seq: int | None = 0
    """None until the consumer has said what it lacks."""
    sent: int = 0
    limit: int = INITIAL_WINDOW_BYTES
    changed: Callable[[], None] = field(default=_nothing, repr=False)
    """Called when more may be sent, or nothing of what was begun."""

    def lacks(self, seq: int) -> bool:
        return self.next_seq is None or self.next_seq <= seq

    def fits(self, cost: int) -> bool:
        return self.sent + cost <= self.limit

    def send(self, seq: int, cost: int) -> None:
        """The frame `seq` goes out."""
        self.sent += cost
        self.next_seq = seq + 1

    def grant(self, limit: int) -> None:
        """The consumer has granted so much in all; what was granted before the counts began is no more."""
        if self.next_seq is not None and limit > self.limit:
            self.limit = limit
            self.changed()

    def pause(self) -> None:
        """The consumer is out of reach: what it has of what was sent is unknown."""
        self.next_seq = None
        self.sent, self.limit = 0, INITIAL_WINDOW_BYTES
        self.changed()

    def resume(self, seq: int) -> bool:
        """The consumer has all frames before `seq`; whether this was waited for."""
        if self.next_seq is not None:
            return False
        self.next_seq = seq
        self.changed()
        return True


@dataclass(slots=True)
class OutgoingEdge:
    """An edge on which this node produces."""

    edge: str
    limit: int
    window: Window
    next_seq: int = 0
