"""What a customer still owes from jobs that are over: found in its ledger and on relays, and paid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.nostr.event import Event
from nodewire.nostr.nip01 import Filter, newest_first
from nodewire.nostr.pool import Pool
from nodewire.pay import lnurl
from nodewire.pay.debts import Debt, Key
from nodewire.pay.payer import Payer
from nodewire.protocol import ad, feedback, job, kinds
from nodewire.protocol.feedback import Feedback
from nodewire.protocol.job import Request

MAX_CLAIMS = 5_000
"""Of the newest that are looked at."""
_FETCH_S = 10.0


@dataclass(frozen=True, slots=True)
class Owed:
    """One chunk that is not paid; `lnurl` is the payee's endpoint ("lnurl1...")."""

    key: Key
    amount_msat: int
    lnurl: str


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a debt: paid, or why not."""

    owed: Owed
    paid: Debt | None
    error: NodewireError | None


def in_ledger(payer: Payer) -> list[Owed]:
    """What this customer knows that it owes and where to pay it."""
    return [Owed(debt.key, debt.amount_msat, debt.lnurl) for debt in payer.unpaid() if debt.lnurl]


async def on_relays(pool: Pool, payer: Payer, customer: str) -> list[Owed]:
    """What providers of this customer's own requests have claimed and the ledger does not know.

    Such a claim came when this process was about to end. It counts if the request's plan names the provider and the
    price; how much of a prompt was computed only the provider's word says, within the plan's budget.

    Raises:
        LinkLost, TimedOut: no relay answers.
    """
    wanted = Filter(kinds=frozenset({kinds.FEEDBACK}), tags={"p": frozenset({customer})}, limit=MAX_CLAIMS)
    events = await pool.fetch([wanted], timeout_s=_FETCH_S)
    claims = _unknown(_claims(events), payer)
    if not claims:
        return []
    asked = frozenset(said.request for said in claims.values())
    wanted = Filter(ids=asked, kinds=frozenset({kinds.INFERENCE}), authors=frozenset({customer}))
    requests = {event.id: job.parse(event) for event in await pool.fetch([wanted], timeout_s=_FETCH_S)}
    owed = []
    for key, said in claims.items():
        request = requests.get(said.request)
        if request is not None and said.due is not None and _is_in_plan(said, request):
            owed.append(Owed(key, said.due.amount_msat, await _endpoint(pool, said.provider)))
    return owed


async def settle(
    payer: Payer, owed: Iterable[Owed], *, relays: tuple[str, ...], network: str, private_endpoints: bool
) -> list[Settled]:
    """Pay every debt once; one that cannot be paid does not keep the others from it."""
    done = []
    for one in owed:
        fetch = lnurl.over_lnurl(
            lnurl.pay_url(one.lnurl), nostr_pubkey=one.key.payee, network=network, allow_private=private_endpoints
        )
        try:
            paid = await payer.pay(one.key, one.amount_msat, fetch, relays=relays, lnurl=one.lnurl)
        except NodewireError as error:
            done.append(Settled(one, None, error))
        else:
            done.append(Settled(one, paid, None))
    return done


def _claims(events: Iterable[Event]) -> Iterable[Feedback]:
    for event in events:
        try:
            said = feedback.parse(event)
        except BadInput:
            continue
        if said.due is not None:
            yield said


def _unknown(claims: Iterable[Feedback], payer: Payer) -> dict[Key, Feedback]:
    found: dict[Key, Feedback] = {}
    for said in claims:
        assert said.due is not None
        key = Key(said.request, said.provider, said.due.chunk, said.due.attempt)
        if key not in found and not payer.has(key):
            found[key] = said
    return found


def _is_in_plan(said: Feedback, request: Request) -> bool:
    """Whether the request's plan has this provider ask for such an amount."""
    assert said.due is not None
    plan, due = request.plan, said.due
    price_msat = sum(a.price_msat for a in plan.tasks if said.provider in (a.provider, a.standby))
    fair = price_msat > 0 and due.amount_msat <= due.units * price_msat and (due.units == 1 or due.chunk == 0)
    return fair and due.units * plan.chunk_msat <= plan.terms.max_total_msat


async def _endpoint(pool: Pool, provider: str) -> str:
    wanted = Filter(kinds=frozenset({ad.KIND}), authors=frozenset({provider}))
    events = await pool.fetch([wanted], timeout_s=_FETCH_S)
    if not events:
        raise NotFound("ad", f"no relay has one of {provider[:8]}")
    return lnurl.encode(ad.parse(min(events, key=newest_first)).lnurl)
