"""Whether a round's results are worth their pay: the checks that need no recomputation, from the cheapest up.

FEDSTR's two policies by name, and the ladder under them (nips/33). Losses are computed here, by what the
caller gives; nothing that a provider says of itself is believed. A check that can be wrong about an honest provider
does not reject: it asks for an audit before the pay (`segments`), which is right about both.

    norm      the update's length beside the median of the round's (and of rounds before)
              reject: out of the band, or none, unless the round's first steps lead nowhere here, too
    policy    progress: the others' aggregate is not better by more than gamma
              decay: the moving average of held-out losses falls at the rate            reject
    cosine    the largest one with another's update, or one of the round before          audit: one of them is a copy
    gain      how far the held-out loss falls when the update alone is applied
    own       how much lower the loss is with the update than with all updates' mean: on the very batches that the
              round gave this shard, less the same on held-out data. Who trained on something else is no better there
              than all are. (The difference of two gains on two sets alone says which set is easier.)
              audit, both: not above the bound, or under THIN of the round's median. What chance alone does is left out:
              means over samples are taken for SURE standard errors better than they are (but for a loss that rises)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from nodewire.training.engine import data
from nodewire.training.engine.state import State
from nodewire.training.engine.sums import PIECE, norm

if TYPE_CHECKING:
    from nodewire.errors import NodewireError
    from nodewire.training.engine.data import Shard
    from nodewire.training.engine.families import Batch
    from nodewire.training.protocol.recipe import Recipe, Validation

Outcome = Literal["accept", "audit", "reject"]
Threat = Literal["none", "possible", "sure"]
Losses = Callable[[State], Tensor]
"""A theta's losses on fixed samples, float64 [n]."""

THIN = 0.75
"""Share of the median of the round's gains below which a result is audited."""
SURE = 2.0
"""Standard errors. With none two honest results of five are doubted; audits find who gains from that."""
STEPS_POWER = 0.75
"""Lengths and gains grow with about this power of a round's steps (lengths: .61 after a half, .37 after a quarter), so
who was given fewer steps than the recipe's is compared with what it would have by all of them."""
BF16_SLACK = 5.0
"""The tolerance counts so many times for bf16: Adam's first step goes by the signs of gradients, and which sign one has
that is nearly zero is chance there (.038 of the way between instruction sets; cheats are .35 and more)."""
FEW = 3
"""Norms below which a median says nothing about who is wrong."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a result: paid, paid if its audit passes, or not paid."""

    outcome: Outcome = "accept"
    reason: str = ""
    """The check that decided; empty for `accept`."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by check."""
    threat: Threat = "none"
    """To the next weights, were they made of it before an audit. `possible`: the update alone raises the loss.
    `sure`: it is out of all proportion; one that is a million times too long is the end of a model, whatever becomes
    of its provider afterwards."""

    @property
    def is_doubted(self) -> bool:
        """Whether it is audited before it is paid or refused.

        What is out of proportion is, too, though its outcome be `reject`: where rounds get shorter as a model
        converges, an honest result may be.
        """
        return self.outcome == "audit" or self.threat == "sure"


@dataclass(frozen=True, slots=True)
class Submission:
    """A result that came, unpacked, and is of the model's names and shapes, finite, and what was committed to."""

    index: int
    """Of the shard."""
    steps: int
    weight: int
    delta: State
    own: Losses
    """On batches that the round gave this shard (`own_samples`)."""
    idle: Callable[[], bool] = lambda: False
    """Whether the round's first steps move nothing here either (`segments.stands_still`)."""


def malformed(error: NodewireError) -> Judgement:
    """The judgement on a result that could not be read, or was not the one committed to."""
    return Judgement("reject", f"{error.code}: {error}")


