"""The twelve attacks on a round, each as what its cheater would commit to, deliver and show.

A cheater here is as clever as its attack allows: what it did not compute it makes up (snapshots on the straight way to
its update), commits to in time, and shows whenever it is asked, so that nothing gives it away but the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from nodewire.training.engine import data, segments
from nodewire.training.engine.data import Shard
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Snapshot, Trainer
from nodewire.training.engine.segments import Claim
from nodewire.training.engine.state import State
from nodewire.training.engine.sums import norm
from nodewire.training.engine.update import compression, outer_step
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails

CHEATER = 3
"""The shard of who cheats; the shards before it are honest people's."""
REQUEST = "5e" * 32


def author(index: int) -> str:
    return f"{index + 1:02x}" * 32


@dataclass
class Delivery:
    """What one provider gives: what it has committed to, packed update, what opens it, and the snapshots behind it."""

    commitment: str
    packed: bytes
    opening: DeliveryDetails
    claim: Claim
    snapshots: list[Snapshot]

    def reveal(self, i: int) -> bytes:
        return segments.show(self.snapshots[i])


@dataclass
class Scene:
    """A training after some honest rounds: the shards, and theta as everybody has it."""

    recipe: Recipe
    trainer: Trainer
    shards: list[Shard]
    held_out: Shard
    theta: State
    round: int
    before: list[State]
    """The updates of the round before, by shard."""

    @cached_property
    def done(self) -> list[tuple[State, list[Snapshot]]]:
        """This round as it should be, by shard: update and snapshots."""
        return [worked(self, i) for i in range(len(self.shards))]

    @property
    def length(self) -> float:
        """An honest update's norm."""
        return norm(self.done[0][0])


def scene(recipe: Recipe, dataset: data.Tensors, rounds: int) -> Scene:
    shards, held_out = data.split(dataset, CHEATER + 1, recipe)
    trainer, theta, updates = Trainer(recipe), initial(recipe), []
    momenta = outer_step.start(recipe.outer, theta)
    for round in range(rounds):
        done = [trainer.train(theta, shard, round, i) for i, shard in enumerate(shards)]
        updates = [update.delta for update in done]
        theta, momenta = outer_step.step(
            recipe.outer, theta, momenta, [(update.samples, update.delta) for update in done]
        )
    return Scene(recipe, trainer, shards, held_out, theta, rounds, updates)


def worked(of: Scene, index: int, shard: Shard | None = None) -> tuple[State, list[Snapshot]]:
    """Training as it is asked for: the update, and a snapshot after each segment."""
    shard, steps = shard or of.shards[index], of.recipe.steps
    now, snapshots = of.trainer.beginning(of.theta), []
    while now.step < steps:
        many = min(of.recipe.audit.segment, steps - now.step)
        now = of.trainer.segment(now, shard, of.round, index, many)
        snapshots.append(now)
    return {name: now.theta[name] - tensor for name, tensor in of.theta.items()}, snapshots


def deliver(of: Scene, index: int, delta: State, snapshots: list[Snapshot]) -> Delivery:
    packed, _ = compression.pack(delta, of.recipe.compression)
    states = tuple(snapshot.digest() for snapshot in snapshots)
    opening = opened(packed, states)
    commitment = opening.commitment(author(index), REQUEST, of.round, index)
    return Delivery(commitment, packed, opening, Claim(of.round, index, states), snapshots)


def opened(packed: bytes, states: Sequence[bytes]) -> DeliveryDetails:
    """What a provider says of an update to its customer alone."""
    return DeliveryDetails(
        key="00" * 32,
        sha256=hashlib.sha256(packed).hexdigest(),
        bytes=len(packed),
        samples=1,
        losses=(),
        states=tuple(state.hex() for state in states),
    )


def made_up(of: Scene, delta: State, done: list[Snapshot] | None = None) -> list[Snapshot]:
    """Snapshots for work that was not done: those that were, and from there straight to the update."""
    found = list(done or [])
    count = segments.count(of.recipe, of.recipe.steps)
    last = found[-1] if found else of.trainer.beginning(of.theta)
    left = count - len(found)
    end = {name: tensor + delta[name] for name, tensor in of.theta.items()}
    for i in range(1, left + 1):
        theta = {name: tensor + (end[name] - tensor) * (i / left) for name, tensor in last.theta.items()}
        found.append(Snapshot(last.step, theta, last.moments))
    return found


def _noise(of: Scene, length: float) -> State:
    generator = torch.Generator().manual_seed(17)
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in of.theta.items()}
    return _scaled(noise, length / norm(noise))


def _scaled(delta: State, factor: float) -> State:
    return {name: tensor * factor for name, tensor in delta.items()}


def _sum(a: State, b: State) -> State:
    return {name: tensor + b[name] for name, tensor in a.items()}


def _part(share: int, *, rescaled: bool = False) -> Callable[[Scene], Delivery]:
    def cheat(of: Scene) -> Delivery:
        done = of.done[CHEATER][1][: segments.count(of.recipe, of.recipe.steps) // share]
        delta = {name: done[-1].theta[name] - tensor for name, tensor in of.theta.items()}
        if rescaled:
            delta = _scaled(delta, of.length / norm(delta))
        return deliver(of, CHEATER, delta, made_up(of, delta, done))

    return cheat


def _of(make: Callable[[Scene], State]) -> Callable[[Scene], Delivery]:
    def cheat(of: Scene) -> Delivery:
        delta = make(of)
        return deliver(of, CHEATER, delta, made_up(of, delta))

    return cheat


def _wrong_shard(of: Scene) -> Delivery:
    return deliver(of, CHEATER, *worked(of, CHEATER, of.shards[0]))


def _garbage(of: Scene) -> Delivery:
    """Trained, but on its shard in disorder."""
    shuffled = {}
    for i, (name, tensor) in enumerate(of.shards[CHEATER].tensors.items()):
        generator = torch.Generator().manual_seed(i)
        shuffled[name] = tensor[torch.randperm(len(tensor), generator=generator)]
    return deliver(of, CHEATER, *worked(of, CHEATER, Shard(shuffled)))


def _half_of_every_batch(of: Scene) -> Delivery:
    """All steps, on half the samples each: no segment is right, though every one was worked on."""
    recipe = of.recipe.model_copy(update={"batch": of.recipe.batch // 2})
    return deliver(of, CHEATER, *worked(replace(of, recipe=recipe, trainer=Trainer(recipe)), CHEATER))


ATTACKS: dict[str, Callable[[Scene], Delivery]] = {
    "zero": _of(lambda of: _scaled(of.theta, 0.0)),
    "replay": _of(lambda of: of.before[CHEATER]),
    "noise": _of(lambda of: _noise(of, of.length)),
    "quarter": _part(4),
    "quarter rescaled": _part(4, rescaled=True),
    "half": _part(2),
    "copy": _of(lambda of: of.done[1][0]),
    "copy and noise": _of(lambda of: _sum(of.done[1][0], _noise(of, 0.05 * of.length))),
    "wrong shard": _wrong_shard,
    "garbage": _garbage,
    "sign": _of(lambda of: _scaled(of.done[CHEATER][0], -1.0)),
    "times ten": _of(lambda of: _scaled(of.done[CHEATER][0], 10.0)),
    "half of every batch": _half_of_every_batch,
}
