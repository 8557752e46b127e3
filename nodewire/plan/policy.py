"""How much must be verified, and staked, so that cheating pays less than honesty. Pure arithmetic, for people.

A task costs `cost` to compute and earns `reward`. Who does not compute it is sampled with probability `rate`, by a
verifier that colludes, or is fooled, with probability `collusion`; caught, it loses reward and `stake`. So

    honest = reward - cost
    cheat  = reward - share * cost_left - rate * (1 - collusion) * power * (reward + stake)

where `power` is how often a sampled cheat shows. Cheating pays less if rate > cost / ((1 - collusion) power (reward +
stake)). The shipped policy asks for more: that cheating loses money, so that nothing is earned by being caught late.
The inequality is that of proof of sampling (SplitUp, section 7), whose own numbers fail it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodewire.errors import BadInput


@dataclass(frozen=True, slots=True)
class Policy:
    """All amounts in units of a task's cost; `rate`, `collusion` and `power` are probabilities."""

    rate: float
    stake: float
    reward: float = 1.2
    collusion: float = 0.1
    power: float = 1.0
    cost: float = 1.0

    def __post_init__(self) -> None:
        """Raises BadInput naming the field."""
        for name in ("rate", "collusion", "power"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise BadInput(name, "not a probability")
        for name in ("stake", "reward", "cost"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise BadInput(name, "not a finite amount")
        if self.collusion == 1.0 or self.power == 0.0:
            raise BadInput("collusion" if self.collusion == 1.0 else "power", "then nobody is ever caught")

    @property
    def caught(self) -> float:
        """The probability that one cheated task is found out."""
        return self.rate * (1 - self.collusion) * self.power

    def honest(self) -> float:
        """What an honest task earns, net."""
        return self.reward - self.cost

    def cheat(self, skipped: float = 1.0) -> float:
        """What a task of which the share `skipped` is not computed earns on average, net."""
        return self.reward - (1 - skipped) * self.cost - self.caught * (self.reward + self.stake)

    def rate_min(self) -> float:
        """Above this rate honesty pays more than skipping all (and so more than skipping a part)."""
        return self.cost / ((1 - self.collusion) * self.power * (self.reward + self.stake))

    def stake_min(self) -> float:
        """Above this stake honesty pays more, at the given rate; infinite if nothing is sampled."""
        return self.cost / self.caught - self.reward if self.caught else float("inf")

    def is_secure(self) -> bool:
        return self.cheat() < self.honest()

    def is_ruinous(self) -> bool:
        """Whether a cheater even loses money."""
        return self.cheat() < 0


SHIPPED = Policy(rate=0.05, stake=100.0)
"""What `nodewire committee create` proposes: 5 % of chunks, bonds of a hundred times what is in flight."""
SHARE_PPM = 150_000
"""Of the price, for verification: 5 % of the chunks at one price each, the committee's fee, and a margin."""


def minimum_bond_msat(
    *,
    base_msat: int,
    per_gb_msat: int,
    weights_gb: float,
    chunk_msat: int,
    in_flight: int,
    stake: float = SHIPPED.stake,
) -> int:
    """What a provider should stake: a base, a part for what it keeps loaded, and `stake` times what is in flight.

    `chunk_msat` is its price for one chunk over all its tasks, `in_flight` how many chunks may be without a verdict at
    once: sessions times the chunks of the verdict window.
    """
    return base_msat + round(per_gb_msat * weights_gb) + round(stake * chunk_msat) * in_flight
