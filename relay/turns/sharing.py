"""What all clients share, divided between their addresses: slots, and how long one of them may be held."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from nodewire.errors import Busy, TimedOut
from nodewire.net.connection_limits import Strangers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from relay.counting import Counts


class Slots:
    """At most `most` at a time of something called `name`. A new address always gets one."""

    def __init__(self, name: str, most: int, counts: Counts) -> None:
        self._name, self._most, self._counts = name, most, counts
        self._held: Strangers[asyncio.Timeout] = Strangers(most, keeps_old=True)

    @asynccontextmanager
    async def one(self, address: str, longest_s: float) -> AsyncIterator[None]:
        """A slot for the body of the block.

        Raises:
            Busy: the slots are taken, and no address has more of them than this one.
            TimedOut: the block has lasted for `longest_s`.

        """
        ends = asyncio.timeout(longest_s)
        was_displaced = False
        try:
            async with ends:
                displaced = self._held.enter(ends, address)
                if displaced is ends:
                    raise self._full()
                if displaced is not None:
                    with suppress(RuntimeError):  # its own time has just run out
                        displaced.reschedule(asyncio.get_running_loop().time())
                try:
                    yield
                finally:
                    was_displaced = ends not in self._held
                    self._held.leave(ends)
        except TimeoutError as error:
            if was_displaced:
                raise self._full() from error
            self._counts.refusals["slow"] += 1
            raise TimedOut(self._name, f"it took more than {longest_s:.0f} s") from error

    def _full(self) -> Busy:
        self._counts.refusals[self._name] += 1
        return Busy(self._name, f"{self._most} are under way, most of them from this address; try again soon")


def address_of(request: web.Request, proxies: frozenset[str]) -> str:
    """The client's address. Where a proxy of the operator's connects, the last address that is no such proxy."""
    address = request.remote or ""
    if address not in proxies:
        return address
    for said in reversed(",".join(request.headers.getall("X-Forwarded-For", [])).split(",")):
        if (one := said.strip()) and one not in proxies:
            return one
    return address
