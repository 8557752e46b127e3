"""First chunks for keys that have never paid: bounded for each origin, and in all by proof of work that adapts.

A key costs nothing, so a bound per key would be none. A first chunk counts from its beginning until it is paid, or for
ten minutes. One origin has a few of these at a time. In all there is no bound that one origin could fill: the work that
a request must carry doubles with their number instead.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from nodewire.errors import Busy, WorkRequired
from nodewire.nostr import nip13
from nodewire.nostr.event import Event

MOST_OF_ORIGIN = 8
FREE_OF_WORK = 16
"""With so many unpaid first chunks in all, no more work is asked than the ad says."""
MAX_BITS = 20
"""A customer does no more for one request: about a second."""
FORGOTTEN_S = 600.0
_MOST = 65_536


class FreeChunks:
    """`base_bits`: the bits of work that the ad asks of every request."""

    def __init__(self, base_bits: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._base_bits, self._clock = base_bits, clock
        self._begun: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """By job, when its first chunk began, and its origin; the oldest first."""
        self._of: Counter[str] = Counter()
        """By origin."""

    @property
    def unpaid(self) -> int:
        """First chunks that are under way, or were computed and not paid."""
        self._forget_old()
        return len(self._begun)

    @property
    def bits(self) -> int:
        """The bits of work that a key has to bring now, if it has never paid."""
        return self._base_bits + (max(0, self.unpaid - 1) // FREE_OF_WORK).bit_length()

    def check_work(self, request: Event) -> None:
        """Raises WorkRequired: the request carries less work. Busy: more work would be needed than customers do."""
        bits = self.bits
        if bits > max(MAX_BITS, self._base_bits):
            raise Busy("credit", f"{self.unpaid} first chunks are unpaid")
        if min(nip13.difficulty(request.id), nip13.committed_target(request)) < bits:
            raise WorkRequired("nonce", f"{bits} bits of a key that has not paid here", bits)

    def begin(self, job: str, origin: str) -> None:
        """A first chunk begins. An origin that is not known, and this machine itself, may have any number.

        Raises:
            Busy: as many of the origin's are unpaid as it may have.
        """
        self._forget_old()
        if job in self._begun:
            return
        if origin and not _is_here(origin) and self._of[origin] >= MOST_OF_ORIGIN:
            raise Busy("credit", f"{MOST_OF_ORIGIN} first chunks of this origin are unpaid")
        self._begun[job] = (self._clock(), origin)
        self._of[origin] += 1
        if len(self._begun) > _MOST:
            self._drop(next(iter(self._begun)))

    def paid(self, job: str) -> None:
        if job in self._begun:
            self._drop(job)

    def _forget_old(self) -> None:
        horizon_s = self._clock() - FORGOTTEN_S
        while self._begun and self._begun[job := next(iter(self._begun))][0] < horizon_s:
            self._drop(job)

    def _drop(self, job: str) -> None:
        _, origin = self._begun.pop(job)
        self._of[origin] -= 1
        if not self._of[origin]:
            del self._of[origin]


def _is_here(origin: str) -> bool:
    try:
        return ipaddress.ip_address(origin).is_loopback
    except ValueError:
        return False
