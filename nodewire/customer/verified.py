"""What becomes of a finished job: its roots certified, some of them sampled, the committee's verdicts on those."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodewire.customer.closings import COMMIT_EPOCHS
from nodewire.errors import BadInput, NodewireError
from nodewire.market import Market
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.bond_holder import BondHolder
from nodewire.plan.sample import draw, place
from nodewire.protocol import kinds, verdict
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.committee import Committee
from nodewire.protocol.job import Request
from nodewire.protocol.verdict import Verdict, sample_key
from nodewire.protocol.verification import Sample

VERDICT_EPOCHS = 9
"""How long after its draw a sample's verdict is waited for: its verifiers' time and the committee's."""
UNREAD_EPOCHS = 3
"""How much longer an epoch is asked for that cannot be read."""
log = logging.getLogger("nodewire.customer")


@dataclass(slots=True)
class Verified:
    """`roots` were committed to, `certified` of them are final; of the `samples` came the `verdicts`."""

    roots: int = 0
    certified: int = 0
    samples: list[Sample] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By the sample's key."""
    certificates: dict[str, Event] = field(default_factory=dict)
    """The events that certify them."""
    uncommitted: dict[str, int] = field(default_factory=dict)
    """By provider the first chunk that it claimed payment for and never committed to."""
    refunded_msat: int = 0
    """What bonds gave back for failed or withheld work."""

    def failed_chunk(self) -> int | None:
        """The first chunk that failed, was withheld, not what its producer committed to, or never committed to."""
        failed = [v.chunk for v in self.verdicts.values() if v.outcome in ("fail", "withheld")]
        failed += [v.equivocated[1] for v in self.verdicts.values() if v.equivocated is not None]
        return min([*failed, *self.uncommitted.values()], default=None)

    def culprits(self) -> set[str]:
        """Who was convicted, withheld, or committed to nothing."""
        withheld = {v.provider for v in self.verdicts.values() if v.outcome == "withheld"}
        return withheld.union(self.uncommitted, *(v.convicted for v in self.verdicts.values()))


async def follow(
    request: Request,
    roots: Mapping[tuple[str, ChunkRoot], None],
    *,
    market: Market,
    pool: Pool,
    last_epoch: int,
    progress: Callable[[Verified], None] = lambda found: None,
) -> Verified:
    """Wait until everything that was drawn of the job has its verdict, or will have none.

    That is known by the clock, too: a committee that certifies nothing more is not waited for.

    `roots`: what the providers (public keys) said in their results that they committed to; `last_epoch`: in which the
    job ended. What is drawn is derived here, from what the certificates hold.
    """
    found = Verified(roots=len(roots))
    wanted = {sample_key(provider, *root.key): root for provider, root in roots}
    came = asyncio.Event()
    listening = asyncio.create_task(_listen(request, found, market, pool, came))
    seen: set[str] = set()
    places: set[str] = set()
    committee, epoch_s = market.committee, market.committee.epoch_ms / 1000
    newest, deadline = request.plan.epoch, last_epoch + COMMIT_EPOCHS
    try:
        while True:
            waits = 0
            for epoch in market.epochs_after(newest):
                try:
                    commitments = await market.commitments(epoch.body)
                    snapshot = await market.snapshot(epoch.body.snapshot)
                except NodewireError as error:
                    log.info("epoch %d cannot be read: %s", epoch.body.epoch, error)
                    waits = UNREAD_EPOCHS
                    break  # and read again, before those after it: what it holds was committed to first
                mine = [one for one in commitments if _is_about(one.commitment, request.id)]
                drawn = draw(committee, epoch.beacon, mine, {request.id: request}, snapshot, seen=places)
                found.samples += drawn
                for one in mine:
                    for root in one.commitment.chunks if one.commitment is not None else ():
                        key = sample_key(one.provider, *root.key)
                        late = epoch.body.epoch > request.plan.deadline_epoch(root.chunk, committee.epoch_ms)
                        if key in wanted and key not in seen and wanted[key].root == root.root and not late:
                            found.certified += 1
                        seen.add(key)
                        places.add(place(one.provider, root.request, root.task, root.chunk))
                newest = epoch.body.epoch
                if drawn:
                    deadline = max(deadline, newest + VERDICT_EPOCHS)
                progress(found)
            over = max(newest, committee.epoch_at(int(time.time() * 1000)) - 2 - waits)  # whose round is over
            judged = all(sample.key in found.verdicts for sample in found.samples)
            if judged and (seen >= wanted.keys() or over >= last_epoch + COMMIT_EPOCHS):
                return found
            if over >= deadline:
                return found
            if listening.done():
                log.error("verdicts cannot be listened for any more: %r", listening.exception())
                return found
            came.clear()
            try:
                async with asyncio.timeout(epoch_s):
                    await came.wait()
            except TimeoutError:
                continue
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def settle(found: Verified, request: Event, holder: BondHolder, keys: Keys) -> None:
    """Present every verdict to the bonds' holder, and take what it gives back to the customer."""
    for key, certificate in found.certificates.items():
        try:
            settled = await holder.present(certificate, request)
            if settled.refused:
                log.warning("the verdict on %s reached no bond: %s", found.verdicts[key].task, settled.refused)
            if settled.due.get(keys.public):
                found.refunded_msat += (await holder.claim(keys, settled.case)).amount_msat
        except NodewireError as error:
            log.warning("the verdict on %s is not settled: %s", found.verdicts[key].task, error)


async def _listen(request: Request, found: Verified, market: Market, pool: Pool, came: asyncio.Event) -> None:
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({request.id})})
    while True:
        try:
            async with pool.subscribe([about]) as events:
                async for event in events:
                    _take(event, request, found, market.committee, came)
            log.info("every relay has ended the subscription to verdicts")
        except NodewireError as error:
            log.info("verdicts cannot be listened for: %s", error)
        await asyncio.sleep(market.committee.epoch_ms / 1000)  # then relays tell again what they have


def _take(event: Event, request: Request, found: Verified, committee: Committee, came: asyncio.Event) -> None:
    try:
        certificate = verdict.parse(event)
        certificate.check(committee)
    except BadInput:
        return
    if certificate.verdict.request == request.id:
        found.verdicts.setdefault(certificate.verdict.key, certificate.verdict)
        found.certificates.setdefault(certificate.verdict.key, event)
        came.set()


def _is_about(commitment: object, request: str) -> bool:
    return any(root.request == request for root in getattr(commitment, "chunks", ()))
