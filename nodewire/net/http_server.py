"""An HTTP server for strangers: an aiohttp application whose connections are bounded in number and in time.

A connection ends after its time whatever it does. Of too many connections the oldest makes room of the address that has
most. It is told so by HTTP (503, Retry-After), if it was told nothing yet: a reset looks like a broken network. So an
address that opens many and says nothing keeps neither this process's descriptors nor the answers to others.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from nodewire.core.budget import Budget
from nodewire.errors import BadConfig
from nodewire.net import host_port
from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.net.listen_address import named_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

RETRY_S = 2
"""After which a client that was told to come later does well to ask again."""
_FAREWELL_S = 2.0
_LEAVING = 1_024  # connections that are given that, of one server
_BACKLOG = 1_024
ACCEPTS_PER_S, ACCEPTS_BURST = 200.0, 4_096.0
"""Connections of one address; those beyond are reset before anything is made for them."""


def listening_socket(field: str, address: str) -> socket.socket:
    """A socket bound to `host:port` or `[v6]:port`; port 0 takes a free one.

    Raises:
        BadConfig: it cannot be had; `field` of the configuration says so.

    """
    host, port = host_port.parse(address, field, least_port=0, error=BadConfig)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with named_by(field, address):
            sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise BadConfig(field, f"cannot listen on {address} ({error.strerror})") from error
    except BadConfig:
        sock.close()
        raise
    return sock


def known(request: web.Request) -> None:
    """Mark the client as known: its connection makes room for no other, and still ends with its time."""
    guest = request.app[_GUESTS].get(request.protocol)
    if guest is not None:
        guest.is_known()


@asynccontextmanager
async def serve_app(
    app: web.Application,
    listening: socket.socket,
    *,
    most: int,
    each_s: float,
    first_s: float | None = None,
    refusals: Refusals | None = None,
    cancels: bool = False,
    line_bytes: int = 8_190,
) -> AsyncIterator[None]:
    """Serve `app` on a bound socket: at most `most` connections at a time, of `each_s` seconds.

    Those that have `first_s` end after it unless they are `known` by then. With `cancels`, a client that hangs up has
    what was being made for it cancelled. A request line, with its URL, is at most `line_bytes` long.
    """
    refusals = refusals or Refusals()
    runner = web.AppRunner(app, handler_cancellation=cancels)
    here = app[_GUESTS] = {}
    app.on_response_prepare.append(_answered)
    await runner.setup()
    server = runner.server
    assert server is not None
    accepts = Budget(ACCEPTS_PER_S, ACCEPTS_BURST, asyncio.get_running_loop().time)
    door = _Door(Strangers(most), Strangers(_LEAVING), accepts, here, each_s, first_s or each_s, _refusing(refusals))
    loop = asyncio.get_running_loop()

    def guest() -> _Guest:
        # An unread body is not waited for, and no body is decompressed.
        inner = _Handler(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            logger=_log,
            lingering_time=0,
            auto_decompress=False,
            max_line_size=line_bytes,
        )
        inner.refusals = refusals
        return _Guest(inner, door)

    listener = await loop.create_server(guest, sock=listening, backlog=_BACKLOG)
    try:
        yield
    finally:
        listener.close()
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class Refusals:
    """What the server itself says, in JSON, where no handler of the application is asked."""

    crowded: bytes = b"{}"
    """To those that make room."""
    malformed: bytes | None = None
    """To those that send no HTTP, or too long a line; None: aiohttp's own text."""
    headers: Mapping[str, str] = field(default_factory=dict)


def _refusing(refusals: Refusals) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in refusals.headers.items())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nx-should-retry: true\r\n"
        f"Retry-After: {RETRY_S}\r\n{more}Content-Length: {len(refusals.crowded)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + refusals.crowded


class _Handler(web.RequestHandler):
    """aiohttp's connection, whose errors are told as the application tells its own."""

    __slots__ = ("refusals",)
    refusals: Refusals

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        said = super().handle_error(request, status, exc, message)
        if self.refusals.malformed is None:
            return said
        headers = dict(self.refusals.headers)
        response = web.Response(
            body=self.refusals.malformed, status=status, content_type="application/json", headers=headers
        )
        response.force_close()
        return response


async def _answered(request: web.Request, _: web.StreamResponse) -> None:
    guest = request.app[_GUESTS].get(request.protocol)
    if guest is not None:
        guest.is_answered = True


def _in_one_line(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP are the stranger's fault: the log has a line for them, and no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        whose, what = record.getMessage().rpartition(" ")[2], " ".join(error.message.split())
        record.msg, record.args, record.exc_info = "no HTTP from %s: %s", (whose, what[:80]), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


_log = logging.getLogger("nodewire.guests")
_log.addFilter(_in_one_line)


@dataclass(frozen=True, slots=True)
class _Door:
    """What the connections of one server share."""

    strangers: Strangers[_Guest]
    leaving: Strangers[_Guest]
    """Those that were told to come later, and have yet to read it."""
    accepts: Budget
    here: dict[asyncio.Protocol, _Guest]
    each_s: float
    first_s: float
    refusal: bytes


class _Guest(asyncio.Protocol):
    """One connection, handed to aiohttp for as long as it may last."""

    def __init__(self, inner: asyncio.Protocol, door: _Door) -> None:
        self.is_answered = False
        self._inner: asyncio.Protocol | None = inner
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None
        self._began_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._inner is not None
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if not self._door.accepts.spend(origin_of(self._address)):
            self._inner = None
            self._transport.abort()
            return
        self._door.here[self._inner] = self
        self._began_s = asyncio.get_running_loop().time()
        self._end_in(self._door.first_s)
        displaced = self._door.strangers.enter(self, self._address)
        if displaced is not None:
            displaced.leave()
        if self._inner is not None:  # it was not this one
            self._inner.connection_made(transport)

    @property
    def _address(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if peer else ""

    def is_known(self) -> None:
        self._door.strangers.leave(self)
        self._end_in(self._began_s + self._door.each_s - asyncio.get_running_loop().time())

    def leave(self) -> None:
        """Tell it to come later, and give it a little while to read that."""
        assert self._transport is not None
        if self.is_answered or self._inner is None:
            self._transport.abort()
            return
        cast("Any", self._inner).transport = None  # which aiohttp would close at once
        self._detach()
        self._end_in(_FAREWELL_S)
        self._transport.write(self._door.refusal)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        # Its own bytes are read on: a socket that is closed over them is reset, and the answer with it.
        first = self._door.leaving.enter(self, self._address)
        if first is not None and first._transport is not None:
            first._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._door.strangers.leave(self)
        self._door.leaving.leave(self)
        if self._end is not None:
            self._end.cancel()
        self._detach(error)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else False

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def _detach(self, error: Exception | None = None) -> None:
        """For aiohttp the connection is over."""
        inner, self._inner = self._inner, None
        if inner is not None:
            self._door.here.pop(inner, None)
            inner.connection_lost(error)

    def _end_in(self, seconds: float) -> None:
        assert self._transport is not None
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(seconds, self._transport.abort)


_GUESTS: web.AppKey[dict[asyncio.Protocol, _Guest]] = web.AppKey("guests", dict)
"""Of an application that is served here: the connections, by what aiohttp handles them with."""
