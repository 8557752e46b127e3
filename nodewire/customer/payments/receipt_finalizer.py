"""Closes, beside everything else, the receipts of jobs that are over: what became final, what never did.

All of it is made from the ledger and from what relays have, so a process that dies owes nothing that the next one does
not find: a job is owed receipts as long as the ledger has payments for it and does not have it closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.customer.payments.job_payments import ZapPayment
from nodewire.customer.payments.receipts import ZapReceipts, receipts_for
from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.nostr.nips import nip57, nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, receipt
from nodewire.protocol.job import request as job
from nodewire.protocol.job.receipt import Closing, FinalChunk, Receipt
from nodewire.verify.finality import Finality, final_claims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodewire.customer.payments.refunds import Refunds
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.debts import Debt
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.request import Request

COMMIT_EPOCHS = 3
"""So many epochs after the one in which the last paid claim was made, a closing waits for their certificates: until the
round of the third is over, one epoch after that has closed."""
PATIENCE_EPOCHS = 16
"""How much longer records that relays lack, and payments that are still owed, are waited for."""
_MOST_S = 600.0
_IDS = 500
"""In one filter."""
log = logging.getLogger("nodewire.customer")


@dataclass(frozen=True, slots=True)
class FinalReceipts:
    """The receipts and closings of a job, by the receipts' event ids."""

    receipts: Mapping[str, Receipt]
    closings: Mapping[str, Closing]


class Closings:
    """`under_way` are the jobs that are not over, and left alone.

    What was paid and never certified is complained of to `refunds`.
    """

    def __init__(
        self,
        keys: Keys,
        ledger: Ledger,
        market: Market,
        pool: Pool,
        network: str,
        under_way: set[str],
        refunds: Refunds,
    ) -> None:
        self._keys = keys
        self._ledger = ledger
        self._market = market
        self._pool = pool
        self._network = network
        self._under_way = under_way
        self._refunds = refunds
        self._again: dict[str, tuple[float, float]] = {}
        """By job: when it is tried next (monotonic), and the pause after that."""
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Close what can be closed, until cancelled."""
        epoch_s = self._market.committee.epoch_ms / 1000
        while True:  # first what earlier runs owe: this one may be over before an epoch is
            for request in self._ledger.unclosed():
                at_s, pause_s = self._again.get(request, (0.0, epoch_s))
                if request in self._under_way or time.monotonic() < at_s:
                    continue
                self._again[request] = time.monotonic() + pause_s, min(2 * pause_s, _MOST_S)
                try:
                    if await self.close(request) is not None:
                        self._again.pop(request, None)
                except NodewireError as error:
                    log.info("the receipts of %s cannot be closed yet: %s", request[:8], error)
            await asyncio.sleep(epoch_s)

    async def finish(self, request: str) -> FinalReceipts | None:
        """Close a job that is over, waiting until no root of it can become final any more; None if it cannot be."""
        committee = self._market.committee
        for _ in range(
            2 * (COMMIT_EPOCHS + 2) + 1
        ):  # the rest of this epoch, those that count, and the last one's round
            try:
                if (closed := await self.close(request)) is not None:
                    return closed
            except NodewireError as error:
                log.info("the receipts of %s cannot be closed yet: %s", request[:8], error)
            await asyncio.sleep(committee.epoch_ms / 2000)
        return None

    async def close(self, request: str) -> FinalReceipts | None:
        """Give the receipts of a job that are still owed, and close them all; None if that is not possible yet.

        Raises:
            NotFound: relays lack the request.
            LinkLost, TimedOut, RelayRefused: relays do not answer, or do not take what is published.

        """
        async with self._turn:
            known = await self._records(request)
            given = await self._give_missing(known)
            late_by = self._late_by(known)
            claims = [paid.claim for paid in self._paid(known).values()] if late_by > 0 else []
            finality = await final_claims(known.request, claims, COMMIT_EPOCHS, self._market, self._pool)
            waits = finality.unread or not self._is_complete(known)
            if late_by <= PATIENCE_EPOCHS and waits:
                return None
            closings: dict[str, Closing] = {}
            for id_, one in given.items():
                if id_ in known.closings:
                    closings[id_] = known.closings[id_]
                    continue
                made = _closing(id_, one, finality, known.request)
                if made.uncertified and late_by <= 0:
                    return None
                closings[id_] = made
            for id_, closing in closings.items():
                if id_ not in known.closings:
                    if known.request.plan.verification.policy == "sampled":
                        await self._refunds.complain(known.claims_of(closing.provider, closing.uncertified))
                    event = receipt.build_closing(self._keys, closing, created_at=int(time.time()))
                    await self._pool.publish(event, timeout_s=10.0)
            self._ledger.close_job(request)
            return FinalReceipts(given, closings)

    def _late_by(self, known: _Records) -> int:
        """How many epochs are certified, or will never be, since the last one that a closing waits for; below 1 before.

        Only what was paid counts: a provider that claims on and on keeps no receipt open.
        """
        committee = self._market.committee
        claimed_s = max((paid.claim.created_at for paid in self._paid(known).values()), default=0)
        last = committee.epoch_at(max(claimed_s, known.request.created_at) * 1000) + COMMIT_EPOCHS
        return committee.epoch_at(int(time.time() * 1000)) - 1 - last  # the one that has closed last is in its round

    async def _give_missing(self, known: _Records) -> dict[str, Receipt]:
        """All receipts of the job by event id, after publishing those for payments that have none."""
        given = dict(known.receipts)
        has = {(one.provider, paid.chunk) for one in given.values() for paid in one.chunks}
        missing = {key: paid for key, paid in self._paid(known).items() if key not in has}
        for provider in sorted({provider for provider, _ in missing}):
            for one in receipts_for(provider, known.request.id, known.request.plan, missing, known.zap_receipts):
                event = receipt.build(self._keys, one, created_at=int(time.time()))
                await self._pool.publish(event, timeout_s=10.0)
                given[event.id] = one
        return given

    def _is_complete(self, known: _Records) -> bool:
        """Whether everything is paid, and the claims for it are to be had."""
        members = known.request.plan.providers()
        mine = [debt for debt in self._ledger.debts_of(known.request.id) if debt.key.payee in members]
        return all(map(self._is_settled, mine)) and len(self._paid(known)) == len(mine)

    def _is_settled(self, debt: Debt) -> bool:
        """Whether a debt is paid, or left for later by its payee's credit."""
        return debt.state == "paid" or not self._ledger.is_due(debt.key.payee, time.time())

    def _paid(self, known: _Records) -> dict[tuple[str, int], ZapPayment]:
        """The job's payments by payee and chunk, as far as relays still have what they were claimed with."""
        found = {}
        for debt in self._ledger.debts_of(known.request.id):
            said = known.claims.get((debt.key.payee, debt.key.chunk, debt.key.attempt, debt.amount_msat))
            if self._is_settled(debt) and said is not None and said.due is not None:
                found[debt.key.payee, debt.key.chunk] = ZapPayment(said, said.due, debt)
        return found

    async def _records(self, request: str) -> _Records:
        """What its providers and this customer have said; anybody else may say anything about a public request.

        The claims that receipts name are asked for by their ids: whoever made one may put any number of events before
        it.
        """
        about = {"e": frozenset({request})}
        said = frozenset({kinds.RECEIPT, nip61.NUTZAP})
        own = Filter(kinds=said, authors=frozenset({self._keys.public}), tags=about)
        events = await self._pool.fetch_all([Filter(ids=frozenset({request})), own])
        asked = next((event for event in events if event.id == request), None)
        if asked is None:
            raise NotFound("request", f"no relay has {request}")
        known = _Records(job.parse(asked), events, self._network)
        claims = sorted({paid.feedback for one in known.receipts.values() for paid in one.chunks})
        wanted = [Filter(ids=frozenset(claims[i : i + _IDS])) for i in range(0, len(claims), _IDS)]
        providers = frozenset(known.request.plan.providers())
        wanted.append(Filter(kinds=frozenset({kinds.FEEDBACK, nip57.RECEIPT}), authors=providers, tags=about))
        found = await self._pool.fetch_all(wanted)
        known.add(event for event in found if event.id in claims)  # first: a later one may be dated before it
        known.add(event for event in found if event.id not in claims)
        return known


