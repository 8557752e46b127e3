"""What relays have about a job, parsed: the events that its trail is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.nostr.nips import nip57, nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee import beacon
from nodewire.protocol.encoding.tags import epoch_topic
from nodewire.protocol.job import feedback
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS
from nodewire.verify.finality import Finality, final_claims

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.model.manifest import Manifest


@dataclass(slots=True)
class Record:
    """A job's. `refused` is what members signed and does not hold, by the event's id."""

    request: Request
    manifest: Manifest
    committee: Committee
    finality: Finality = field(default_factory=lambda: Finality({}, {}, {}, {}))
    refused: dict[str, str] = field(default_factory=dict)
    claims: dict[tuple[str, int, int], Feedback] = field(default_factory=dict)
    """The first of a provider for a chunk and attempt."""
    zaps: list[Event] = field(default_factory=list)
    receipts: list[Event] = field(default_factory=list)
    """The customer's, closings among them."""
    verdicts: list[Event] = field(default_factory=list)
    partials: dict[int, list[beacon.BeaconPartial]] = field(default_factory=dict)
    """By epoch."""
    now_s: float = field(default_factory=time.time)
    """When it was read."""

    def seconds_to(self, epoch: int) -> int:
        """Until all that certificates of `epoch` and those before say can be read; 0 if that is over."""
        round_ms = self.committee.epoch_ms  # the next one, in which its votes are cast
        return max(0, -(-(self.committee.close_ms(epoch) + round_ms - int(self.now_s * 1000)) // 1000))


async def read(request: Request, manifest: Manifest, market: Market, relays: Relays) -> Record:
    """Raises TimedOut, RelayRefused: relays do not answer."""
    record = Record(request, manifest, market.committee)
    about = {"e": frozenset({request.id})}
    providers = frozenset(request.plan.providers())
    oracles = frozenset(oracle.pubkey for oracle in market.committee.oracles)
    wanted = [
        Filter(kinds=frozenset({kinds.FEEDBACK, nip57.RECEIPT}), authors=providers, tags=about),
        Filter(kinds=frozenset({kinds.CERTIFICATE}), authors=oracles, tags=about),
        Filter(kinds=frozenset({kinds.RECEIPT, nip61.NUTZAP}), authors=frozenset({request.customer}), tags=about),
    ]
    for event in sorted(await relays.fetch_all(wanted), key=lambda event: (event.created_at, event.id)):
        try:
            _take(record, event)
        except BadInput as error:
            if event.pubkey in (request.customer, *request.plan.providers()):
                record.refused[event.id] = f"kind {event.kind}: {error}"
    record.finality = await final_claims(request, record.claims.values(), CLAIMED_EPOCHS, market, relays)
    epochs = {one.epoch for one in record.finality.roots.values()}
    if epochs:
        topics = frozenset(epoch_topic(epoch) for epoch in epochs)
        oracles = frozenset(oracle.pubkey for oracle in market.committee.oracles)
        partials = Filter(
            kinds=frozenset({kinds.BEACON}),
            authors=oracles,
            tags={"c": frozenset({market.committee.digest()}), "n": topics},
        )
        for event in await relays.fetch_all([partials]):
            try:
                partial = beacon.parse(event)
            except BadInput:
                continue
            record.partials.setdefault(partial.epoch, []).append(partial)
    return record


def _take(record: Record, event: Event) -> None:
    if event.kind == kinds.FEEDBACK:
        if event.pubkey in record.request.plan.providers():
            said = feedback.parse(event)
            if said.due is not None and said.request == record.request.id:
                record.claims.setdefault((said.provider, said.due.chunk, said.due.attempt), said)
    elif event.kind == kinds.CERTIFICATE:
        record.verdicts.append(event)
    elif event.kind == kinds.RECEIPT:
        record.receipts.append(event)
    else:
        record.zaps.append(event)
