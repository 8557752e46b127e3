"""What is to be done now in a training, by its state alone."""

from __future__ import annotations

from nodewire.training.customer.machine import outer_step
from nodewire.training.customer.machine.actions import (
    Action,
    Audit,
    Await,
    Call,
    Close,
    Fetch,
    Judge,
    Linger,
    Pay,
    Publish,
    Undo,
)
from nodewire.training.customer.machine.state import State
from nodewire.training.protocol.round import BALANCE, DEPOSIT


def pending(state: State) -> list[Action]:
    """All that is to be done now, the present round first; what has been begun is still among it until it is done."""
    actions: list[Action] = []
    whole = False
    if state.spoilt is not None:
        # What a worker is busy with for the present round, a step that was bought among it, comes to its end before.
        actions.extend(outer_step.under_way(state) or [Undo(state.spoilt)])
    elif not state.is_trained:
        idle = tuple(work.index for work in state.works if work.status == "idle")
        # A coordinator keeps what audits need for some rounds: those that it would forget come first.
        late = any(debt.balance == "held" and debt.round <= state.round - state.kept for debt in state.debts.values())
        # While a bought step is under way, the results that it is made of stay at hand.
        if idle and not late and not state.is_quorate and state.outer.status == "idle":
            actions.append(Publish(state.round, idle))
        for work in state.works:
            match work.status:
                case "asked":
                    actions.append(Call(work.request, work.provider))
                case "working":
                    actions.append(Await(work.request, work.provider))
                case "delivered":
                    actions.append(Fetch(work.request, work.provider))
        waited = [work for work in state.works if work.status != "missed"]
        if state.is_quorate and all(work.status in ("received", "accepted") for work in waited):
            waiting = tuple((work.request, work.provider) for work in waited if work.status == "received")
            whole = not waiting
            if waiting:
                actions.append(Judge(state.round, waiting))
            elif not _is_in_danger(state):
                actions.extend(outer_step.steps(state))
        elif state.is_quorate and not state.is_enough:
            actions.append(Linger(state.round))
        actions.extend(outer_step.under_way(state))
    for work in state.late if state.spoilt is None else ():
        match work.status:
            case "asked" | "working":
                actions.append(Await(work.request, work.provider, late=True))
            case "delivered":
                actions.append(Fetch(work.request, work.provider))
            case "received":
                debt = state.debts[work.request, work.provider]
                if debt.undone or debt.round < state.round:
                    actions.append(Judge(debt.round, ((work.request, work.provider),)))
    unclosed = {(debt.round, debt.undone) for debt in state.debts.values() if debt.balance == "held" and not debt.close}
    actions += [Close(round_, undone) for round_, undone in sorted(unclosed) if undone or round_ < state.round or whole]
    for (request, provider), debt in state.debts.items():
        if debt.deposit == "owed":
            actions.append(Pay(request, provider, DEPOSIT))
        if debt.balance == "held" and debt.close:
            actions.append(Audit(request, provider))
        if debt.balance == "owed":
            actions.append(Pay(request, provider, BALANCE))
    return actions


def _is_in_danger(state: State) -> bool:
    """Whether the next weights would be made of a result that they must not be made of unless it stands its audit."""
    debts = [
        state.debts[work.request, work.provider] for work in (*state.works, *state.late) if work.status == "accepted"
    ]
    return any(debt.harms and debt.balance == "held" for debt in debts)
