"""Frames of jobs that are not open here yet, kept a little while, under caps: upstream may have begun first.

When there is no room, who goes is of the origin that has most here, so that one machine with many keys displaces only
its own: who sends early pays nothing for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.wire.framing.frames import DataHeader

MAX_LINK_BYTES = 4 * 2**20
MAX_LINK_JOBS = 64
MAX_BYTES = 64 * 2**20

Place = tuple[str, str]
"""Peer and job."""


@dataclass(eq=False, slots=True)
class EarlyFrame:
    header: DataHeader
    memory: memoryview
    done: bool = False


@dataclass(slots=True)
class Early:
    """What is kept, in order of arrival; no clock: the owner asks to `drop` what nobody opened in time."""

    _held: dict[Place, list[EarlyFrame]] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)
    _jobs: Counter[str] = field(default_factory=Counter)
    """How many each peer has here."""
    _origins: dict[str, str] = field(default_factory=dict)
    """Where the peers come from of which there is something."""

    def displaced(self, peer: str, origin: str, header: DataHeader) -> Iterator[tuple[Place, int]]:
        """Make room for a frame that `peer` sends from `origin`; what had to go for it, with its attempt.

        Raises:
            Busy: the peer, or its origin, has too much here already.

        """
        is_full = self._jobs[peer] >= MAX_LINK_JOBS and (peer, header.job) not in self._held
        if is_full or self._bytes.get(peer, 0) + header.cost > MAX_LINK_BYTES:
            raise Busy("job", "not open here, and too much is waiting already")
        while sum(self._bytes.values()) + header.cost > MAX_BYTES:
            shares = Counter({origin: header.cost})
            for other, nbytes in self._bytes.items():
                shares[self._origins[other]] += nbytes
            ((crowd, _),) = shares.most_common(1)
            if crowd == origin:
                raise Busy("job", "not open here, and too much is waiting already")
            place = next(place for place in self._held if self._origins[place[0]] == crowd)
            yield place, self.drop(place)[0].header.attempt

    def begin(self, peer: str, origin: str, header: DataHeader) -> tuple[memoryview, bool]:
        """Memory for a frame that there is room for, and whether it is the first of its job from `peer`."""
        self._bytes[peer] = self._bytes.get(peer, 0) + header.cost
        self._origins[peer] = origin
        held = EarlyFrame(header, memoryview(bytearray(header.nbytes)))
        place = (peer, header.job)
        first = place not in self._held
        self._jobs[peer] += first
        self._held.setdefault(place, []).append(held)
        return held.memory, first

    def end(self, peer: str, header: DataHeader) -> None:
        """All bytes of the frame have come; unknown frames are ignored."""
        for held in reversed(self._held.get((peer, header.job), ())):
            if held.header is header:
                held.done = True
                break

    def pop(self, job: str) -> Iterator[tuple[str, EarlyFrame]]:
        """Remove and yield what came for a job, with the peer that sent it, in order."""
        for place in [p for p in self._held if p[1] == job]:
            for held in self.drop(place):
                yield place[0], held

    def drop(self, place: Place) -> list[EarlyFrame]:
        """Forget what a peer sent for a job."""
        dropped = self._held.pop(place, [])
        self._jobs[place[0]] -= bool(dropped)
        left = self._bytes.get(place[0], 0) - sum(held.header.cost for held in dropped)
        if left > 0:
            self._bytes[place[0]] = left
        else:
            self._bytes.pop(place[0], None)
            del self._jobs[place[0]]
            self._origins.pop(place[0], None)
        return dropped

    def drop_peer(self, peer: str) -> None:
        for place in [p for p in self._held if p[0] == peer]:
            self.drop(place)
