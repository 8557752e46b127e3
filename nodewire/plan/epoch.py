"""Which epoch to plan with: the newest certified body whose beacon is known and whose snapshot is still valid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodewire.errors import BadInput, BadQuorum, NoQuorum
from nodewire.nostr.event import Event
from nodewire.protocol import beacon as _beacon
from nodewire.protocol import certificate as _certificate
from nodewire.protocol.beacon import BeaconPartial
from nodewire.protocol.body import Body
from nodewire.protocol.certificate import Certificate
from nodewire.protocol.committee import VALID_EPOCHS, Committee


@dataclass(frozen=True, slots=True)
class Usable:
    """A certified epoch: its body, the beacon (64 hex digits), and the events that prove both."""

    body: Body
    beacon: str
    certificate: Event
    partials: tuple[Event, ...]

    @property
    def snapshot(self) -> str:
        """SHA-256 of the snapshot blob to fetch."""
        return self.body.snapshot


def is_valid(committee: Committee, epoch: int, now_ms: int) -> bool:
    """Whether a snapshot of `epoch` may be planned with at `now_ms`: it has closed, at most 3 epochs ago."""
    return epoch < committee.epoch_at(now_ms + committee.skew_ms) and now_ms < committee.close_ms(epoch + VALID_EPOCHS)


def latest(committee: Committee, events: Iterable[Event], now_ms: int) -> Usable:
    """The newest usable epoch among verified certificate (8852) and partial (8851) events; others are passed over.

    Raises:
        NoQuorum: none is certified, has a beacon and is still valid at `now_ms` (unix).
    """
    digest = committee.digest()
    certificates: list[tuple[Certificate, Event]] = []
    partials: dict[str, list[tuple[BeaconPartial, Event]]] = {}
    for event in events:
        try:
            if event.kind == _certificate.KIND:
                certificate = _certificate.parse(event)
                if certificate.body.committee == digest and is_valid(committee, certificate.body.epoch, now_ms):
                    certificates.append((certificate, event))
            elif event.kind == _beacon.KIND:
                partial = _beacon.parse(event)
                partials.setdefault(partial.body, []).append((partial, event))
        except BadInput:
            continue
    certificates.sort(key=lambda pair: (-pair[0].body.epoch, pair[1].id))
    for certificate, event in certificates:
        found = partials.get(certificate.digest, [])
        try:
            certificate.check(committee)
            value = _beacon.combine(committee, certificate.digest, (partial for partial, _ in found))
        except (BadQuorum, NoQuorum):
            continue
        return Usable(certificate.body, value, event, tuple(source for _, source in found))
    raise NoQuorum("epoch", f"no certified epoch with a beacon among {len(certificates)} certificates")
