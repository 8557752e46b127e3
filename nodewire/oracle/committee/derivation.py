"""A snapshot's derivation as a piece of work: all that it needs is in it, so it can be done beside the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.slices import Sliced, whole
from nodewire.errors import BadInput, NotAllowed
from nodewire.nostr.event import Event
from nodewire.nostr.event import parse as parse_event
from nodewire.protocol.encoding import pieces
from nodewire.protocol.market import heartbeat as _beat
from nodewire.protocol.market import snapshot as _snapshot
from nodewire.protocol.market.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.reputation import ReputationVerdict
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.heartbeat import Beat

Key = tuple[str, ...]
"""A derivation's inputs: the cited inventories, the previous body's digest, and "crowded" of such a body."""


@dataclass(frozen=True, slots=True)
class DerivationResult:
    """What a derivation gives. `snapshot` is None: what it follows from is not sound."""

    epoch: int
    key: Key
    snapshot: Snapshot | None
    blob: bytes
    sha256: str
    refused: int = 0
    """Observations in beats that count for nothing."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """Derive the snapshot of `epoch` from the listed `beats` (ids).

    `known` has by id the verified events at hand, `parsed` what was read of them. What is lacking there is taken from
    `blob`, a proposed snapshot, and its signature is checked. Ads and statements are then the blob's: a full snapshot
    has not those of all that are listed. Only those of the beats in `bonded` must be there or at hand.
    """

    committee: Committee
    epoch: int
    key: Key
    beats: tuple[str, ...]
    judged: tuple[ReputationVerdict, ...]
    previous: Snapshot | None
    known: Mapping[str, Event]
    parsed: Mapping[str, Beat | Ad]
    blob: bytes = b""
    bonded: tuple[str, ...] = ()
    """Of `beats`, those that f+1 list as bonded nodes'."""

    def run(self) -> DerivationResult:
        """Do the work without a pause."""
        return whole(self.sliced())

    def sliced(self) -> Sliced[DerivationResult]:
        """Do the work, which takes long for many nodes, in slices. It looks at nothing but its fields."""
        try:
            return (yield from self._derived((yield from self._offered()) if self.blob else self.known))
        except BadInput:
            return DerivationResult(self.epoch, self.key, None, b"", "")

    def _offered(self) -> Sliced[dict[str, Event]]:
        """The listed beats, the events in the blob, and what else is at hand of bonded nodes. Raises as `_events`."""
        offered = yield from _events(self.blob, self.known)
        offered.update((id_, self.known[id_]) for id_ in self.beats if id_ in self.known)
        bonded = [offered[id_] for id_ in self.bonded if id_ in offered]
        while True:  # an ad names a statement
            lacking = yield from _snapshot.needed(self.committee, self.epoch, bonded, offered, self.parsed)
            at_hand = {id_: self.known[id_] for id_ in lacking if id_ in self.known}
            if not at_hand:
                return offered
            offered.update(at_hand)

    def _derived(self, known: Mapping[str, Event]) -> Sliced[DerivationResult]:
        if any(id_ not in known for id_ in self.beats):
            raise BadInput("events", "a beat that the inventories list is missing")
        beats = [known[id_] for id_ in self.beats]
        must = [known[id_] for id_ in self.bonded] if self.blob else beats
        if (yield from _snapshot.needed(self.committee, self.epoch, must, known, self.parsed)):
            raise BadInput("events", "an ad or bond statement that a beat needs is missing")
        others = [event for event in known.values() if event.kind != _beat.KIND]
        refused: list[NotAllowed] = []
        snapshot = yield from _snapshot.derived(
            self.committee,
            self.epoch,
            beats,
            others,
            judged=self.judged,
            previous=self.previous,
            parsed=self.parsed,
            refuse=refused.append,
        )
        blob = yield from pieces.packed(snapshot)
        return DerivationResult(self.epoch, self.key, snapshot, blob, (yield from pieces.sha256(blob)), len(refused))


def _events(blob: bytes, known: Mapping[str, Event]) -> Sliced[dict[str, Event]]:
    """By id, the events in a proposed snapshot, the known ones as they are known. Raises BadInput, BadSignature."""
    document, found = (yield from Snapshot.read(blob)), {}
    texts = document.get("events")
    for text in texts if isinstance(texts, list) else ():
        if isinstance(text, str):
            event = known.get(text[7:71]) or parse_event(text)
            found[event.id] = event
        yield
    return found
