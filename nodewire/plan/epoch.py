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
    return _has_closed(committee, epoch, now_ms) and now_ms < committee.close_ms(epoch + VALID_EPOCHS)


def newest(committee: Committee, events: Iterable[Event], now_ms: int) -> Certificate | None:
    """The newest certificate (8852) that holds, whether or not its beacon is known: what a beat's `last` cites.

    None before the first; then `last` is the committee's digest.
    """
    for certificate, _ in _certificates(committee, events, now_ms):
        if _holds(certificate, committee):
            return certificate
    return None


def latest(committee: Committee, events: Iterable[Event], now_ms: int) -> Usable:
    """The newest usable epoch among verified certificate (8852) and partial (8851) events; others are passed over.

    Raises:
        NoQuorum: none is certified, has a beacon and is still valid at `now_ms` (unix).
    """
    events = tuple(events)
    partials = _partials(events)
    for certificate, event in _certificates(committee, events, now_ms):
        if not is_valid(committee, certificate.body.epoch, now_ms) or not _holds(certificate, committee):
            continue
        found = partials.get(certificate.digest, [])
        try:
            value = _beacon.combine(committee, certificate.digest, (partial for partial, _ in found))
        except NoQuorum:
            continue
        return Usable(certificate.body, value, event, tuple(source for _, source in found))
    raise NoQuorum("epoch", "no certified epoch with a beacon is valid now")


def _certificates(committee: Committee, events: Iterable[Event], now_ms: int) -> list[tuple[Certificate, Event]]:
    """Well-formed ones of this committee about epochs that have closed, the newest first; unchecked."""
    digest, found = committee.digest(), []
    for event in events:
        if event.kind != _certificate.KIND or event.tag("c") != digest:
            continue
        try:
            certificate = _certificate.parse(event)
        except BadInput:
            continue
        if certificate.body.committee == digest and _has_closed(committee, certificate.body.epoch, now_ms):
            found.append((certificate, event))
    return sorted(found, key=lambda pair: (-pair[0].body.epoch, pair[1].id))


def _partials(events: Iterable[Event]) -> dict[str, list[tuple[BeaconPartial, Event]]]:
    """Well-formed ones by the digest of the body that they are over; unchecked."""
    found: dict[str, list[tuple[BeaconPartial, Event]]] = {}
    for event in events:
        if event.kind == _beacon.KIND:
            try:
                partial = _beacon.parse(event)
            except BadInput:
                continue
            found.setdefault(partial.body, []).append((partial, event))
    return found


def _holds(certificate: Certificate, committee: Committee) -> bool:
    try:
        certificate.check(committee)
    except BadQuorum:
        return False
    return True


def _has_closed(committee: Committee, epoch: int, now_ms: int) -> bool:
    return epoch < committee.epoch_at(now_ms + committee.skew_ms)
