"""What is to be done now in a training, by its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from nodewire.training.protocol.round import BALANCE, DEPOSIT

if TYPE_CHECKING:
    from nodewire.training.customer.machine.state import State


def next_actions(state: State) -> list[Action]:
    """All that is to be done now, the present round first; what has been begun is still among it until it is done."""
    if state.spoilt is not None:
        # What a worker is busy with for the present round, a step that was bought among it, comes to its end before.
        return [*(outer_step.under_way(state) or [Undo(state.spoilt)]), *_closes(state), *_dues(state)]
    present: list[Action] = []
    if not state.is_trained:
        present = [*_assignment(state), *_judgement(state), *outer_step.under_way(state)]
    return [*present, *_late(state), *_closes(state), *_dues(state)]


def _assignment(state: State) -> list[Action]:
    """Shards of the present round, to who has room for them and from who is at them."""
    actions: list[Action] = []
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
    return actions


def _judgement(state: State) -> list[Action]:
    """Of the present round's results once there are enough, and the step that those are for that stood it."""
    if not state.is_quorate:
        return []
    waited = [work for work in state.works if work.status != "missed"]
    if not all(work.status in ("received", "accepted") for work in waited):
        return [] if state.is_enough else [Linger(state.round)]
    if waiting := tuple((work.request, work.provider) for work in waited if work.status == "received"):
        return [Judge(state.round, waiting)]
    return [] if _is_in_danger(state) else outer_step.steps(state)


def _late(state: State) -> list[Action]:
    """Results of rounds that went on without them."""
    actions: list[Action] = []
    for work in state.late:
        match work.status:
            case "asked" | "working":
                actions.append(Await(work.request, work.provider, late=True))
            case "delivered":
                actions.append(Fetch(work.request, work.provider))
            case "received":
                debt = state.debts[work.request, work.provider]
                if debt.undone or debt.round < state.round:
                    actions.append(Judge(debt.round, ((work.request, work.provider),)))
    return actions


def _closes(state: State) -> list[Action]:
    """Of rounds with results that no close names: earlier ones, undone ones, and the present one if it is whole."""
    unclosed = {(debt.round, debt.undone) for debt in state.debts.values() if debt.balance == "held" and not debt.close}
    whole = _is_whole(state)
    return [Close(round_, undone) for round_, undone in sorted(unclosed) if undone or round_ < state.round or whole]


def _is_whole(state: State) -> bool:
    """Whether all that the present round waited for is accepted."""
    if state.spoilt is not None or state.is_trained or not state.is_quorate:
        return False
    return all(work.status == "accepted" for work in state.works if work.status != "missed")


def _dues(state: State) -> list[Action]:
    """Parts of prices that are owed, and audits of what is not paid without one."""
    actions: list[Action] = []
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
