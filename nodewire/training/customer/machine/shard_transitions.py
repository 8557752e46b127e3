"""A shard at one provider: what its provider's word changes, in time or late. Pure, as all of the machine.

What only one of the two knows stands beside it: deposits and shards that are dealt again in `transitions`, results that
may still count in `late_results`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.training.customer.machine.events import (
    ResultArrival,
    ResultJudgement,
    ResultReceipt,
    ShardLoss,
    Worked,
    WorkStart,
)
from nodewire.training.customer.machine.throughput import forgotten, measured

if TYPE_CHECKING:
    from nodewire.training.customer.machine.state import Debt, State, Work


def apply_event(event: Worked, work: Work, state: State) -> tuple[Work | None, State]:
    """The shard after `event`, and the state but for the shard: debts, failures, what providers have earned and took.

    No shard where nothing comes of it any more; the very same one where the event changes nothing.
    """
    key = work.request, work.provider
    debt = state.debts[key]
    match event, work.status:
        case WorkStart(), "asked":
            return replace(work, status="working"), state
        case ResultArrival(_, _, result, took_ms), "asked" | "working":
            work, debt = replace(work, status="delivered", result=result), replace(debt, result=result, took_ms=took_ms)
            state = measured(state, debt.row, took_ms)
        case ResultReceipt(_, _, carried), "delivered":
            work, debt = replace(work, status="received"), replace(debt, carried=carried)
        case ResultJudgement(_, provider, True, _, audit, doubted, harms), "received":
            if audit:
                debt = replace(debt, balance="held", doubted=doubted, harms=harms)
            else:
                debt = replace(debt, balance="owed" if debt.row.balance_msat else "none", result="")
            work = replace(work, status="accepted")
            state = replace(state, paid_last={**state.paid_last, provider: work.request})
        case (ResultJudgement(_, provider, False, reason), "received") | (
            ShardLoss(_, provider, reason),
            "asked" | "working" | "delivered",
        ):
            kept = {known: request for known, request in state.paid_last.items() if known != provider}
            state = replace(state, paid_last=kept, failures=(*state.failures, (provider, reason)))
            debt, state = cancel_deposit(debt), forgotten(state, debt.row, debt.took_ms)
            return None, replace(state, debts={**state.debts, key: debt})
        case _:
            return work, state
    return work, replace(state, debts={**state.debts, key: debt})


def cancel_deposit(debt: Debt) -> Debt:
    """Of work that came to nothing: its deposit is not paid any more, if it was not."""
    return replace(debt, deposit="none") if debt.deposit == "owed" else debt
