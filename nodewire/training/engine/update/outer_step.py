"""The outer step: a round's updates become the next theta. Pure, the same bits everywhere. nips/32.

    average    theta + lr g                                 FedAvg where lr = 1: McMahan et al. 2017, arXiv 1602.05629
    nesterov   v = mu v + g; theta + lr (mu v + g)                  DiLoCo: Douillard et al. 2023, arXiv 2311.08105
    fedadam    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; theta + lr m / (sqrt v + eps)
                                                                                Reddi et al. 2020, arXiv 2003.00295

where g is the aggregate of the deltas (`aggregate`), shortened where few of a rule's `shards` came. Deltas point
downhill already: a delta is theta after training minus theta before. All is float64, element by element, and becomes
float32 once, at the end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadUpdate
from nodewire.training.engine.update import aggregate
from nodewire.training.protocol.recipe import MAX_SAMPLES, Outer

if TYPE_CHECKING:
    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.aggregate import Results


def start(rule: Outer, theta: State) -> State:
    """The momenta before the first round: zeros. nesterov keeps v under theta's names, fedadam m/... and v/..."""
    return {
        prefix + name: torch.zeros_like(tensor) for prefix in _PREFIXES[rule.method] for name, tensor in theta.items()
    }


_PREFIXES = {"average": (), "nesterov": ("",), "fedadam": ("m/", "v/")}


def prefixes(rule: Outer) -> tuple[str, ...]:
    """What stands before theta's names in the names of momenta; one for every number that a rule keeps of each."""
    return _PREFIXES[rule.method]


def step(
    rule: Outer, theta: State, momenta: State, results: Results, *, whole: Results | None = None
) -> tuple[State, State]:
    """Theta and momenta after a round.

    Args:
        rule: of the round (`Recipe.outer_of`).
        theta: what the round began with, in the family's order.
        momenta: of `start`, or of the step before.
        results: (weight, delta) by ascending shard index; weights are samples seen, 1 to 2^29 - 1.
        whole: the whole results, if theta, momenta and `results` are pieces of the round's.

    Raises:
        BadUpdate: no results, a weight out of range, a delta of other names or shapes than theta, a sum beyond float32.
        BadInput: fewer results than the rule's aggregate needs.

    """
    _check(theta, momenta, rule, results)
    lr, mu, (b1, b2), eps = float(rule.lr), float(rule.momentum), map(float, rule.betas), float(rule.eps)
    after, kept, short = {}, {}, length(rule, results)
    for name, g in _aggregate(rule, results, results if whole is None else whole).items():
        g = short * g if short < 1 else g
        match rule.method:
            case "average":
                way = g
            case "nesterov":
                v = mu * momenta[name].double() + g
                kept[name] = v.float()
                way = mu * v + g
            case "fedadam":
                m = b1 * momenta["m/" + name].double() + (1 - b1) * g
                v = b2 * momenta["v/" + name].double() + (1 - b2) * (g * g)
                kept["m/" + name], kept["v/" + name] = m.float(), v.float()
                way = m / (v.sqrt() + eps)
        made = (theta[name].double() + lr * way).float()
        after[name] = made.bfloat16().float() if rule.stored == "bf16" else made
    for name, tensor in [*after.items(), *kept.items()]:
        if not bool(torch.isfinite(tensor).all()):
            raise BadUpdate(name, "the step leaves the range of float32")
    return {name: after[name] for name in theta}, {name: kept[name] for name in momenta}


def length(rule: Outer, results: Results) -> float:
    """What the aggregate is multiplied by: the root of the share that has come of the rule's `shards`, by weights.

    So a step of few results is no noisier than one of all. 1 at most, and for a rule without `shards`.
    """
    if not rule.shards:
        return 1.0
    weights = [weight for weight, _ in results]
    return math.sqrt(min(1.0, sum(weights) / (rule.shards * max(weights))))


def _aggregate(rule: Outer, results: Results, whole: Results) -> dict[str, Tensor]:
    match rule.aggregate:
        case "mean":
            return aggregate.mean(results)
        case "trimmed":
            return aggregate.trimmed(results, rule.tolerated)
        case "median":
            return aggregate.median(results)
        case "clip":
            return aggregate.clip(results, float(rule.bound), whole)
        case "krum":
            return aggregate.krum(results, rule.tolerated, whole)


def _check(theta: State, momenta: State, rule: Outer, results: Results) -> None:
    if not results:
        raise BadUpdate("results", "none")
    expected = {name: tensor.shape for name, tensor in theta.items()}
    for weight, delta in results:
        if not 1 <= weight <= MAX_SAMPLES:
            raise BadUpdate("weight", f"{weight}, expected 1 to {MAX_SAMPLES}")
        if {name: tensor.shape for name, tensor in delta.items()} != expected:
            raise BadUpdate("delta", "of other names or shapes than theta")
    wanted = {prefix + name: shape for prefix in _PREFIXES[rule.method] for name, shape in expected.items()}
    if {name: tensor.shape for name, tensor in momenta.items()} != wanted:
        raise BadUpdate("momenta", f"not those of {rule.method}")
