"""An HTTP server for strangers: an aiohttp application whose connections are bounded in number and in time.

A connection ends after its time whatever it does, and of too many the oldest from the address that has most makes room:
who opens many and says nothing keeps neither this process's descriptors nor others' answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from nodewire.errors import BadConfig
from nodewire.strangers import Strangers


def listening_socket(field: str, address: str) -> socket.socket:
    """A socket bound to `host:port` or `[v6]:port`; port 0 takes a free one.

    Raises:
        BadConfig: it cannot be had; `field` of the configuration says so.
    """
    host, _, port = address.rpartition(":")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), int(port)))
    except (OSError, OverflowError) as error:  # the latter: a port above 65,535
        sock.close()
        why = error.strerror if isinstance(error, OSError) else "no port has that number"
        raise BadConfig(field, f"cannot listen on {address} ({why})") from error
    return sock


def known(request: web.Request) -> None:
    """Who asks has shown what it is good for: it makes room for nobody any more, and still ends with its time."""
    guest = request.app[_GUESTS].get(request.protocol)
    if guest is not None:
        guest.is_known()


@asynccontextmanager
async def serving(
    app: web.Application, listening: socket.socket, *, most: int, each_s: float, cancels: bool = False
) -> AsyncIterator[None]:
    """Serve `app` on a bound socket: at most `most` connections at a time, of `each_s` seconds. `cancels`: whoever
    hangs up has what was being made for them cancelled."""
    # Nobody's unread body is waited for, and none is more than the bytes that came.
    runner = web.AppRunner(
        app, access_log=None, logger=_log, lingering_time=0, auto_decompress=False, handler_cancellation=cancels
    )
    here = app[_GUESTS] = {}
    await runner.setup()
    server = runner.server
    assert server is not None
    guests: Strangers[_Guest] = Strangers(most)
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Guest(server(), guests, here, each_s), sock=listening
    )
    try:
        yield
    finally:
        listener.close()
        await runner.cleanup()


def _in_one_line(record: logging.LogRecord) -> bool:
    """What a stranger sends that is no HTTP is its own fault: a word for it, and no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        whose, what = record.getMessage().rpartition(" ")[2], " ".join(error.message.split())
        record.msg, record.args, record.exc_info = "no HTTP from %s: %s", (whose, what[:80]), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


_log = logging.getLogger("nodewire.guests")
_log.addFilter(_in_one_line)


class _Guest(asyncio.Protocol):
    """One connection, handed to aiohttp for as long as it may last."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        others: Strangers[_Guest],
        here: dict[asyncio.Protocol, _Guest],
        each_s: float,
    ) -> None:
        self._inner = inner
        self._others = others
        self._here = here
        self._each_s = each_s
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._here[self._inner] = self
        self._end = asyncio.get_running_loop().call_later(self._each_s, self._transport.abort)
        peer = transport.get_extra_info("peername")
        displaced = self._others.enter(self, str(peer[0]) if peer else "")
        if displaced is not None and displaced._transport is not None:
            displaced._transport.abort()
        self._inner.connection_made(transport)

    def is_known(self) -> None:
        self._others.leave(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._others.leave(self)
        self._here.pop(self._inner, None)
        if self._end is not None:
            self._end.cancel()
        self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


_GUESTS: web.AppKey[dict[asyncio.Protocol, _Guest]] = web.AppKey("guests", dict)
"""Of an application that is served here: the connections, by what aiohttp handles them with."""
