"""What is done to an honest actor's outputs: frames in, frames out.

Integers are left as they are, tokens for one, unless a frame holds nothing else and the cheat is said to change them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from nodewire.protocol.tensors.frame import Frame

NOISE = 0.05
Tensors = Frame[torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


class Cheat(Protocol):
    """One session's cheat."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        """What is sent instead of `out`, the honest answer to `taken`; same edge, seq, dtypes and, but for `Short`,
        shapes."""


class Wrong:
    """Random numbers of the honest answer's mean and spread; integers in another order."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(1)

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        def noise(x: torch.Tensor) -> torch.Tensor:
            y = x.float()
            return y.mean() + _spread(y) * torch.randn(y.shape, generator=self._random)

        return _each(out, noise) if _has_floats(out) else _every(out, lambda x: x.roll(1, -1) if x.ndim else x)


class Scaled:
    """The honest answer with noise of `part` times its spread."""

    def __init__(self, part: float = NOISE) -> None:
        self._part = part
        self._random = torch.Generator().manual_seed(2)

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        def noisy(x: torch.Tensor) -> torch.Tensor:
            y = x.float()
            return y + self._part * _spread(y) * torch.randn(y.shape, generator=self._random)

        return _each(out, noisy)


class Skipped:
    """The input, as if the task's layers were not there; zeros where the input has no such form."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        sources = [t for t in taken.tensors if t.is_floating_point()]

        def skipped(x: torch.Tensor) -> torch.Tensor:
            fitting = _fitting(x, sources)
            return torch.zeros_like(x) if fitting is None else fitting

        return _each(out, skipped)


class Stale:
    """The answer before on the same edge, of whatever session; honest as long as there is none of such a form."""

    def __init__(self, answers: dict[str, list[Tensors]] | None = None) -> None:
        """`answers`: what sessions share, by edge: the newest answer of each form, the newest last."""
        self._answers = {} if answers is None else answers

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        before = self._answers.get(out.edge, [])
        self._answers[out.edge] = [*(one for one in before if _forms(one) != _forms(out)), out]
        sources = [tensor for one in reversed(before) for tensor in one.tensors]

        def stale(x: torch.Tensor) -> torch.Tensor:
            fitting = _fitting(x, [t for t in sources if t.dtype == x.dtype])
            return x if fitting is None else fitting

        return _each(out, stale) if _has_floats(out) else _every(out, stale)


class Flipped:
    """The honest answer with the sign of `count` channels changed: always the same ones, evenly spread."""

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        def flipped(x: torch.Tensor) -> torch.Tensor:
            width = x.shape[-1]
            y = x.clone()
            y[..., [width * (2 * k + 1) // (2 * self._count) for k in range(min(self._count, width))]] *= -1
            return y

        return _each(out, flipped)


class Nan:
    """Numbers that are none; integers, where there is nothing else, beyond every table."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        nothing = _each(out, lambda x: torch.full_like(x, float("nan")))
        return nothing if _has_floats(out) else _every(out, lambda x: torch.full_like(x, torch.iinfo(x.dtype).max))


class Short:
    """The honest answer without its last row, which others' indices count on."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        return _every(out, lambda x: x[:-1] if x.ndim else x)


class Misquoted:
    """A driver's honest token, beside which it says another text."""

    TEXT = "pay to bc1thief"

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        return replace(out, meta={**out.meta, "text": self.TEXT}) if "end" in out.meta else out


class Honest:
    """What `other` does to outputs: its weights have been exchanged, they need no corruption."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        return out


def _each(out: Tensors, change: Change) -> Tensors:
    """Every tensor of numbers that are not integers, changed."""
    return _every(out, lambda x: change(x) if x.is_floating_point() else x)


def _every(out: Tensors, change: Change) -> Tensors:
    return replace(out, tensors=tuple(change(x).to(x.dtype).contiguous() for x in out.tensors))


def _has_floats(out: Tensors) -> bool:
    return any(x.is_floating_point() for x in out.tensors)


def _forms(out: Tensors) -> list[torch.Size]:
    return [x.shape for x in out.tensors]


def _fitting(x: torch.Tensor, sources: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The first source of `x`'s form; else the last positions of the first that only has more of them."""
    for source in sources:
        if source.shape == x.shape:
            return source.clone()
    for source in sources:
        if x.ndim == source.ndim == 3 and x.shape[::2] == source.shape[::2] and source.shape[1] > x.shape[1]:
            return source[:, -x.shape[1] :].clone()
    return None


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x.std() if x.numel() > 1 else x.abs().mean()
