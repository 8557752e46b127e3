"""One job's edges as one node sees them: frames under names that everybody knows in advance.

A frame on an edge is called plan.tensor_key(request, edge, attempt, seq), the attempt being 0, and counts only if it
comes from the producer that the job's routes name, as the next one of its edge, within the edge's window. The window is
flow control: a consumer grants a producer how many bytes it may have sent in all (CREDIT), and grants more as they are
taken by `get`. Both sides assume INITIAL_WINDOW_BYTES, so that a producer may start before the consumer has opened the
job; whoever opens it second causes the full window to be granted (a producer by a CREDIT of 0).

A job whose owner asks to be told of losses (`on_lost`) outlives its links. Where the link between both ends of an edge
was lost and made again, the consumer says by a `resume` document which frame it lacks first; the producer has been
silent since, and goes on there, out of its tape as far as the frame is older.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadFrame, Busy, LinkLost, NodewireError, NotAllowed
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.plan import tensor_key
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.framing import frames
from nodewire.wire.job import sender
from nodewire.wire.job.control_channel import ControlChannel
from nodewire.wire.job.edge_table import JobEdges
from nodewire.wire.job.edge_window import INITIAL_WINDOW_BYTES, WINDOW_BYTES, IncomingEdge, Route, Tape
from nodewire.wire.job.sender import Sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from nodewire.protocol.tensors.inbox import Inbox
    from nodewire.wire.framing.frames import Document
    from nodewire.wire.framing.headers import DataHeader
    from nodewire.wire.job.channel_spec import JobChannelSpec
    from nodewire.wire.link.link import Link

__all__ = ["INITIAL_WINDOW_BYTES", "WINDOW_BYTES", "JobMailbox", "Route", "Tape"]

MAX_CONTROLS = 256
"""Of one member's documents that wait unread."""

ERROR, CANCEL, RESUME = "error", "cancel", "resume"
"""The types of the documents about a job that the wire itself understands."""


class Exchange(sender.Exchange, Protocol):
    """The node as its mailboxes see it."""

    def end_job(self, job: JobMailbox) -> None:
        """The job is over here: what its members may still send, and may have sent by now, is none of their fault."""

    def forget(self, job: JobMailbox) -> None: ...


