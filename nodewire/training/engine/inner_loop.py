"""A round's inner optimization: from theta to a pseudo-gradient, and any segment of it again.

A round is stateless: a fresh optimizer, the schedule by the global step, batches drawn for (seed, round, shard, step).
So who has (theta, recipe, shard, round, index) gets the same bits on an equal profile: one thread, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nodewire.errors import BadInput, BadRecipe
from nodewire.training.engine import data, state
from nodewire.training.engine.families import Batch, build
from nodewire.training.engine.optimizer import Flat, Optimizer

if TYPE_CHECKING:
    from nodewire.training.engine.data import Shard
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

OnStep = Callable[[int, float], None]
"""Called after a segment with the steps done and the last step's loss."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that decides the rest of a round after `step` steps: theta, and the optimizer's moments (flat, float32)."""

    step: int
    theta: State
    moments: dict[str, Tensor]

    def digest(self) -> bytes:
        """32 bytes: what a provider commits to."""
        return state.digest({**self.theta, **{f"moments.{name}": moment for name, moment in self.moments.items()}})


@dataclass(frozen=True, slots=True)
class Update:
    """A round's result.

    `delta` is theta after minus theta before; `states` are the digests of the snapshots after each audit.segment steps,
    and after the last one.
    """

    delta: State
    samples: int
    losses: tuple[float, ...]
    states: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment that is done: the round's steps so far, the last one's loss, the snapshot's digest; at the end, all."""

    step: int
    loss: float
    state: bytes
    update: Update | None


