"""Which epoch to plan with: the newest certified body whose beacon is known and whose snapshot is still valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import NoQuorum
from nodewire.protocol import kinds
from nodewire.protocol.committee import beacon as _beacon
from nodewire.protocol.committee import quorum_certificate as _certificate
from nodewire.protocol.committee.committee import KEPT_EPOCHS, VALID_EPOCHS, Committee

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.beacon import BeaconPartial
    from nodewire.protocol.committee.epoch_body import Body
    from nodewire.protocol.committee.quorum_certificate import Certificate

KEPT = 16
"""How many certificates, and partials of each oracle, are remembered."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A certified epoch to plan with: its body, the beacon (64 hex digits), and the events that prove both."""

    body: Body
    beacon: str
    certificate: Event
    partials: tuple[Event, ...]

    @property
    def snapshot(self) -> str:
        """SHA-256 of the snapshot blob to fetch."""
        return self.body.snapshot


def is_valid(committee: Committee, epoch: int, now_ms: int, *, grace_ms: int = 0) -> bool:
    """Whether a snapshot of `epoch` may be planned with at `now_ms`: it has closed, at most 3 epochs ago.

    `grace_ms`: how long a request that was made in time may take to whoever checks it.
    """
    return _has_closed(committee, epoch, now_ms) and now_ms < committee.close_ms(epoch + VALID_EPOCHS) + grace_ms


class Epochs:
    """What is known of a committee's epochs. Fed with verified events in any order, it checks and keeps the newest few.

    What an oracle says costs no room but its own, so that a faulty one displaces nobody else's partials.
    """

    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        self._digest = committee.digest()
        self._certificates: dict[str, tuple[Certificate, Event]] = {}
        self._partials: dict[str, BoundedDict[str, tuple[BeaconPartial, Event]]] = {}
        """By oracle and body."""
        self._epochs: dict[str, Epoch] = {}

    def add_event(self, event: Event) -> None:
        """Take note of a certificate (8852) or beacon partial (8851); other kinds mean nothing here.

        Raises:
            BadInput: it is malformed, of another committee, or proves nothing (BadQuorum, BadSignature).

        """
        if event.kind == kinds.CERTIFICATE:
            self._take_certificate(event)
        elif event.kind == kinds.BEACON:
            self._take_partial(event)

    def certificate(self, digest: str) -> Certificate | None:
        """The certificate of the body with `digest`, if it is among those kept."""
        found = self._certificates.get(digest)
        return found and found[0]

    def certified(self, epoch: int) -> Certificate | None:
        """The certificate of epoch number `epoch`, if it is among those kept."""
        return next((one for one, _ in self._certificates.values() if one.body.epoch == epoch), None)

    def newest(self, now_ms: int) -> Certificate | None:
        """The newest certificate of a closed epoch, whether or not its beacon is known; None before the first."""
        return next((certificate for certificate, _ in self._by_age(now_ms)), None)

    def last(self, now_ms: int) -> str:
        """What a beat cites as `last`: the digest of the newest certified body, before the first the committee's."""
        certificate = self.newest(now_ms)
        return self._digest if certificate is None else certificate.digest

    def after(self, epoch: int, now_ms: int) -> list[Epoch]:
        """All kept epochs later than number `epoch` whose beacon is known, oldest first, valid or not."""
        found = [
            self._with_beacon(certificate, event)
            for certificate, event in self._by_age(now_ms)
            if certificate.body.epoch > epoch
        ]
        return [one for one in reversed(found) if one is not None]

    def latest(self, now_ms: int) -> Epoch:
        """The newest epoch that may be planned with.

        Raises:
            NoQuorum: none is certified, has a beacon and is still valid at `now_ms` (unix).

        """
        for certificate, event in self._by_age(now_ms):
            if is_valid(self._committee, certificate.body.epoch, now_ms) and (
                found := self._with_beacon(certificate, event)
            ):
                return found
        raise NoQuorum("epoch", "no certified epoch with a beacon is valid now")

    def _take_certificate(self, event: Event) -> None:
        certificate = _certificate.parse(event)
        if certificate.digest in self._certificates:
            return
        certificate.check(self._committee)
        self._certificates[certificate.digest] = certificate, event
        while len(self._certificates) > KEPT:
            oldest = min(self._certificates, key=lambda digest: self._certificates[digest][0].body.epoch)
            del self._certificates[oldest]
            self._epochs.pop(oldest, None)

    def _take_partial(self, event: Event) -> None:
        partial = _beacon.parse(event)
        if partial.body in self._partials.get(partial.oracle, ()):
            return
        partial.check(self._committee)
        self._partials.setdefault(partial.oracle, BoundedDict(KEPT))[partial.body] = partial, event

    def _by_age(self, now_ms: int) -> list[tuple[Certificate, Event]]:
        """Certificates about epochs that have closed, but not more than KEPT_EPOCHS ago; the newest first."""
        oldest = self._committee.epoch_at(now_ms) - KEPT_EPOCHS
        closed = [
            pair
            for pair in self._certificates.values()
            if pair[0].body.epoch >= oldest and _has_closed(self._committee, pair[0].body.epoch, now_ms)
        ]
        return sorted(closed, key=lambda pair: (-pair[0].body.epoch, pair[1].id))

    def _with_beacon(self, certificate: Certificate, event: Event) -> Epoch | None:
        digest = certificate.digest
        if digest not in self._epochs:
            known = [mine[digest] for mine in self._partials.values() if digest in mine]
            if len(known) < self._committee.quorum:
                return None
            # 2f+1 make the beacon; more would only make every request longer.
            known = sorted(known, key=lambda pair: pair[0].partial.index)[: self._committee.quorum]
            value = _beacon.combine(self._committee, digest, (partial for partial, _ in known))
            self._epochs[digest] = Epoch(certificate.body, value, event, tuple(source for _, source in known))
        return self._epochs[digest]


def _has_closed(committee: Committee, epoch: int, now_ms: int) -> bool:
    return epoch < committee.epoch_at(now_ms + committee.skew_ms)
