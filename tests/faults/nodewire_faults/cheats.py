"""What is done to an honest actor's outputs. Pure: frames in, frames out; integers (tokens) are left as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from nodewire.protocol.frame import Frame

NOISE = 0.05
Tensors = Frame[torch.Tensor]


class Cheat(Protocol):
    """One session's cheat."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        """What is sent instead of `out`, the honest answer to `taken`; same edge, seq, dtypes and shapes."""


class Wrong:
    """Random numbers of the honest answer's mean and spread."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(1)

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        def noise(x: torch.Tensor) -> torch.Tensor:
            y = x.float()
            return y.mean() + _spread(y) * torch.randn(y.shape, generator=self._random)

        return _each(out, noise)


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
        return _each(out, lambda x: _like(x, [t for t in taken.tensors if t.is_floating_point()]))


class Stale:
    """The answer before, on the same edge; the first one is honest."""

    def __init__(self) -> None:
        self._last: dict[str, Tensors] = {}

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        before = self._last.get(out.edge)
        self._last[out.edge] = out
        return out if before is None else _each(out, lambda x: _like(x, list(before.tensors)))


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


class Honest:
    """What `other` does to outputs: its weights have been exchanged, they need no corruption."""

    def corrupt(self, taken: Tensors, out: Tensors) -> Tensors:
        return out


def _each(out: Tensors, change) -> Tensors:  # type: ignore[no-untyped-def]
    return replace(
        out, tensors=tuple(change(x).to(x.dtype).contiguous() if x.is_floating_point() else x for x in out.tensors)
    )


def _like(x: torch.Tensor, sources: list[torch.Tensor]) -> torch.Tensor:
    """The last positions of the first source that has `x`'s form but for the number of positions; else zeros."""
    for source in sources:
        if source.shape == x.shape:
            return source.clone()
        if x.ndim == source.ndim == 3 and x.shape[::2] == source.shape[::2] and source.shape[1] > x.shape[1]:
            return source[:, -x.shape[1] :].clone()
    return torch.zeros_like(x)


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x.std() if x.numel() > 1 else x.abs().mean()
