"""A splice as one end sees it: says how it sees us, waits for the other end, then carries bytes it cannot read.

    end                                              splice
     |-- u16 length, request (28844) as JSON ----------->|  at most 1,024 bytes
     |<- u16 length, {"seen": "ip:port"} -----------------|  at most 512, as each of these
     |<- u16 length, {"dialled": "open"} -----------------|  and no more, if a port was named (`dialback.py`)
     |<- u16 length, {"met": true} -----------------------|  when the other end is there; only if a room was named
     |-- one zero byte, from the end that asked, once it has the other's answer -->|
     |<=========== what the other end sends ============>|  TLS, from end to end
     |<- u16 length, {"error": {...}} --------------------|  instead of either

Whatever a splice says or does, the ends prove themselves to each other through it: it can delay and drop.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadPeer, LinkLost, NodewireError, NotAllowed, TimedOut, from_dict
from nodewire.net import address_policy, host_port
from nodewire.protocol.encoding.address import SpliceAddress, ip_port
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire.nat import hole_punch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_SAID_BYTES = 512
ANSWER_S = 5.0
LENGTH_BYTES = 2
GO = b"\0"
"""What the asking end says first through the splice."""


@dataclass(slots=True)
class SpliceConnection:
    """A connection to a splice on which the other end is waited for."""

    connection: socket.socket
    splice: SpliceAddress
    seen: str
    """Where the connection comes from, as the splice sees it (`ip:port`)."""
    local: str
    """As this machine sees it."""
    rtt_s: float
    _is_given: bool = False

    @property
    def port(self) -> int:
        """Ours."""
        return ip_port(self.local)[1]

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AddressFamily(self.connection.family)

    async def say_go(self) -> None:
        """Wait until the splice has joined us to the other end, and tell that end that we have its answer.

        Raises:
            LinkLost, BadPeer: the splice hangs up, or says something else. Its own error if it gives one.

        """
        await self._met()
        try:
            await asyncio.get_running_loop().sock_sendall(self.connection, GO)
        except OSError as error:
            raise LinkLost(self.splice.at, "the splice hung up") from error

    async def hear_go(self) -> None:
        """Wait until the other end is there and has our answer. Raises as `say_go`."""
        await self._met()
        try:
            word = await read(self.connection, len(GO))
        except OSError as error:
            raise LinkLost(self.splice.at, "the splice hung up") from error
        if word != GO:
            raise BadPeer("splice", "brings something else than the other end's word")

    async def _met(self) -> None:
        if (await read_message(self.connection, self.splice.at)).get("met") is not True:
            raise BadPeer("splice", "says neither that the other end is there nor why not")

    def give(self) -> socket.socket:
        """The connection; it is the caller's to close."""
        self._is_given = True
        return self.connection

    def close(self) -> None:
        if not self._is_given:
            self.connection.close()


async def enter(
    splice: SpliceAddress,
    room: str | None,
    keys: Keys,
    *,
    allow_private: bool,
    port: int = 0,
    dial: int | None = None,
    now_s: float | None = None,
) -> SpliceConnection:
    """Connect to a splice (from our `port` if given) and ask it for one thing.

    That is to be met in `room`, or to be dialled back at the port `dial`; without either, only how it sees us.

    Raises:
        NotAllowed: the splice has no address that may be dialled for others.
        LinkLost, TimedOut: it does not answer.
        BadPeer: it answers something else.
        Busy and others: its own error.

    """
    try:
        async with asyncio.timeout(ANSWER_S):
            family, where = await _resolved(splice.at, allow_private)
            connection = hole_punch.bound(family, port)
            try:
                request = splices.request(
                    keys,
                    splice.public,
                    salt=secrets.token_hex(8),
                    now_s=time.time() if now_s is None else now_s,
                    room=room,
                    port=dial,
                )
                return await _asked(connection, where, splice, request)
            except BaseException:
                connection.close()
                raise
    except TimeoutError:
        raise TimedOut(splice.at, f"the splice did not answer within {ANSWER_S:g} s") from None
    except OSError as error:
        raise LinkLost(splice.at, error.strerror or str(error)) from error


async def _asked(connection: socket.socket, where: Any, splice: SpliceAddress, request: Event) -> SpliceConnection:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await loop.sock_connect(connection, where)
    rtt_s = loop.time() - began_s
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = request.to_json().encode()
    await loop.sock_sendall(connection, len(data).to_bytes(LENGTH_BYTES, "big") + data)
    said = await read_message(connection, splice.at)
    seen = said.get("seen")
    try:
        ip_port(seen if isinstance(seen, str) else "")
    except ValueError as error:
        raise BadPeer("splice", "does not say how it sees us") from error
    return SpliceConnection(connection, splice, str(seen), host_port.written(*connection.getsockname()[:2]), rtt_s)


async def _resolved(at: str, allow_private: bool) -> tuple[socket.AddressFamily, Any]:
    host, port = host_port.parse(at)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, where in found:
        if address_policy.is_dialled(str(where[0]), allow_private=allow_private):
            return family, where
    raise NotAllowed("splice", f"{at} is no public address")


async def read_message(connection: socket.socket, at: str) -> Mapping[str, Any]:
    """The next thing that the splice says. Raises BadPeer, LinkLost, or what the splice reports."""
    try:
        length = int.from_bytes(await read(connection, LENGTH_BYTES), "big")
        if not 0 < length <= MAX_SAID_BYTES:
            raise BadPeer("splice", f"says {length} bytes at once, at most {MAX_SAID_BYTES}")
        said = orjson.loads(await read(connection, length))
    except orjson.JSONDecodeError as error:
        raise BadPeer("splice", "does not say JSON") from error
    except OSError as error:
        raise LinkLost(at, error.strerror or "the splice hung up") from error
    if not isinstance(said, dict):
        raise BadPeer("splice", "does not say an object")
    if (error_ := said.get("error")) is not None:
        raise from_dict(error_) if isinstance(error_, dict) else BadPeer("splice", "gives no reason")
    return said


async def read(connection: socket.socket, nbytes: int) -> bytes:
    """Just so many bytes. Raises OSError: the end comes first."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < nbytes:
        more = await loop.sock_recv(connection, nbytes - len(data))
        if not more:
            raise ConnectionResetError(None, "hung up")
        data += more
    return data


def message(document: Mapping[str, Any] | NodewireError) -> bytes:
    """Something that a splice says, as bytes."""
    if isinstance(document, NodewireError):
        document = {"error": {**document.as_dict(), "reason": document.reason[:100]}}
    data = orjson.dumps(document)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
