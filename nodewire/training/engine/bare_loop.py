"""The bare loop: all of a recipe's rounds in one process, over shards, without a market.

What the market delivers must equal this byte for byte, so updates are packed and unpacked and applied by the same
code. It is also what the market's overhead is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.training.engine import data
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.update import carried_state, fragments, outer_step

if TYPE_CHECKING:
    from nodewire.training.engine.data import Tensors
    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.carried_state import CarriedState
    from nodewire.training.protocol.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Point:
    """After a round: the mean of the inner losses, the loss on what is held out, and the bytes of all updates."""

    round: int
    inner: float
    held_out: float
    upload_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A result that counts in an outer step: of which shard, trained in which round, of how many steps."""

    index: int
    round: int
    steps: int


Participation = Mapping[int, Sequence[Part]]
"""By round, what its outer step is made of; of a round before, what counts as late."""


def everybody(recipe: Recipe, k: int, rounds: int) -> Participation:
    """All shards in every round, in time, with all of the recipe's steps."""
    return {round: [Part(index, round, recipe.steps) for index in range(k)] for round in range(rounds)}


def run(
    recipe: Recipe,
    dataset: Tensors,
    k: int,
    *,
    start: State | None = None,
    rounds: int | None = None,
    participation: Participation | None = None,
    taken_over: Container[tuple[int, int]] = (),
    on_round: Callable[[Point], None] | None = None,
) -> tuple[State, list[Point]]:
    """Train on `k` shards of a data set; theta after the last round and the curve.

    Args:
        recipe: what is trained, and by which rules.
        dataset: samples by name, as the recipe's layout has them.
        k: shards, one for each provider.
        start: the tensors that the recipe's model starts from, if it names any.
        rounds: fewer than the recipe's, to stop early.
        participation: what counted in each round, if it was not all shards with all steps.
        taken_over: round and shard where another provider takes over, who has nothing of what the one before carried.
        on_round: told each point of the curve when it is known.

    """
    shards, held_out = data.split(dataset, k, recipe)
    measured = data.samples(held_out, recipe, recipe.measured())
    trainer = Trainer(recipe, start)
    theta = initial(recipe, start)
    momenta = outer_step.start(recipe.outer, theta)
    kept: dict[int, CarriedState | None] = {}
    """What those carry whose result counted in the round before, in time."""
    curve = []
    many = recipe.rounds if rounds is None else rounds
    participation = everybody(recipe, k, many) if participation is None else participation
    trained: dict[int, list[tuple[Part, State]]] = {}
    for round in range(many):
        # What was trained in this round, whenever it counts: by shard, and nothing twice.
        mine = sorted({p for r in (round, round + 1) for p in participation.get(r, ()) if p.round == round}, key=_key)
        losses, size, trained[round] = [], 0, []
        after: dict[int, CarriedState | None] = {}
        for part in mine:
            begun = None if (round, part.index) in taken_over else kept.get(part.index)
            update = trainer.train(
                carried_state.start_of_round(theta, begun), shards[part.index], round, part.index, part.steps
            )
            delta = update.delta
            if recipe.compression.carries:
                delta = carried_state.moved(theta, trainer.now(part.steps).theta)
            packed, after[part.index] = carried_state.send(recipe, round, delta, begun)
            delta = carried_state.received(recipe, round, packed)
            trained[round].append((part, delta))
            losses.append(sum(update.losses) / len(update.losses))
            size += len(packed)
        counted = set(participation[round])
        kept = {part.index: after[part.index] for part in mine if part in counted}
        results = [
            (part, weight, delta)
            for one in (trained.pop(round - 1, []), trained[round])
            for part, delta in one
            if part in counted and (weight := recipe.weight(part.steps, round - part.round))
        ]
        results.sort(key=lambda result: _key(result[0]))
        theta, momenta = fragments.step(
            recipe, round, theta, momenta, [(weight, delta) for _, weight, delta in results]
        )
        curve.append(Point(round, sum(losses) / len(losses), trainer.loss(theta, measured), size))
        if on_round is not None:
            on_round(curve[-1])
    return theta, curve


def _key(part: Part) -> tuple[int, int]:
    """The order of an outer step's results: by shard, of one shard the late one first."""
    return part.index, part.round
