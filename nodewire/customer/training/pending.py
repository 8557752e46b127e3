"""What is to be done now in a training, by its state alone."""

from __future__ import annotations

from nodewire.customer.training.machine import (
    Action,
    Audit,
    Await,
    Call,
    Fetch,
    Judge,
    Pay,
    Publish,
    State,
    Step,
)
from nodewire.protocol.round import BALANCE, DEPOSIT


def pending(state: State) -> list[Action]:
    """All that is to be done now, the present round first; what has been begun is still among it until it is done."""
    actions: list[Action] = []
    if not state.is_trained:
        idle = tuple(work.index for work in state.works if work.status == "idle")
        # A coordinator keeps what audits need for two rounds: those of the round before the last come first.
        late = any(debt.balance == "held" and debt.round < state.round - 1 for debt in state.debts.values())
        if idle and not late:
            actions.append(Publish(state.round, idle))
        for work in state.works:
            match work.status:
                case "asked":
                    actions.append(Call(work.request, work.provider))
                case "working":
                    actions.append(Await(work.request, work.provider))
                case "delivered":
                    actions.append(Fetch(work.request, work.provider))
        if all(work.status in ("received", "accepted") for work in state.works):
            waiting = tuple((work.request, work.provider) for work in state.works if work.status == "received")
            if waiting:
                actions.append(Judge(state.round, waiting))
        if state.works and all(work.status == "accepted" for work in state.works):
            actions.append(Step(state.round))
    for (request, provider), debt in state.debts.items():
        if debt.deposit == "owed":
            actions.append(Pay(request, provider, DEPOSIT))
        if debt.balance == "held":
            actions.append(Audit(request, provider))
        if debt.balance == "owed":
            actions.append(Pay(request, provider, BALANCE))
    return actions
