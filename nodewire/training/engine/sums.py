"""Sums that come out alike on every machine: float64, folded in halves.

A library's sum adds in the order that its vector width suggests. These add element by element (x[:n] + x[n:], then
again), which IEEE 754 fixes, so norms and what is derived from them are the same bits wherever they are computed.
"""

from __future__ import annotations

from math import fsum, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.training.engine.state import State

PIECE = 1 << 18
"""Elements that are brought to float64 at a time."""


def fold(values: Tensor) -> Tensor:
    """The sums over the last dimension [..., n] -> [...]; 0 for n = 0."""
    if not values.shape[-1]:
        return values.new_zeros(values.shape[:-1])
    while (n := values.shape[-1]) > 1:
        half = n // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        values = torch.cat([folded, values[..., 2 * half :]], -1) if n % 2 else folded
    return values[..., 0]


def dot(a: State, b: State) -> float:
    """The inner product of two states of the same names and shapes."""
    return fsum(float(fold(x.double() * y.double())) for name in a for x, y in _pieces(a[name], b[name]))


def norm(state: State) -> float:
    """The L2 norm of a state."""
    return sqrt(dot(state, state))


def distance(a: State, b: State) -> float:
    """The L2 norm of a - b."""
    return sqrt(
        fsum(float(fold((x.double() - y.double()).square())) for name in a for x, y in _pieces(a[name], b[name]))
    )


def _pieces(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a.reshape(-1), PIECE), torch.split(b.reshape(-1), PIECE), strict=True)
