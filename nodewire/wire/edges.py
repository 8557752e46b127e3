"""The two ends of an edge: what has come and what may still come; what has gone and what goes next.

Counts are of frames' costs since both ends began to count: when the job began, when one of them entered by a takeover,
or when the link between them was made again. Then the consumer says from which frame on it lacks (`resume`), and the
producer sends nothing before it has heard that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from nodewire.protocol.frame import Array, Frame
from nodewire.wire.frames import FRAME_COST_BYTES, DataHeader

INITIAL_WINDOW_BYTES = 2**20
WINDOW_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Route:
    """Who sends and who receives on an edge (public keys, 64 hex digits)."""

    producer: str
    consumers: tuple[str, ...]


class Tape(Protocol):
    """Where a mailbox keeps what it puts, and takes it from to send it again: a `wire.spool.Spool`, say."""

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None: ...

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]: ...


@dataclass(slots=True)
class Incoming:
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

    def restart(self, producer: str) -> None:
        """Count anew, with the same or another producer; what came whole stays."""
        if self.under_way is not None:
            self.under_way = None
            self.next_seq -= 1
        self.producer = producer
        self.anew = True
        self.received = 0
        self.taken = -self.unread
        self.granted = max(INITIAL_WINDOW_BYTES, self.taken + self.window)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A frame ready to be sent."""

    frame: Frame[Array]
    packed: bytes
    cost: int


@dataclass(slots=True)
class Window:
    """One consumer of an edge: which frame it gets next, and how much it has granted."""

    consumer: str
    next_seq: int | None = 0
    """None until the consumer has said what it lacks."""
    sent: int = 0
    limit: int = INITIAL_WINDOW_BYTES
    left: bool = False
    """It was replaced."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever sends to it."""
    sending: asyncio.Future[None] | None = None
    replay: Iterator[tuple[int, Frame[Array]]] | None = None
    kept: Parcel | None = None
    """From the replay, not sent yet."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def lacks(self, seq: int) -> bool:
        return self.next_seq is None or self.next_seq <= seq

    def grant(self, limit: int) -> None:
        if limit > self.limit:
            self.limit = limit
            self.wake()

    def pause(self) -> None:
        """The consumer is out of reach: what it has of what was sent is unknown."""
        self.next_seq = self.replay = self.kept = None
        self.sent, self.limit = 0, INITIAL_WINDOW_BYTES
        self.wake()

    def resume(self, seq: int) -> None:
        """The consumer has all frames before `seq`."""
        self.next_seq = seq
        self.wake()

    def leave(self) -> None:
        """The consumer was replaced; whoever sends to it stops."""
        self.left = True
        self.replay = self.kept = None
        if self.sending is not None:
            self.sending.cancel()
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    async def change(self) -> None:
        """Wait for any of the above."""
        self._changed.clear()
        await self._changed.wait()


@dataclass(slots=True)
class Outgoing:
    """An edge on which this node produces."""

    edge: str
    limit: int
    windows: dict[str, Window] = field(default_factory=dict)
    next_seq: int = 0
