"""Inner optimizers over one flat buffer: SGD, AdamW, Muon. A step is a handful of operations, whatever the model.

The buffer holds matrices before vectors (and, for Muon, hidden matrices before those), each group in the family's
order, so that decay and orthogonalization apply to a leading stretch. Moments are flat, in the same order, and
start at zero: they are all of an optimizer's state beside theta and the step's number.
"""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.training.engine.families import hidden_matrices

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of Muon's five iterations (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/)."""


class Flat:
    """What is trained, in one float32 buffer: `values`, `gradients`, and views of both by name."""

    def __init__(self, recipe: Recipe) -> None:
        shapes = recipe.shapes()
        hidden = hidden_matrices(recipe) if recipe.inner.optimizer == "muon" else {}
        order = sorted(shapes, key=lambda name: (name not in hidden, len(shapes[name]) < 2))
        sizes = [prod(shapes[name]) for name in order]
        self.hidden = sum(prod(shape) for shape in hidden.values())
        """Numbers that Muon orthogonalizes."""
        self.decayed = sum(size for name, size in zip(order, sizes, strict=True) if len(shapes[name]) > 1)
        """Numbers that decay: those of matrices."""
        self.values = torch.zeros(sum(sizes))
        self.gradients = torch.zeros(sum(sizes))
        self._shapes = {name: shapes[name] for name in order}
        self._family_order = list(shapes)
        self.parameters = self.views(self.values)
        """Leaves of autograd that share the buffer, in the family's order; backward adds to `gradients`."""
        gradients = self.views(self.gradients)
        for name, parameter in self.parameters.items():
            parameter.requires_grad_().grad = gradients[name]
        self.matrices = [name for name in order if name in hidden]

    def views(self, flat: Tensor) -> State:
        """A flat tensor in the buffer's order as tensors by name, in the family's order."""
        parts = torch.split(flat.detach(), [prod(shape) for shape in self._shapes.values()])
        named = {n: part.view(shape) for (n, shape), part in zip(self._shapes.items(), parts, strict=True)}
        return {name: named[name] for name in self._family_order}

    def load(self, state: State) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[name])


class Optimizer:
    """Steps on a Flat by the recipe's inner optimizer. `moments` are flat tensors by name: read them, or load them."""

    def __init__(self, recipe: Recipe, flat: Flat) -> None:
        inner = recipe.inner
        self._flat, self._inner, self._schedule = flat, inner, schedule(recipe)
        self._clip = float(inner.clip)
        self._momentum, self._decay = float(inner.momentum), float(inner.weight_decay)
        self._betas, self._eps = (float(inner.betas[0]), float(inner.betas[1])), float(inner.eps)
        size, hidden = flat.values.numel(), flat.hidden
        self.moments: dict[str, Tensor] = {}
        match inner.optimizer:
            case "sgd":
                self._step: Callable[[float, int], None] = self._sgd
                if self._momentum:
                    self.moments = {"momentum": torch.zeros(size)}
            case "adamw":
                self._step = self._adamw
                self.moments = {"first": torch.zeros(size), "second": torch.zeros(size)}
            case "muon":
                self._step = self._muon
                rest = size - hidden
                self.moments = {
                    "momentum": torch.zeros(hidden),
                    "first": torch.zeros(rest),
                    "second": torch.zeros(rest),
                }

    def load(self, moments: dict[str, Tensor] | None) -> None:
        """Moments as they were, or zeros for a round's beginning."""
        for name, moment in self.moments.items():
            moment.zero_() if moments is None else moment.copy_(moments[name])

    def step(self, global_step: int, step: int) -> None:
        """One step by `flat.gradients`; `step` counts from 0 within the round, for Adam's bias correction."""
        gradients = self._flat.gradients
        if self._clip:
            norm = torch.linalg.vector_norm(gradients)
            gradients.mul_((self._clip / (norm + 1e-6)).clamp_(max=1.0))
        rising = min(1.0, (step + 1) / self._inner.rise) if self._inner.rise else 1.0
        self._step(self._schedule(global_step) * rising, step)

    def _sgd(self, scale: float, step: int) -> None:
        values, gradients, lr = self._flat.values, self._flat.gradients, float(self._inner.lr) * scale
        if self._decay:
            values[: self._flat.decayed].mul_(1 - lr * self._decay)
        if self._momentum:
            momentum = self.moments["momentum"].mul_(self._momentum).add_(gradients)
            gradients = gradients.add_(momentum, alpha=self._momentum) if self._inner.nesterov else momentum
        values.add_(gradients, alpha=-lr)

    def _adamw(self, scale: float, step: int) -> None:
        self._adam(self._flat.values, self._flat.gradients, float(self._inner.lr) * scale, step, self._flat.decayed)

    def _adam(self, values: Tensor, gradients: Tensor, lr: float, step: int, decayed: int) -> None:
        b1, b2 = self._betas
        first, second = self.moments["first"], self.moments["second"]
        if self._decay:
            values[:decayed].mul_(1 - lr * self._decay)
        first.lerp_(gradients, 1 - b1)
        second.mul_(b2).addcmul_(gradients, gradients, value=1 - b2)
        size = lr / (1 - b1 ** (step + 1))
        divisor = torch.sqrt(second, out=gradients).div_(math.sqrt(1 - b2 ** (step + 1))).add_(self._eps)
        values.addcdiv_(first, divisor, value=-size)

    def _muon(self, scale: float, step: int) -> None:
        flat, hidden, lr = self._flat, self._flat.hidden, float(self._inner.lr) * scale
        momentum = self.moments["momentum"].mul_(self._momentum).add_(flat.gradients[:hidden])
        ways = flat.gradients[:hidden]
        if self._inner.nesterov:
            ways.add_(momentum, alpha=self._momentum)
        else:
            ways.copy_(momentum)
        if self._decay:
            flat.values[:hidden].mul_(1 - lr * self._decay)
        at = 0
        for name in flat.matrices:
            parameter = flat.parameters[name]
            way = ways[at : at + parameter.numel()].view_as(parameter)
            stretch = math.sqrt(max(1.0, parameter.shape[0] / parameter.shape[1]))
            parameter.add_(orthogonal(way), alpha=-lr * stretch)
            at += parameter.numel()
        rate = float(self._inner.rest_lr) * scale
        self._adam(flat.values[hidden:], flat.gradients[hidden:], rate, step, flat.decayed - hidden)


def orthogonal(matrix: Tensor) -> Tensor:
    """About U V^T of a matrix U S V^T, float32, by Newton-Schulz."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (torch.linalg.vector_norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        square = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, square, x, beta=a)
        del square  # before the next one takes its room
    return x.T if tall else x


def schedule(recipe: Recipe) -> Callable[[int], float]:
    """The learning rate's factor at a global step: up over `warmup` steps, then down to `floor` at the last one."""
    inner, total = recipe.inner, recipe.total_steps()
    warmup, floor, kind = inner.warmup, float(inner.floor), inner.schedule

    def factor(step: int) -> float:
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        if kind == "constant":
            return rising
        done = min(1.0, max(0, step - warmup) / max(1, total - warmup))
        left = (1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1 - done
        return rising * (floor + (1 - floor) * left)

    return factor
