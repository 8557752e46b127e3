"""What becomes of a finished job: its roots certified, some of them sampled, the committee's verdicts on those."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.customer.payments.receipt_finalizer import COMMIT_EPOCHS
from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.plan.sample import draw, place
from nodewire.protocol import kinds
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS, ENOUGH_EPOCHS
from nodewire.protocol.verification.verdict import Verdict, sample_key
from nodewire.verify.finality import CertifiedRoot, Finality, final_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nodewire.customer.payments.job_payments import ZapPayment
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.plan.epoch import Epoch
    from nodewire.protocol.committee.commitment import ChunkRoot, CommitmentEvent
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.verification.sample import Sample

VERDICT_EPOCHS = 9
"""How long after its draw a sample's verdict is waited for: its verifiers' time and the committee's."""
UNREAD_EPOCHS = 3
"""How much longer an epoch is asked for that cannot be read."""
log = logging.getLogger("nodewire.customer")


@dataclass(slots=True)
class JobVerification:
    """`roots` were committed to, `certified` of them are final; of the `samples` came the `verdicts`."""

    roots: int = 0
    certified: int = 0
    samples: list[Sample] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By the sample's key."""
    certificates: dict[str, Event] = field(default_factory=dict)
    """The events that certify them."""
    final: set[tuple[str, int, int]] = field(default_factory=set)
    """The paid claims that certificates stand behind: (provider, chunk, attempt)."""
    uncommitted: dict[str, int] = field(default_factory=dict)
    """By provider the first chunk that it claimed payment for and did not commit to in time."""
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
    claims: Iterable[ZapPayment] = (),
    *,
    market: Market,
    pool: EventTransport,
    last_epoch: int,
    progress: Callable[[JobVerification], None] = lambda found: None,
) -> JobVerification:
    """Wait until everything that was drawn of the job has its verdict, or will have none.

    That is known by the clock, too: a committee that certifies nothing more is not waited for.

    Args:
        request: the job's; its plan says who computed what.
        roots: what the providers (public keys) said in their results that they committed to.
        claims: what was paid. A claim that nothing certified stands behind is waited for as long as its provider has
            time to commit: until then it may become final, from then on a complaint gives back what it cost.
        market: its certificates say what was drawn, and what became final.
        pool: the relays that are asked for verdicts.
        last_epoch: in which the job ended. What is drawn is derived here, from what the certificates hold.
        progress: told what is known each time that it has become more.

    """
    reading = _CertificateReader(request, roots, claims, market, last_epoch)
    found, came = reading.found, asyncio.Event()
    listening = asyncio.create_task(_listen(request, found, market, pool, came))
    try:
        while True:
            await reading.read(progress)
            if reading.is_over():
                break
            if listening.done():
                log.error("verdicts cannot be listened for any more: %r", listening.exception())
                break
            came.clear()
            try:
                async with asyncio.timeout(market.committee.epoch_ms / 1000):
                    await came.wait()
            except TimeoutError:
                continue
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    await _conclude(reading.open, found, request, market, pool)
    return found


async def _conclude(
    claims: Sequence[ZapPayment], found: JobVerification, request: Request, market: Market, pool: EventTransport
) -> None:
    """Say which of these claims nothing certified stands behind, of whatever epoch.

    Nobody is blamed if hardly anything was certified at all: complaints are void then, and what is bought anew would
    not be certified either.
    """
    if not claims:
        return
    try:
        finality = await final_claims(request, [one.claim for one in claims], CLAIMED_EPOCHS, market, pool)
    except NodewireError as error:
        log.warning("whether %d paid claims are final cannot be known: %s", len(claims), error)
        return
    for one in claims:
        provider, chunk, attempt = one.provider, one.due.chunk, one.due.attempt
        last = _last_epoch(one, market.committee)
        held = finality.claimed(request.plan, provider, chunk, attempt, one.due.root)
        if held is not None and held.epoch <= last:
            found.final.add((provider, chunk, attempt))
            continue
        log.warning("%s was paid for chunk %d, and committed to nothing", provider[:8], chunk)
        if sum(last - CLAIMED_EPOCHS < epoch <= last for epoch in finality.certificates) >= ENOUGH_EPOCHS:
            found.uncommitted[provider] = min(chunk, found.uncommitted.get(provider, chunk))


def _last_epoch(paid: ZapPayment, committee: Committee) -> int:
    """The last one whose certificate makes a claim good."""
    return committee.epoch_at(paid.claim.created_at * 1000) + CLAIMED_EPOCHS


