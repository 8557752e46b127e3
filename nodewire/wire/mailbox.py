"""One job's edges as one node sees them: frames under names that everybody knows in advance.

A frame on an edge is called plan.tensor_key(request, edge, attempt, seq), and counts only if it comes from the
producer that the job's routes name, as the next one of its edge, within the edge's window. The window is flow control:
a consumer grants a producer how many bytes it may have sent in all (CREDIT), and grants more as they are taken by
`get`. Both sides assume INITIAL_WINDOW_BYTES, so that a producer may start before the consumer has opened the job;
whoever opens it second causes the full window to be granted (a producer by a CREDIT of 0).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from nodewire.errors import BadFrame, BadInput, Busy, NodewireError, NotAllowed, TooLarge
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import MAX_EDGES
from nodewire.protocol.plan import tensor_key
from nodewire.wire import frames
from nodewire.wire.frames import FRAME_COST_BYTES, MAX_FRAME_BYTES, DataHeader, Document
from nodewire.wire.link import Link

INITIAL_WINDOW_BYTES = 2**20
WINDOW_BYTES = 16 * 2**20
DEFAULT_FRAME_BYTES = 64 * 2**20
MAX_CONTROLS = 256

ERROR, CANCEL = "error", "cancel"
"""The types of the two documents about a job that the wire itself understands."""


@dataclass(frozen=True, slots=True)
class Route:
    """Who sends and who receives on an edge (public keys, 64 hex digits)."""

    producer: str
    consumers: tuple[str, ...]


class Exchange(Protocol):
    """The node as its mailboxes see it."""

    public: str

    async def reach(self, peer: str) -> Link:
        """The open link to `peer`, waited for a while. Raises LinkLost."""

    def open_link(self, peer: str) -> Link | None: ...

    def forget(self, job: JobMailbox) -> None: ...


class JobMailbox:
    """Implements nodewire.kind.Mailbox. Made by Node.open_job.

    A consumer that stops calling `get` blocks its producers' `put` once the window is full; a node that consumes and
    produces must not wait for `put` before it calls `get` if one answer may be larger than a window.
    """

    def __init__(
        self,
        exchange: Exchange,
        request: str,
        routes: Mapping[str, Route],
        attempt: int = 0,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """`limits`: most bytes of one frame per edge; 64 MiB where it says nothing."""
        if len(request) != 64 or set(request) - set("0123456789abcdef"):
            raise BadInput("request", "not 64 lowercase hex digits")
        if len(routes) > MAX_EDGES:
            raise TooLarge("routes", f"{len(routes)}, at most {MAX_EDGES}")
        self.request = request
        self.attempt = attempt
        self._exchange = exchange
        self._in: dict[str, _Incoming] = {}
        self._out: dict[str, _Outgoing] = {}
        self._queue: deque[tuple[_Incoming, Frame[Array], int]] = deque()
        self._controls: deque[tuple[str, Document]] = deque()
        self._arrived = asyncio.Event()
        self._documents = asyncio.Event()
        self._error: NodewireError | None = None
        self.members: set[str] = set()
        """Everybody on any of the job's edges: whose control documents are the job's."""
        self.neighbours: set[str] = set()
        """The other nodes that this one sends to or receives from."""
        me = exchange.public
        for edge, route in routes.items():
            limit = (limits or {}).get(edge, DEFAULT_FRAME_BYTES)
            if not 0 <= limit <= MAX_FRAME_BYTES:
                raise TooLarge("limits", f"{edge}: {limit} bytes, at most {MAX_FRAME_BYTES}")
            self.members |= {route.producer, *route.consumers}
            if me in route.consumers:
                self._in[edge] = _Incoming(edge, route.producer, limit)
                self.neighbours.add(route.producer)
            if route.producer == me:
                self._out[edge] = _Outgoing(limit, {consumer: _Window() for consumer in route.consumers})
                self.neighbours.update(route.consumers)
        self.neighbours.discard(me)

    # What the job's owner calls.

    async def put(self, frame: Frame[Array]) -> None:
        """Deliver to every consumer of the edge; waits while a window is full.

        When it returns, the arrays' memory may be used again, unless a consumer is on this node: that one has been
        given the arrays themselves.

        Raises:
            BadFrame: not an edge that this node produces, not the next `seq`, or an array that contradicts itself.
            TooLarge: above the edge's limit.
            LinkLost: a consumer cannot be reached.
            NodewireError: what ended the job.
        """
        self._check()
        outgoing = self._out.get(frame.edge)
        if outgoing is None:
            raise BadFrame("edge", f"{frame.edge[:64]!r} is not one that this node produces")
        if frame.seq != outgoing.next_seq:
            raise BadFrame("seq", f"{frame.seq}, {outgoing.next_seq} is next on {frame.edge}")
        key = tensor_key(self.request, frame.edge, self.attempt, frame.seq)
        header = frames.data_header(
            self.request, frame.edge, self.attempt, frame.seq, key, frame.tensors, frame.meta, outgoing.limit
        )
        packed = frames.pack_header(header)
        outgoing.next_seq += 1
        sends = [
            self._send(consumer, window, header.cost, packed, frame) for consumer, window in outgoing.windows.items()
        ]
        if len(sends) == 1:
            await sends[0]
            return
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def get(self) -> Frame[Array]:
        """The next frame that came on any edge that this node consumes, in order per edge.

        Raises:
            LinkLost: the link to a neighbour in the job has ended.
            NodewireError: what else ended the job. What came before is delivered first.
        """
        while not self._queue:
            self._check()
            self._arrived.clear()
            await self._arrived.wait()
        incoming, frame, cost = self._queue.popleft()
        incoming.taken += cost
        self._grant(incoming)
        return frame

    async def control(self, peer: str, document: Document) -> None:
        """Send a small document about this job to one of its members: {"t": its type, ...}; `job` is added.

        Raises:
            NotAllowed: not a member, or a type that the wire keeps for itself.
            BadInput, TooLarge: no canonical form, or over 64 KiB.
            LinkLost: the member cannot be reached.
            NodewireError: what ended the job.
        """
        self._check()
        if peer not in self.members or document.get("t") in (ERROR, CANCEL):
            raise NotAllowed("document", "for a stranger, or of a type that the wire keeps for itself")
        link = await self._exchange.reach(peer)
        link.send_control({**document, "job": self.request})

    async def controls(self) -> AsyncIterator[tuple[str, Document]]:
        """(sender, document) of what members send by `control`, until the job ends; raises what ended it."""
        while True:
            while self._controls:
                yield self._controls.popleft()
            self._check()
            self._documents.clear()
            await self._documents.wait()

    def cancel(self, error: NodewireError | None = None) -> None:
        """End the job here and at every neighbour, whose `get` and `put` raise `error`."""
        error = error or NotAllowed("job", f"cancelled by {self._exchange.public}")
        document = {"t": CANCEL, "job": self.request, "attempt": self.attempt, "error": error.as_dict()}
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
        incoming = self._in.get(header.edge)
        if incoming is None:
            raise BadFrame("edge", f"{header.edge!r} does not lead here")
        if incoming.producer != peer:
            raise BadFrame("producer", f"{peer} does not produce {header.edge}")
        if incoming.under_way is not None or header.seq != incoming.next_seq:
            raise BadFrame("seq", f"{header.seq}, {incoming.next_seq} is next on {header.edge}")
        if header.key != tensor_key(self.request, header.edge, self.attempt, header.seq):
            raise BadFrame("key", "not the name of this frame")
        if header.nbytes > incoming.limit:
            raise TooLarge("frame", f"{header.nbytes} bytes, at most {incoming.limit} on {header.edge}")
        if incoming.received + header.cost > incoming.granted:
            raise BadFrame("window", "more than was granted")
        incoming.received += header.cost
        incoming.next_seq += 1
        incoming.under_way = header

    def end(self, header: DataHeader, memory: bytearray) -> None:
        """A frame that `begin` admitted is complete."""
        incoming = self._in.get(header.edge)
        if incoming is None or incoming.under_way is not header:
            return
        incoming.under_way = None
        tensors = header.arrays(memoryview(memory))
        self._deliver(incoming, Frame(header.edge, header.seq, tensors, header.meta), header.cost)

    def linked(self, link: Link) -> None:
        """There is a link to a neighbour: tell it the windows of its edges, and ask for ours."""
        link.attend(self.request)
        for incoming in self._in.values():
            if incoming.producer == link.peer:
                link.send_credit(self.request, incoming.edge, self.attempt, incoming.granted)
        for edge, outgoing in self._out.items():
            if link.peer in outgoing.windows:
                link.send_credit(self.request, edge, self.attempt, 0)

    def opened(self) -> None:
        """The job is open: the windows are full-sized from now on."""
        for incoming in self._in.values():
            incoming.granted = incoming.window
            if incoming.producer == self._exchange.public:
                self._out[incoming.edge].windows[incoming.producer].grant(incoming.granted)

    def credited(self, link: Link, edge: str, limit: int) -> None:
        """A consumer grants more; or a producer, which opened the job after us, asks what was granted."""
        incoming, outgoing = self._in.get(edge), self._out.get(edge)
        if outgoing is not None and link.peer in outgoing.windows:
            outgoing.windows[link.peer].grant(limit)
        elif incoming is not None and incoming.producer == link.peer:
            link.send_credit(self.request, edge, self.attempt, incoming.granted)

    def consumes_from(self, peer: str) -> bool:
        return any(incoming.producer == peer for incoming in self._in.values())

    def documented(self, peer: str, document: Document) -> None:
        """A member sent a control document. Raises Busy if too many wait."""
        if document["t"] in (ERROR, CANCEL):
            if peer in self.neighbours and document.get("attempt") == self.attempt:
                self.fail(frames.reported(document))
            return
        if len(self._controls) >= MAX_CONTROLS:
            raise Busy("controls", f"{MAX_CONTROLS} wait already")
        self._controls.append((peer, document))
        self._documents.set()

    def fail(self, error: NodewireError) -> None:
        """The job is over here; the first reason stands."""
        if self._error is None:
            self._error = error
        self._arrived.set()
        self._documents.set()
        for outgoing in self._out.values():
            for window in outgoing.windows.values():
                window.changed.set()

    # Inside.

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _send(self, consumer: str, window: _Window, cost: int, packed: bytes, frame: Frame[Array]) -> None:
        async with window.turn:
            while window.sent + cost > window.limit:
                self._check()
                window.changed.clear()
                await window.changed.wait()
            self._check()
            window.sent += cost
            if consumer == self._exchange.public:
                self._deliver(self._in[frame.edge], frame, cost)
                return
            link = await self._exchange.reach(consumer)
            await link.send_data(packed, cost - FRAME_COST_BYTES, frame.tensors)

    def _deliver(self, incoming: _Incoming, frame: Frame[Array], cost: int) -> None:
        self._queue.append((incoming, frame, cost))
        self._arrived.set()

    def _grant(self, incoming: _Incoming) -> None:
        """Let the producer send more, once it is worth a message."""
        limit = incoming.taken + incoming.window
        if limit - incoming.granted < incoming.window // 4:
            return
        incoming.granted = limit
        if incoming.producer == self._exchange.public:
            self._out[incoming.edge].windows[incoming.producer].grant(limit)
            return
        link = self._exchange.open_link(incoming.producer)
        if link is not None:
            link.send_credit(self.request, incoming.edge, self.attempt, limit)


@dataclass(slots=True)
class _Incoming:
    """An edge that leads here; counts are of frames' costs since the job began."""

    edge: str
    producer: str
    limit: int
    next_seq: int = 0
    under_way: DataHeader | None = None
    received: int = 0
    taken: int = 0
    granted: int = INITIAL_WINDOW_BYTES

    window: int = 0

    def __post_init__(self) -> None:
        # Twice the largest frame: a grant may lag by a quarter of the window, and a frame must still fit.
        self.window = max(WINDOW_BYTES, 2 * (self.limit + FRAME_COST_BYTES))


@dataclass(slots=True)
class _Window:
    """What one consumer has granted for an edge, and the one frame at a time that goes to it."""

    sent: int = 0
    limit: int = INITIAL_WINDOW_BYTES
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def grant(self, limit: int) -> None:
        if limit > self.limit:
            self.limit = limit
            self.changed.set()


@dataclass(slots=True)
class _Outgoing:
    limit: int
    windows: dict[str, _Window]
    next_seq: int = 0
