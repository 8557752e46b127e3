"""What a customer still owes from jobs that are over: found in its ledger and on relays, and paid."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nodewire.customer.payments.job_payments import BEHIND_S
from nodewire.errors import BadInput, NodewireError, NotFound, TimedOut
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.debts import Debt, JobBudget, Key
from nodewire.pay.accounts.payer import Payer, ZapTerms
from nodewire.pay.lightning import lnurl
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import AHEAD
from nodewire.protocol.market import ad
from nodewire.protocol.market.cached_price import may_be_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.pay.accounts.payer import Payer
    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.job.request import Request

MAX_BRIEFLY = 500
"""Feedback to a customer, the newest, in which claims are looked for beside a purchase."""
_AT_ONCE = 8
_FETCH_S = 10.0
log = logging.getLogger("nodewire.customer")


@dataclass(frozen=True, slots=True)
class ChunkDebt:
    """One chunk that is not paid; `lnurl` is the payee's endpoint ("lnurl1..."), empty if it is not known.

    `is_evident`: plan and ledger say that it is owed, so that nobody need be asked. `is_broken`: its job broke off,
    and it was neither closed nor came. It is not owed, but its provider has computed it, and may refuse who leaves too
    many of them.
    `budget`: the most that its job may cost its providers, where no payment of its own was checked against it.
    """

    key: Key
    amount_msat: int
    lnurl: str
    is_evident: bool = True
    is_broken: bool = False
    budget: JobBudget | None = None


@dataclass(frozen=True, slots=True)
class DebtOutcome:
    """What became of a debt: paid, or why not."""

    owed: ChunkDebt
    paid: Debt | None
    error: NodewireError | None


def in_ledger(payer: Payer) -> list[ChunkDebt]:
    """What this customer knows that it owes and where to pay it."""
    return [ChunkDebt(debt.key, debt.amount_msat, debt.lnurl) for debt in payer.unpaid() if debt.lnurl]


async def on_relays(pool: EventTransport, payer: Payer, customer: str, *, briefly: bool = False) -> list[ChunkDebt]:
    """What providers of this customer's own requests have claimed and the ledger does not know.

    `briefly`: only of what one answer of a relay holds, the newest hundreds.

    Such a claim came when this process was about to end. It counts if the request's plan names the provider and the
    price; how much of a prompt was computed, and that a chunk was, may be only the provider's word, within the plan's
    budget (`ChunkDebt.is_evident`). It does not count where its provider has published a receipt for that chunk: the
    ledger that would know of it was lost.

    Raises:
        LinkLost, TimedOut: no relay answers.

    """
    wanted = Filter(kinds=frozenset({kinds.FEEDBACK}), tags={"p": frozenset({customer})})
    read = partial(pool.fetch, max_events=MAX_BRIEFLY) if briefly else pool.fetch_all
    return await claimed(pool, payer, customer, _claims(await read([wanted])), briefly=briefly)


async def claimed(
    pool: EventTransport, payer: Payer, customer: str, heard: Iterable[Feedback], *, briefly: bool = False
) -> list[ChunkDebt]:
    """The claims among these that the ledger does not know, as `on_relays` judges them. Raises LinkLost, TimedOut."""
    read = partial(pool.fetch, max_events=MAX_BRIEFLY) if briefly else pool.fetch_all
    claims = _unknown(heard, payer)
    if claims:
        received = _received(await read([_receipts_of(claims)]))
        claims = {key: said for key, said in claims.items() if (key.job, key.payee, key.chunk) not in received}
    if not claims:
        return []
    asked = frozenset(said.request for said in claims.values())
    wanted = Filter(ids=asked, kinds=frozenset({kinds.INFERENCE}), authors=frozenset({customer}))
    requests = {event.id: job.parse(event) for event in await read([wanted])}
    endpoints: dict[str, str] = {}
    owed = []
    for key, said in claims.items():
        request = requests.get(said.request)
        booked = payer.debts_of(said.request)
        if request is not None and said.due is not None and _is_in_plan(said, request):
            if said.provider not in endpoints:
                endpoints[said.provider] = await _endpoint(pool, said.provider)
            plan = request.plan
            budget = JobBudget(plan.terms.max_total_msat, frozenset(plan.providers()))
            ended = payer.has_ended(request.id)
            count_owed = payer.count_owed(request.id)
            broken = count_owed is not None and said.due.chunk >= count_owed
            evident = not broken and is_evident(said, request, booked, ended=ended)
            owed.append(ChunkDebt(key, said.due.amount_msat, endpoints[said.provider], evident, broken, budget))
    return owed


def is_evident(said: Feedback, request: Request, booked: Sequence[Debt], *, ended: bool) -> bool:
    """Whether plan and ledger say that a claim which the ledger lacks is owed.

    `booked` are the ledger's debts of the job, each of a chunk that came; `ended`: whether its customer saw its end.
    If it did not, because its process died, up to `AHEAD` more chunks are owed: so far work goes ahead of payment, and
    so far every job trusts a provider. Without any debt of the job only a person can tell.
    """
    assert said.due is not None
    due, plan = said.due, request.plan
    prices = {public: plan.price_msat(public) for public in plan.providers()}
    mine = [debt for debt in booked if debt.key.payee in plan.providers()]
    if due.attempt or not mine or any(debt.key.attempt for debt in mine):
        return False
    price = prices.get(said.provider, 0)
    if not price or not may_be_due(due.amount_msat, price, due.units, due.cached):
        return False
    if due.chunk > max(debt.key.chunk for debt in mine) + (0 if ended else AHEAD):
        return False
    # Others are paid for as many units of the same chunk.
    counted = {
        debt.amount_msat // prices[debt.key.payee]
        for debt in mine
        if debt.key.chunk == due.chunk and prices.get(debt.key.payee)
    }
    return due.units in counted if counted else due.units == 1


async def settle(
    payer: Payer,
    owed: Iterable[ChunkDebt],
    *,
    relays: tuple[str, ...],
    network: str,
    private_endpoints: bool,
    within_s: float | None = None,
) -> list[DebtOutcome]:
    """Pay every debt once, as far as `within_s` goes; one that cannot be paid does not keep the others from it."""
    until = None if within_s is None else asyncio.get_running_loop().time() + within_s
    turns = asyncio.Semaphore(_AT_ONCE)

    async def pay(one: ChunkDebt) -> DebtOutcome:
        try:
            async with asyncio.timeout_at(until), turns:
                if not one.lnurl:
                    raise NotFound("ad", f"no relay has one of {one.key.payee[:8]}: where it is paid is unknown")
                fetch = lnurl.over_lnurl(
                    lnurl.pay_url(one.lnurl),
                    nostr_pubkey=one.key.payee,
                    network=network,
                    allow_private=private_endpoints,
                )
                is_new = not payer.has(one.key)  # its payee may say that it is paid
                paid = await payer.pay(
                    one.key,
                    one.amount_msat,
                    fetch,
                    relays=relays,
                    lnurl=one.lnurl,
                    budget=one.budget,
                    terms=ZapTerms(alone=is_new, is_asked=is_new),
                )
        except TimeoutError:
            return DebtOutcome(one, None, TimedOut("debt", f"not paid within {within_s or 0:.0f} s"))
        except NodewireError as error:
            return DebtOutcome(one, None, error)
        return DebtOutcome(one, paid, None)

    return list(await asyncio.gather(*map(pay, owed)))


def _claims(events: Iterable[Event]) -> Iterable[Feedback]:
    for event in events:
        try:
            said = feedback.parse(event)
        except BadInput:
            continue
        if said.due is not None:
            yield said


def _unknown(claims: Iterable[Feedback], payer: Payer) -> dict[Key, Feedback]:
    """Of a provider's claims for a chunk the one of the lowest attempt.

    None if the ledger has that chunk of its, by whatever attempt: it is paid once.
    """
    first: dict[tuple[str, str, int], Feedback] = {}
    for said in claims:
        assert said.due is not None
        known = first.setdefault((said.request, said.provider, said.due.chunk), said)
        if known.due is not None and said.due.attempt < known.due.attempt:
            first[said.request, said.provider, said.due.chunk] = said
    booked = {
        (debt.key.job, debt.key.payee, debt.key.chunk)
        for job in {said.request for said in first.values()}
        for debt in payer.debts_of(job)
    }
    found = {}
    for at, said in first.items():
        assert said.due is not None
        if at not in booked:
            found[Key(*at, said.due.attempt)] = said
    return found


def _receipts_of(claims: Iterable[Key]) -> Filter:
    """The zap receipts that providers with claims have published for the same jobs."""
    keys = tuple(claims)
    jobs, payees = frozenset(key.job for key in keys), frozenset(key.payee for key in keys)
    return Filter(kinds=frozenset({nip57.RECEIPT}), authors=payees, tags={"e": jobs})


def _received(receipts: Iterable[Event]) -> set[tuple[str, str, int]]:
    """The chunks, as job, payee and number, of which their payees say that they were paid.

    Their word counts because it is against their own claim.
    """
    found = set()
    for event in receipts:
        try:
            key = zaps.chunk_of(nip57.parse_request(event.tag("description") or ""))
        except BadInput:
            continue
        if key.payee == event.pubkey:
            found.add((key.job, key.payee, key.chunk))
    return found


def _is_in_plan(said: Feedback, request: Request) -> bool:
    """Whether the request's plan has this provider ask for such an amount, and it did so after the request."""
    assert said.due is not None
    plan, due = request.plan, said.due
    price_msat = plan.price_msat(said.provider)
    fair = price_msat > 0 and due.amount_msat <= due.units * price_msat and (due.units == 1 or due.chunk == 0)
    fair &= said.created_at >= request.created_at - BEHIND_S
    return fair and not due.attempt and due.units * plan.chunk_msat <= plan.terms.max_total_msat


async def _endpoint(pool: EventTransport, provider: str) -> str:
    """Where the provider is paid ("lnurl1..."); empty if no relay has its ad."""
    wanted = Filter(kinds=frozenset({ad.KIND}), authors=frozenset({provider}))
    events = await pool.fetch([wanted], timeout_s=_FETCH_S)
    url = ad.parse(min(events, key=newest_first)).lnurl if events else ""
    return lnurl.encode(url) if url else ""
