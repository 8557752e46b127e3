"""How a channel to an address comes about. A link does not know whether it runs over TCP or something else.

A channel is what asyncio calls a transport: it takes `writelines`, and knows what proofs over it are bound to. It may
refer to what it was given until that has gone; while there is any, its protocol is paused. TCP with TLS 1.3 is the
first; `wire.shm` stands beside it on one host, and QUIC can.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nodewire.errors import BadPeer, LinkLost, NotAllowed
from nodewire.net import host_port
from nodewire.net.address_policy import is_dialled
from nodewire.wire.transport import tcp_info
from nodewire.wire.transport.identity import ALPN, Identity, check_certificate
from nodewire.wire.transport.tls import secured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodewire.wire.transport.tcp_info import TcpInfo

_log = logging.getLogger("nodewire.wire")
_UNSENT_BYTES = 131_072  # what the kernel may queue beyond the congestion window: the wait of an urgent frame
CONGESTION = "cubic"
"""On a path without loss BBR's pacing costs 1.7 times CUBIC's turn of a ring (docs/reference/measurements.md)."""
_BACKLOG = 128
_NAME_BYTES = 16
_EACH_S = 2.5  # for one of a name's addresses to answer, if there are others


_Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""What a name's resolution gives."""


@runtime_checkable
class Borrower(Protocol):
    """A channel that refers to what it was given until that has gone."""

    def copy_pending(self) -> None:
        """Let go of the memory of what was written and has not gone."""


