"""The relay itself: one port for websockets (NIP-01), its description (NIP-11), blobs (Blossom) and static files.

    async with serve(Config(db=Path("events.sqlite"), port=0)) as relay:
        print(relay.url)

aiohttp serves both protocols on the one port that NIP-11 wants; its websocket also took 25 % more messages per second
of CPU than `websockets` did (15 against 21 microseconds a message, same client, interleaved).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

import orjson
from aiohttp import WSMsgType, web

from nodewire.core.budget import Budget
from nodewire.errors import LinkLost
from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.net.origin_turns import Turns
from nodewire.nostr.nips import nip01
from relay import informing
from relay.blobs import blossom
from relay.blobs.shelving import Shelf
from relay.clients.conversing import Conversation
from relay.clients.fanout import Fanout
from relay.clients.sending import Backlog, Outbox
from relay.counting import Counts
from relay.events.reading import Archive
from relay.events.storing import Sweep, Writer
from relay.policing import POLICIES, Policy
from relay.turns import working
from relay.turns.admitting import Door
from relay.turns.sharing import address_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from nodewire.nostr.event import Event
    from relay.limits import Config

_LOG = logging.getLogger(__name__)
_PING_S = 30.0
_CLOSE_S = 2.0  # what a client gets to take leave in
_POLICY_VIOLATION = 1008


class Relay:
    """A running relay; made by `serve`."""

    def __init__(self, config: Config, policies: Sequence[Policy], clock: Callable[[], float]) -> None:
        self.config = config
        self.policies = policies
        self.clock = clock
        self.counts = Counts()
        self.fanout: Fanout[Conversation] = Fanout()
        self.writer = Writer(config, asyncio.get_running_loop())
        limits = config.limits
        self.work = Budget(limits.work_per_s, limits.work_burst, asyncio.get_running_loop().time)
        self.address_growth = _a_day(limits.address_bytes_per_day)
        self.key_growth = _a_day(limits.key_bytes_per_day)
        self.standing: Counter[str] = Counter()
        self._tests = Budget(limits.tests_per_s, limits.tests_burst, asyncio.get_running_loop().time)
        self._backlog = Backlog(limits.address_outbox_bytes)
        self.archive = Archive(config.db, limits, self._charge_query)
        self._numbers = itertools.count()
        self._clients: dict[web.WebSocketResponse, web.Request] = {}
        self._sockets: Strangers[_Socket] = Strangers(limits.connections, keeps_old=True)
        self._port = config.port

    @property
    def url(self) -> str:
        """The websocket URL; the same with http for NIP-11 and blobs."""
        return self.config.url or f"ws://{_bracketed(self.config.host)}:{self._port}"

    @property
    def connections(self) -> int:
        """Websockets that are open."""
        return len(self._clients)

    @property
    def http_url(self) -> str:
        return "http" + self.url.removeprefix("ws")

    def broadcast(self, event: Event, json: str, seq: int | None) -> int:
        """Tell every subscription that wants `event` and may see it; how many there were."""
        began_ns = time.perf_counter_ns()
        tested: Counter[Conversation] = Counter()
        told = [s.listener.deliver(s, event, json, seq) for s in self.fanout.matching(event, tested)]
        self._charge_tests(tested)
        self.counts.delivered += sum(told)
        self.counts.fanout.add((time.perf_counter_ns() - began_ns) // 1_000)
        return sum(told)

    def _charge_tests(self, tested: Counter[Conversation]) -> None:
        """An address whose filters are held against more events than it may loses the connections that have most."""
        of = Counter[str]()
        for talk, count in tested.items():
            of[talk.origin] += count
        for origin, count in of.items():
            if self._tests.spend(origin, count):
                continue
            left = self._tests.available(origin)
            mine = sorted((talk for talk in tested if talk.origin == origin), key=tested.__getitem__)
            while mine and count > left:
                count -= tested[mine[-1]]
                mine.pop().cut("the filters of its address are held against too many events")

    def _charge_query(self, path: Sequence[str], steps: int) -> None:
        self.work.charge(path[0], working.of_query(steps))

    def unsent_bytes(self, origin: str) -> int:
        """What waits to be sent to an address's clients."""
        return self._backlog.of(origin)

    async def sweep(self, shelf: Shelf | None) -> None:
        """Have what has expired removed, and blobs that there is no room for, again and again."""
        while True:
            self.writer.submit(Sweep(int(self.clock())))
            if shelf is not None:
                try:
                    await shelf.sweep(int(self.clock()))
                except (OSError, sqlite3.Error):  # a disk that fails, say: the next sweep tries again
                    _LOG.exception("could not sweep the blobs")
            await asyncio.sleep(self.config.sweep_s)

    async def root(self, request: web.Request) -> web.StreamResponse:
        """GET /: a websocket, the information document or a page, by what the client asks for."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._converse(request)
        if informing.MEDIA_TYPE in request.headers.get("Accept", ""):
            about = orjson.dumps(informing.document(self.config, metadata.version("nodewire")))
            return web.Response(body=about, content_type=informing.MEDIA_TYPE)
        if self.config.site is not None:
            return web.FileResponse(self.config.site / "index.html")
        return web.Response(text=f"{self.config.name}: a Nostr relay. Connect with a Nostr client to {self.url}\n")

    async def page(self, request: web.Request) -> web.StreamResponse:
        """GET /<path>: a static file of the site."""
        site = self.config.site
        if site is not None:
            path = (site / request.match_info["path"]).resolve()
            if path.is_relative_to(site.resolve()) and path.is_file():
                return web.FileResponse(path)
        raise web.HTTPNotFound

    async def hang_up(self) -> None:
        """Say goodbye to all clients."""
        await asyncio.gather(*(_close(*client, 1001, "the relay is going down") for client in self._clients.items()))

    def listens_on(self, port: int) -> None:
        self._port = port

    async def _converse(self, request: web.Request) -> web.StreamResponse:
        reading = asyncio.current_task()
        assert reading is not None
        address = address_of(request, self.config.proxies)
        await working.pay(self.work, origin_of(address), working.CONNECTION, self.counts)
        socket = _Socket(reading, origin_of(address))
        displaced = self._sockets.enter(socket, address)
        if displaced is socket:
            self.counts.turned_away += 1
            raise web.HTTPServiceUnavailable(text="too many connections", headers={"Retry-After": "5"})
        if displaced is not None:
            displaced.end("its address has most of the connections, and another needs one")
        try:
            return await self._talk(request, socket)
        finally:
            self._sockets.leave(socket)

    async def _talk(self, request: web.Request, socket: _Socket) -> web.StreamResponse:
        limits = self.config.limits
        ws = web.WebSocketResponse(
            heartbeat=_PING_S, timeout=_CLOSE_S, max_msg_size=limits.frame_bytes, compress=False, decode_text=True
        )
        await ws.prepare(request)
        self._clients[ws] = request
        turn = partial(Turns.here().due, socket.origin)
        outbox = Outbox(
            ws.send_str, socket.end, limits.outbox_bytes, limits.stall_s, turn, self._backlog, socket.origin
        )
        url = self.config.url or _dialled(request, self.config.proxies)
        talk = Conversation(self, outbox, url, (socket.origin, str(next(self._numbers))))
        sending = asyncio.create_task(outbox.run())
        try:
            talk.begin()
            await _listen(ws, talk, turn)
        except asyncio.CancelledError:
            if not socket.cut:
                raise
            socket.reading.uncancel()
        except (LinkLost, ConnectionError):
            pass  # the client is gone, or has been cut off: `cut` says why
        finally:
            talk.end()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            outbox.close()
            del self._clients[ws]
        if socket.cut:
            self.counts.cut += 1
            _LOG.info("closed a connection: %s", socket.cut)
            await _close(ws, request, _POLICY_VIOLATION, socket.cut)
        return ws


def _dialled(request: web.Request, proxies: frozenset[str]) -> str:
    """The URL that the client dialled; AUTH events must name it. A proxy of the operator's says if it was by TLS."""
    is_secure = request.remote in proxies and request.headers.get("X-Forwarded-Proto") in ("https", "wss")
    return f"{'wss' if is_secure else 'ws'}://{request.host}"


