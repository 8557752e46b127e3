"""What a finished job was and cost, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.protocol.job import receipt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nodewire.customer.job.job import Purchase
    from nodewire.pay.accounts.debts import Debt
    from nodewire.protocol.job.plan import Plan


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a job cost by its customer's ledger: what left the wallet for it, and what stands on tabs."""

    paid_msat: Mapping[str, int]
    """By provider."""
    on_tab_msat: Mapping[str, int]
    """By provider, what it leaves for later by its credit."""
    share_msat: int
    """For verification."""
    fees_msat: int
    """Of routing, for both."""
    zaps: int
    """To providers."""

    @property
    def total_msat(self) -> int:
        return sum(self.paid_msat.values()) + sum(self.on_tab_msat.values()) + self.share_msat + self.fees_msat


def spent(plan: Plan, booked: Iterable[Debt], lenders: Collection[str] = ()) -> JobCost:
    """`booked` are the ledger's debts of the job with this `plan`; what is no provider's is a verification share.

    `lenders` are the payees whose tabs may stand when the job is over.
    """
    booked = tuple(booked)
    paid = [debt for debt in booked if debt.state == "paid"]
    stands = [debt for debt in booked if debt.state != "paid" and debt.key.payee in lenders]
    members = plan.providers()
    by = {p: sum(debt.amount_msat for debt in paid if debt.key.payee == p) for p in members}
    return JobCost(
        by,
        {p: sum(debt.amount_msat for debt in stands if debt.key.payee == p) for p in members},
        sum(debt.amount_msat for debt in paid if debt.key.payee not in members),
        sum(debt.fee_msat for debt in paid),
        len({debt.payment_hash for debt in paid if debt.key.payee in members}),
    )


def summary(bought: Purchase) -> Mapping[str, Any]:
    """What happened, as plain data: assignments, spending, timing."""
    plan = bought.plan
    cost = spent(plan, bought.booked, bought.lenders)
    return {
        "request": bought.request.id,
        "plan": plan.digest(),
        "epoch": plan.epoch,
        "beacon": plan.beacon,
        "tasks": [
            {
                "task": a.task,
                "provider": a.provider,
                "price_msat": a.price_msat,
                "holders": bought.holders[a.task],
            }
            for a in plan.tasks
        ],
        "codecs": dict(plan.terms.codecs),
        "providers": list(plan.providers()),
        "paid_msat": dict(cost.paid_msat),
        "on_tab_msat": dict(cost.on_tab_msat),
        "fees_msat": cost.fees_msat,
        "share_msat": cost.share_msat,
        "spent_msat": cost.total_msat,
        "zaps": cost.zaps,
        "cached_tokens": bought.cached_tokens,
        "receipts": [
            {
                "event": event.id,
                "provider": said.provider,
                "chunks": len(said.chunks),
                "amount_msat": sum(chunk.amount_msat for chunk in said.chunks),
                "zap_receipts": sum(chunk.zap_receipt is not None for chunk in said.chunks),
            }
            for event in bought.receipts
            if (said := receipt.parse(event))
        ],
        "ticket": bought.ticket.to_json(),
    }


def together(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One generation that took several jobs, in their order: what was paid is added up, the rest is the last one's."""
    if len(jobs) == 1:
        return dict(jobs[0])
    by: dict[str, dict[str, int]] = {"paid_msat": {}, "on_tab_msat": {}}
    for job in jobs:
        for name, sums in by.items():
            for provider, msat in job[name].items():
                sums[provider] = sums.get(provider, 0) + msat
    return {
        **jobs[-1],
        "requests": [job["request"] for job in jobs],
        **by,
        "fees_msat": sum(job["fees_msat"] for job in jobs),
        "share_msat": sum(job["share_msat"] for job in jobs),
        "spent_msat": sum(job["spent_msat"] for job in jobs),
        "zaps": sum(job["zaps"] for job in jobs),
        "receipts": [receipt for job in jobs for receipt in job["receipts"]],
        "first_token_ms": next((job["first_token_ms"] for job in jobs if job["first_token_ms"]), 0.0),
    }