def judge(
    recipe: Recipe,
    theta: State,
    submissions: Sequence[Submission],
    held: Losses,
    *,
    history: Sequence[float] = (),
    norms: Sequence[float] = (),
    earlier: Sequence[State] = (),
) -> dict[int, Judgement]:
    """The judgements on a round's results, by shard.

    Args:
        recipe: its validation says when a result is accepted, doubted or rejected.
        theta: what the round began with.
        submissions: at most one for a shard.
        held: on samples of the held-out set.
        history: held-out losses of thetas of the rounds before and of this one, for the policy `decay`.
        norms: of results that were accepted before, as their judgements' figures have them in `norm`.
        earlier: updates of the round before, which nobody may deliver again.

    """
    rules = recipe.validation
    found = {one.index: Judgement() for one in submissions}

    def note(index: int, judgement: Judgement) -> None:
        """The worse outcome stays, and of equals the earlier.

        So does the worse threat, whatever the outcome that it comes with. Figures are gathered.
        """
        now = found[index]
        figures = {**now.figures, **judgement.figures}
        worse = judgement if _ORDER[judgement.outcome] > _ORDER[now.outcome] else now
        threat = max(now.threat, judgement.threat, key=_THREATS.index)
        found[index] = replace(worse, figures=figures, threat=threat)

    shares = {one.index: (one.steps / recipe.steps) ** STEPS_POWER for one in submissions}
    lengths = {one.index: norm(one.delta) / shares[one.index] for one in submissions}
    known = [*norms, *lengths.values()]
    for one in submissions:
        is_idle = lengths[one.index] == 0 and one.idle()
        note(one.index, Judgement() if is_idle else by_norm(rules, lengths[one.index], known))
    for index, cosine in cosines({one.index: one.delta for one in submissions}, earlier).items():
        note(index, by_cosine(rules, cosine))
    standing = [one for one in submissions if found[one.index].outcome != "reject"]
    if not standing:
        return found
    means = _Means(standing)
    before = held(theta)
    everybody = _applied(theta, means.of_all()) if len(standing) > 1 else theta
    reference = held(everybody) if len(standing) > 1 else before
    gains: dict[int, Tensor] = {}
    margins: dict[int, tuple[float, float]] = {}
    for one in standing:
        mine, share = _applied(theta, one.delta), shares[one.index]
        losses = held(mine)
        loss = float(losses.mean())
        if rules.policy == "progress" and len(standing) > 1:
            note(one.index, progress(rules, loss, float(held(_applied(theta, means.without(one))).mean())))
        if rules.policy == "decay":
            note(one.index, decay(rules, history, loss))
        gains[one.index] = (before - losses) / share
        margins[one.index] = _difference(one.own(everybody) - one.own(mine), reference - losses, share)
    usual = _middle(list(gains.values()))
    for index, gain in gains.items():
        note(index, by_gain(rules, gain, usual))
        note(index, by_own(rules, *margins[index], [margin for margin, _ in margins.values()]))
    return found


_THREATS: tuple[Threat, ...] = get_args(Threat)
"""The worse ones last."""
_ORDER = {"accept": 0, "audit": 1, "reject": 2}


def by_norm(rules: Validation, length: float, known: Sequence[float]) -> Judgement:
    """Whether it is inside the band around the median of `known` lengths (its own among them).

    With fewer than FEW lengths a result out of the band is audited: it is not known which of them is wrong. The median
    of two is their mean, of which none is above the double, so there a length stands beside the other one.
    """
    figures = {"norm": length}
    if not length > 0:
        return Judgement("reject", "norm: no work", figures)
    lengths = [one for one in known if one > 0]
    if 1 < len(lengths) < FEW:
        lengths.remove(length)
    relative = length / median(lengths)
    figures["relative_norm"] = relative
    if float(rules.norm_low) <= relative <= float(rules.norm_high):
        return Judgement(figures=figures)
    return Judgement("reject" if len(known) >= FEW else "audit", "norm: out of the band", figures, "sure")


def by_cosine(rules: Validation, cosine: float) -> Judgement:
    """Another than everybody else's? Of two that are alike one may be honest: both are audited."""
    alike = cosine >= float(rules.cosine)
    return Judgement("audit" if alike else "accept", "cosine: alike" if alike else "", {"cosine": cosine})


def by_gain(rules: Validation, gain: Tensor, usual: Tensor) -> Judgement:
    """Whether the held-out loss falls (or rises no further than the rules allow), and about as far as with others'.

    Args:
        rules: the recipe's.
        gain: by how much it falls on each sample, float64 [n].
        usual: the same with the result in the middle.

    """
    mean, middle = float(gain.mean()), float(usual.mean())
    if not mean > float(rules.gain):
        return Judgement("audit", "gain: the loss rises", {"gain": mean}, "possible")
    behind = gain - THIN * usual
    # Where most gain nothing, less than most says nothing.
    thin = middle > 0 and not float(behind.mean()) + SURE * _error(behind) >= 0
    return Judgement("audit" if thin else "accept", "gain: less than others" if thin else "", {"gain": mean})


