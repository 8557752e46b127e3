"""What a finished job was and cost, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodewire.customer.purchase import Purchase
from nodewire.protocol import receipt


def summary(bought: Purchase) -> Mapping[str, Any]:
    """What happened, as plain data: assignments, spending, timing."""
    plan, paid = bought.plan, bought.payments.paid.values()
    shares = bought.shares.paid.values() if bought.shares is not None else ()
    return {
        "request": bought.request.id,
        "plan": plan.digest(),
        "epoch": plan.epoch,
        "beacon": plan.beacon,
        "tasks": [
            {
                "task": a.task,
                "provider": a.provider,
                "standby": a.standby,
                "price_msat": a.price_msat,
                "holders": bought.holders[a.task],
            }
            for a in plan.tasks
        ],
        "providers": list(plan.providers()),
        "takeovers": [
            {
                "attempt": handed.attempt,
                "detected_ms": round(handed.lost_s * 1000),
                "at_ms": round(handed.told_s * 1000),
                "resumed_ms": round(handed.resumed_s * 1000) if handed.resumed_s is not None else None,
            }
            for handed in bought.timing.takeovers
        ],
        "paid_msat": {p: n for p in plan.members() if (n := _paid_msat(bought, p)) or p in plan.providers()},
        "fees_msat": sum(x.debt.fee_msat for x in paid) + sum(debt.fee_msat for debt in shares),
        "share_msat": sum(debt.amount_msat for debt in shares),
        "zaps": len(paid),
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


def _paid_msat(bought: Purchase, provider: str) -> int:
    return sum(paid.due.amount_msat for paid in bought.payments.paid.values() if paid.provider == provider)


def together(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One generation that took several jobs, in their order: what was paid is added up, the rest is the last one's."""
    if len(jobs) == 1:
        return dict(jobs[0])
    paid_msat: dict[str, int] = {}
    for job in jobs:
        for provider, msat in job["paid_msat"].items():
            paid_msat[provider] = paid_msat.get(provider, 0) + msat
    return {
        **jobs[-1],
        "requests": [job["request"] for job in jobs],
        "paid_msat": paid_msat,
        "fees_msat": sum(job["fees_msat"] for job in jobs),
        "share_msat": sum(job["share_msat"] for job in jobs),
        "zaps": sum(job["zaps"] for job in jobs),
        "receipts": [receipt for job in jobs for receipt in job["receipts"]],
        "takeovers": [handed for job in jobs for handed in job["takeovers"]],
        "first_token_ms": jobs[0]["first_token_ms"],
    }