def _a_day(nbytes: int) -> Budget:
    return Budget(nbytes / 86_400, nbytes / 4, asyncio.get_running_loop().time)


@dataclass(eq=False, slots=True)
class _Socket:
    """A websocket's place among all. `reading` is the task that serves it, `cut` why it was ended from here."""

    reading: asyncio.Task[object]
    origin: str
    cut: str = ""

    def end(self, reason: str) -> None:
        if not self.cut:
            self.cut = reason
            self.reading.cancel()


async def _listen(ws: web.WebSocketResponse, talk: Conversation, turn: Callable[[], Awaitable[None]]) -> None:
    """Each message is heard in a turn of its origin: a crowd from one address makes nobody else wait for all of it."""
    async for message in ws:
        if message.type is WSMsgType.TEXT:
            await turn()
            await talk.hear(message.data)
        elif message.type is WSMsgType.BINARY:
            await ws.send_str(nip01.Notice("invalid: binary message").to_json())


async def _close(ws: web.WebSocketResponse, request: web.Request, code: int, reason: str) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(_CLOSE_S):
            await ws.close(code=code, message=reason.encode()[:120])
            return
    # A client that reads nothing does not read the close frame either.
    if request.transport is not None:
        request.transport.abort()


@contextlib.asynccontextmanager
async def serve(
    config: Config, *, policies: Sequence[Policy] = POLICIES, clock: Callable[[], float] = time.time
) -> AsyncIterator[Relay]:
    """A relay that runs until the block is left. Port 0 takes a free one; `relay.url` tells which.

    Raises:
        BadConfig: the database cannot be used.
        OSError: the port is taken.

    """
    relay = Relay(config, policies, clock)
    shelf = None
    door = Door(config.limits, relay.work, relay.counts)
    app = web.Application(middlewares=[door.middleware, _with_cors])
    app.router.add_get("/", relay.root)
    if config.blobs is not None:
        shelf = Shelf(config.blobs, config.blob_limits)
        blossom.add_routes(app, shelf, config, lambda: relay.http_url, clock, relay.counts, relay.work)
    app.router.add_get("/{path:.+}", relay.page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S, handle_signals=False)
    await runner.setup()
    server = runner.server
    assert server is not None
    sweeping = asyncio.create_task(relay.sweep(shelf))
    listener: asyncio.Server | None = None
    try:
        listener = await asyncio.get_running_loop().create_server(
            lambda: door.guest(server), config.host, config.port, backlog=1_024, reuse_address=True
        )
        relay.listens_on(listener.sockets[0].getsockname()[1])
        yield relay
    finally:
        if listener is not None:
            listener.close()
        sweeping.cancel()
        await relay.hang_up()
        await runner.cleanup()
        await relay.writer.close()
        await relay.archive.close()
        if shelf is not None:
            await shelf.close()


@web.middleware
async def _with_cors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=informing.CORS)
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(informing.CORS)
        raise
    if not response.prepared:
        response.headers.update(informing.CORS)
    return response


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
