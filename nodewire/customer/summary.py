"""What a finished job was and cost, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodewire.customer.purchase import Purchase
from nodewire.protocol import receipt


def summary(bought: Purchase) -> Mapping[str, Any]:
    """What happened, as plain data: assignments, spending, timing."""
    plan, paid = bought.plan, bought.payments.paid.values()
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
        "paid_msat": {p: sum(x.due.amount_msat for x in paid if x.provider == p) for p in plan.providers()},
        "fees_msat": sum(x.debt.fee_msat for x in paid),
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
