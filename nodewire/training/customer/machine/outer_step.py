"""Outer steps that are bought: what follows from what happens to one, and what is to be done. Pure, as the machine.

    idle ──StepPublished──▶ asked ──begun──▶ working ──delivered──▶ delivered ──Stepped──▶ idle, in the next round
      ▲                       │                 │                       │
      └───────────────────────┴──────lost───────┴───────rejected────────┘

It is asked for when every result that counts has passed its audit; who fails it in a round is not asked again in that
round, and who delivered another step never again. With nobody left it is made here.
"""

from __future__ import annotations

from dataclasses import replace

from nodewire.training.customer.machine import shard_transitions
from nodewire.training.customer.machine.actions import Action, AwaitStep, BuyStep, Call, CheckStep, Step
from nodewire.training.customer.machine.events import (
    DepositRequest,
    LocalStepChoice,
    ResultArrival,
    ResultJudgement,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    Worked,
    WorkStart,
)
from nodewire.training.customer.machine.state import Debt, Outer, State

MAX_FAILURES = 3
"""In one round; after that its step is made here."""


def applied(event: StepOwnerChange | StepPublication | LocalStepChoice, state: State) -> State:
    """The state after an event that is of outer steps alone."""
    outer = state.outer
    match event:
        case StepOwnerChange(bought):
            return state if outer.bought == bought else replace(state, outer=replace(outer, bought=bought))
        case LocalStepChoice(round_, _):
            if round_ != state.round or outer.here or outer.status != "idle":
                return state
            return replace(state, outer=replace(outer, here=True))
        case StepPublication(round_, request, json, row, counted, momenta):
            if round_ != state.round or request in state.requests or outer.status != "idle":
                return state
            return replace(
                state,
                outer=replace(
                    outer,
                    status="asked",
                    provider=row.provider,
                    request=request,
                    result="",
                    counted=counted,
                    momenta=momenta,
                ),
                requests={**state.requests, request: json},
                debts={**state.debts, (request, row.provider): Debt(row, round_)},
            )


def after(event: Worked, state: State) -> State:
    """The state after something of the step that is under way."""
    outer, key = state.outer, (state.outer.request, state.outer.provider)
    debt = state.debts[key]
    match event, outer.status:
        case DepositRequest(), "asked":
            if debt.row.deposit_msat and debt.deposit == "none":
                debt = replace(debt, deposit="owed")
            outer = replace(outer, status="working")
        case WorkStart(), "asked":
            outer = replace(outer, status="working")
        case ResultArrival(_, _, result, took_ms), "asked" | "working":
            took = (*outer.took_ms, took_ms) if took_ms else outer.took_ms
            outer = replace(outer, status="delivered", result=result, took_ms=took[-64:])
        case ResultJudgement(
            _, _, True, _, _
        ), "delivered":  # right, but of results of which one is not accepted any more
            debt = replace(debt, balance="owed" if debt.row.balance_msat else "none")
            outer = replace(outer, status="idle", request="")
        case ResultJudgement(_, provider, False, reason, _), "delivered":
            outer = _failed(outer)
            state = replace(state, failures=(*state.failures, (provider, reason)), banned=state.banned | {provider})
        case ShardLoss(_, provider, reason), _:
            outer, debt = _failed(outer), shard_transitions.cancel_deposit(debt)
            state = replace(state, failures=(*state.failures, (provider, reason)))
        case _:
            return state
    return replace(state, outer=outer, debts={**state.debts, key: debt})


def _failed(outer: Outer) -> Outer:
    lost_by = outer.lost_by | {outer.provider}
    return replace(outer, status="idle", request="", lost_by=lost_by, here=len(lost_by) >= MAX_FAILURES)


def stepped(event: StepCompletion, state: State) -> State:
    """The next round's state, after its own step of whoever made it."""
    outer = replace(state.outer, status="idle", request="", result="", lost_by=frozenset(), here=False)
    debts = state.debts
    if event.request:
        key = event.request, event.provider
        owed = replace(debts[key], balance="owed" if debts[key].row.balance_msat else "none", result=state.outer.result)
        debts = {**debts, key: owed}
    return replace(state, outer=replace(outer, momenta=event.momenta, counted=()), debts=debts)


def steps(state: State) -> list[Action]:
    """What is to be done for the step of a round whose results are all accepted."""
    outer = state.outer
    if outer.status != "idle":
        return []
    if outer.here or not outer.bought:
        return [Step(state.round)]
    # Its provider computes with what is certain: an audit that fails now would take away one of the results.
    return [] if any(debt.balance == "held" for debt in state.debts.values()) else [BuyStep(state.round)]


def under_way(state: State) -> list[Action]:
    """What is to be done for the step that was asked for."""
    outer = state.outer
    match outer.status:
        case "asked":
            return [Call(outer.request, outer.provider)]
        case "working":
            return [AwaitStep(outer.request, outer.provider)]
        case "delivered":
            return [CheckStep(outer.request, outer.provider)]
    return []
