"""What a provider's credit puts off: audits and balances wait while the rounds go on, as long as it lets them.

An audit and a payment take about as long as a small round. So of whoever gives credit they begin when half of it is
used up, when what an audit needs would be forgotten, or when the training is over; then all that is open, at once.
What the next weights wait for is audited at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeGuard

from nodewire.training.customer.machine.actions import Action, Audit, Pay
from nodewire.training.protocol.round import BALANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.training.customer.machine.state import State

AUDITS_TOGETHER = 2
"""Of one provider: what it shows it may have to compute again, one after the other, and in time."""


def without_put_off(actions: Sequence[Action], state: State) -> list[Action]:
    """What of `actions` is to be done now."""
    patient = frozenset() if state.is_trained else _patient(state)
    auditing: Counter[str] = Counter()
    wanted = []
    for action in actions:
        if _can_wait(action, state) and action.provider in patient:
            continue
        if isinstance(action, Audit):
            auditing[action.provider] += 1
            if auditing[action.provider] > AUDITS_TOGETHER:
                continue
        wanted.append(action)
    return wanted


def _can_wait(action: Action, state: State) -> TypeGuard[Audit | Pay]:
    if isinstance(action, Audit):
        return not state.debts[action.request, action.provider].harms
    return isinstance(action, Pay) and action.part == BALANCE


def _patient(state: State) -> frozenset[str]:
    """The providers that less than half of their credit is open at, and none of it for too many rounds."""
    open_msat: Counter[str] = Counter()
    credit_msat: dict[str, int] = {}
    hurried = set()
    for (_, provider), debt in state.debts.items():
        credit_msat[provider] = debt.row.credit_msat
        if debt.balance in ("held", "owed"):
            open_msat[provider] += debt.row.balance_msat
        if debt.balance == "held" and debt.round <= state.round - state.kept // 2:
            hurried.add(provider)
    return frozenset(p for p, most in credit_msat.items() if 2 * open_msat[p] < most and p not in hurried)
