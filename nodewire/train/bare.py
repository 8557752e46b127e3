"""The bare loop: all of a recipe's rounds in one process, over shards, without a market.

What the market delivers must equal this byte for byte, so updates are packed and unpacked and applied by the same
code. It is also what the market's overhead is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from nodewire.protocol.recipe import Recipe
from nodewire.train import carried, data, fragments, outer
from nodewire.train.carried import Carried
from nodewire.train.data import Tensors
from nodewire.train.families import initial
from nodewire.train.inner import Trainer
from nodewire.train.state import State


@dataclass(frozen=True, slots=True)
class Point:
    """After a round: the mean of the inner losses, the loss on what is held out, and the bytes of all updates."""

    round: int
    inner: float
    held_out: float
    upload_bytes: int


def run(
    recipe: Recipe,
    dataset: Tensors,
    k: int,
    *,
    start: State | None = None,
    rounds: int | None = None,
    taken_over: Container[tuple[int, int]] = (),
    on_round: Callable[[Point], None] | None = None,
) -> tuple[State, list[Point]]:
    """Train on `k` shards of a data set; theta after the last round and the curve.

    Args:
        start: the tensors that the recipe's model starts from, if it names any.
        rounds: fewer than the recipe's, to stop early.
        taken_over: round and shard where another provider takes over, who has nothing of what the one before carried.
    """
    shards, held_out = data.split(dataset, k, recipe)
    measured = data.samples(held_out, recipe, recipe.validation.samples)
    trainer = Trainer(recipe, start)
    theta = initial(recipe, start)
    momenta = outer.start(recipe.outer, theta)
    kept: list[Carried | None] = [None] * k
    curve = []
    for round in range(recipe.rounds if rounds is None else rounds):
        results, losses, size = [], [], 0
        for index, shard in enumerate(shards):
            begun = None if (round, index) in taken_over else kept[index]
            update = trainer.train(carried.beginning(theta, begun), shard, round, index)
            delta = (
                carried.moved(theta, trainer.now(recipe.steps).theta) if recipe.compression.carries else update.delta
            )
            packed, kept[index] = carried.send(recipe, round, delta, begun)
            results.append((update.samples, carried.received(recipe, round, packed)))
            losses.append(sum(update.losses) / len(update.losses))
            size += len(packed)
        theta, momenta = fragments.step(recipe, round, theta, momenta, results)
        curve.append(Point(round, sum(losses) / k, trainer.loss(theta, measured), size))
        if on_round is not None:
            on_round(curve[-1])
    return theta, curve
