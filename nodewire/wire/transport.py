"""How a channel to an address comes about. A link does not know whether it runs over TCP or something else.

A channel is what asyncio calls a transport: it takes `writelines`, tells its protocol to pause, and names its peer's
certificate. TCP with TLS 1.3 is the first; shared memory on one host and QUIC can stand beside it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from nodewire.errors import BadInput, BadPeer, LinkLost
from nodewire.wire.identity import ALPN, Identity

_log = logging.getLogger("nodewire.wire")
_UNSENT_BYTES = 131_072  # what the kernel may queue beyond the congestion window: the wait of an urgent frame
_SHUTDOWN_S = 1.0
_BACKLOG = 128


class Arrival(Protocol):
    """A connection that somebody opened to us and that has not been secured yet."""

    address: str
    """Where it comes from, without the port."""

    async def accept(self, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        """Secure it; `protocol.connection_made` has been called when this returns. Raises OSError."""

    def refuse(self) -> None: ...


class Listener(Protocol):
    address: str
    """What others dial."""

    def close(self) -> None: ...


class Transport(Protocol):
    async def dial(self, address: str, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        """Open a secured channel for `protocol`. Raises BadInput for a malformed address, LinkLost if none answers."""

    async def listen(self, host: str, port: int, arrived: Callable[[Arrival], None]) -> Listener:
        """Tell every connection to `arrived`. Raises OSError if the port cannot be had."""


class TcpTls:
    """TCP with TLS 1.3; addresses are "host:port" or "[ipv6]:port"."""

    async def dial(self, address: str, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: protocol,
                host,
                port,
                ssl=identity.client,
                server_hostname="",
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:
            raise LinkLost(address, _words(error)) from error

    async def listen(self, host: str, port: int, arrived: Callable[[Arrival], None]) -> Listener:
        loop = asyncio.get_running_loop()
        family, _, _, _, where = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))[
            0
        ]
        listening = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
        listening.setblocking(False)
        return _TcpListener(listening, arrived)


class _TcpListener:
    def __init__(self, listening: socket.socket, arrived: Callable[[Arrival], None]) -> None:
        self._socket = listening
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._task = asyncio.create_task(self._accept(arrived))

    async def _accept(self, arrived: Callable[[Arrival], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, whence = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors, or a peer that left at once: the port stays open
                _log.warning("accept: %s", _words(error))
                await asyncio.sleep(0.05)
                continue
            arrived(_TcpArrival(connection, whence[0]))

    def close(self) -> None:
        self._task.cancel()
        self._task.add_done_callback(lambda _: self._socket.close())


class _TcpArrival:
    def __init__(self, connection: socket.socket, address: str) -> None:
        self._socket = connection
        self.address = address

    async def accept(self, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: protocol, self._socket, ssl=identity.server, ssl_shutdown_timeout=_SHUTDOWN_S
            )
        except BaseException:
            self._socket.close()
            raise

    def refuse(self) -> None:
        self._socket.close()


def tune(channel: asyncio.BaseTransport) -> None:
    """Set what a TCP socket needs for low latency; other channels are left as they are."""
    connection = channel.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def peer_certificate(channel: asyncio.BaseTransport) -> bytes | None:
    """The DER of what the listener at the other end of a secured channel showed.

    Raises:
        BadPeer: the channel is not TLS 1.3, or the peer does not speak nodewire on it.
    """
    secured = channel.get_extra_info("ssl_object")
    if secured is None or secured.version() != "TLSv1.3":
        raise BadPeer("channel", "not TLS 1.3")
    if secured.selected_alpn_protocol() != ALPN:
        raise BadPeer("alpn", f"the peer does not speak {ALPN}")
    certificate: bytes | None = secured.getpeercert(True)
    return certificate


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[ipv6]:port". Raises BadInput."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) < 65_536:
        raise BadInput("address", f"{address[:80]!r} is not host:port")
    return host, int(port)


def _words(error: OSError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or type(error).__name__
