"""TLS 1.3 on a connected socket, as a channel of the event loop.

Event loops move TLS through buffers of their own and copy every byte several times. Here OpenSSL reads and writes the
socket itself: what comes is decrypted into the frame's memory, what goes is encrypted out of the tensor's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nodewire.net.connection_limits import origin_of
from nodewire.net.origin_turns import Turns
from nodewire.wire.framing.frames import RECORD_BYTES
from nodewire.wire.transport import openssl_ctypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LARGE_BYTES = 32_768  # buffers from here on are filled before they are handed over: a record has 16 KiB at most
_SHUTDOWN_S = 1.0


async def secured(
    connection: socket.socket, context: ssl.SSLContext, protocol: asyncio.BufferedProtocol, *, is_server: bool
) -> Channel:
    """Shake hands on a connected, non-blocking socket; `protocol.connection_made` has been called at the return.

    The socket is the channel's, and closed if there is none. Raises OSError.
    """
    loop, turns, origin = asyncio.get_running_loop(), Turns.here(), _origin(connection)
    with connection:  # until it is detached
        tls = context.wrap_socket(connection, server_side=is_server, do_handshake_on_connect=False)
    try:
        openssl_ctypes.prepare(tls)
        while True:
            try:
                await turns.done(origin, tls.do_handshake)
                break
            except ssl.SSLWantReadError:
                await _ready(loop.add_reader, loop.remove_reader, tls.fileno())
            except ssl.SSLWantWriteError:
                await _ready(loop.add_writer, loop.remove_writer, tls.fileno())
    except BaseException:
        tls.close()
        raise
    return Channel(loop, tls, protocol, origin)


def _origin(connection: socket.socket) -> str:
    try:
        return origin_of(str(connection.getpeername()[0]))
    except (OSError, IndexError):  # it has gone, or is no connection over IP
        return ""


async def _ready(add: Callable[..., Any], remove: Callable[[int], Any], descriptor: int) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


class Channel(asyncio.Transport):
    """Its protocol is paused while it holds anything that has not gone, which it does not copy unless told to."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLSocket, protocol: asyncio.BufferedProtocol, origin: str
    ) -> None:
        super().__init__({"ssl_object": tls, "socket": tls})
        self._loop = loop
        self._tls = tls
        self._bare = openssl_ctypes.bare(tls)
        self._descriptor = tls.fileno()
        self._protocol = protocol
        self._turns = Turns.here()
        self._origin = origin
        self._is_waiting = False
        self._pending: deque[memoryview] = deque()
        self._paused = False
        self._closing = False
        self._closed = False
        self._deadline: asyncio.TimerHandle | None = None
        protocol.connection_made(self)
        if not self._closing:
            loop.add_reader(self._descriptor, self._readable)
            loop.call_soon(self._readable)  # what came with the handshake wakes nobody

    # What goes.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are always 0."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._pending))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._closing:
            return
        self._pending.extend(memoryview(data) for data in list_of_data if len(data))
        if self._pending and not self._paused:
            self._write()

    def copy_pending(self) -> None:
        """Let go of the memory of what was written and has not gone."""
        self._pending = deque(memoryview(bytes(view)) for view in self._pending)

    def _write(self) -> None:
        """Send what the socket takes."""
        pending = self._pending
        try:
            while pending:
                view = pending[0]
                sent = self._bare.write(view)
                if sent == len(view):
                    pending.popleft()
                else:
                    pending[0] = view[sent:]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            # TLS 1.3 does not wait for the peer in the midst of a write.
            if not self._paused:
                self._paused = True
                self._loop.add_writer(self._descriptor, self._write)
                self._protocol.pause_writing()
            return
        except OSError as error:
            self._end(error)
            return
        if self._paused:
            self._paused = False
            self._loop.remove_writer(self._descriptor)
            if not self._closing:
                self._protocol.resume_writing()
        if self._closing:
            self._say_goodbye()

    # What comes.

    def _readable(self) -> None:
        if self._is_waiting:
            return
        if self._turns.has_time:
            self._read()
        else:
            self._wait(again=False)

    def _wait(self, *, again: bool) -> None:
        self._is_waiting = True
        self._turns.wait(self._origin, self._go_on, again=again)

    def _go_on(self) -> None:
        self._is_waiting = False
        self._read()

    def _read(self) -> None:
        """Hand over what has come: bytes that OpenSSL has read already do not wake the loop again."""
        end_s = self._turns.end_s()
        try:
            while not self._closing:
                filled, is_all = self._fill(memoryview(self._protocol.get_buffer(-1)))
                if filled:
                    self._protocol.buffer_updated(filled)
                if is_all:
                    return
                if time.perf_counter() > end_s:
                    self._wait(again=True)
                    return
        except BaseException:
            self.abort()
            raise
        finally:
            self._turns.spent(end_s)

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """How much has come into `buffer`, and whether that is all, as far as is known without asking the socket."""
        filled, n, size = 0, 0, len(buffer)
        read = self._bare.read
        try:
            while filled < size:
                n = read(size - filled, buffer[filled:] if filled else buffer)
                if not n:
                    self._loop.call_soon(self.close)
                    return filled, True
                filled += n
                if size < _LARGE_BYTES or n < RECORD_BYTES:  # many short ones would take long
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return filled, True
        except ssl.SSLEOFError:  # without a goodbye
            self._loop.call_soon(self.close)
            return filled, True
        except OSError as error:
            self._end(error)
            return filled, True
        # After a short record there is seldom another, and the loop would say so: to ask costs an exception.
        return filled, n < RECORD_BYTES and not self._bare.pending()

    # The end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what was written, say goodbye, and close within a second."""
        if self._closing:
            return
        self._closing = True
        self.copy_pending()  # its owners are told that the link is over
        self._deadline = self._loop.call_later(_SHUTDOWN_S, self.abort)
        # A peer that waits to be read must not keep us from writing, and a socket that is closed over unread bytes
        # is reset, which may cost the peer what was sent last.
        self._loop.remove_reader(self._descriptor)
        self._loop.add_reader(self._descriptor, self._discard)
        if not self._pending:
            self._say_goodbye()

    def abort(self) -> None:
        self._end(None)

    def _say_goodbye(self) -> None:
        if self._closed:
            return
        with suppress(OSError, ValueError):  # the peer's goodbye has not come, or it is gone
            self._tls.unwrap()
        try:
            self._tls.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error)

    def _discard(self) -> None:
        try:
            rest = socket.socket.recv(self._tls, _LARGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not rest:
            self.abort()

    def _end(self, error: OSError | None) -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        if self._deadline is not None:
            self._deadline.cancel()
        self._pending.clear()
        self._tls.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
