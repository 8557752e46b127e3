"""What a training has cost round by round, told from its events: losses, bytes moved, money paid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from nodewire.errors import NodewireError
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip44
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    Event,
    ResultArrival,
    ResultPayment,
    StepCompletion,
    StepPublication,
    StepRollback,
    TrainingStart,
)
from nodewire.training.protocol.audit import AuditAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.keys import Keys


@dataclass(frozen=True, slots=True)
class Point:
    """How things stood when a round's outer step was made; all but the loss are sums since the beginning."""

    round: int
    loss: float
    """On what is held out."""
    up_bytes: int
    """Ciphertexts of shards and weights, each counted once, on however many servers it is put."""
    down_bytes: int
    """Ciphertexts of results and, if the history has the customer's keys, of what audits have shown."""
    paid_msat: int
    fees_msat: int


@dataclass(slots=True)
class History:
    """The sums so far, and a point for each round."""

    up_bytes: int = 0
    down_bytes: int = 0
    paid_msat: int = 0
    fees_msat: int = 0
    points: list[Point] = field(default_factory=list)
    undone: list[StepRollback] = field(default_factory=list)
    """Whose rounds' points are not among the others any more; what they have cost is."""
    keys: Keys | None = None
    """The customer's: only they open what an audit's answer cites."""
    _momenta: CiphertextRef | None = None
    """That the maker of the newest step has put there."""

    @classmethod
    def replay(cls, events_: Iterable[Event], keys: Keys | None = None) -> Self:
        made = cls(keys=keys)
        for event in events_:
            made.apply(event)
        return made

    def apply(self, event: Event) -> None:
        match event:
            case TrainingStart(start=start, shards=shards, theta=theta):
                sealed = (*shards, theta, *((start,) if start else ()))
                self.up_bytes += sum(one.bytes for one in sealed)
            case ResultArrival():
                self.down_bytes += _cited_bytes(event.event)
            case StepPublication() if event.momenta and event.momenta != self._momenta:
                self.up_bytes += event.momenta.bytes
            case AuditOutcome() if event.answer and self.keys:
                self.down_bytes += _shown_bytes(event.answer, self.keys)
            case ResultPayment():
                self.paid_msat += event.amount_msat
                self.fees_msat += event.fee_msat
            case StepRollback(round_):
                del self.points[round_:]
                self.undone.append(event)
            case StepCompletion(round_, loss, theta):
                self._momenta = event.momenta
                now = self.up_bytes, self.down_bytes, self.paid_msat, self.fees_msat
                self.points.append(Point(round_, loss / 1_000_000, *now))
                if not event.request:  # who made a bought step has put its weights there already
                    self.up_bytes += theta.bytes


def _cited_bytes(result: str) -> int:
    """Of the ciphertexts that a result cites, a round's or an outer step's; it was parsed when it came."""
    return sum(int(tag[3]) for tag in events.parse(result).tags if tag[0] == "i" and len(tag) == 4)


def _shown_bytes(answer: str, keys: Keys) -> int:
    """Of the snapshots that an answer cites; 0 for one that failed its audit because it cannot be read."""
    event = events.parse(answer)
    try:
        said = nip44.decrypt(event.content, nip44.conversation_key(keys, event.pubkey))
        return sum(one.blob.bytes for one in AuditAnswer.parse(said).shown)
    except NodewireError:
        return 0