class _Records:
    """What relays have about one job."""

    def __init__(self, request: Request, events: Iterable[Event], network: str) -> None:
        self.request = request
        self.claims: dict[tuple[str, int, int, int], Feedback] = {}
        """By provider, chunk, attempt and amount."""
        self._claimed: dict[str, Event] = {}
        """The claims' events by id."""
        self.receipts: dict[str, Receipt] = {}
        self.closings: dict[str, Closing] = {}
        self.zap_receipts = ZapReceipts(network)
        self.add(events)

    def add(self, events: Iterable[Event]) -> None:
        for event in sorted(events, key=lambda event: (event.created_at, event.id)):
            try:
                self._add(event)
            except BadInput:
                continue

    def _add(self, event: Event) -> None:
        if event.kind == nip57.RECEIPT or (event.kind == nip61.NUTZAP and event.pubkey == self.request.customer):
            self.zap_receipts.note(event)
        elif event.kind == kinds.FEEDBACK and event.pubkey in self.request.plan.providers():
            said = feedback.parse(event)
            if said.due is not None and said.request == self.request.id:
                due = said.due
                self.claims.setdefault((said.provider, due.chunk, due.attempt, due.amount_msat), said)
                self._claimed[event.id] = event
        elif event.kind == kinds.RECEIPT and event.pubkey == self.request.customer:
            if receipt.is_closing(event):
                closing = receipt.parse_closing(event)
                self.closings.setdefault(closing.receipt, closing)
            else:
                self.receipts[event.id] = receipt.parse(event)

    def claims_of(self, provider: str, chunks: Iterable[tuple[int, int]]) -> list[Event]:
        """The provider's claims for these (chunk, attempt)."""
        wanted = set(chunks)
        return [
            self._claimed[said.id]
            for (who, chunk, attempt, _), said in self.claims.items()
            if who == provider and (chunk, attempt) in wanted
        ]


def _closing(id_: str, given: Receipt, finality: Finality, request: Request) -> Closing:
    final, uncertified = [], []
    for paid in given.chunks:
        held = finality.claimed(request.plan, given.provider, paid.chunk, paid.attempt, paid.root)
        if held is None:
            uncertified.append((paid.chunk, paid.attempt))
        else:
            final.append(
                FinalChunk(
                    chunk=paid.chunk,
                    attempt=paid.attempt,
                    commitment=held.commitment,
                    epoch=held.epoch,
                    certificate=held.certificate,
                )
            )
    return Closing(
        receipt=id_,
        request=given.request,
        plan=given.plan,
        provider=given.provider,
        final=tuple(final),
        uncertified=tuple(uncertified),
    )
