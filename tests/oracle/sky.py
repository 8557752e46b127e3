"""A seeded sky of oracles for tests: relays that delay, drop and reorder, no clock but the one it turns itself.

Each oracle is the real state machine behind the real codecs; what stands in for the daemon here is signing, a shared
blob store and delivery. A fault is a function that replaces what an oracle would send.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from nodewire.nostr.event import Event
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.state import (
    Action,
    BlobCame,
    Derive,
    FetchBlob,
    FetchCertificates,
    FetchEvents,
    KeepSnapshot,
    PublishCertificate,
    PublishFault,
    PublishPartial,
    SayInventory,
    SayProposal,
    SaySupply,
    SayVote,
    State,
    Tick,
    VerifiedEvent,
    start,
)
from nodewire.protocol.committee import beacon, oracle_round, quorum_certificate
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.market import snapshot
from tests.protocol.committee.actors import GENESIS_S, Seat

Outgoing = list[tuple[Event, "set[str] | None"]]
"""Events, each with the pubkeys of the oracles that get it (None: everybody)."""
Fault = Callable[["Sky", Seat, Action, Outgoing], Outgoing]


@dataclass
class Sky:
    committee: Committee
    seats: list[Seat]
    seed: int
    faults: dict[str, Fault] = field(default_factory=dict)
    delay_ms: tuple[int, int] = (1, 60)
    loss_percent: int = 0
    now_ms: int = GENESIS_S * 1000
    stored: dict[str, Event] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.states: dict[str, State] = {s.keys.public: start(self.committee, s.keys.public) for s in self.seats}
        self.queue: list[tuple[int, int, str, object]] = []
        self.order = count()

    @property
    def honest(self) -> list[str]:
        return [pubkey for pubkey in self.states if pubkey not in self.faults]

    def publish(self, event: Event, to: Iterable[str] | None = None, *, lossy: bool = True) -> None:
        """Give an event to the relays; each oracle gets it after its own delay, or never."""
        self.stored[event.id] = event
        for pubkey in self.states if to is None else to:
            if lossy and event.pubkey != pubkey and self.random.randrange(100) < self.loss_percent:
                continue
            delay = 0 if event.pubkey == pubkey else self.random.randint(*self.delay_ms)
            self._later(delay, pubkey, VerifiedEvent(event))

    def run_to(self, now_ms: int, step_ms: int = 25) -> None:
        while self.now_ms < now_ms:
            self.now_ms += step_ms
            for pubkey in self.states:
                self._feed(pubkey, Tick(self.now_ms))
            while self.queue and self.queue[0][0] <= self.now_ms:
                _, _, pubkey, what = heapq.heappop(self.queue)
                self._feed(pubkey, what)

    def run_epochs(self, epochs: int, beats: Callable[[int], Iterable[Event]] = lambda epoch: ()) -> None:
        """That many epochs, each with `beats(epoch)` published at its start."""
        first = self.committee.epoch_at(self.now_ms)
        for epoch in range(first, first + epochs):
            for event in beats(epoch):
                self.publish(event)
            self.run_to(self.committee.close_ms(epoch))

    def certificates(self) -> dict[int, set[str]]:
        """Digests of all valid certificates on the relays, by epoch."""
        found: dict[int, set[str]] = {}
        for event in self.stored.values():
            if event.kind == quorum_certificate.KIND:
                one = quorum_certificate.parse(event)
                one.check(self.committee)
                found.setdefault(one.body.epoch, set()).add(one.digest)
        return found

    def accused(self) -> set[str]:
        kind = quorum_certificate.FAULT_KIND
        events = [event for event in self.stored.values() if event.kind == kind]
        return {quorum_certificate.parse_fault(event, self.committee).oracle for event in events}

    def beacons(self) -> dict[str, str]:
        """By digest of a body: the beacon, where enough partials are on the relays."""
        partials = [beacon.parse(event) for event in self.stored.values() if event.kind == beacon.KIND]
        bodies = {partial.body for partial in partials}
        return {body: beacon.combine(self.committee, body, partials) for body in bodies}

    def latest_snapshot(self) -> snapshot.Snapshot:
        newest = max((s.certified[-1] for s in self.states.values() if s.certified), key=lambda c: c.body.epoch)
        return snapshot.unpack(self.blobs[newest.body.snapshot], newest.body.snapshot)

    def _later(self, delay_ms: int, pubkey: str, what: object) -> None:
        heapq.heappush(self.queue, (self.now_ms + delay_ms, next(self.order), pubkey, what))

    def _feed(self, pubkey: str, what: object) -> None:
        if pubkey in self.down:
            return
        self.states[pubkey], actions = rules.apply(what, self.states[pubkey])
        seat = next(s for s in self.seats if s.keys.public == pubkey)
        for action in actions:
            self._do(seat, action)

    def _do(self, seat: Seat, action: Action) -> None:
        self._keep_blob(action)
        self._look_up(seat, action)
        outgoing: Outgoing = [(event, None) for event in self._events(seat, action)]
        fault = self.faults.get(seat.keys.public)
        for event, to in fault(self, seat, action, outgoing) if fault else outgoing:
            self.publish(event, to)

    def _keep_blob(self, action: Action) -> None:
        match action:
            case KeepSnapshot(sha256, _, blob):
                self.blobs[sha256] = blob
            case SayProposal(body, blob):
                self.blobs[body.snapshot] = blob

    def _look_up(self, seat: Seat, action: Action) -> None:
        """What the oracle asked for comes back later."""
        match action:
            case Derive(work):
                self._later(5, seat.keys.public, work.run())
            case FetchEvents(ids):
                for id_ in ids:
                    if id_ in self.stored:
                        self._later(20, seat.keys.public, VerifiedEvent(self.stored[id_]))
            case FetchCertificates():
                newest = [e for e in self.stored.values() if e.kind == quorum_certificate.KIND][-8:]
                for event in newest:
                    self._later(20, seat.keys.public, VerifiedEvent(event))
            case FetchBlob(sha256):
                if sha256 in self.blobs:
                    self._later(10, seat.keys.public, BlobCame(sha256, self.blobs[sha256]))

    def _events(self, seat: Seat, action: Action) -> list[Event]:
        """What the oracle says."""
        at = self.now_ms // 1000
        times = {"created_at": at, "expires_at_s": self.committee.kept_until_s(at)}
        match action:
            case SayInventory(document):
                event, blob = oracle_round.build_inventory(seat.keys, document, **times)
                if blob is not None:
                    self.blobs[snapshot.sha256(blob)] = blob
                return [event]
            case SayProposal(body):
                return [oracle_round.build_proposal(seat.keys, body, **times)]
            case SayVote(topic, x):
                return [oracle_round.build_vote(seat.keys, self.committee.digest(), topic, x, **times)]
            case SaySupply(epoch, events):
                return list(oracle_round.build_supply(seat.keys, self.committee.digest(), epoch, events, **times))
            case PublishCertificate(one):
                return [quorum_certificate.build(seat.keys, one, **times)]
            case PublishPartial(body):
                return [beacon.build(seat.keys, body, seat.index, seat.share, **times)]
            case PublishFault(fault):
                return [quorum_certificate.build_fault(seat.keys, fault, created_at=at)]
        return []


def silent(sky: Sky, seat: Seat, action: Action, outgoing: Outgoing) -> Outgoing:
    """Says nothing at all."""
    return []
