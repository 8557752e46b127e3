"""What goes over a link next, without I/O: urgent frames first, then segments of the frames under way in turn.

A transfer's memory is borrowed until `finished`: a channel may keep a reference to what it has been given but not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost
from nodewire.wire.framing import frames

if TYPE_CHECKING:
    from nodewire.protocol.tensors.frame import Array
    from nodewire.wire.framing.frames import Buffer

Done = Callable[[LinkLost | None], None]


class Outbox:
    """At most MAX_STREAMS transfers are under way at once; the others wait their turn."""

    def __init__(self) -> None:
        self.urgent_bytes = 0
        self._urgent: deque[bytes] = deque()
        self._active: deque[Transfer] = deque()
        self._waiting: deque[Transfer] = deque()
        self._given: list[Transfer] = []
        self._streams = deque(range(frames.MAX_STREAMS))

    @property
    def is_empty(self) -> bool:
        return not (self._urgent or self._active or self._waiting or self._given)

    def hurry(self, frame: bytes) -> None:
        """To go before all segments."""
        self._urgent.append(frame)
        self.urgent_bytes += len(frame)

    def add(self, transfer: Transfer) -> None:
        self._waiting.append(transfer)

    def next_write(self) -> list[Buffer] | None:
        """What to write now; None if there is nothing."""
        if self._urgent:
            joined = b"".join(self._urgent)
            self._urgent.clear()
            self.urgent_bytes = 0
            return [joined]
        while self._waiting and self._streams:
            transfer = self._waiting.popleft()
            transfer.begin(self._streams.popleft())
            self._active.append(transfer)
        if not self._active:
            return None
        transfer = self._active.popleft()
        segment = transfer.next_segment()
        if transfer.is_given:
            self._streams.append(transfer.stream)
            self._given.append(transfer)
        else:
            self._active.append(transfer)
        return segment

    def written(self) -> None:
        """The channel holds nothing any more of what it was given."""
        given, self._given = self._given, []
        for transfer in given:
            transfer.finish(None)

    def fail(self, error: LinkLost) -> None:
        """The link has ended."""
        for transfer in (*self._given, *self._active, *self._waiting):
            transfer.finish(error)
        for queue in (self._urgent, self._active, self._waiting):
            queue.clear()
        self._given.clear()


class Transfer:
    """A frame that is being sent, one segment at a time; `done` is called once, with what kept it from being sent."""

    __slots__ = ("_arrays", "_nbytes", "_next", "_packed", "_segments", "done", "is_finished", "is_given", "stream")

    def __init__(self, packed: bytes, nbytes: int, arrays: Sequence[Array]) -> None:
        self._packed, self._nbytes, self._arrays = packed, nbytes, arrays
        self._segments: Iterator[list[Buffer]] = iter(())
        self._next: list[Buffer] | None = None
        self.stream = 0
        self.is_given = False
        """All of it has been taken."""
        self.is_finished = False
        self.done: Done | None = None

    def begin(self, stream: int) -> None:
        self.stream = stream
        self._segments = frames.data(stream, self._packed, self._nbytes, self._arrays)
        self._next = next(self._segments)

    def next_segment(self) -> list[Buffer]:
        """The next segment's buffers."""
        segment = self._next
        assert segment is not None
        self._next = next(self._segments, None)
        self.is_given = self._next is None
        return segment

    def copy_rest(self) -> None:
        """Let go of the arrays' memory."""
        if self._next is None and not self.is_given:  # it has not begun
            self._arrays = [array.copied() for array in self._arrays]
            return
        if self._next is not None:
            self._next = [b"".join(self._next)]
        self._segments = iter([[b"".join(segment)] for segment in self._segments])

    def finish(self, error: LinkLost | None) -> None:
        if not self.is_finished:
            self.is_finished = True
            done, self.done = self.done, None  # whoever is told has this: nothing is to keep the arrays' memory
            if done is not None:
                done(error)
