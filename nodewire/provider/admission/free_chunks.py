"""First chunks that nobody has paid yet: bounded for each origin, and in all by proof of work that adapts.

A key costs nothing, so a bound per key would be none. A first chunk of a key that has never paid counts from its job's
opening until it is paid, or for ten minutes. One origin has a few of these at a time. In all there is no bound that
one origin could fill: the work that a request must carry doubles with their number instead.

A key that has paid has any number under way. It is bounded as one that has never paid while a few of its first chunks
have ended unpaid within ten minutes: a driver that closes none may be its accomplice.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from nodewire.errors import Busy, NotAllowed, WorkRequired
from nodewire.nostr.nips import nip13
from nodewire.pay.accounts.dues import MAX_BROKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event

MOST_OF_ORIGIN = 8
FREE_OF_WORK = 16
"""With so many unpaid first chunks in all, no more work is asked than the ad says."""
MAX_BITS = 20
"""A customer does no more for one request: about a second."""
FORGOTTEN_S = 600.0
_MOST = 65_536


class FreeChunks:
    """At one provider: who may have a first chunk computed before it is paid."""

    def __init__(
        self,
        base_bits: int,
        has_paid: Callable[[str], bool] = lambda customer: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`base_bits`: of work, that the ad asks of every request. `has_paid`: whether a customer's key ever has."""
        self._base_bits, self._has_paid = base_bits, has_paid
        self._begun = _Recent(clock)
        """Jobs of keys that are bounded, by origin."""
        self._broken = _Recent(clock)
        """Jobs that ended unpaid, by customer."""
        self._open: dict[str, str] = {}
        """By job that has begun and not ended: its customer; empty once it has paid."""

    @property
    def unpaid(self) -> int:
        """First chunks of bounded keys that have a slot, or had one and are not paid."""
        return self._begun.count()

    @property
    def bits(self) -> int:
        """The bits of work that a bounded key has to bring now."""
        return self._base_bits + (max(0, self.unpaid - 1) // FREE_OF_WORK).bit_length()

    def check(self, request: Event) -> None:
        """Whether a request's first chunk may be computed, as far as its key and its work say.

        Raises:
            NotAllowed: it was begun before, and left unpaid: who sends one again pays for no more by it.
            WorkRequired: it carries less work.
            Busy: more work would be needed than customers do.

        """
        if request.id in self._begun or request.id in self._broken:
            raise NotAllowed("id", "this request has been served")
        if not self._is_bounded(request.pubkey):
            return
        bits = self.bits
        if bits > max(MAX_BITS, self._base_bits):
            raise Busy("credit", f"{self.unpaid} first chunks are unpaid")
        if min(nip13.difficulty(request.id), nip13.committed_target(request)) < bits:
            raise WorkRequired("nonce", f"{bits} bits of a key that has not paid here", bits)

    def opened(self, job: str, customer: str) -> None:
        """A job has a slot: it counts in all, and for an origin when its first chunk begins."""
        if self._is_bounded(customer):
            self._begun.add(job, "")

    def begin(self, job: str, customer: str, origin: str) -> None:
        """A first chunk begins. An origin that is not known, and this machine itself, may have any number.

        Raises:
            Busy: as many of the origin's are unpaid as it may have.

        """
        if job in self._open:
            return
        if self._is_bounded(customer):
            if origin and not _is_here(origin) and self._begun.count(origin) >= MOST_OF_ORIGIN:
                raise Busy(
                    "credit", f"{MOST_OF_ORIGIN} first chunks of this address are unpaid: pay one, or ask again later"
                )
            self._begun.add(job, origin)
        self._open[job] = customer

    def paid(self, job: str) -> None:
        if job in self._open:
            self._open[job] = ""
        self._begun.drop(job)
        self._broken.drop(job)

    def ended(self, job: str) -> None:
        """A job is over, whether or not it ever began. Whoever broke it off, its work is lost."""
        customer = self._open.pop(job, "")
        if customer:
            self._broken.add(job, customer)

    def _is_bounded(self, customer: str) -> bool:
        return self._broken.count(customer) >= MAX_BROKEN or not self._has_paid(customer)


class _Recent:
    """Jobs of the last ten minutes, each with a name. They are bounded: of too many the oldest is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """By job, when it came, and its name; the oldest first."""
        self._of: Counter[str] = Counter()

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def count(self, name: str | None = None) -> int:
        """How many have that name, or any."""
        horizon_s = self._clock() - FORGOTTEN_S
        while self._jobs and self._jobs[job := next(iter(self._jobs))][0] < horizon_s:
            self.drop(job)
        return len(self._jobs) if name is None else self._of[name]

    def add(self, job: str, name: str) -> None:
        self.drop(job)
        self._jobs[job] = (self._clock(), name)
        self._of[name] += 1
        if len(self._jobs) > _MOST:
            self.drop(next(iter(self._jobs)))

    def drop(self, job: str) -> None:
        if job not in self._jobs:
            return
        _, name = self._jobs.pop(job)
        self._of[name] -= 1
        if not self._of[name]:
            del self._of[name]


def _is_here(origin: str) -> bool:
    try:
        return ipaddress.ip_address(origin).is_loopback
    except ValueError:
        return False