class Arrival(Protocol):
    """A connection that somebody opened to us and that has not been secured yet."""

    address: str
    """Where it comes from, without the port."""

    async def accept(self, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        """Secure it; `protocol.connection_made` has been called when this returns. Raises OSError, NodewireError."""

    def refuse(self) -> None: ...


class Listener(Protocol):
    address: str
    """What others dial."""

    def close(self) -> None: ...


class Transport(Protocol):
    async def dial(self, address: str, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        """Open a secured channel for `protocol`.

        Raises:
            BadInput: a malformed address.
            NotAllowed: one that is not to be dialled.
            LinkLost: nobody answers.

        """

    async def listen(self, host: str, port: int, arrived: Callable[[Arrival], None]) -> Listener:
        """Tell every connection to `arrived`. Raises OSError if the port cannot be had."""


class Beside(Protocol):
    """A way to peers that needs no address: `wire.shm.SameHost`."""

    def knows(self, public: str) -> bool:
        """Whether it may lead to the node `public`; tells at once."""

    async def dial(self, public: str, protocol: asyncio.BufferedProtocol) -> None:
        """Open a channel for `protocol`, at whose other end is `public`. Raises BadPeer, Busy, LinkLost."""

    async def listen(self, arrived: Callable[[Arrival], None]) -> Listener:
        """Tell every connection to `arrived`. Raises OSError if there is no such way here."""


class TcpTls:
    """TCP with TLS 1.3; addresses are "host:port" or "[ipv6]:port"."""

    def __init__(self, congestion: str | None = CONGESTION, *, allow_private: bool = True) -> None:
        """`congestion`: the kernel's congestion control, where it has it; None is the kernel's own choice.

        It must be chosen before a connection is opened: one that is changed later keeps pacing as it did.

        Without `allow_private` only public addresses are dialled, whatever a name stands for: strangers write ads.
        """
        self._congestion = congestion
        self._allow_private = allow_private

    async def dial(self, address: str, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        host, port = host_port.parse(address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            dialled = [one for one in found if is_dialled(str(one[4][0]), allow_private=self._allow_private)]
            if found and not dialled:
                raise NotAllowed("address", f"{address[:80]} is a private one, and [wire] private is not set")
            connection = await self._connected(dialled)
            await secured(connection, identity.client, protocol, is_server=False)
        except OSError as error:
            raise LinkLost(address, _words(error)) from error

    async def _connected(self, found: Sequence[_Found]) -> socket.socket:
        """A connection to the first of a name's addresses that answers. Raises OSError: the last one's."""
        failed = OSError("the name has no address")
        for left, (family, kind, protocol, _, where) in zip(reversed(range(len(found))), found, strict=True):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                self.prepare(connection)
                async with asyncio.timeout(_EACH_S if left else None):
                    await asyncio.get_running_loop().sock_connect(connection, where)
            except OSError as error:  # TimeoutError, too
                connection.close()
                failed = error
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        raise failed

    def prepare(self, connection: socket.socket) -> None:
        """What a socket needs before it is connected, or before much has gone over it if it was made elsewhere."""
        if self._congestion is not None:
            choose_congestion(connection, self._congestion)

    async def listen(self, host: str, port: int, arrived: Callable[[Arrival], None]) -> Listener:
        listening = await listening_at(host, port, backlog=_BACKLOG)
        self.prepare(listening)  # what it accepts inherits it
        return _TcpListener(listening, arrived)


class _TcpListener:
    def __init__(self, listening: socket.socket, arrived: Callable[[Arrival], None]) -> None:
        self._socket = listening
        self.address = host_port.written(*listening.getsockname()[:2])
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
            arrived(TcpArrival(connection, plain(whence[0])))

    def close(self) -> None:
        self._task.cancel()
        self._task.add_done_callback(lambda _: self._socket.close())


class TcpArrival:
    """A TCP connection whose other end dials us, wherever it comes from."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._socket = connection
        self.address = address

    async def accept(self, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        await secured(self._socket, identity.server, protocol, is_server=True)

    def refuse(self) -> None:
        self._socket.close()


async def listening_at(host: str, port: int, *, backlog: int) -> socket.socket:
    """A socket that listens and does not block. "::" is all of this machine's addresses, IPv4 ones too.

    Raises OSError.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    both = family is socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
    made = socket.create_server(where[:2], family=family, backlog=backlog, dualstack_ipv6=both)
    made.setblocking(False)
    return made


def plain(host: str) -> str:
    """The IPv4 address in one that a socket for both kinds says; others as they are."""
    return host.removeprefix("::ffff:") if "." in host else host


def choose_congestion(connection: socket.socket, name: str = CONGESTION) -> None:
    """Set a socket's congestion control before it is connected, where the kernel has it."""
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # not in this kernel, or not allowed: its own choice works, too
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def tune(channel: asyncio.BaseTransport) -> None:
    """Set what a TCP socket needs for low latency; other channels are left as they are."""
    connection = channel.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def congestion(channel: asyncio.BaseTransport) -> str:
    """The name of a TCP channel's congestion control; empty for others."""
    connection = channel.get_extra_info("socket")
    if connection is None or not hasattr(socket, "TCP_CONGESTION"):
        return ""
    try:
        name: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    except OSError:
        return ""
    return name.rstrip(b"\0").decode()


def tcp(channel: asyncio.BaseTransport) -> TcpInfo | None:
    """What the kernel knows of a TCP channel; None of others, or where it does not say."""
    connection = channel.get_extra_info("socket")
    return None if connection is None else tcp_info.read(connection)


def peer_address(channel: asyncio.BaseTransport) -> str:
    """The other end of a TCP channel as "host:port"; empty for others."""
    connection = channel.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return ""
    return host_port.written(plain(host), port)


def name(channel: asyncio.BaseTransport) -> str:
    """How a channel carries bytes: "tls", or "shm"."""
    found: str = channel.get_extra_info("transport", "tls")
    return found


def bound(channel: asyncio.BaseTransport, shown: Identity) -> bytes:
    """What a dialler's proof to us, who `shown`, must be bound to on this channel."""
    found: bytes = channel.get_extra_info("bound", shown.certificate)
    return found


def check_listener(channel: asyncio.BaseTransport, expected: str, now_s: float) -> bytes:
    """See who listens at the other end of a channel that we have dialled; what our own proof is to be bound to.

    Raises:
        BadPeer: it is not `expected`, the channel is not TLS 1.3, or the peer does not speak nodewire on it.

    """
    found: bytes | None = channel.get_extra_info("bound")
    if found is not None:  # the listener had to prove itself before there was a channel
        return found
    certificate = _peer_certificate(channel)
    check_certificate(certificate, expected, now_s)
    assert certificate is not None
    return certificate


def _peer_certificate(channel: asyncio.BaseTransport) -> bytes | None:
    """The DER of what the listener at the other end of a TLS channel showed. Raises BadPeer."""
    tls = channel.get_extra_info("ssl_object")
    if tls is None or tls.version() != "TLSv1.3":
        raise BadPeer("channel", "not TLS 1.3")
    if tls.selected_alpn_protocol() != ALPN:
        raise BadPeer("alpn", f"the peer does not speak {ALPN}")
    certificate: bytes | None = tls.getpeercert(True)
    return certificate


def _words(error: OSError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or type(error).__name__
