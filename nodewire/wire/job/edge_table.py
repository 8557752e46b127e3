"""One job's edges as one node sees them, without I/O: who sends what to whom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nodewire.errors import TooLarge
from nodewire.protocol.model.manifest import MAX_EDGES
from nodewire.wire.framing.headers import MAX_FRAME_BYTES
from nodewire.wire.job.edge_window import IncomingEdge, OutgoingEdge, Route, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_FRAME_BYTES = 64 * 2**20


class JobEdges:
    """With `relinks` a neighbour that was lost may come back, so that consumers say what they lack."""

    def __init__(
        self,
        public: str,
        routes: Mapping[str, Route],
        limits: Mapping[str, int],
        *,
        relinks: bool,
    ) -> None:
        """`limits`: most bytes of one frame per edge; 64 MiB where it says nothing.

        Raises:
            TooLarge: too many edges, or a limit above what a frame may have.

        """
        if len(routes) > MAX_EDGES:
            raise TooLarge("routes", f"{len(routes)}, at most {MAX_EDGES}")
        self.incoming: dict[str, IncomingEdge] = {}
        self.outgoing: dict[str, OutgoingEdge] = {}
        self.members = {member for route in routes.values() for member in (route.producer, route.consumer)}
        self.neighbours: set[str] = set()
        self._limits = limits
        for edge, route in routes.items():
            limit = self._limit(edge)
            if route.consumer == public:
                self.neighbours.add(route.producer)
                self.incoming[edge] = IncomingEdge(edge, route.producer, limit, anew=relinks)
            if route.producer == public:
                self.neighbours.add(route.consumer)
                self.outgoing[edge] = OutgoingEdge(edge, limit, Window(route.consumer))
        self.neighbours.discard(public)

    def _limit(self, edge: str) -> int:
        limit = self._limits.get(edge, DEFAULT_FRAME_BYTES)
        if not 0 <= limit <= MAX_FRAME_BYTES:
            raise TooLarge("limits", f"{edge}: {limit} bytes, at most {MAX_FRAME_BYTES}")
        return limit

    def edge_of(self, peer: str, edge: str) -> str | None:
        """An edge on which `peer` sends here: `edge` if it is one of them, None if there are none."""
        own = [name for name, incoming in self.incoming.items() if incoming.producer == peer]
        return edge if edge in own else min(own, default=None)

    def lost(self, peer: str) -> None:
        """A neighbour is out of reach: both ends of each edge to it count anew."""
        for incoming in self.incoming.values():
            if incoming.producer == peer:
                incoming.restart()
        for outgoing in self.to_peer(peer):
            outgoing.window.pause()

    @property
    def granted(self) -> Counter[str]:
        """By producer, the bytes that its windows here have room for."""
        found: Counter[str] = Counter()
        for incoming in self.incoming.values():
            found[incoming.producer] += max(0, incoming.granted - incoming.received)
        return found

    def towards(self, peer: str, edge: str) -> OutgoingEdge | None:
        """The edge, if this node produces on it for `peer`."""
        outgoing = self.outgoing.get(edge)
        return outgoing if outgoing is not None and outgoing.window.consumer == peer else None

    def to_peer(self, peer: str) -> list[OutgoingEdge]:
        """The edges on which this node sends to `peer`."""
        return [outgoing for outgoing in self.outgoing.values() if outgoing.window.consumer == peer]

    def from_peer(self, peer: str) -> list[IncomingEdge]:
        """The edges on which `peer` sends here."""
        return [incoming for incoming in self.incoming.values() if incoming.producer == peer]
