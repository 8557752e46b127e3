"""A training's state after something happened. Pure: the journal's events, applied again, give the same state."""

from __future__ import annotations

from dataclasses import replace

from nodewire.errors import NotAllowed, NotCarried
from nodewire.training.customer.machine import late_results, outer_step, rollback, unresponsive
from nodewire.training.customer.machine import shard_transitions as shards
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    ClosePublication,
    DepositRequest,
    Event,
    LocalStepChoice,
    RequestPublication,
    ResultPayment,
    ResultTimeout,
    RoundQuorum,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    StepRollback,
    TrainingStart,
    Worked,
)
from nodewire.training.customer.machine.state import Debt, State, Work
from nodewire.training.customer.machine.throughput import forgotten
from nodewire.training.protocol.round import DEPOSIT


def apply(event: Event, state: State) -> State:
    """The state after `event`; the same state if it changes nothing any more.

    Raises:
        NotAllowed: it cannot have happened in this state.

    """
    match event:
        case TrainingStart(rounds, shards, theta, needed, late, start, kept):
            if state.rounds:
                return state
            return replace(
                state,
                rounds=rounds,
                shards=shards,
                theta=theta,
                start=start,
                thetas=(theta,),
                needed=needed or len(shards),
                late_counts=late,
                kept=kept,
                works=tuple(Work(i) for i in range(len(shards))),
            )
        case RequestPublication():
            return _published(event, state)
        case RoundQuorum(round_):
            if round_ != state.round or state.is_enough or not state.is_quorate:
                return state
            return late_results.spared(replace(state, is_enough=True))
        case StepCompletion():
            return _stepped(event, state)
        case StepRollback():
            return late_results.spared(rollback.undone(event, state))
        case StepOwnerChange() | StepPublication() | LocalStepChoice():
            return outer_step.applied(event, state)
        case ResultPayment(request, provider, part, _, _):
            debt = state.debts[request, provider]
            debt = replace(debt, deposit="paid") if part == DEPOSIT else replace(debt, balance="paid")
            return replace(state, debts={**state.debts, (request, provider): debt})
        case ClosePublication():
            return _closed(event, state)
        case AuditOutcome():
            return late_results.spared(_audited(event, state))
    return unresponsive.noted(event, state, _of_work(event, state))


def _of_work(event: Worked, state: State) -> State:
    """The state after something of a shard, or of a step that was bought."""
    if state.outer.is_of(event.request, event.provider):
        return outer_step.after(event, state)
    work = state.work(event.request, event.provider)
    if work is None:
        return state
    if state.is_late(event.request, event.provider):
        return late_results.after(event, work, state)
    return late_results.spared(_worked(event, work, state))


def _stepped(event: StepCompletion, state: State) -> State:
    if event.round != state.round:
        return state
    if not state.is_quorate or any(work.status not in ("accepted", "missed") for work in state.works):
        raise NotAllowed("Stepped", "before enough shards were accepted")
    following = replace(
        state,
        round=event.round + 1,
        theta=event.theta,
        thetas=(*state.thetas, event.theta),
        losses=(*state.losses, event.loss),
        works=tuple(Work(work.index, provider=work.provider) for work in state.works),
        is_enough=False,
        late=tuple(work for work in state.late if work.status != "accepted"),
        counted=event.counted,
        past={**state.past, event.round: rollback.before(event, state)},
    )
    return rollback.pruned(outer_step.stepped(event, following))


def _published(event: RequestPublication, state: State) -> State:
    if event.round != state.round or event.request in state.requests:
        return state
    rows = {row.index: row for row in event.rows}
    if any(work.status != "idle" for work in state.works if work.index in rows):
        raise NotAllowed("Published", "a shard is under way")
    works = tuple(
        replace(work, status="asked", provider=rows[work.index].provider, request=event.request)
        if work.index in rows
        else work
        for work in state.works
    )
    debts = {(event.request, row.provider): Debt(row, event.round, theta=state.theta) for row in event.rows}
    return replace(
        state,
        works=works,
        requests={**state.requests, event.request: event.event},
        debts={**state.debts, **debts},
    )


def _closed(event: ClosePublication, state: State) -> State:
    debts = dict(state.debts)
    for key in event.results:
        if debts[key].balance == "held" and not debts[key].close:
            debts[key] = replace(debts[key], close=event.close)
    if debts == state.debts:
        return state
    return replace(state, debts=debts, closes={**state.closes, event.close: event.event})


def _audited(event: AuditOutcome, state: State) -> State:
    key, debt = (event.request, event.provider), state.debts[event.request, event.provider]
    if debt.balance != "held":
        return state
    if event.passed:
        passed = replace(debt, balance="owed" if debt.row.balance_msat else "none", result="")
        state = replace(state, debts={**state.debts, key: passed})
        return replace(state, closes=_waited_for(state))
    state = forgotten(state, debt.row, debt.took_ms)
    # Nothing more of who did other work than it has committed to, and nothing that waits for an audit is paid.
    debts = {
        (request, provider): replace(one, balance="none", result="", failed=True)
        if one.balance == "held" and provider == event.provider
        else one
        for (request, provider), one in state.debts.items()
    }
    works = tuple(
        Work(work.index, excluded=work.excluded | {event.provider}) if work.provider == event.provider else work
        for work in state.works
    )
    kept = {known: request for known, request in state.paid_last.items() if known != event.provider}
    failures, banned = (*state.failures, (event.provider, event.reason)), state.banned | {event.provider}
    late = tuple(work for work in state.late if work.provider != event.provider)
    state = replace(state, debts=debts, works=works, late=late, paid_last=kept, failures=failures, banned=banned)
    return rollback.spoilt(replace(state, closes=_waited_for(state)))


def _waited_for(state: State) -> dict[str, str]:
    """The closes that a result still waits for its audit with."""
    waited = {debt.close for debt in state.debts.values() if debt.balance == "held"}
    return {close: event for close, event in state.closes.items() if close in waited}


def _worked(event: Worked, work: Work, state: State) -> State:
    """The state after something of a shard that is under way and in time."""
    key = work.request, work.provider
    debt = state.debts[key]
    after: Work | None
    match event, work.status:
        case DepositRequest(), "asked":
            if debt.row.deposit_msat and debt.deposit == "none":
                state = replace(state, debts={**state.debts, key: replace(debt, deposit="owed")})
            after = replace(work, status="working")
        case ShardLoss(_, provider, NotCarried.code), "asked" | "working" if not work.afresh:
            after = Work(work.index, provider=provider, excluded=work.excluded, afresh=True)
        case ResultTimeout(_, provider, reason), "working":
            state = replace(state, late=(*state.late, work), failures=(*state.failures, (provider, reason)))
            after = Work(work.index, excluded=work.excluded | {provider})
        case _:
            after, state = shards.apply_event(event, work, state)
            if after is work:
                return state
            after = after or Work(work.index, excluded=work.excluded | {work.provider})
    return replace(state, works=tuple(after if old.index == work.index else old for old in state.works))
