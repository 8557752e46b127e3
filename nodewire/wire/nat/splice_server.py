"""A splice: joins the connections of two nodes that cannot dial each other, and carries bytes that it cannot read.

It takes signed requests only and does nothing for anybody but wait, copy, and dial back who wants to know whether its
port is open. What strangers get is free and limited, by key and by address; keys that the operator names get more.
nips/24-reach.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadPeer, Busy, LinkLost, NodewireError, NotAllowed, TimedOut
from nodewire.net import address_policy, host_port
from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.net.rate_limits import AtATime, Meter, PerMinute
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire.nat import dialback
from nodewire.wire.nat.splice_client import LENGTH_BYTES, message, read
from nodewire.wire.transport import tcp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nodewire.protocol.market.splice_ad import Request
    from nodewire.wire.nat.dialback import Outcome

MAX_HALF_OPEN = 64
"""Connections that have asked for nothing yet."""
MAX_WAITING = 512
"""Ends whose other end is not there yet. Of too many the oldest goes of the address that has most."""
MAX_PAIRS = 512
"""Of too many the oldest goes of the address that has most."""
ADDRESS_PER_MINUTE = 240
ADDRESS_PAIRS = 64
"""Of one address, behind which many may live."""
ADDRESS_DIALS_PER_MINUTE = 12
MAX_DIALS = 16
"""Of those who asked to be dialled back, at a time."""
REQUEST_S = 5.0
WAIT_S = 20.0
IDLE_S = 60.0
LAST_WORDS_S = 2.0
"""That one end may go on when the other has hung up."""
_MAX_SEEN = 8_192
_BUFFER_BYTES = 65_536
_BACKLOG = 128

_log = logging.getLogger("nodewire.splice")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key gets."""

    requests_per_minute: int = 60
    dials_per_minute: int = 6
    """To it, when it asks for that."""
    waiting: int = 8
    pairs: int = 16
    """At a time."""
    bytes_per_s: int = 4_000_000
    """Of a pair, both ways together."""
    most_bytes: int = 16 * 10**9
    """Of a pair."""


STRANGERS = Limits()
FRIENDS = Limits(
    requests_per_minute=600,
    dials_per_minute=60,
    waiting=64,
    pairs=64,
    bytes_per_s=125_000_000,
    most_bytes=2**53 - 1,
)


@dataclass(slots=True)
class SpliceTotals:
    """What a splice has done since it was started."""

    pairs: int = 0
    nbytes: int = 0
    dials: int = 0


