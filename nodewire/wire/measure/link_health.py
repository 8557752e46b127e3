"""How the link to one peer has been, in numbers: round trips, loss, bandwidth, how often it was lost. Pure.

A Health outlives the links that it is about. Counters of the kernel begin anew with each link; here they go on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from nodewire.wire.transport.tcp_info import TcpInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.errors import NodewireError

MAX_ENDINGS = 16
"""The newest of a peer's lost links that are remembered here."""
MAX_REASON_CHARS = 200
_LEAST_SEGMENTS = 1_000
"""Sent for each figure of loss, as far as there were so many: of a few segments it would be chance."""
_U32 = 2**32


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Of one link lately, in microseconds; `jitter_us` is the mean difference of one to the next."""

    least_us: int
    median_us: int
    jitter_us: int

    @classmethod
    def from_samples(cls, samples_us: Sequence[int]) -> RoundTrips | None:
        if not samples_us:
            return None
        steps = [abs(b - a) for a, b in pairwise(samples_us)]
        return cls(min(samples_us), round(median(samples_us)), round(fmean(steps)) if steps else 0)


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """A link that was lost, or closed, and when (unix seconds)."""

    at_s: int
    code: str
    reason: str


@dataclass(slots=True)
class Health:
    """One peer's. Times are unix seconds."""

    peer: str
    state: Literal["open", "lost"] = "lost"
    since_s: int = 0
    """When it was opened, or lost."""
    links: int = 0
    """That have been opened."""
    rung: str = ""
    """How the newest link came about."""
    dialled: bool = False
    address: str = ""
    """Of the peer's end."""
    congestion: str = ""
    """The kernel's congestion control."""
    rtt: RoundTrips | None = None
    bytes_per_s: int = 0
    """What the path has carried at least; 0 where the kernel does not say."""
    path_bytes_per_s: int = 0
    """What it carried when there was more to send; 0 if there never was."""
    bytes_in: int = 0
    bytes_out: int = 0
    endings: deque[LinkEnd] = field(default_factory=lambda: deque(maxlen=MAX_ENDINGS))
    _info: TcpInfo | None = None
    _bytes: tuple[int, int] = (0, 0)
    _sent: int = 0
    _again: int = 0
    _sent_before: int = 0
    _again_before: int = 0

    @property
    def lost_ppm(self) -> int | None:
        """Segments of data that were sent again, of the newest thousand to two thousand.

        None without any, or where the kernel does not say.
        """
        sent, again = self._sent + self._sent_before, self._again + self._again_before
        return round(again * 1e6 / sent) if sent else None

    def opened(self, now_s: float, *, rung: str, dialled: bool, address: str) -> None:
        self.state, self.since_s, self.links = "open", int(now_s), self.links + 1
        self.rung, self.dialled, self.address, self.congestion = rung, dialled, address, ""
        self._info, self._bytes = None, (0, 0)

    def looked(
        self,
        round_trips_us: Sequence[int],
        info: TcpInfo | None,
        *,
        bytes_in: int,
        bytes_out: int,
        congestion: str,
    ) -> None:
        """What is known of the open link now; bytes are the link's, since it was opened."""
        self.rtt = RoundTrips.from_samples(round_trips_us) or self.rtt
        self.bytes_in += bytes_in - self._bytes[0]
        self.bytes_out += bytes_out - self._bytes[1]
        self._bytes, self.congestion = (bytes_in, bytes_out), congestion
        if info is not None:
            before = self._info or TcpInfo(0, 0, 0)
            self._sent += (info.segments - before.segments) % _U32
            self._again += (info.retransmitted - before.retransmitted) % _U32
            self.bytes_per_s, self._info = info.bytes_per_s, info
            if info.is_path_limited:
                self.path_bytes_per_s = info.bytes_per_s
        if self._sent >= _LEAST_SEGMENTS:
            self._sent_before, self._again_before, self._sent, self._again = self._sent, self._again, 0, 0

    def lost(self, now_s: float, error: NodewireError) -> None:
        self.state, self.since_s = "lost", int(now_s)
        self.endings.append(LinkEnd(int(now_s), error.code, str(error)[:MAX_REASON_CHARS]))
