"""Results that are not waited for any more: which they are, and what becomes of them. Pure, as all of the machine.

A late result is fetched, judged by its own round's weights, audited and paid like any other, and counts in the step
after its own round's if the training says so and that step was not made yet.
"""

from __future__ import annotations

from dataclasses import replace

from nodewire.customer.training.machine import (
    Begun,
    Counted,
    Debt,
    Delivered,
    DepositAsked,
    Judged,
    Lost,
    Missed,
    Received,
    State,
    Work,
)
from nodewire.customer.training.measuring import forgotten, measured

Worked = DepositAsked | Begun | Delivered | Received | Judged | Lost | Missed


def spared(state: State) -> State:
    """Where nothing is waited for any more: what is still out is late, and its shard is missed in this round."""
    if not (state.is_enough and state.is_quorate):
        return state
    late = tuple(work for work in state.works if work.status in ("asked", "working"))
    works = tuple(
        Work(work.index, "missed", work.provider, excluded=work.excluded)
        if work.status in ("idle", "asked", "working")
        else work
        for work in state.works
    )
    return state if works == state.works else replace(state, works=works, late=(*state.late, *late))


def after(event: Worked, work: Work, state: State) -> State:
    """The state after something of a late shard. A deposit is not paid any more: nothing is begun for what is late."""
    key = work.request, work.provider
    debt, out = state.debts[key], False
    present = state.works[work.index]
    match event, work.status:
        case Delivered(_, _, result, took_ms), "asked" | "working" if (
            debt.round == state.round and not debt.undone and present.status == "idle"
        ):  # nobody has taken it over yet
            work = replace(work, status="delivered", result=result, excluded=present.excluded)
            state = measured(state, debt.row, took_ms)
            return replace(
                state,
                works=tuple(work if one is present else one for one in state.works),
                late=tuple(one for one in state.late if (one.request, one.provider) != key),
                debts={**state.debts, key: replace(debt, result=result, took_ms=took_ms)},
            )
        case Begun(), "asked":
            work = replace(work, status="working")
        case Delivered(_, _, result, took_ms), "asked" | "working":
            work, debt = replace(work, status="delivered", result=result), replace(debt, result=result, took_ms=took_ms)
            state = measured(state, debt.row, took_ms)
        case Received(_, _, carried), "delivered":
            work, debt = replace(work, status="received"), replace(debt, carried=carried)
        case Judged(_, provider, True, _, audit, doubted, harms), "received":
            if audit:
                debt = replace(debt, balance="held", doubted=doubted, harms=harms)
            else:
                debt = replace(debt, balance="owed" if debt.row.balance_msat else "none", result="")
            out = not _may_count(work, state)
            work = replace(work, status="accepted")
            state = replace(state, paid_last={**state.paid_last, provider: work.request})
        case (Judged(_, provider, False, reason), "received") | (
            Lost(_, provider, reason),
            "asked" | "working" | "delivered",
        ):
            out, debt, state = True, over(debt), forgotten(state, debt.row, debt.took_ms)
            kept = {known: request for known, request in state.paid_last.items() if known != provider}
            state = replace(state, paid_last=kept, failures=(*state.failures, (provider, reason)))
        case _:
            return state
    late = tuple(
        work if (one.request, one.provider) == key else one
        for one in state.late
        if not out or (one.request, one.provider) != key
    )
    return replace(state, late=late, debts={**state.debts, key: debt})


def over(debt: Debt) -> Debt:
    """Of work that came to nothing: its deposit is not paid any more, if it was not."""
    return replace(debt, deposit="none") if debt.deposit == "owed" else debt


def _may_count(work: Work, state: State) -> bool:
    """Only in the step after its own round's; and not if another's result of the same shard counted there, or will."""
    debt = state.debts[work.request, work.provider]
    round_ = debt.round
    if not state.late_counts or debt.undone or state.is_trained or state.round != round_ + 1:
        return False
    return (work.index, round_) not in {(one.index, one.round) for one in (*state.counted, *counted(state))}


def counted(state: State) -> tuple[Counted, ...]:
    """What this round's outer step is made of: by shard, of one shard the late result first."""
    works = [work for work in (*state.late, *state.works) if work.status == "accepted"]
    found = []
    for work in works:
        debt = state.debts[work.request, work.provider]
        found.append(Counted(work.index, debt.round, debt.row.steps, work.request, work.provider))
    return tuple(sorted(found, key=lambda one: (one.index, one.round)))
