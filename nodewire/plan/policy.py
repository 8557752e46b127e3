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
"""The part of a price that pays verification. Three times the rate pays a sample at every length (`VerifierPay`)."""


@dataclass(frozen=True, slots=True)
class VerifierPay:
    """What a verifier earns by a sample, in units of a chunk's price; a chunk costs `cost` of it to compute.

    A sampled chunk stands at the end of a context, which is computed before it, many positions at once. So

        paid  = 1 + (units - 1) / discount
        costs = cost (1 + (units - 1) / speedup)

    of `units` chunks in all. Of `rate` of the chunks one sample is drawn. The chunk of this number pays the share

        share_of = share max(1, (units + 32 - flat) / 32)

    of its price, of which `fee` is the committee's. So a share of three times the rate pays for every sample, on
    average over the draws, at every length.
    """

    share: float
    rate: float = SHIPPED.rate
    fee: float = 0.1
    discount: float = 12.0
    speedup: float = 10.0
    cost: float = 1 / SHIPPED.reward
    flat: int = 21

    def paid(self, units: int) -> float:
        return 1 + (units - 1) / self.discount

    def costs(self, units: int) -> float:
        return self.cost * (1 + (units - 1) / self.speedup)

    def pays(self, units: int) -> bool:
        """Whether a verifier of a context of so many chunks loses nothing by computing it."""
        return self.paid(units) >= self.costs(units) - 1e-9

    def share_of(self, units: int) -> float:
        return self.share * max(1, (units + 32 - self.flat) / 32)

    def is_funded(self, units: int) -> bool:
        """Whether the share of the chunk of this number pays for its own samples, on average, and the fee."""
        return self.share_of(units) * (1 - self.fee) >= self.rate * self.paid(units)

    def share_of_job(self, units: int) -> float:
        """What a job of so many chunks pays in shares, in parts of its price."""
        return sum(map(self.share_of, range(1, units + 1))) / units


@dataclass(frozen=True, slots=True)
class SelfDealingModel:
    """Jobs of a node's own at its own nodes, for the weight that passes give (`assign.repute`).

    A pass is one chunk in 1 / `rate`. Each chunk costs `share` of its price, but for what comes back to verifiers of
    the dealer's own (`collusion`). All reputation adds `reach` * `share` to a weight of 1, in `steps` doublings of what
    passed. An honest newcomer comes by the same passes while it works, and `margin` of its price is profit. So, in
    prices of a chunk,

        cost(n) = n / rate * share * (1 - collusion)
        gain(n) = margin / rate * sum over its passes d of (weight(d + n) / weight(d) - 1)
               <= margin / rate * n * (the most weight - the least) = margin / rate * n * reach * share

    since the sum telescopes. So dealing never pays while reach * margin <= 1 - collusion, whatever the price: work at a
    lower price counts by that lower price.
    """

    share: float
    rate: float = SHIPPED.rate
    margin: float = 1.0
    collusion: float = SHIPPED.collusion
    reach: float = 0.8
    steps: int = 8

    def cost(self, passes: int) -> float:
        return passes / self.rate * self.share * (1 - self.collusion)

    def weight(self, passes: int) -> float:
        return 1 + self.reach * self.share * min(passes.bit_length(), self.steps) / self.steps

    def gain(self, passes: int) -> float:
        """For as long as an honest node needs to come to the full weight; from then on both weigh the same."""
        full = 2 ** (self.steps - 1)
        sooner = sum(self.weight(done + passes) / self.weight(done) - 1 for done in range(full))
        return self.margin * sooner / self.rate

    def pays(self) -> bool:
        """Whether any number of passes is worth its cost."""
        return any(self.gain(n) > self.cost(n) for n in range(1, 2**self.steps))

    def is_safe(self) -> bool:
        """Whether the inequality holds by which it cannot pay."""
        return self.reach * self.margin <= 1 - self.collusion


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
