"""A node's links: who comes and who is dialled, by every way there is, and at most one to each peer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import BadInput, BadPeer, Busy, LinkLost, NodewireError, NotAllowed, TimedOut
from nodewire.net.connection_limits import Strangers, origin_of
from nodewire.net.rate_limits import Allowances, AtATime
from nodewire.protocol.encoding.address import SpliceAddress, is_splice
from nodewire.wire.link.happy_eyeballs import Way, race
from nodewire.wire.link.link import Link, Owner, Patience, Rung
from nodewire.wire.transport import identity
from nodewire.wire.transport import tcp as transport
from nodewire.wire.transport.tcp import Arrival, Beside, Listener, TcpTls, Transport
from nodewire.wire.transport.tls import secured

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.wire.transport.identity import Identity

MAX_HALF_OPEN = 64
"""Connections that have not proven themselves. Those beyond go by `Strangers`; who has proven itself is none."""
MAX_LINKS = 1_024
ORIGIN_BYTES_PER_S, MAX_ORIGIN_BYTES = 32 * 2**20, 128 * 2**20
"""What all links of one origin may send that no job expects, and what the work for its handshakes may come to."""
HANDSHAKE_BYTES, FAULT_BYTES = 2**19, 16 * 2**20
"""What a handshake takes of its origin's allowance, and what a link that broke the rules does."""
MAX_SETTLING = 4
"""Proven connections of one key that wait to be welcome or refused."""
MAX_ADDRESSES = 16
_RENEW_S = 86_400  # a certificate is replaced a day before it expires

_log = logging.getLogger("nodewire.wire")


class Ladder(Protocol):
    """What makes links to peers that can be met only (`wire.nat`)."""

    async def link(self, peer: str, splices: Sequence[SpliceAddress]) -> Link: ...


@dataclass(frozen=True, slots=True)
class LinkPolicy:
    """Who may link to a node, and by which ways and clock its links are made.

    `admit(public key)` says who may link; however many others there are, `judges` may. `beside` is a way to peers that
    is tried before their addresses.
    """

    admit: Callable[[str], bool] = lambda peer: True
    judges: Collection[str] = frozenset()
    patience: Patience = field(default_factory=Patience)
    transport: Transport = field(default_factory=TcpTls)
    beside: Beside | None = None
    unix_s: Callable[[], float] = time.time


ANYBODY = LinkPolicy()


