"""How many steps of a round each provider makes: all of the recipe's, or as many as it can beside the fastest.

Its speed is what its own results took, from request to delivery; where it has none yet, what its ad claims, corrected
by how far others' claims are from what theirs took. (Liu et al. 2024, arXiv 2401.09135: local steps by speed.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from nodewire.protocol.recipe import Recipe
from nodewire.protocol.trainer import Trainer

LEAST_SHARE = 8
"""Nobody gets less than this part of a round's steps, and nobody less than what is audited as one."""


def step_us(market: Mapping[str, Trainer], took: Mapping[str, tuple[int, ...]], step_flops: int) -> dict[str, float]:
    """Microseconds that a step takes, by provider.

    Args:
        took: by provider, microseconds a step of its results so far.
        step_flops: operations of a step, for those of whom there is nothing but a claim.
    """
    claimed = {public: step_flops / (ad.gflops * 1_000) for public, ad in market.items()}
    measured = {public: max(1.0, float(median(some))) for public, some in took.items() if some and public in market}
    off = median(measured[public] / claimed[public] for public in measured) if measured else 1.0
    return {public: measured.get(public, claimed[public] * off) for public in market}


def steps(recipe: Recipe, providers: Iterable[str], each_us: Mapping[str, float]) -> dict[str, int]:
    """The steps of a round for everybody who trains in it: all for the fastest, and in proportion for others."""
    if recipe.pace == "equal":
        return dict.fromkeys(providers, recipe.steps)
    least = max(-(-recipe.steps // LEAST_SHARE), min(recipe.steps, recipe.audit.segment))
    known = {public: each_us[public] for public in providers if public in each_us}
    fastest = min(known.values(), default=1.0)
    return {public: max(least, min(recipe.steps, round(recipe.steps * fastest / own))) for public, own in known.items()}
