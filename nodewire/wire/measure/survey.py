"""What a node learns of the network from its links: where it is, and how each of them is.

As long as a link is open, every few seconds each end says where it is, and looks at the round trips, the kernel's
counters and the bytes that went.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost
from nodewire.wire.measure.link_health import Health
from nodewire.wire.measure.vivaldi import Claim, Place, Vivaldi

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.wire.framing.frames import Document
    from nodewire.wire.link.link import Link

COORDINATES = "coordinates"
"""The type of the control document {at: [x, y, height], error}."""
PACE_S = 5.0
MAX_PEERS = 2_048
"""That are remembered; twice what may be linked at a time."""


class Survey:
    """One node's. `health` has those peers that there was a link to, the one linked longest ago first.

    `opened` counts links by how they came about, `lost` by the code of what ended them; `reopened` those to a peer that
    had one before, as far as is remembered.
    """

    def __init__(self, public: str, *, pace_s: float = PACE_S, unix_s: Callable[[], float] = time.time) -> None:
        self.health: OrderedDict[str, Health] = OrderedDict()
        self.following: set[Link] = set()
        self.opened: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.reopened = 0
        self._bytes_before = (0, 0)
        """In and out, of links that have ended."""
        self._public = public
        self._pace_s = pace_s
        self._unix_s = unix_s
        self._vivaldi = Vivaldi(public)

    @property
    def place(self) -> Place:
        """Where this node is, as far as it knows."""
        return self._vivaldi.place

    @property
    def nbytes(self) -> tuple[int, int]:
        """In and out, over all links that have been opened."""
        now = [(link.bytes_in, link.bytes_out) for link in self.following]
        return sum(n for n, _ in now) + self._bytes_before[0], sum(n for _, n in now) + self._bytes_before[1]

    def resume(self, claim: Claim) -> None:
        """Begin where this node was when it was last running."""
        self._vivaldi = Vivaldi(self._public, Place.from_claim(claim))

    def handle(self, link: Link, document: Document) -> bool:
        """Whether a control document was about this; then it has been seen to. Raises BadFrame."""
        if document["t"] != COORDINATES:
            return False
        self._vivaldi.update(link.peer, Claim.parse(document))
        return True

    async def follow(self, link: Link) -> None:
        """As long as `link`, which is open, is."""
        health = self._known(link.peer)
        rung = "shm" if link.transport == "shm" else link.rung
        health.opened(self._unix_s(), rung=rung, dialled=link.dialled, address=link.address)
        self.following.add(link)
        self.opened[rung] += 1
        self.reopened += health.links > 1
        try:
            while link.is_open:
                with suppress(LinkLost):
                    link.send_control({"t": COORDINATES, **self.place.claim.document()})
                with suppress(TimeoutError):
                    await asyncio.wait_for(link.over.wait(), self._pace_s)
                self._look(link, health)
        finally:
            self._vivaldi.forget(link.peer)
            error = link.error or LinkLost(link.peer, "closed")
            health.lost(self._unix_s(), error)
            self.lost[error.code] += 1
            self.following.discard(link)
            self._bytes_before = self._bytes_before[0] + link.bytes_in, self._bytes_before[1] + link.bytes_out

    def _look(self, link: Link, health: Health) -> None:
        health.looked(
            link.round_trips_us,
            link.tcp,
            bytes_in=link.bytes_in,
            bytes_out=link.bytes_out,
            congestion=link.congestion or health.congestion,
        )
        if link.is_open and link.rtt_us is not None:
            self._vivaldi.measured(link.peer, max(link.rtt_us, 1))

    def _known(self, peer: str) -> Health:
        health = self.health.pop(peer, None) or Health(peer)
        self.health[peer] = health
        if len(self.health) > MAX_PEERS:
            del self.health[next(one for one, known in self.health.items() if known.state == "lost")]
        return health
