"""A node: one Nostr identity, its links to other nodes, and the jobs that run over them."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from nodewire.errors import BadInput, BadPeer, Busy, LinkLost, NodewireError, NotAllowed, NotFound, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.protocol.address import SpliceAddress, is_splice
from nodewire.strangers import Strangers
from nodewire.wire import identity, transport
from nodewire.wire.allowance import AtATime
from nodewire.wire.early import Early
from nodewire.wire.frames import DataHeader, Document
from nodewire.wire.identity import Identity
from nodewire.wire.keeping import KeptLink
from nodewire.wire.link import Link, Patience, Rung
from nodewire.wire.mailbox import CANCEL, ERROR, GRACE_S, RESUME, JobMailbox, OnLost, Route, Tape
from nodewire.wire.memory import Memory
from nodewire.wire.presence import Presence
from nodewire.wire.pull import PULL, Holder, Pulls
from nodewire.wire.racing import Way, race
from nodewire.wire.survey import PACE_S, Survey
from nodewire.wire.tls import secured
from nodewire.wire.transport import Arrival, Beside, Listener, TcpTls, Transport

MAX_HALF_OPEN = 64
"""Connections that have not proven themselves. Those beyond go by `Strangers`; who has proven itself is none."""
MAX_LINKS = 1_024
MAX_SETTLING = 4
"""Proven connections of one key that wait to be welcome or refused."""
MAX_ADDRESSES = 16
_MAX_FENCES = 4_096
_MAX_OVER = 4_096
_RENEW_S = 86_400  # a certificate is replaced a day before it expires

_log = logging.getLogger("nodewire.wire")


class Node:
    """Listens, dials, and keeps at most one link to each peer.

    `admit(public key)` says who may link to us; `on_control(peer, document)` is given what is no open job's; `holder`
    decides what those who pull get. However many others there are, `judges` may link and pull. `expect(public key)`:
    who may have us meet it at a splice, beside `judges` and who is in a job with us. `beside` is a way to peers that is
    tried before their addresses; `ladder`, once set, knows the ways to peers that no address leads to.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        admit: Callable[[str], bool] = lambda peer: True,
        on_control: Callable[[str, Document], None] = lambda peer, document: None,
        holder: Holder | None = None,
        judges: Collection[str] = (),
        expect: Callable[[str], bool] = lambda peer: False,
        patience: Patience | None = None,
        transport: Transport | None = None,
        beside: Beside | None = None,
        unix_s: Callable[[], float] = time.time,
        survey_s: float = PACE_S,
    ) -> None:
        """`survey_s`: how often links are looked at, in seconds (`survey`)."""
        self.public = keys.public
        self.survey = Survey(keys.public, pace_s=survey_s, unix_s=unix_s)
        self._keys = keys
        self._admit = admit
        self._on_control = on_control
        self._judges = frozenset(judges)
        self._expect = expect
        self.ladder: Ladder | None = None
        self._pulls = Pulls(self, holder, self._judges)
        self._presence = Presence(lambda request: self._jobs.get(request))
        self._patience = patience or Patience()
        self._transport = transport or TcpTls()
        self._beside = beside
        self._unix_s = unix_s
        self._shown: Identity | None = None
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: Strangers[asyncio.Task[None]] = Strangers(MAX_HALF_OPEN)
        self._settling = AtATime("link")
        self._links: dict[str, Link] = {}
        self._dials: dict[str, _Dial] = {}
        self._linked = asyncio.Event()
        self._jobs: dict[str, JobMailbox] = {}
        self._early = Early()
        self._memory = Memory()
        self._over: OrderedDict[str, int] = OrderedDict()
        self._fences: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._closed = False

    @property
    def peers(self) -> Mapping[str, Link]:
        """The open links by public key."""
        return self._links

    async def listen(self, host: str = "0.0.0.0", port: int = 0) -> str:
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
        if self._closed:
            raise LinkLost(public, "this node is closed")
        if (existing := self._links.get(public)) is not None:
            return existing
        dial = self._dials.get(public)
        if dial is None:
            dial = self._dials[public] = _Dial()
            way = partial(self._any_way, public, tuple(addresses))
            dial.task = self._run(self._dial(dial, public, way, ", ".join(addresses)))
        return await asyncio.shield(dial.found)

    def keep(self, public: str, addresses: Sequence[str]) -> KeptLink:
        """Have a link to `public`, and another one whenever it is lost, until the result is closed."""
        return KeptLink(self, public, addresses)

    def open_job(
        self,
        request: str,
        routes: Mapping[str, Route],
        attempt: int = 0,
        limits: Mapping[str, int] | None = None,
        *,
        on_lost: OnLost | None = None,
        grace_s: float = GRACE_S,
        tape: Tape | None = None,
        keep_inputs: bool = False,
    ) -> JobMailbox:
        """The mailbox of a job on this node.

        `routes` are all of the job's edges by name; `limits` the most bytes of one frame per edge. Who enters by a
        takeover opens the job with its `attempt` and the routes that it makes.

        With `on_lost` a lost neighbour does not end the job: `on_lost` is called at once, and the job fails only if
        the neighbour neither comes back nor is replaced (JobMailbox.take_over) within `grace_s` seconds. `tape` keeps
        what is put, so that it can be sent to who lacks it, and with `keep_inputs` also what comes from other nodes.

        Raises:
            NotAllowed: the job is open already.
            BadInput, TooLarge: a malformed request id, too many routes, or a limit over 256 MiB.
        """
        if request in self._jobs:
            raise NotAllowed("request", "the job is open already")
        job = self._jobs[request] = JobMailbox(
            self,
            request,
            routes,
            attempt,
            limits,
            on_lost=on_lost,
            grace_s=grace_s,
            tape=tape,
            keep_inputs=keep_inputs,
        )
        for fence in [f for f in self._fences if f[1] == request]:
            del self._fences[fence]
        for peer, held in self._early.take(request):
            if (link := self._links.get(peer)) is None or (peer, request) in self._fences:
                continue
            try:
                job.begin(peer, held.header)
            except NodewireError as error:
                self._fence(link, job, request, held.header.attempt, error)
            else:
                if held.done:
                    job.end(held.header, held.memory)
        job.opened()
        for peer in job.members:
            if (link := self._links.get(peer)) is not None:
                job.linked(link)
        return job

    async def holds(self, public: str, addresses: Sequence[str], request: str, patience_s: float) -> bool:
        """Whether the node `public` can be reached and says that it holds the job (`wire.presence`)."""
        return await self._presence.ask(self.link(public, addresses), public, request, patience_s)

    async def close(self) -> None:
        """End all links and stop listening."""
        self._closed = True
        for listener in self._listeners:
            listener.close()
        for link in list(self._links.values()):
            link.end(LinkLost(self.public, "the node closes"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What a ladder calls (`wire.reach`).

    def expects(self, peer: str) -> bool:
        """Whether `peer` may ask to be met: a job, or this node itself, wants a link to it."""
        return self._admit(peer) and (
            peer in self._dials
            or peer in self._judges
            or self._expect(peer)
            or any(peer in job.members for job in self._jobs.values())
        )

    async def secure(self, peer: str, connection: socket.socket, rung: Rung) -> Link:
        """A link to `peer` over a connection to whoever it is, as the end that dials.

        Raises:
            BadPeer: somebody else is there.
            NotAllowed, Busy: `peer` does not admit us.
            LinkLost, TimedOut: whoever it is does not answer.
        """
        link = self._new_link(peer, self._identity())
        link.rung = rung
        self._prepare(connection)
        try:
            async with asyncio.timeout(self._patience.handshake_s):
                await secured(connection, self._identity().client, link, is_server=False)
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
        existing = self._links.get(peer)
        if self._closed or (existing is not None and await existing.is_alive()):
            return
        dial = self._dials.get(peer)
        if dial is None:
            dial = self._dials[peer] = _Dial()
            dial.task = self._run(self._dial(dial, peer, way, "a splice"))
            await asyncio.wait([dial.task])
            return
        link = await way()
        if self._dials.get(peer) is not dial:
            link.end(NotAllowed("link", "another way was first"))
            return
        self._install(link)
        self._announce(link)

    # What mailboxes call.

    async def reach(self, peer: str) -> Link:
        """The open link to `peer`; one that is not there yet may come while `dial_s` lasts. Raises LinkLost."""
        if (link := self._links.get(peer)) is not None:
            return link
        try:
            async with asyncio.timeout(self._patience.dial_s):
                while (link := self._links.get(peer)) is None:
                    self._linked.clear()
                    await self._linked.wait()
                return link
        except TimeoutError:
            raise LinkLost(peer, "no link") from None

    def open_link(self, peer: str) -> Link | None:
        return self._links.get(peer)

    def forget(self, job: JobMailbox) -> None:
        if self._jobs.get(job.request) is not job:
            return
        del self._jobs[job.request]
        if not self._jobs:
            self._memory.clear()
        self._over[job.request] = job.attempt
        while len(self._over) > _MAX_OVER:
            self._over.popitem(last=False)
        self.rearranged(job, job.members)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._run(work)

    def replaced(self, job: JobMailbox) -> None:
        self._presence.replaced(job)

    def rearranged(self, job: JobMailbox, left: set[str]) -> None:
        for peer in left:
            if (link := self._links.get(peer)) is not None:
                link.leave(job.request)
                link.discard(job.request)

    # What links call.

    def data_begins(self, link: Link, header: DataHeader) -> memoryview | None:
        """Memory for a frame that may come; None lets it pass by."""
        if (link.peer, header.job) in self._fences:
            return None
        job = self._jobs.get(header.job)
        try:
            if job is None and header.attempt <= self._over.get(header.job, -1):
                raise NotFound("job", "closed here")
            if job is None:
                origin = link.origin
                for (other, name), attempt in self._early.displaced(link.peer, origin, header):
                    self._fence(self._links[other], None, name, attempt, Busy("job", "not open here, and others wait"))
                memory, first = self._early.begin(link.peer, origin, header)
                if first:
                    asyncio.get_running_loop().call_later(
                        self._patience.early_s, self._expire, link, header.job, header.attempt
                    )
                return memory
            job.begin(link.peer, header)
            return self._memory.take(header.nbytes)
        except NodewireError as error:
            self._fence(link, job, header.job, header.attempt, error)
            return None

    def data_ends(self, link: Link, header: DataHeader, memory: memoryview) -> None:
        job = self._jobs.get(header.job)
        if job is not None:
            job.end(header, memory)
        else:
            self._early.end(link.peer, header)

    def credit(self, link: Link, job: str, edge: str, attempt: int, limit: int) -> None:
        mailbox = self._jobs.get(job)
        if mailbox is not None:
            mailbox.credited(link, edge, limit)

    def control(self, link: Link, document: Document) -> None:
        if self._presence.heard(link, document) or self.survey.heard(link, document):
            return
        name = document.get("job")
        job = self._jobs.get(name) if isinstance(name, str) else None
        if job is not None and link.peer in job.members:
            job.documented(link.peer, document)
        elif document["t"] == PULL:
            self._run(self._pulls.asked(link.peer, document))
        elif document["t"] not in (ERROR, CANCEL, RESUME):
            self._on_control(link.peer, document)

    def stood_still(self) -> None:
        self._presence.stood_still()

    def lost(self, link: Link, error: NodewireError) -> None:
        if self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        self._early.drop_peer(link.peer)
        for fence in [f for f in self._fences if f[0] == link.peer]:
            del self._fences[fence]
        for job in list(self._jobs.values()):
            if link.peer not in job.members:
                continue
            if self._closed:  # it is not the peer that was lost
                job.fail(LinkLost(self.public, "this node is closed"))
            else:
                job.lost(link.peer, error)

    # Frames that break their job's rules.

    def _fence(self, link: Link, job: JobMailbox | None, name: str, attempt: int, error: NodewireError) -> None:
        """End the job for this peer: it is told once, and its further frames pass by unread.

        The job itself fails only if the peer's frames are a part of it.
        """
        self._fences[link.peer, name] = None
        link.discard(name)
        while len(self._fences) > _MAX_FENCES:
            self._fences.popitem(last=False)
        _log.info("job %s, frame from %s refused: %s", name[:8], link.peer[:8], error)
        document = {"t": ERROR, "job": name, "attempt": attempt, "error": error.as_dict()}
        if link.is_open:
            link.send_control(document)
        if job is not None and job.consumes_from(link.peer):
            job.fail(error)

    def _expire(self, link: Link, name: str, attempt: int) -> None:
        # What came over a link that has ended went with it; the books are its successor's, whose memory is in use.
        if self._links.get(link.peer) is link and self._early.drop((link.peer, name)):
            self._fence(link, None, name, attempt, NotFound("job", "not open here"))

    # Links in and out.

    def _identity(self) -> Identity:
        now_s, shown = self._unix_s(), self._shown
        # A clock that was set back leaves one that does not count yet.
        if shown is None or not shown.begins_at_s <= now_s <= shown.expires_at_s - _RENEW_S:
            shown = self._shown = identity.make(self._keys, now_s)
        return shown

    def _arrived(self, arrival: Arrival) -> None:
        if self._closed:
            arrival.refuse()
            return
        displaced = self._strangers.enter(self._run(self._serve(arrival)), arrival.address)
        if displaced is not None:
            displaced.cancel()

    async def _serve(self, arrival: Arrival) -> None:
        """Have a stranger prove itself in time, then decide whether it may stay."""
        try:
            link = await self._proven(arrival)
        except NodewireError:
            return
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._strangers.leave(task)
        with suppress(NodewireError):
            await self._settle(link)

    async def _proven(self, arrival: Arrival) -> Link:
        """A link whose peer has proven itself, in time. Raises BadPeer."""
        shown = self._identity()
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
            self._settling.take(peer, MAX_SETTLING)
            try:
                await self._welcome(link)
            finally:
                self._settling.give(peer)
        except NodewireError as error:
            link.refuse(error)
            raise

    async def _welcome(self, link: Link) -> None:
        if link.peer == self.public or not self._admit(link.peer):
            raise NotAllowed("npub", f"{link.peer} is not admitted")
        while link.error is None:
            existing, dial = self._links.get(link.peer), self._dials.get(link.peer)
            if existing is not None:
                # The peer may have lost a link that looks well from here.
                if await existing.is_alive():
                    raise NotAllowed("link", "there is one already")
            elif dial is not None and self.public < link.peer:
                # Of two simultaneous dials the lower key's survives, unless it fails.
                await asyncio.wait([dial.found])
            else:
                if len(self._links) >= MAX_LINKS and link.peer not in self._judges:
                    self._make_room(link)
                self._install(link)
                link.welcome()
                self._announce(link)
                return

    def _make_room(self, link: Link) -> None:
        """End the oldest link without a job of the origin that has most of them. Raises Busy: all have jobs."""
        idle = [one for one in self._links.values() if not one.has_jobs and one.peer not in self._judges]
        crowds = Counter(one.origin for one in (*idle, link))
        idle.sort(key=lambda one: -crowds[one.origin])  # the older of equals stays first
        if not idle:
            raise Busy("links", f"{MAX_LINKS} are open")
        idle[0].end(Busy("links", f"{MAX_LINKS} are open, and others need the room"))

    def _install(self, link: Link) -> None:
        self._links[link.peer] = link
        dial = self._dials.pop(link.peer, None)
        if dial is not None and not dial.found.done():
            dial.found.set_result(link)
            if dial.task is not None and dial.task is not asyncio.current_task():
                dial.task.cancel()

    def _announce(self, link: Link) -> None:
        """The link is open: whoever waits for it may go on."""
        self._linked.set()
        self._run(self.survey.follow(link))
        for job in list(self._jobs.values()):
            if link.peer in job.members and link.is_open:
                job.linked(link)

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
        link = self._new_link(public, self._identity())
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
        link = self._new_link(public, self._identity())
        try:
            await self._transport.dial(address, link, self._identity())
            await link.ready
        except BaseException:
            link.abort(LinkLost(address, "given up"))
            raise
        return link

    def _new_link(self, expected: str | None, shown: Identity) -> Link:
        return Link(self, self._keys, shown, self._patience, self._unix_s(), expected=expected)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Ladder(Protocol):
    """What makes links to peers that can be met only (`wire.reach`)."""

    async def link(self, peer: str, splices: Sequence[SpliceAddress]) -> Link: ...


class _Dial:
    """A dial under way; `found` is the link, whichever side opened it."""

    def __init__(self) -> None:
        self.found: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.found.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task: asyncio.Task[None] | None = None

    def fail(self, error: NodewireError) -> None:
        if not self.found.done():
            self.found.set_exception(error)
