"""Payments that do not get through when nothing else is left to do: for how long they are tried. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.training.customer.machine.state import State

UNPAYABLE_S = 90.0
"""For so long they are tried after the last one that got through; then they stay owed."""
REFUSED_S = 30.0
"""Where nobody's endpoint who is owed something takes a connection."""


@dataclass(frozen=True, slots=True)
class PaymentWait:
    """The training waits for this alone: what is owed (msat) by provider, and for how long at most, in seconds."""

    owed_msat: tuple[tuple[str, int], ...]
    most_s: float


def patience_s(state: State, refused: Mapping[str, bool]) -> float | None:
    """None as long as anything else is to be done.

    `refused` are those whose payment has failed, and whether because their endpoint takes no connection.
    """
    if not state.is_paid_for:
        return None
    owed = {provider for _, provider in state.owed}
    is_refused = bool(owed) and all(refused.get(provider, False) for provider in owed)
    return min(REFUSED_S, UNPAYABLE_S) if is_refused else UNPAYABLE_S


def payment_wait(state: State, refused: Mapping[str, bool]) -> PaymentWait | None:
    """What is waited for where nothing else is to be done; None if no payment of it has failed so far."""
    most_s = patience_s(state, refused)
    owed_msat: Counter[str] = Counter()
    for (_, provider), amount_msat in state.owed.items():
        if provider in refused:
            owed_msat[provider] += amount_msat
    return PaymentWait(tuple(owed_msat.items()), most_s) if most_s is not None and owed_msat else None