class Splicer:
    """A splice with the public key `public`. `friends` have limits of their own, and so has who meets one.

    With `allow_private` it dials back who comes from a private address, too: for a market of this network. Elsewhere
    that may be a proxy before this machine, and not whoever asks.
    """

    def __init__(
        self,
        public: str,
        *,
        friends: Collection[str] = (),
        strangers: Limits = STRANGERS,
        friend: Limits = FRIENDS,
        wait_s: float = WAIT_S,
        idle_s: float = IDLE_S,
        allow_private: bool = False,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.public = public
        self.carried = SpliceTotals()
        self._friends = frozenset(friends)
        self._limits = {False: strangers, True: friend}
        self._wait_s = wait_s
        self._idle_s = idle_s
        self._allow_private = allow_private
        self._unix_s = unix_s
        self._half_open: Strangers[asyncio.Task[None]] = Strangers(MAX_HALF_OPEN)
        self._crowd: Strangers[_Guest] = Strangers(MAX_WAITING)
        self._rooms: dict[str, _Guest] = {}
        self._pairs: Strangers[asyncio.Task[None]] = Strangers(MAX_PAIRS)
        self._of_addresses = PerMinute(ADDRESS_PER_MINUTE)
        self._of_keys = {friend: PerMinute(one.requests_per_minute) for friend, one in self._limits.items()}
        self._dials_of_addresses = PerMinute(ADDRESS_DIALS_PER_MINUTE)
        self._dials_of_keys = {friend: PerMinute(one.dials_per_minute) for friend, one in self._limits.items()}
        self._dials = AtATime("dials")
        self._waiting = AtATime("rooms")
        self._paired = AtATime("pairs")
        self._seen = BoundedDict[str, None](_MAX_SEEN)
        self.outcomes: Counter[str] = Counter()
        """Of connections: "seen" (told how it looks from here), "dialled" back, "paired" (both ends), the code of why
        it was refused, or "gone"."""
        self._meters: set[Meter] = set()
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str = "0.0.0.0", port: int = 0) -> str:  # noqa: S104 - peers are strangers
        """Serve on an address (port 0: any free one), and say which. Raises OSError."""
        listening = await tcp.listening_at(host, port, backlog=_BACKLOG)
        self._listening.append(listening)
        self._run(self._accept(listening))
        return host_port.written(*listening.getsockname()[:2])

    @property
    def nbytes(self) -> int:
        """That have been carried, both ways."""
        return self.carried.nbytes + sum(meter.nbytes for meter in self._meters)

    @property
    def guests(self) -> tuple[int, int, int]:
        """Connections that have asked for nothing yet, ends that wait for the other, pairs."""
        return len(self._half_open), len(self._crowd), len(self._pairs)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._listening:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, whence = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:  # out of descriptors, or an end that left at once: the port stays open
                _log.warning("accept: %s", error)
                await asyncio.sleep(0.05)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = tcp.plain(whence[0])
            task = self._run(self._serve(connection, host_port.written(address, whence[1]), address))
            displaced = self._half_open.enter(task, address)
            if displaced is not None:
                displaced.cancel()

    async def _serve(self, connection: socket.socket, seen: str, address: str) -> None:
        """One end, until it is refused, gone, or in the hands of who came second."""
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None
        guest: _Guest | None = None
        try:
            try:
                async with asyncio.timeout(REQUEST_S):
                    asked = await self._asked(connection, address)
                    await loop.sock_sendall(connection, message({"seen": seen}))
            finally:
                self._half_open.leave(this)
            if asked.port is not None:
                outcome = await self._dial(asked.public, address, asked.port)
                await loop.sock_sendall(connection, message({"dialled": outcome}))
                self.outcomes["dialled"] += 1
            if asked.room is None:
                self.outcomes["seen"] += asked.port is None
                return
            guest = _Guest(connection, asked.public, address)
            other = self._rooms.pop(asked.room, None)
            if other is not None and other.key != guest.key and not other.is_gone:
                await self._join(guest, other)
            else:
                if other is not None:
                    other.drop(NotAllowed("room", "you came again"))
                await self._wait(guest, asked.room)
        except NodewireError as error:
            _log.debug("%s: %s", address, error)
            self.outcomes[error.code] += 1
            with suppress(OSError):
                connection.send(message(error))  # it fits, or the end does not read
        except (OSError, TimeoutError) as error:
            _log.debug("%s: %s", address, error)
            self.outcomes["gone"] += 1
        finally:
            if guest is None or not guest.handed_over:
                connection.close()

    async def _asked(self, connection: socket.socket, address: str) -> Request:
        """Who asks, and for what. Raises BadPeer, BadVersion, Busy."""
        length = int.from_bytes(await read(connection, LENGTH_BYTES), "big")
        if length > splices.MAX_REQUEST_BYTES:
            raise BadPeer("request", f"{length} bytes, at most {splices.MAX_REQUEST_BYTES}")
        data = await read(connection, length)
        self._of_addresses.acquire(origin_of(address))
        asked = splices.check_request(data, self.public, self._unix_s())
        self._of_keys[asked.public in self._friends].acquire(asked.public)
        if asked.id in self._seen:
            raise BadPeer("request", "was made before")
        self._seen[asked.id] = None
        return asked

    async def _dial(self, key: str, address: str, port: int) -> Outcome:
        """What becomes of a dial to who asks, from where it asks. Raises NotAllowed, Busy."""
        if not address_policy.is_dialled(address, allow_private=self._allow_private):
            raise NotAllowed("dial", f"you come from {address}, which is not a public address")
        self._dials_of_addresses.acquire(origin_of(address))
        self._dials_of_keys[key in self._friends].acquire(key)
        self._dials.acquire("", MAX_DIALS)
        try:
            self.carried.dials += 1
            return await dialback.dial(address, port, key, self._unix_s())
        finally:
            self._dials.give("")

    async def _wait(self, guest: _Guest, room: str) -> None:
        """Until the other end is there. Raises Busy, TimedOut, LinkLost."""
        self._waiting.acquire(guest.key, self._of(guest.key).waiting)
        self._rooms[room] = guest
        displaced = self._crowd.enter(guest, guest.address)
        if displaced is not None:
            displaced.drop(Busy("rooms", "others need the room"))
        guest.watch()
        try:
            async with asyncio.timeout(self._wait_s):
                await guest.met
        except TimeoutError:
            guest.is_gone = True
            raise TimedOut("room", f"nobody came within {self._wait_s:g} s") from None
        finally:
            guest.unwatch()
            self._crowd.leave(guest)
            self._waiting.give(guest.key)
            if self._rooms.get(room) is guest:
                del self._rooms[room]

    async def _join(self, guest: _Guest, other: _Guest) -> None:
        """Carry what either says to the other. Raises Busy: one of them has too many pairs."""
        ends, this = (guest, other), asyncio.current_task()
        assert this is not None
        shares = {one.key: self._of(one.key).pairs for one in ends}
        shares |= {origin_of(one.address): ADDRESS_PAIRS for one in ends}
        taken: list[str] = []
        other.meets()
        try:
            for name, most in shares.items():
                self._paired.acquire(name, most)
                taken.append(name)
            limits = [self._of(one.key) for one in ends]
            meter = Meter(max(one.bytes_per_s for one in limits), max(one.most_bytes for one in limits))
            crowd = max(ends, key=lambda one: self._paired.held(origin_of(one.address)))
            displaced = self._pairs.enter(this, crowd.address)
            if displaced is not None:
                displaced.cancel()
            self._meters.add(meter)
            try:
                await self._carry(guest.connection, other.connection, meter)
            finally:
                self._pairs.leave(this)
                self._meters.discard(meter)
        except NodewireError as error:
            with suppress(OSError):
                other.connection.send(message(error))
            raise
        finally:
            for name in taken:
                self._paired.give(name)
            other.connection.close()

    async def _carry(self, one: socket.socket, other: socket.socket, meter: Meter) -> None:
        loop = asyncio.get_running_loop()
        for end in (one, other):
            await loop.sock_sendall(end, message({"met": True}))
        self.outcomes["paired"] += 2
        ways = {asyncio.create_task(_copy(one, other, meter)), asyncio.create_task(_copy(other, one, meter))}
        pending = ways
        try:
            while pending:
                is_over = len(pending) < len(ways)
                done, pending = await asyncio.wait(
                    pending,
                    timeout=LAST_WORDS_S if is_over else self._idle_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if any(way.exception() is not None for way in done):
                    return
                if not done and (is_over or loop.time() - meter.at_s >= self._idle_s):
                    return
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.carried.pairs += 1
            self.carried.nbytes += meter.nbytes
            _log.debug("a pair is over after %d bytes", meter.nbytes)

    def _of(self, key: str) -> Limits:
        return self._limits[key in self._friends]

    def _run(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Guest:
    """An end that waits."""

    def __init__(self, connection: socket.socket, key: str, address: str) -> None:
        self.connection = connection
        self.key = key
        self.address = address
        self.met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_gone = False
        self.handed_over = False
        """The connection is somebody else's to close."""

    def watch(self) -> None:
        """Whoever stirs while it waits has hung up, or speaks before its time."""
        asyncio.get_running_loop().add_reader(
            self.connection.fileno(), self.drop, LinkLost("end", "hung up, or spoke too early")
        )

    def unwatch(self) -> None:
        if not self.handed_over:
            asyncio.get_running_loop().remove_reader(self.connection.fileno())

    def meets(self) -> None:
        """The other end is there, and whoever serves it has the connection from now on."""
        self.unwatch()
        self.handed_over = True
        if not self.met.done():
            self.met.set_result(None)

    def drop(self, error: NodewireError) -> None:
        self.unwatch()
        self.is_gone = True
        if not self.met.done():
            self.met.set_exception(error)


async def _copy(source: socket.socket, sink: socket.socket, meter: Meter) -> None:
    """Until `source` hangs up; `sink` is told so."""
    loop, memory = asyncio.get_running_loop(), memoryview(bytearray(_BUFFER_BYTES))
    while nbytes := await loop.sock_recv_into(source, memory):
        await meter.spend(nbytes)
        await loop.sock_sendall(sink, memory[:nbytes])
    sink.shutdown(socket.SHUT_WR)
