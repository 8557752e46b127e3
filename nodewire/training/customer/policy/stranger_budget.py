"""What strangers cost for nothing, and who is asked once that is too much. Pure.

Keys cost nothing, so whoever only collects deposits has a new one for every shard, and is the cheapest of all; and who
only wants harm fails an audit with each, after a step was made of it and others have worked on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.training.customer.machine.unresponsive import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.training.customer.machine.state import State
    from nodewire.training.protocol.trainer_ad import Trainer

MOST_LOST = 8
"""A budget's part of this size may be lost to strangers."""
MOST_SILENT = 8
"""Strangers that may be asked and answer nothing: each takes a shard's time."""


def lost_msat(state: State) -> int:
    """Deposits that were asked for, of work that is neither under way nor accepted; and work of undone steps.

    Of the latter counts what is owed, or was paid, for work that began with weights of a step that was undone.
    """
    open_ = {(work.request, work.provider) for work in (*state.works, *state.late)}
    open_.add((state.outer.request, state.outer.provider))
    deposits = sum(
        debt.row.deposit_msat
        for key, debt in state.debts.items()
        if debt.deposit != "none" and debt.balance == "none" and key not in open_ and debt.row.balance_msat
    )
    undone = sum(
        debt.row.deposit_msat + debt.row.balance_msat
        for debt in state.debts.values()
        if debt.undone and debt.balance != "none"
    )
    return deposits + undone


def asked(market: Mapping[str, Trainer], state: State, budget_msat: int) -> Mapping[str, Trainer]:
    """Whom a shard may be given to.

    Once an eighth of the budget is lost, or too many have answered nothing, they are only those whose work was accepted
    here, as soon as there are any.
    """
    known = {provider for (_, provider), debt in state.debts.items() if debt.balance != "none"} - state.banned
    silent = {provider for provider, reason in state.failures if reason == NO_ANSWER} - known
    if MOST_LOST * lost_msat(state) <= budget_msat and len(silent) < MOST_SILENT:
        return market
    return {provider: ad for provider, ad in market.items() if provider in known} or market
