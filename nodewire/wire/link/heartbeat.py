"""Whether the peer of a link is there, without I/O: heartbeats, their round trips, silence. Times are in seconds."""

from __future__ import annotations

import secrets
from collections import deque

from nodewire.core.bounded_dict import BoundedDict

_RTT_SAMPLES = 16
_MAX_PINGS = 64


class Pulse:
    """Of one link. Round trips are measured on a finer clock than silence."""

    def __init__(self) -> None:
        self.heard_s = 0.0
        """When anything last came."""
        self._pings = BoundedDict[int, float](_MAX_PINGS)
        self._rtts: deque[float] = deque(maxlen=_RTT_SAMPLES)

    @property
    def rtt_us(self) -> int | None:
        """The shortest of the last 16 round trips, in microseconds; None before the first."""
        return round(min(self._rtts) * 1e6) if self._rtts else None

    @property
    def round_trips_us(self) -> list[int]:
        """The last 16, in microseconds, the newest last."""
        return [round(sample * 1e6) for sample in self._rtts]

    def ping(self, fine_s: float) -> int:
        """The tag of a heartbeat that is sent now: one that cannot be answered before it has come.

        So nobody seems nearer than it is. Of 64 without an answer the oldest is forgotten.
        """
        while (tag := secrets.randbits(16)) in self._pings:
            pass
        self._pings[tag] = fine_s
        return tag

    def pong(self, tag: int, fine_s: float) -> None:
        """A heartbeat's answer; one that nobody asked for is nothing."""
        sent_s = self._pings.pop(tag, None)
        if sent_s is not None:
            self._rtts.append(fine_s - sent_s)

    def silent_s(self, now_s: float) -> float:
        return now_s - self.heard_s