class _CertificateReader:
    """What the certificates since a job's request hold of it, epoch by epoch."""

    def __init__(
        self,
        request: Request,
        roots: Mapping[tuple[str, ChunkRoot], None],
        claims: Iterable[ZapPayment],
        market: Market,
        last_epoch: int,
    ) -> None:
        self.found = JobVerification(roots=len(roots))
        self._request, self._market, self._committee = request, market, market.committee
        self._said = {sample_key(provider, *root.key): root.root for provider, root in roots}
        self.open = list(claims)
        """Those that no epoch which was read makes final."""
        self._finality = Finality({}, {}, {}, {})
        self._seen: set[str] = set()
        self._places: set[str] = set()
        self._newest = request.plan.epoch
        self._committed_by = last_epoch + COMMIT_EPOCHS
        self._deadline = self._committed_by
        self._waits = 0

    async def read(self, progress: Callable[[JobVerification], None]) -> None:
        """Take note of the epochs that have been certified since."""
        self._waits = 0
        for epoch in self._market.epochs_after(self._newest):
            is_late = self._now() > epoch.body.epoch + 1 + UNREAD_EPOCHS
            try:
                held = await self._market.contents(epoch.body)
                snapshot = await self._market.snapshot(epoch.body.snapshot)
                if held.lacking and not is_late:
                    raise NotFound("commitments", f"{len(held.lacking)} are not to be had")
            except NodewireError as error:
                log.info("epoch %d cannot be read: %s", epoch.body.epoch, error)
                if is_late:
                    self._newest = epoch.body.epoch
                    continue
                self._waits = UNREAD_EPOCHS
                return  # and read again, before those after it: what it holds was committed to first
            mine = [one for one in held.commitments if one.is_about(self._request.id)]
            self._take(epoch, mine, snapshot)
            progress(self.found)

    def is_over(self) -> bool:
        """Whether nothing of the job is waited for any more."""
        over = max(self._newest, self._now() - 2 - self._waits)  # the last whose round is over
        if any(over < _last_epoch(one, self._committee) for one in self.open):
            return False
        judged = all(sample.key in self.found.verdicts for sample in self.found.samples)
        return over >= self._deadline or (judged and (self._seen >= self._said.keys() or over >= self._committed_by))

    def _take(self, epoch: Epoch, mine: Sequence[CommitmentEvent], snapshot: Snapshot) -> None:
        number, found, request = epoch.body.epoch, self.found, self._request
        drawn = draw(self._committee, epoch.beacon, mine, {request.id: request}, snapshot, seen=self._places)
        found.samples += drawn
        for one in sorted(mine, key=lambda one: one.id):
            for root in one.chunks:
                if root.request != request.id:
                    continue
                key = sample_key(one.provider, *root.key)
                late = number > request.plan.deadline_epoch(root.chunk, self._committee.epoch_ms)
                if self._said.get(key) == root.root and key not in self._seen and not late:
                    found.certified += 1
                if not late:
                    final = CertifiedRoot(one.provider, root, one.id, number, epoch.body.digest())
                    self._finality.roots.setdefault((one.provider, *root.key), final)
                self._seen.add(key)
                self._places.add(place(one.provider, root.request, root.task, root.chunk))
        still = []
        for paid in self.open:
            at = paid.provider, paid.due.chunk, paid.due.attempt
            in_time = number <= _last_epoch(paid, self._committee)
            if in_time and self._finality.claimed(request.plan, *at, paid.due.root) is not None:
                found.final.add(at)
            else:
                still.append(paid)
        self.open = still
        self._newest = number
        if drawn:
            self._deadline = max(self._deadline, number + VERDICT_EPOCHS)

    def _now(self) -> int:
        return self._committee.epoch_at(int(time.time() * 1000))


async def settle(found: JobVerification, request: Event, holder: BondHolder, keys: Keys) -> None:
    """Present every verdict to the bonds' holder, and take what it gives back to the customer."""
    for key, certificate in found.certificates.items():
        try:
            settled = await holder.present(certificate, request)
            if settled.refused:
                log.warning("the verdict on %s reached no bond: %s", found.verdicts[key].task, settled.refused)
            if settled.due.get(keys.public):
                found.refunded_msat += await holder.claim(keys, settled.case)
                await holder.collect(keys)
        except NodewireError as error:
            log.warning("the verdict on %s is not settled: %s", found.verdicts[key].task, error)


async def _listen(
    request: Request, found: JobVerification, market: Market, pool: EventTransport, came: asyncio.Event
) -> None:
    oracles = frozenset(oracle.pubkey for oracle in market.committee.oracles)
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), authors=oracles, tags={"e": frozenset({request.id})})
    while True:
        try:
            async with pool.subscribe([about]) as events:
                async for event in events:
                    _take(event, request, found, market.committee, came)
            log.info("every relay has ended the subscription to verdicts")
        except NodewireError as error:
            log.info("verdicts cannot be listened for: %s", error)
        await asyncio.sleep(market.committee.epoch_ms / 1000)  # then relays tell again what they have


def _take(event: Event, request: Request, found: JobVerification, committee: Committee, came: asyncio.Event) -> None:
    try:
        certificate = verdict.parse(event)
        certificate.check(committee)
    except BadInput:
        return
    if certificate.verdict.request == request.id:
        found.verdicts.setdefault(certificate.verdict.key, certificate.verdict)
        found.certificates.setdefault(certificate.verdict.key, event)
        came.set()
