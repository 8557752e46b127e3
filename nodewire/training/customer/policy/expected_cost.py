"""What a result that is of use costs, by whom it is bought: the price, and what tries that come to nothing cost. Pure.

How likely a provider fails is what this customer has seen of it in this training, beside a prior: of a stranger four of
five tries are taken to succeed (beta distribution of 2 and 1/2), so whoever has failed once is not out, and whoever
never was asked is not worth any price.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.training.customer.machine.state import State

_GOOD, _BAD = 2.0, 0.5
MOST_TRIES = 7.0
"""No provider is taken to fail more often than so many times for a result of use; so nobody is worth more than eight
times another's price, and seven times what the budget has for a shard's round, because it has not failed."""


@dataclass(frozen=True, slots=True)
class Record:
    """What came of the shards that each provider was given."""

    good: Counter[str] = field(default_factory=Counter)
    """Results that were accepted and, where they are audited, have passed."""
    failed: Counter[str] = field(default_factory=Counter)
    worth_msat: int = 0
    """What the budget has for one shard's round: so much a failed try costs in time, whatever its price."""

    def cost_msat(self, provider: str, price_msat: int) -> float:
        """The expected cost of a useful result, in the customer's own terms.

        A failed try costs the price (deposit and time are lost), one of somebody who is known to fail also the time of
        all others.
        """
        tries = self.good[provider] + _GOOD
        lost = min(MOST_TRIES, (self.failed[provider] + _BAD) / tries)
        known = min(MOST_TRIES, self.failed[provider] / tries)
        return price_msat * (1 + lost) + self.worth_msat * known


def record_of(state: State, budget_msat: int) -> Record:
    """What is known of everybody in a training."""
    good = Counter(provider for (_, provider), debt in state.debts.items() if debt.balance in ("owed", "paid"))
    failed = Counter(provider for provider, _ in state.failures)
    return Record(good, failed, budget_msat // max(1, state.rounds * len(state.shards)))