def by_own(rules: Validation, margin: float, error: float, margins: Sequence[float]) -> Judgement:
    """Whether it is ahead of all together on what the round gave its shard, and about as far as others are on theirs.

    `error`: the margin's standard error.
    """
    at_best, usual = margin + SURE * error, median(margins)
    if not at_best > float(rules.own):
        return Judgement("audit", "own: trained on something else", {"own": margin})
    thin = usual > 0 and at_best < THIN * usual
    return Judgement("audit" if thin else "accept", "own: less than others" if thin else "", {"own": margin})


def _difference(own: Tensor, held: Tensor, share: float) -> tuple[float, float]:
    """How much larger the mean of one is, and the standard error of that; both a share's."""
    return float(own.mean() - held.mean()) / share, math.hypot(_error(own), _error(held)) / share


def _error(numbers: Tensor) -> float:
    """The standard error of their mean; of a single one nothing is known."""
    return float(numbers.std()) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.inf


def _middle(gains: Sequence[Tensor]) -> Tensor:
    """The upper of those in the middle, by their means: of two one would be its own measure else."""
    return sorted(gains, key=lambda gain: float(gain.mean()))[len(gains) // 2]


def progress(rules: Validation, loss: float, others: float) -> Judgement:
    """FEDSTR's policy by comparison: the others' aggregate may be better by gamma at most."""
    ahead = loss - others
    fine = ahead <= float(rules.gamma)
    return Judgement("accept" if fine else "reject", "" if fine else "progress: others are ahead", {"behind": ahead})


def decay(rules: Validation, history: Sequence[float], loss: float) -> Judgement:
    """FEDSTR's policy by time, with `loss` as the newest.

    The mean of the last `average` held-out losses must be lower than the mean of as many before it (one round earlier)
    by the share `rate`. With too short a history it accepts.
    """
    series = [*history, loss]
    if len(series) <= rules.average:
        return Judgement()
    now = math.fsum(series[-rules.average :]) / rules.average
    before = math.fsum(series[-rules.average - 1 : -1]) / rules.average
    fine = now <= before * (1 - float(rules.rate))
    return Judgement("accept" if fine else "reject", "" if fine else "decay: too slow", {"decay": 1 - now / before})


def by_audit(recipe: Recipe, off: float) -> Judgement:
    """The judgement on a segment computed again (`segments.recomputed`)."""
    fine = off <= float(recipe.audit.tolerance) * (BF16_SLACK if recipe.precision == "bf16" else 1)
    return Judgement("accept" if fine else "reject", "" if fine else "audit: other work", {"recomputed": off})


def own_samples(recipe: Recipe, shard: Shard, round: int, index: int, steps: int) -> Batch:
    """Samples that a round gave a shard: whole batches of steps spread evenly over it, up to `Recipe.measured`."""
    many = min(steps, max(1, recipe.measured() // recipe.batch))
    at = [i * steps // many for i in range(many)]
    batches = [next(data.batches(shard, recipe, round, index, step, step + 1)) for step in at]
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def cosines(deltas: Mapping[int, State], earlier: Sequence[State] = ()) -> dict[int, float]:
    """The largest cosine of each update with another one, or an earlier one; -1 for who is alone."""
    rows = [*deltas.values(), *earlier]
    gram = torch.zeros(len(deltas), len(rows), dtype=torch.float64)
    scales = torch.tensor([1 / length if (length := norm(row)) else 0.0 for row in rows])
    for name in rows[0] if rows else ():
        for pieces in zip(*(torch.split(row[name].reshape(-1), PIECE) for row in rows), strict=True):
            scaled = torch.stack(pieces) * scales[:, None]
            gram += scaled[: len(deltas)] @ scaled.T
    gram.fill_diagonal_(-1.0)
    return {index: float(row.max()) for index, row in zip(deltas, gram, strict=True)}


class _Means:
    """Weighted means of updates: of all of them, and of all but one."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._weight = sum(one.weight for one in submissions)
        self._sums: dict[str, Tensor] = {}
        for one in submissions:
            for name, tensor in one.delta.items():
                part = tensor.double() * one.weight
                self._sums[name] = self._sums[name] + part if name in self._sums else part

    def of_all(self) -> State:
        return {name: (total / self._weight).float() for name, total in self._sums.items()}

    def without(self, one: Submission) -> State:
        """There must be another."""
        left = self._weight - one.weight
        return {name: ((self._sums[name] - one.delta[name].double() * one.weight) / left).float() for name in one.delta}


def _applied(theta: State, delta: State) -> State:
    return {name: tensor + delta[name] for name, tensor in theta.items()}