class Trainer:
    """One recipe's model, gradients and optimizer, allocated once and used for any number of rounds and shards.

    Args:
        start: the tensors that the recipe's model starts from; needed with an adapter only, which leaves them frozen.
        threads: on which losses are measured, a batch on each; what they are does not depend on how many.

    """

    def __init__(self, recipe: Recipe, start: State | None = None, *, threads: int = 1) -> None:
        if recipe.adapter is not None and start is None:
            raise BadRecipe("family.start", "its tensors are not at hand")
        self.recipe = recipe
        self._flat = Flat(recipe)
        frozen = start if recipe.adapter is not None and start is not None else {}
        self._model = build(recipe, {**frozen, **self._flat.parameters})
        self._optimizer = Optimizer(recipe, self._flat)
        self._bf16 = recipe.precision == "bf16"
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def train(
        self,
        theta: State,
        shard: Shard,
        round: int,
        index: int,
        steps: int | None = None,
        on_step: OnStep | None = None,
    ) -> Update:
        """One round on shard number `index`, of `steps` steps (the recipe's, or fewer on a slow machine).

        Raises:
            BadInput: steps that are none, or more than the recipe's.
            BadRecipe: the loss or theta is not finite any more.

        """
        for done in self.stretches(theta, shard, round, index, steps):
            if on_step is not None:
                on_step(done.step, done.loss)
        assert done.update is not None
        return done.update

    def stretches(
        self,
        theta: State,
        shard: Shard,
        round: int,
        index: int,
        steps: int | None = None,
        *,
        since: State | None = None,
    ) -> Iterator[Stretch]:
        """`train`, segment by segment; the model is this round's until the last. Raises as `train`.

        `since`: what the update's delta is counted from, if not from theta; theta is not held on to then.
        """
        steps = self.recipe.steps if steps is None else steps
        if not 1 <= steps <= self.recipe.steps:
            raise BadInput("steps", f"{steps}, not from 1 to the recipe's {self.recipe.steps}")
        self._flat.load(theta)
        self._optimizer.load(None)
        since = theta if since is None else since
        del theta
        losses, states = torch.empty(steps), []
        every = self.recipe.audit.segment
        for first in range(0, steps, every):
            last = min(first + every, steps)
            with _deterministic():
                self._advance(shard, round, index, first, last, losses)
                states.append(self._snapshot(last).digest())
                if last < steps:
                    update = None
                else:
                    delta = self._flat.values.detach().clone()
                    moved = self._flat.views(delta)
                    for name, tensor in since.items():
                        moved[name].sub_(tensor)
                    if not (state.is_finite(losses) and state.is_finite(delta)):
                        raise BadRecipe("inner", f"round {round} on shard {index} does not stay finite")
                    update = Update(moved, steps * self.recipe.batch, tuple(losses.tolist()), tuple(states))
            yield Stretch(last, float(losses[last - 1]), states[-1], update)

    def snapshot(self, theta: State, shard: Shard, round: int, index: int, step: int) -> Snapshot:
        """The snapshot after `step` steps of a round: what a provider reveals when a segment is audited."""
        return self.segment(self.beginning(theta), shard, round, index, step)

    def now(self, step: int) -> Snapshot:
        """The snapshot of a paused round (`stretches`) after `step` steps, copied."""
        return self._snapshot(step, copied=True)

    def beginning(self, theta: State) -> Snapshot:
        """The snapshot before a round's first step: known to everybody. Its moments, zeros, take no memory."""
        nothing = torch.zeros(())
        return Snapshot(0, theta, {name: nothing.expand(m.shape) for name, m in self._optimizer.moments.items()})

    def segment(
        self, start: Snapshot, shard: Shard, round: int, index: int, steps: int, *, copied: bool = True
    ) -> Snapshot:
        """The snapshot `steps` steps after `start`; not `copied` it is this trainer's own until that goes on."""
        last = start.step + steps
        if not start.step <= last <= self.recipe.steps:
            raise BadInput("steps", f"{start.step} to {last} is not within the recipe's {self.recipe.steps}")
        with _deterministic():
            self._flat.load(start.theta)
            self._optimizer.load(start.moments)
            self._advance(shard, round, index, start.step, last, torch.empty(last))
            return self._snapshot(last, copied=copied)

    def loss(self, theta: State, samples: Batch) -> float:
        """The mean loss on samples (`data.samples`)."""
        return float(self.losses(theta, samples).mean())

    def losses(self, theta: State, samples: Batch) -> Tensor:
        """The loss on each sample, float64 [n]; they are taken a batch at a time."""
        size = self.recipe.batch
        parts = list(zip(*(torch.split(tensor, size) for tensor in samples), strict=True))
        with _deterministic():
            self._flat.load(theta)
            found = self._pool.map(self._losses, parts) if self._pool else map(self._losses, parts)
            return torch.cat(list(found))

    def _losses(self, part: Batch) -> Tensor:
        with torch.no_grad(), self._precision():
            return self._model.losses(part).double()

    def outputs(self, theta: State, samples: Batch) -> Tensor:
        """The model's outputs on samples, all at once."""
        with _deterministic(), torch.no_grad(), self._precision():
            self._flat.load(theta)
            return self._model.outputs(samples)

    def _advance(self, shard: Shard, round: int, index: int, first: int, last: int, losses: Tensor) -> None:
        begin = round * self.recipe.steps
        step, gradients = self._optimizer.step, self._flat.gradients
        for at, batch in enumerate(data.batches(shard, self.recipe, round, index, first, last), first):
            gradients.zero_()
            with self._precision():
                loss = self._model.loss(batch)
            torch.autograd.backward(loss)
            with torch.no_grad():
                losses[at] = loss
                step(begin + at, at)

    def _snapshot(self, step: int, *, copied: bool = False) -> Snapshot:
        values, moments = self._flat.values, self._optimizer.moments
        if copied:
            values, moments = values.detach().clone(), {name: moment.clone() for name, moment in moments.items()}
        return Snapshot(step, self._flat.views(values), moments)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()


def train(
    recipe: Recipe,
    theta: State,
    shard: Shard,
    round: int,
    index: int,
    steps: int | None = None,
    on_step: OnStep | None = None,
    start: State | None = None,
) -> Update:
    """One round without a Trainer kept; see `Trainer.train`."""
    return Trainer(recipe, start).train(theta, shard, round, index, steps, on_step)


def segment(
    recipe: Recipe, begun: Snapshot, shard: Shard, round: int, index: int, steps: int, start: State | None = None
) -> Snapshot:
    """One segment without a Trainer kept; see `Trainer.segment`."""
    return Trainer(recipe, start).segment(begun, shard, round, index, steps)


@contextmanager
def _deterministic() -> Iterator[None]:
    """One thread and deterministic algorithms only; as it was before, afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    deterministic: Any = torch.utils.deterministic  # a module whose one setting is not declared
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    filling, deterministic.fill_uninitialized_memory = deterministic.fill_uninitialized_memory, False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        deterministic.fill_uninitialized_memory = filling
