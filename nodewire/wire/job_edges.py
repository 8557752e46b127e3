"""One job's edges as one node sees them, without I/O: who sends what to whom, and who was replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nodewire.errors import BadFrame, NotAllowed, TooLarge
from nodewire.protocol.manifest import MAX_EDGES
from nodewire.protocol.plan import tensor_key
from nodewire.wire.edges import INITIAL_WINDOW_BYTES, Incoming, Outgoing, Route, Window
from nodewire.wire.headers import MAX_FRAME_BYTES, DataHeader

DEFAULT_FRAME_BYTES = 64 * 2**20


class JobEdges:
    """With `handover` who was lost may come back, so that consumers say what they lack."""

    def __init__(
        self,
        public: str,
        request: str,
        limits: Mapping[str, int],
        *,
        handover: bool,
    ) -> None:
        """`limits`: most bytes of one frame per edge; 64 MiB where it says nothing."""
        self.incoming: dict[str, Incoming] = {}
        self.outgoing: dict[str, Outgoing] = {}
        self.members: set[str] = set()
        self.neighbours: set[str] = set()
        self.aside: set[str] = set()
        """Members that compute along, for whom nobody waits."""
        self._gave_up = set[str]()
        """Of them, also those that have entered since."""
        self.left: set[str] = set()
        """Members that were replaced."""
        self._public = public
        self._request = request
        self._limits = limits
        self._handover = handover

    def arrange(self, routes: Mapping[str, Route], attempt: int) -> set[str]:
        """Set up the edges of `routes`, going on with those that are there; which ones of this node's have changed.

        Raises:
            TooLarge: too many edges, or a limit above what a frame may have; nothing has changed.
        """
        if len(routes) > MAX_EDGES:
            raise TooLarge("routes", f"{len(routes)}, at most {MAX_EDGES}")
        me, enters, changed = self._public, attempt > 0, set[str]()
        limits = {edge: self._limit(edge) for edge in routes}
        members = {member for r in routes.values() for member in (r.producer, *r.consumers, *r.aside)}
        self.aside = {member for route in routes.values() for member in route.aside} - {me}
        self.left |= self.members - members
        self.members = members
        self.neighbours = set()
        for edge, route in routes.items():
            if me in (*route.consumers, *route.aside):
                self.neighbours.add(route.producer)
                incoming = self.incoming.get(edge)
                if incoming is None:
                    incoming = Incoming(edge, route.producer, limits[edge], anew=enters or self._handover)
                    incoming.granted = incoming.window if enters else INITIAL_WINDOW_BYTES
                    self.incoming[edge] = incoming
                    changed.add(edge)
                elif incoming.producer != route.producer:
                    incoming.restart(route.producer)
                    changed.add(edge)
            if route.producer == me:
                self.neighbours.update(route.consumers, route.aside)
                outgoing = self.outgoing.setdefault(edge, Outgoing(edge, limits[edge]))
                for consumer in outgoing.windows.keys() - set(route.consumers):
                    outgoing.windows.pop(consumer).leave()
                    changed.add(edge)
                for consumer in route.consumers:
                    if consumer in outgoing.windows:
                        continue
                    changed.add(edge)
                    window = outgoing.aside.pop(consumer, None)
                    if window is None:
                        window = Window(consumer, None if enters else 0)
                    window.left = window.aside = False  # who computed along goes on with what it has
                    outgoing.windows[consumer] = window
                for consumer in outgoing.aside.keys() - set(route.aside):
                    outgoing.aside.pop(consumer).leave()
                for consumer in set(route.aside) - self._gave_up:
                    if consumer not in outgoing.aside:
                        outgoing.aside[consumer] = Window(consumer, None if enters else 0, aside=True)
                        changed.add(edge)
        self.neighbours.discard(me)
        return changed

    def _limit(self, edge: str) -> int:
        limit = self._limits.get(edge, DEFAULT_FRAME_BYTES)
        if not 0 <= limit <= MAX_FRAME_BYTES:
            raise TooLarge("limits", f"{edge}: {limit} bytes, at most {MAX_FRAME_BYTES}")
        return limit

    def edge_of(self, peer: str, edge: str) -> str | None:
        """An edge on which `peer` sends here: `edge` if it is one of them, None if there are none."""
        own = [name for name, incoming in self.incoming.items() if incoming.producer == peer]
        return edge if edge in own else min(own, default=None)

    def begin(self, peer: str, header: DataHeader) -> None:
        """Check that a frame from `peer` may come now, before memory is taken for it.

        Raises:
            BadFrame, TooLarge: it may not; `field` says why.
            NotAllowed: the peer was replaced.
        """
        incoming = self.incoming.get(header.edge)
        if incoming is None:
            raise BadFrame("edge", f"{header.edge!r} does not lead here")
        if peer in self.left:
            raise NotAllowed("producer", "replaced by a takeover")
        if incoming.producer != peer:
            raise BadFrame("producer", f"{peer} does not produce {header.edge}")
        if header.key != tensor_key(self._request, header.edge, header.attempt, header.seq):
            raise BadFrame("key", "not the name of this frame")
        incoming.admit(header)

    def end(self, header: DataHeader) -> Incoming | None:
        """A frame that `begin` admitted is complete; None if its edge has begun anew meanwhile."""
        incoming = self.incoming.get(header.edge)
        if incoming is None or incoming.under_way is not header:
            return None
        incoming.under_way = None
        return incoming

    def lost(self, peer: str) -> None:
        """A neighbour is out of reach: both ends of each edge to it count anew."""
        for incoming in self.incoming.values():
            if incoming.producer == peer:
                incoming.restart(peer)
        for edge in self.outgoing:
            if (window := self.window(edge, peer)) is not None:
                window.pause()

    def gave_up(self, peer: str) -> None:
        """One aside does not compute along any more: it is sent nothing, and has nothing of what was sent."""
        self._gave_up.add(peer)
        for outgoing in self.outgoing.values():
            if (window := outgoing.aside.pop(peer, None)) is not None:
                window.leave()

    @property
    def granted(self) -> Counter[str]:
        """By producer, the bytes that its windows here have room for."""
        found: Counter[str] = Counter()
        for incoming in self.incoming.values():
            found[incoming.producer] += max(0, incoming.granted - incoming.received)
        return found

    def window(self, edge: str, consumer: str) -> Window | None:
        outgoing = self.outgoing.get(edge)
        if outgoing is None:
            return None
        return outgoing.windows.get(consumer) or outgoing.aside.get(consumer)

    def lacks_from(self, peer: str, edges: set[str] | None = None) -> list[Incoming]:
        """The edges (of `edges`) on which `peer` sends here."""
        return [
            incoming
            for incoming in self.incoming.values()
            if incoming.producer == peer and (edges is None or incoming.edge in edges)
        ]