class Links:
    """`open` are those that are, by public key; `opened` is told each.

    `ladder`, once set, knows the ways to peers that no address leads to.
    """

    def __init__(
        self,
        keys: Keys,
        owner: Owner,
        opened: Callable[[Link], None],
        policy: LinkPolicy,
    ) -> None:
        """As `Node`; `owner` is that of every link."""
        self.public = keys.public
        self.open: dict[str, Link] = {}
        self.ladder: Ladder | None = None
        self.is_closed = False
        self.strangers: Strangers[asyncio.Task[None]] = Strangers(MAX_HALF_OPEN)
        self.turned_away: Counter[str] = Counter()
        """Who came and got no link: "spent", "unproven", "displaced" by other strangers, or why it is not welcome (a
        code). "spent" are those whose origin has used up its allowance."""
        self._allowances = Allowances(ORIGIN_BYTES_PER_S, MAX_ORIGIN_BYTES, time.monotonic)
        self._settling = AtATime("link")
        self._keys = keys
        self._owner = owner
        self._opened = opened
        self._admit = policy.admit
        self._judges = policy.judges
        self._patience = policy.patience
        self._transport = policy.transport
        self._beside = policy.beside
        self._unix_s = policy.unix_s
        self._shown: Identity | None = None
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._dials: dict[str, _Dial] = {}
        self._linked = asyncio.Event()

    async def listen(self, host: str = "0.0.0.0", port: int = 0) -> str:  # noqa: S104 - peers are strangers
        """Accept links on an address (port 0: any free one), and say which. Raises OSError."""
        listener = await self._transport.listen(host, port, self._arrived)
        if self._beside is not None and not self._listeners:
            try:
                self._listeners.append(await self._beside.listen(self._arrived))
            except OSError as error:
                _log.info("links of one host go over TLS: %s", error)
        self._listeners.append(listener)
        return listener.address

    async def link(self, public: str, addresses: Sequence[str]) -> Link:
        """The link to `public`: the one that is open, or a new one to the first address that proves to be it.

        Raises:
            BadPeer: somebody else answers at the addresses.
            NotAllowed, Busy: it does not admit us.
            LinkLost, TimedOut: no address answers.
            BadInput: no address, over 16, or a malformed one.

        """
        if public == self.public:
            raise BadInput("public key", "our own")
        if not 0 < len(addresses) <= MAX_ADDRESSES:
            raise BadInput("addresses", f"{len(addresses)}, from 1 to {MAX_ADDRESSES}")
        if self.is_closed:
            raise LinkLost(public, "this node is closed")
        if (existing := self.open.get(public)) is not None:
            return existing
        dial = self._dials.get(public)
        if dial is None:
            dial = self._dials[public] = _Dial()
            way = partial(self._any_way, public, tuple(addresses))
            dial.task = self.run(self._dial(dial, public, way, ", ".join(addresses)))
        return await asyncio.shield(dial.found)

    async def reach(self, peer: str) -> Link:
        """The open link to `peer`; one that is not there yet may come while `dial_s` lasts. Raises LinkLost."""
        if (link := self.open.get(peer)) is not None:
            return link
        try:
            async with asyncio.timeout(self._patience.dial_s):
                while (link := self.open.get(peer)) is None:
                    self._linked.clear()
                    await self._linked.wait()
                return link
        except TimeoutError:
            raise LinkLost(peer, "no link") from None

    def is_dialling(self, peer: str) -> bool:
        return peer in self._dials

    def ended(self, link: Link) -> bool:
        """Forget a link that has ended; whether it was the one to its peer."""
        if link.is_at_fault and link.origin:
            self._allowances.get(link.origin).charge(FAULT_BYTES)
        if self.open.get(link.peer) is not link:
            return False
        del self.open[link.peer]
        return True

    async def close(self) -> None:
        """End all links and stop listening."""
        self.is_closed = True
        for listener in self._listeners:
            listener.close()
        for link in list(self.open.values()):
            link.end(LinkLost(self.public, "the node closes"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Until the links are closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def identity(self) -> Identity:
        """What is shown to those who come now."""
        now_s, shown = self._unix_s(), self._shown
        # A clock that was set back leaves one that does not count yet.
        if shown is None or not shown.begins_at_s <= now_s <= shown.expires_at_s - _RENEW_S:
            shown = self._shown = identity.make(self._keys, now_s)
        return shown

    # Over a connection that a ladder found.

    async def secure(self, peer: str, connection: socket.socket, rung: Rung) -> Link:
        """A link to `peer` over a connection to whoever it is, as the end that dials.

        Raises:
            BadPeer: somebody else is there.
            NotAllowed, Busy: `peer` does not admit us.
            LinkLost, TimedOut: whoever it is does not answer.

        """
        link = self._new_link(peer, self.identity())
        link.rung = rung
        self._prepare(connection)
        try:
            async with asyncio.timeout(self._patience.handshake_s):
                await secured(connection, self.identity().client, link, is_server=False)
                await link.ready
        except BaseException as error:
            link.abort(LinkLost(peer, "given up"))
            if isinstance(error, TimeoutError):
                raise TimedOut("handshake", f"nobody answers by {rung}") from error
            if isinstance(error, OSError):
                raise LinkLost(peer, str(error)[:200]) from error
            raise
        return link

    async def serve(self, peer: str, connection: socket.socket, rung: Rung) -> Link:
        """As `secure`, as the end that is dialled. The link is among `peers` when this returns."""
        self._prepare(connection)
        link = await self._proven(transport.TcpArrival(connection, ""))
        if link.peer != peer:
            error = BadPeer("npub", f"{link.peer} comes, {peer} was expected")
            link.refuse(error)
            raise error
        link.rung = rung
        await self._settle(link)
        return link

    def _prepare(self, connection: socket.socket) -> None:
        if isinstance(self._transport, TcpTls):
            self._transport.prepare(connection)

    async def meet(self, peer: str, way: Way) -> None:
        """Link to `peer`, who has asked for it, as the end that dials; not if there is a link that lives."""
        existing = self.open.get(peer)
        if self.is_closed or (existing is not None and await existing.is_alive()):
            return
        dial = self._dials.get(peer)
        if dial is None:
            dial = self._dials[peer] = _Dial()
            dial.task = self.run(self._dial(dial, peer, way, "a splice"))
            await asyncio.wait([dial.task])
            return
        link = await way()
        if self._dials.get(peer) is not dial:
            link.end(NotAllowed("link", "another way was first"))
            return
        self._install(link)
        self._announce(link)

    # Who comes.

    def _arrived(self, arrival: Arrival) -> None:
        if self.is_closed:
            arrival.refuse()
            return
        if arrival.address:
            allowance = self._allowances.get(origin_of(arrival.address))
            if allowance.left_bytes < HANDSHAKE_BYTES:
                self.turned_away["spent"] += 1
                arrival.refuse()
                return
            allowance.charge(HANDSHAKE_BYTES)
        displaced = self.strangers.enter(self.run(self._serve(arrival)), arrival.address)
        if displaced is not None:
            self.turned_away["displaced"] += 1
            displaced.cancel()

    async def _serve(self, arrival: Arrival) -> None:
        """Have a stranger prove itself in time, then decide whether it may stay."""
        try:
            link = await self._proven(arrival)
        except NodewireError:
            self.turned_away["unproven"] += 1
            return
        finally:
            task = asyncio.current_task()
            assert task is not None
            self.strangers.leave(task)
        with suppress(NodewireError):
            await self._settle(link)

    async def _proven(self, arrival: Arrival) -> Link:
        """A link whose peer has proven itself, in time. Raises BadPeer."""
        shown = self.identity()
        link = self._new_link(None, shown)
        try:
            async with asyncio.timeout(self._patience.handshake_s):
                await arrival.accept(link, shown)
                await link.ready
        except (OSError, TimeoutError, NodewireError) as error:
            failure = BadPeer("handshake", str(error)[:200] or "took too long")
            link.abort(failure)
            raise failure from error
        except asyncio.CancelledError:
            link.abort(LinkLost(self.public, "the node closes, or needs the room"))
            raise
        return link

    async def _settle(self, link: Link) -> None:
        """Welcome a proven peer, unless there is a link to it already. Raises NotAllowed, Busy: it was told so."""
        peer = link.peer
        try:
            self._settling.acquire(peer, MAX_SETTLING)
            try:
                await self._welcome(link)
            finally:
                self._settling.give(peer)
        except NodewireError as error:
            self.turned_away[error.code] += 1
            link.refuse(error)
            raise

    async def _welcome(self, link: Link) -> None:
        if link.peer == self.public or not self._admit(link.peer):
            raise NotAllowed("npub", f"{link.peer} is not admitted")
        is_first = True
        while link.error is None:
            existing, dial = self.open.get(link.peer), self._dials.get(link.peer)
            if existing is not None:
                # The peer may have lost a link that looks well from here.
                if await existing.is_alive():
                    raise NotAllowed("link", "there is one already")
            elif dial is not None and self.public < link.peer and is_first:
                # Of two simultaneous dials the lower key's survives, unless it fails, or leads nowhere.
                await asyncio.wait([dial.found], timeout=self._patience.again_s)
                is_first = False
            else:
                if len(self.open) >= MAX_LINKS and link.peer not in self._judges:
                    self._make_room(link)
                self._install(link)
                link.welcome()
                self._announce(link)
                return

    def _make_room(self, link: Link) -> None:
        """End the oldest link without a job of the origin that has most of them. Raises Busy: all have jobs."""
        idle = [one for one in self.open.values() if not one.has_jobs and one.peer not in self._judges]
        crowds = Counter(one.origin for one in (*idle, link))
        idle.sort(key=lambda one: -crowds[one.origin])  # the older of equals stays first
        if not idle:
            raise Busy("links", f"{MAX_LINKS} are open")
        idle[0].end(Busy("links", f"{MAX_LINKS} are open, and others need the room"))

    def _install(self, link: Link) -> None:
        """Raises LinkLost: it has ended since it was opened, and nobody would tell so again."""
        if link.error is not None:
            raise LinkLost(link.peer, str(link.error))
        if link.origin and link.rung != "splice":  # one splice's address is many peers'
            link.allowance.above = self._allowances.get(link.origin)
        self.open[link.peer] = link
        dial = self._dials.pop(link.peer, None)
        if dial is not None and not dial.found.done():
            dial.found.set_result(link)
            if dial.task is not None and dial.task is not asyncio.current_task():
                dial.task.cancel()

    def _announce(self, link: Link) -> None:
        """The link is open: whoever waits for it may go on."""
        self._linked.set()
        self._opened(link)

    # Who is dialled.

    async def _dial(self, dial: _Dial, public: str, way: Way, where: str) -> None:
        try:
            async with asyncio.timeout(self._patience.dial_s):
                link = await way()
            self._install(link)
            self._announce(link)
        except TimeoutError:
            dial.fail(TimedOut("dial", f"{public} did not answer at {where[:200]}"))
        except NodewireError as error:
            dial.fail(error)
        except asyncio.CancelledError:
            dial.fail(LinkLost(public, "this node is closed"))
            raise
        finally:
            dial.fail(LinkLost(public, "the dial broke off"))  # whatever that was: nobody waits for ever
            if self._dials.get(public) is dial:
                del self._dials[public]

    async def _any_way(self, public: str, addresses: Sequence[str]) -> Link:
        """The link of the first way to a peer. Raises as `race`; LinkLost: there is none that this node can go."""
        if (near := await self._near(public)) is not None:
            return near
        dials = [partial(self._attempt, public, address) for address in addresses if not is_splice(address)]
        splices = [SpliceAddress.parse(address) for address in addresses if is_splice(address)]
        ways: list[Way] = [*dials]
        if splices and self.ladder is not None:
            ways.append(partial(self.ladder.link, public, splices))
        if not ways:
            raise LinkLost(public, "can be met at a splice only, and this node makes no offers")
        return await race(ways, dials, self._patience)

    async def _near(self, public: str) -> Link | None:
        """A link that needs no address, if there is a way to the peer and the peer answers there soon."""
        if self._beside is None or not self._beside.knows(public):
            return None
        link = self._new_link(public, self.identity())
        try:
            async with asyncio.timeout(self._patience.again_s):
                await self._beside.dial(public, link)
                await link.ready
        except (NodewireError, TimeoutError) as error:
            link.abort(LinkLost(public, "given up"))
            _log.info("%s is not reached on this host: %s", public[:8], error or "no answer")
            return None
        except BaseException:
            link.abort(LinkLost(public, "given up"))
            raise
        return link

    async def _attempt(self, public: str, address: str) -> Link:
        link = self._new_link(public, self.identity())
        try:
            await self._transport.dial(address, link, self.identity())
            await link.ready
        except BaseException:
            link.abort(LinkLost(address, "given up"))
            raise
        return link

    def _new_link(self, expected: str | None, shown: Identity) -> Link:
        return Link(self._owner, self._keys, shown, self._patience, self._unix_s(), expected=expected)


class _Dial:
    """A dial under way; `found` is the link, whichever side opened it."""

    def __init__(self) -> None:
        self.found: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.found.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task: asyncio.Task[None] | None = None

    def fail(self, error: NodewireError) -> None:
        if not self.found.done():
            self.found.set_exception(error)
