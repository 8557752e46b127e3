"""Deposits that came to nothing, and who is asked once they are too many. Pure.

Keys cost nothing, so whoever only collects deposits has a new one for every shard, and is the cheapest of all.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodewire.customer.training.state import State
from nodewire.protocol.trainer import Trainer

MOST_LOST = 8
"""A budget's part of this size may be lost in deposits to strangers."""


def lost_msat(state: State) -> int:
    """Deposits that were asked for, of work that is neither under way nor accepted."""
    open_ = {(work.request, work.provider) for work in (*state.works, *state.late)}
    open_.add((state.outer.request, state.outer.provider))
    return sum(
        debt.row.deposit_msat
        for key, debt in state.debts.items()
        if debt.deposit != "none" and debt.balance == "none" and key not in open_ and debt.row.balance_msat
    )


def asked(market: Mapping[str, Trainer], state: State, budget_msat: int) -> Mapping[str, Trainer]:
    """Whom a shard may be given to: once an eighth of the budget is lost, only those whose work was accepted here,
    as soon as there are any."""
    if MOST_LOST * lost_msat(state) <= budget_msat:
        return market
    known = {provider for (_, provider), debt in state.debts.items() if debt.balance != "none"} - state.banned
    return {provider: ad for provider, ad in market.items() if provider in known} or market
