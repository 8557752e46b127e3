"""A channel through shared memory, as asyncio knows transports: bytes lie in two rings, a socket says how many.

On the socket go records of 16 bytes, big-endian: how many bytes the sender of the record has written, and how many it
has taken, both u64 and since the link began. The last record that came tells all, so those that find the socket full
are made up for by one later. The socket's end is the channel's end; what was written before that is read first.

Everything is copied out of the memory before anybody looks at it: a peer may change its bytes at any time.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, NodewireError
from nodewire.wire.shm.mapping import RING_BYTES, RingMapping

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from nodewire.wire.shm.ring_buffer import Buffer

_RECORD = struct.Struct("!QQ")
_READ_BYTES = 256 * _RECORD.size
_TAKEN_BYTES = RING_BYTES // 4  # until they are said, if nothing else is
_CLOSE_S = 1.0  # for a peer to take what was written before the end


class SharedChannel(asyncio.Transport):
    """Calls `protocol` as asyncio's transports do, `connection_made` at once and the rest out of the event loop.

    It is paused while there is anything that is not in the ring, and that is not copied unless asked for.
    """

    def __init__(
        self,
        connection: socket.socket,
        mapping: RingMapping,
        bound: bytes,
        protocol: asyncio.BufferedProtocol,
        closed: Callable[[], None],
    ) -> None:
        """Takes over `connection` (non-blocking) and `mapping`.

        `bound` is what proofs over this channel cite; `closed` is called when all is freed.
        """
        super().__init__({"bound": bound, "transport": "shm"})
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._mapping = mapping
        self._out, self._into = mapping.out, mapping.into
        self._protocol = protocol
        self._closed = closed
        self._pending: deque[memoryview] = deque()
        self._paused = False
        self._closing = self._gone = False
        self._said = (0, 0)
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None
        protocol.connection_made(self)
        if not self._gone:
            self._loop.add_reader(connection, self._readable)

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are always 0."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._pending))

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Copy into the ring what it has room for, and pause the protocol until the rest is there, too."""
        if self._closing:
            return
        self._pending.extend(memoryview(data) for data in list_of_data)
        self._fill()
        self._say()
        if self._pending and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def copy_pending(self) -> None:
        """Let go of the memory of what was written and is not in the ring."""
        self._pending = deque(memoryview(bytes(view)) for view in self._pending)

    def close(self) -> None:
        """End when what was written is in the ring, and said; a second later at the latest."""
        if self._closing:
            return
        self._closing = True
        self.copy_pending()  # its owners are told that the link is over
        self._timer = self._loop.call_later(_CLOSE_S, self.abort)
        self._say()
        self._end_if_said()

    def abort(self) -> None:
        self._end(None)

    def _readable(self) -> None:
        try:
            said = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # it left without having read all: no more than its end
            said = b""
        if not said:
            self._end(None)
            return
        try:
            if len(said) % _RECORD.size:
                raise BadFrame("record", f"{len(said)} bytes")
            written, taken = _RECORD.unpack_from(said, len(said) - _RECORD.size)
            self._into.written(written)
            self._out.taken(taken)
        except NodewireError as error:
            self._end(error)
            return
        self._go_on()
        try:
            self._deliver()
        except BaseException:
            self.abort()
            raise

    def _deliver(self) -> None:
        """Give the protocol all that is there."""
        while self._into.waiting and not self._closing:
            buffer = memoryview(self._protocol.get_buffer(-1))
            if not buffer:
                raise RuntimeError("the protocol gave no memory")
            self._protocol.buffer_updated(self._into.read_into(buffer))
            if self._into.taken - self._said[1] >= _TAKEN_BYTES:
                self._say()

    def _fill(self) -> None:
        """Use the room that there is."""
        while self._pending:
            done = self._out.write(self._pending[0])
            if done < len(self._pending[0]):
                self._pending[0] = self._pending[0][done:]
                return
            self._pending.popleft()

    def _go_on(self) -> None:
        """There may be room again."""
        if self._pending:
            self._fill()
            self._say()
        if self._closing:
            self._end_if_said()
        elif self._paused and not self._pending:
            self._paused = False
            self._protocol.resume_writing()

    def _say(self) -> None:
        now = (self._out.written, self._into.taken)
        if self._gone or now == self._said:
            return
        try:
            self._socket.send(_RECORD.pack(*now))  # one record goes whole or not at all
        except (BlockingIOError, InterruptedError):
            if not self._is_full:
                self._is_full = True
                self._loop.add_writer(self._socket, self._say_again)
        except OSError:
            if self._closing:
                self._end(None)
            # Else the peer has left, and what it said before is read first.
        else:
            self._said = now

    def _say_again(self) -> None:
        self._is_full = False
        self._loop.remove_writer(self._socket)
        self._say()
        if self._closing:
            self._end_if_said()

    def _end_if_said(self) -> None:
        if not self._pending and self._said[0] == self._out.written:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        if self._is_full:
            self._loop.remove_writer(self._socket)
        self._pending.clear()
        self._loop.call_soon(self._free, error)  # whoever called may still be reading

    def _free(self, error: Exception | None) -> None:
        self._socket.close()
        self._mapping.close()
        self._closed()
        self._protocol.connection_lost(error)