class JobMailbox:
    """Implements nodewire.kind.Mailbox. Made by Node.open_job.

    A consumer that stops calling `get` blocks its producers' `put` once the window is full; a node that consumes and
    produces must not wait for `put` before it calls `get` if one answer may be larger than a window.
    """

    def __init__(self, exchange: Exchange, channel: JobChannelSpec) -> None:
        self.request = channel.request
        self.turn_us: Callable[[], int] | None = None
        """What this node's part of a turn takes (`wire.job.latency_query`), where somebody counts it."""
        self._exchange = exchange
        relinks = channel.on_lost is not None
        self._edges = JobEdges(exchange.public, channel.routes, channel.limits, relinks=relinks)
        self._on_lost = channel.on_lost
        self._grace_s = channel.grace_s
        self._tape = channel.tape
        self._keep_inputs = channel.keep_inputs
        self._awaited: dict[str, asyncio.TimerHandle] = {}
        """Neighbours that were lost, and have not been heard of in the job since. A link alone is not enough: a process
        that was started anew has one, but not the job."""
        self._said: dict[str, ControlChannel] = {}
        self._inbox: Inbox | None = None
        self._queue: deque[tuple[IncomingEdge, Frame[Array], int]] = deque()
        """Of what no inbox has taken."""
        self._controls: deque[tuple[str, bytes]] = deque()
        """Packed: a document of nothing but empty lists takes 64 times its bytes."""
        self._unread: Counter[str] = Counter()
        """Of them, by who sent them."""
        self._arrived = asyncio.Event()
        self._documents = asyncio.Event()
        self._moved = asyncio.Event()
        self._over = asyncio.Event()
        self._error: NodewireError | None = None
        self._sender = Sender(self, exchange, self.request, self._tape, relinks=relinks)

    @property
    def members(self) -> set[str]:
        """Everybody on any of the job's edges: whose control documents are the job's."""
        return self._edges.members

    @property
    def neighbours(self) -> set[str]:
        """The other nodes that this one sends to or receives from."""
        return self._edges.neighbours

    @property
    def granted(self) -> Mapping[str, int]:
        """By producer, the bytes that its windows here have room for."""
        return self._edges.granted

    @property
    def is_held(self) -> bool:
        """Whether this node goes on with the job: nothing has ended it here."""
        return self._error is None

    @property
    def failure(self) -> NodewireError | None:
        """What has ended the job here; None as long as it goes on."""
        return self._error

    @property
    def _attended(self) -> set[str]:
        """Whose silence is noticed soon; in a job that outlives its links everybody's."""
        return self.neighbours if self._on_lost is None else self.members

    # What the job's owner calls.

    async def put(self, frame: Frame[Array]) -> None:
        """Deliver to the consumer of the edge; waits while its window is full.

        When it returns, the arrays' memory may be used again, unless the consumer is on this node: then it has been
        given the arrays themselves. In a job that outlives its links it also waits for a consumer that is lost, and
        returns if that says, when it is back, that it has the frame. If it is cancelled the frame goes all the same,
        from a copy, before the next one.

        Raises:
            BadFrame: not an edge that this node produces, not the next `seq`, or an array that contradicts itself.
            TooLarge: above the edge's limit.
            LinkLost: the consumer cannot be reached.
            NotFound: the consumer lacks earlier frames, and the tape has not kept them.
            NodewireError: what ended the job.

        """
        self.check()
        outgoing = self._edges.outgoing.get(frame.edge)
        if outgoing is None:
            raise BadFrame("edge", f"{frame.edge[:64]!r} is not one that this node produces")
        if frame.seq != outgoing.next_seq:
            raise BadFrame("seq", f"{frame.seq}, {outgoing.next_seq} is next on {frame.edge}")
        parcel = self._sender.parcel(outgoing, frame)
        outgoing.next_seq = frame.seq + 1
        if self._tape is not None:
            self._tape.write(self.request, frame.edge, 0, frame)
        await self._sender.send(outgoing, parcel)

    async def get(self) -> Frame[Array]:
        """The next frame that came on any edge that this node consumes, in order per edge.

        Raises:
            LinkLost: the link to a neighbour in the job has ended and was not made again in time.
            NodewireError: what else ended the job. What came before is delivered first.

        """
        while not self._queue:
            self.check()
            self._arrived.clear()
            await self._arrived.wait()
        return self._take()

    def deliver_to(self, inbox: Inbox) -> None:
        """Hand the frames that `get` would return to an inbox: those that wait now, and later ones as they come.

        Their windows open at once; what the inbox does not take stays for `get`. It is told what ends the job.
        """
        self._inbox = inbox
        while self._queue and inbox.put(self._queue[0][1]):
            self._take()
        if self._error is not None:
            inbox.fail(self._error)

    async def failed(self) -> NodewireError:
        """Return what has ended the job here, as soon as something has."""
        await self._over.wait()
        assert self._error is not None
        return self._error

    async def control(self, peer: str, document: Document) -> None:
        """Send a small document about this job to one of its members: {"t": its type, ...}; `job` is added.

        In a job that outlives its links it waits for a member that is lost; documents that may have been under way
        when a link broke are sent again on the next, and read once.

        Raises:
            NotAllowed: not a member, or a type that the wire keeps for itself.
            BadInput, TooLarge: no canonical form, or over 64 KiB.
            LinkLost: the member cannot be reached.
            NodewireError: what ended the job.

        """
        self.check()
        if peer not in self.members or document.get("t") in (ERROR, CANCEL, RESUME):
            raise NotAllowed("document", "for a stranger, or of a type that the wire keeps for itself")
        document = {**document, "job": self.request}
        if self._on_lost is None:
            (await self._exchange.reach(peer)).send_control(document)
            return
        said = self._said.setdefault(peer, ControlChannel())
        said.add(document)
        said.send(await self._reach(peer))

    async def controls(self) -> AsyncIterator[tuple[str, Document]]:
        """(sender, document) of what members send by `control`, until the job ends; raises what ended it."""
        while True:
            while self._controls:
                peer, packed = self._controls.popleft()
                self._unread[peer] -= 1
                yield peer, canonical.decode(packed, max_bytes=frames.MAX_DOCUMENT_BYTES)
            self.check()
            self._documents.clear()
            await self._documents.wait()

    def cancel(self, error: NodewireError | None = None) -> None:
        """End the job here and at every neighbour, whose `get` and `put` raise `error`."""
        error = error or NotAllowed("job", f"cancelled by {self._exchange.public}")
        document = {"t": CANCEL, "job": self.request, "attempt": 0, "error": error.as_dict()}
        for peer in self.neighbours:
            link = self._exchange.open_link(peer)
            if link is not None:
                link.send_control(document)
        self.fail(error)

    def close(self) -> None:
        """End the job here; what comes later is answered with not-found."""
        self.fail(NotAllowed("job", "closed"))
        self._queue.clear()
        self._exchange.forget(self)

    # What the node calls.

    def begin(self, peer: str, header: DataHeader) -> None:
        """Check that a frame from `peer` may come now, before memory is taken for it.

        Raises:
            BadFrame, TooLarge: it may not; `field` says why.

        """
        incoming = self._edges.incoming.get(header.edge)
        if incoming is None:
            raise BadFrame("edge", f"{header.edge!r} does not lead here")
        if incoming.producer != peer:
            raise BadFrame("producer", f"{peer} does not produce {header.edge}")
        if header.attempt or header.key != tensor_key(self.request, header.edge, 0, header.seq):
            raise BadFrame("key", "not the name of this frame")
        incoming.admit(header)

    def end(self, header: DataHeader, memory: memoryview) -> None:
        """A frame that `begin` admitted is complete; it counts unless its edge has begun anew meanwhile."""
        incoming = self._edges.incoming.get(header.edge)
        if incoming is None or not incoming.end(header):
            return
        frame = Frame(header.edge, header.seq, header.arrays(memory), header.meta)
        if self._keep_inputs and self._tape is not None:
            self._tape.write(self.request, header.edge, header.attempt, frame)
        self.deliver(incoming, frame, header.cost)

    def linked(self, link: Link) -> None:
        """There is a link to a member: tell a neighbour the windows of its edges, and ask for ours."""
        self._moved.set()
        self._moved.clear()
        if (said := self._said.get(link.peer)) is not None:
            said.send(link)
        if link.peer in self._attended:
            link.attend(self.request)
        if link.peer not in self.neighbours:
            return
        for incoming in self._edges.from_peer(link.peer):
            self._tell(link, incoming)
        for outgoing in self._edges.to_peer(link.peer):
            link.send_credit(self.request, outgoing.edge, 0)
        self._sender.wake()

    def opened(self) -> None:
        """The job is open: the windows are full-sized from now on."""
        for incoming in self._edges.incoming.values():
            incoming.granted = incoming.window
            self._begin_local(incoming.edge)

    def credited(self, link: Link, edge: str, limit: int) -> None:
        """A consumer grants more; or a producer, which opened the job after us, asks what was granted."""
        incoming, outgoing = self._edges.incoming.get(edge), self._edges.towards(link.peer, edge)
        if outgoing is not None:
            self._hear(link.peer)
            outgoing.window.grant(limit)
        elif incoming is not None and incoming.producer == link.peer:
            self._hear(link.peer)
            self._tell(link, incoming)

    def refuse(self, peer: str, edge: str, error: NodewireError) -> None:
        """A frame of `peer` on `edge` breaks the rules: the job is over here, unless none of its frames are part of it.

        The reason names an edge on which it sends, whatever it says: nobody else's is to blame.
        """
        if (own := self._edges.edge_of(peer, edge)) is not None:
            self.fail(BadFrame(own, str(error)))

    def documented(self, peer: str, document: Document) -> None:
        """A member sent a control document. Raises Busy if too many of its wait, BadFrame for a malformed `resume`."""
        if document["t"] in (ERROR, CANCEL):
            if peer in self.neighbours:
                error = frames.reported(document)
                error.by = peer
                self.fail(error)
            return
        if document["t"] == RESUME:
            self._resume(peer, document)
            return
        if not self._said.setdefault(peer, ControlChannel()).is_news(document):
            return
        if self._unread[peer] >= MAX_CONTROLS:
            raise Busy("controls", f"{MAX_CONTROLS} wait already")
        self._unread[peer] += 1
        self._controls.append((peer, canonical.encode(document)))
        self._documents.set()

    def lost(self, peer: str, error: NodewireError) -> None:
        """A member is out of reach: the job fails, or waits for a while if it outlives its links."""
        if self._on_lost is None:
            if peer in self.neighbours:
                self.fail(LinkLost(peer, str(error)))
            return
        if self._error is not None:
            return
        if peer in self.neighbours:
            self._edges.lost(peer)
            self.expect(peer, error)
        self._on_lost(peer, error)

    def fail(self, error: NodewireError) -> None:
        """The job is over here; the first reason stands."""
        if self._error is None:
            self._error = error
        self._over.set()
        self._arrived.set()
        if self._inbox is not None:
            self._inbox.fail(self._error)
        self._documents.set()
        self._moved.set()
        for peer in list(self._awaited):
            self._hear(peer)
        self._sender.wake()

    # Inside: who is on which edge.

    def _begin_local(self, edge: str) -> None:
        """If both ends of an edge are on this node, let them begin to count."""
        incoming, outgoing = self._edges.incoming.get(edge), self._edges.outgoing.get(edge)
        if incoming is None or outgoing is None:
            return
        is_anew = outgoing.window.resume(incoming.next_seq)
        outgoing.window.grant(incoming.granted)
        if is_anew:
            self._sender.catch_up(outgoing)

    def expect(self, peer: str, error: NodewireError) -> None:
        """Fail the job unless `peer` is heard of in it within the grace period."""
        if self._on_lost is not None and peer not in self._awaited:
            self._awaited[peer] = asyncio.get_running_loop().call_later(self._grace_s, self._give_up, peer, error)

    def _hear(self, peer: str) -> None:
        if (timer := self._awaited.pop(peer, None)) is not None:
            timer.cancel()

    def _give_up(self, peer: str, error: NodewireError) -> None:
        self.fail(error if isinstance(error, LinkLost) else LinkLost(peer, f"{error.code}: {error}"))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _reach(self, peer: str) -> Link:
        """The link to a member, waited for. Raises LinkLost."""
        try:
            async with asyncio.timeout(self._grace_s):
                while (link := self._exchange.open_link(peer)) is None:
                    await self._moved.wait()
                    self.check()
                return link
        except TimeoutError:
            raise LinkLost(peer, "no link") from None

    # Inside: what came.

    def _resume(self, peer: str, document: Document) -> None:
        """A consumer says what it lacks; who has not been waited for is not heard."""
        edge, first = document.get("edge"), document.get("first")
        if not isinstance(edge, str) or type(first) is not int or not 0 <= first < 2**53:
            raise BadFrame("resume", "not {edge, first}")
        outgoing = self._edges.towards(peer, edge)
        if outgoing is None:
            return
        self._hear(peer)
        if outgoing.window.resume(first):
            if (link := self._exchange.open_link(peer)) is not None:
                link.send_credit(self.request, edge, 0)
            if first < outgoing.next_seq:
                self._sender.catch_up(outgoing)

    def deliver_here(self, frame: Frame[Array], cost: int) -> None:
        self.deliver(self._edges.incoming[frame.edge], frame, cost)

    def deliver(self, incoming: IncomingEdge, frame: Frame[Array], cost: int) -> None:
        if incoming.producer == self._exchange.public:
            incoming.next_seq = frame.seq + 1
        incoming.unread += cost
        if self._inbox is not None and self._inbox.put(frame):
            self._open(incoming, cost)
            return
        self._queue.append((incoming, frame, cost))
        self._arrived.set()

    def _take(self) -> Frame[Array]:
        """The oldest frame that waits."""
        incoming, frame, cost = self._queue.popleft()
        self._open(incoming, cost)
        return frame

    def _open(self, incoming: IncomingEdge, cost: int) -> None:
        """A frame has been taken: its window opens by as much."""
        if (limit := incoming.consume(cost)) is not None:
            self._grant(incoming, limit)

    def _tell(self, link: Link, incoming: IncomingEdge) -> None:
        """Tell a producer what it may send, and where to begin if it may not know."""
        if (first := incoming.lacking) is not None:
            link.send_control({"t": RESUME, "job": self.request, "edge": incoming.edge, "first": first})
        link.send_credit(self.request, incoming.edge, incoming.granted)

    def _grant(self, incoming: IncomingEdge, limit: int) -> None:
        """Let the producer send more."""
        if incoming.producer == self._exchange.public:
            self._edges.outgoing[incoming.edge].window.grant(limit)
        elif (link := self._exchange.open_link(incoming.producer)) is not None:
            link.send_credit(self.request, incoming.edge, limit)
