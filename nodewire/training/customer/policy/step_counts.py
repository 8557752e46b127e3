"""How many steps of a round each provider makes: all of the recipe's, or as many as it can beside the fastest.

Its speed is what its own results took, from request to delivery; where it has none yet, what its ad claims, corrected
by how far others' claims are from what theirs took, and believed within bounds: a claim costs nothing, and where the
pace goes by the fastest, whoever lies takes the others' steps away. (Liu et al. 2024, arXiv 2401.09135: local steps by
speed.)
"""

from __future__ import annotations

from statistics import median, median_high, median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.trainer_ad import Trainer

LEAST_SHARE = 8
"""Nobody gets less than this part of a round's steps, and nobody less than what is audited as one."""

BELIEVED = 4
"""So many times as fast, or as slow, as any that was measured is a mere claim taken to be at most; where nothing is
measured, as fast as the median of all claims."""


def step_us(market: Mapping[str, Trainer], took: Mapping[str, tuple[int, ...]], step_flops: int) -> dict[str, float]:
    """Microseconds that a step takes, by provider.

    Args:
        market: the ads, by public key; they claim a speed.
        took: by provider, microseconds a step of its results so far.
        step_flops: operations of a step, for those of whom there is nothing but a claim.

    """
    claimed = {public: step_flops / (ad.gflops * 1_000) for public, ad in market.items()}
    measured = {public: max(1.0, float(median(some))) for public, some in took.items() if some and public in market}
    if not measured:
        least = median_high(claimed.values()) / BELIEVED if claimed else 0.0
        return {public: max(least, us) for public, us in claimed.items()}
    # The lower median: of two, one who has claimed too much says nothing about the other.
    off = median_low(measured[public] / claimed[public] for public in measured)
    least, most = min(measured.values()) / BELIEVED, max(measured.values()) * BELIEVED
    return {public: measured.get(public, min(most, max(least, claimed[public] * off))) for public in market}


def steps(recipe: Recipe, providers: Iterable[str], each_us: Mapping[str, float]) -> dict[str, int]:
    """The steps of a round for everybody who trains in it: all for the fastest, and in proportion for others."""
    if recipe.pace == "equal":
        return dict.fromkeys(providers, recipe.steps)
    least = max(-(-recipe.steps // LEAST_SHARE), min(recipe.steps, recipe.audit.segment))
    known = {public: each_us[public] for public in providers if public in each_us}
    fastest = min(known.values(), default=1.0)
    return {public: max(least, min(recipe.steps, round(recipe.steps * fastest / own))) for public, own in known.items()}


def late(recipe: Recipe, each_us: Mapping[str, float]) -> frozenset[str]:
    """Who would miss the deadline with the steps that it would be given, as far as can be known."""
    given = steps(recipe, each_us, each_us)
    return frozenset(public for public, us in each_us.items() if us * given[public] > recipe.deadline * 1_000_000)
