"""Connections that ask for nothing: how many may be open, and for how long.

A websocket, like any request, has been asked for; what counts here is who has connected and not sent a whole request
yet, or has had its answer and sends no further one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from aiohttp import web

from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.net.origin_turns import Turns
from relay.turns import working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodewire.core.budget import Budget
    from relay.counting import Counts
    from relay.limits import Limits

_UNSENT_BYTES = 262_144
"""What the kernel takes that it cannot send yet: of a client that reads nothing it would take megabytes."""


class Door:
    """Hand it every connection by `guest`, and every request by `middleware`.

    A connection of an address that is deep in debt (`work`) is ended before anything is made for it: a crowd behind one
    address, a market's 256 nodes say, waits for its turns, and no more wait than the debt has room for.
    """

    def __init__(self, limits: Limits, work: Budget, counts: Counts) -> None:
        self._work, self._counts = work, counts
        self._idle: Strangers[_Guest] = Strangers(limits.idle_connections)
        self._idle_s = limits.idle_s
        self._guests: dict[asyncio.Protocol, _Guest] = {}

    def guest(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a connection; `make` gives the one, of aiohttp's, that is to serve it."""
        return _Guest(make, self)

    def admits(self, address: str) -> bool:
        origin = origin_of(address)
        if self._work.debt_s(origin) > working.LONGEST_S:
            self._counts.turned_away += 1
            return False
        self._work.charge(origin, working.ACCEPT)
        return True

    @property
    def middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def under_way(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            guest = self._guests.get(cast("asyncio.Protocol", request.protocol))
            if guest is None:  # the connection has just ended
                return await handler(request)
            self.busy(guest)
            await Turns.here().due(origin_of(guest.address))
            try:
                return await handler(request)
            finally:
                if request.protocol in self._guests:
                    self.idle(guest)

        return under_way

    def arrived(self, guest: _Guest, inner: asyncio.Protocol) -> None:
        self._guests[inner] = guest
        self.idle(guest)

    def left(self, guest: _Guest, inner: asyncio.Protocol) -> None:
        self.busy(guest)
        self._guests.pop(inner, None)

    def idle(self, guest: _Guest) -> None:
        guest.end_in(self._idle_s)
        displaced = self._idle.enter(guest, guest.address)
        if displaced is not None:
            displaced.end_in(0)

    def busy(self, guest: _Guest) -> None:
        guest.end_in(None)
        self._idle.leave(guest)


class _Guest(asyncio.Protocol):
    """One connection, between the event loop and aiohttp."""

    def __init__(self, make: Callable[[], asyncio.Protocol], door: Door) -> None:
        self.address = ""
        self._make = make
        self._inner: asyncio.Protocol | None = None
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def end_in(self, delay_s: float | None) -> None:
        """Cut it off after a while; None: not at all."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if delay_s is not None and self._transport is not None:
            self._end = asyncio.get_running_loop().call_later(delay_s, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            transport.get_extra_info("socket").setsockopt(*option)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        if not self._door.admits(self.address):
            self._transport.abort()
            return
        self._inner = self._make()
        self._door.arrived(self, self._inner)
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is not None:
            self._door.left(self, self._inner)
            self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
