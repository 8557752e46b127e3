"""Who answers nothing: nobody asks it for some rounds, as long as there are others. Pure, as all of the machine.

Each try costs the round the time that an answer is waited for. So after a silence one round goes by without its
provider, after the next in a row three, then seven (a doubling pause). A word about a shard ends the pause, a result
begins the count anew.
"""

from __future__ import annotations

from dataclasses import replace

from nodewire.training.customer.machine.events import (
    DepositRequest,
    ResultArrival,
    ResultTimeout,
    ShardLoss,
    Worked,
    WorkStart,
)
from nodewire.training.customer.machine.state import Silence, State

NO_ANSWER = "no answer"
NO_WORD = "no word for"
"""What the reasons begin with of those who have said nothing (more); journals have them."""
_MOST = 16
"""The longest pause is of 2 to the power of so many rounds."""


def noted(event: Worked, before: State, after: State) -> State:
    """`after`, with what the event that led to it says of its provider's silence."""
    provider, debt = event.provider, before.debts.get((event.request, event.provider))
    if debt is None:
        return after
    known = after.silent.get(provider)
    match event:
        case ShardLoss(_, _, reason) | ResultTimeout(_, _, reason) if after is not before and _is_silent(reason):
            if known is not None and debt.round <= known.round:  # several shards of one round are silent together
                return after
            times = min(_MOST, known.times + 1 if known else 1)
            silence = Silence(debt.round, times, before.round + 2**times)
            return replace(after, silent={**after.silent, provider: silence})
        case ResultArrival() if known is not None and after is not before:
            return replace(after, silent={one: kept for one, kept in after.silent.items() if one != provider})
        case WorkStart() | DepositRequest() if known and known.round <= debt.round and before.round < known.until:
            return replace(after, silent={**after.silent, provider: replace(known, until=0)})
    return after


def passed_over(state: State) -> frozenset[str]:
    """Who is asked in this round only where nobody else is left."""
    return frozenset(provider for provider, silence in state.silent.items() if state.round < silence.until)


def _is_silent(reason: str) -> bool:
    return reason == NO_ANSWER or reason.startswith(NO_WORD)
