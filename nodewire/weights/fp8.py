"""Matrices in eight-bit floats (E4M3) under scales, widened as they are read: some rows at a time.

A weight is its number times its scale, which is the whole matrix's, its row's or its block's: blocks of so many rows
and columns, of which those at the edges may be cut (https://github.com/deepseek-ai/DeepSeek-V3, inference/kernel.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.weights.tensorfile import AssembledTensor, StoredTensor, elements, read

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = 262_144
"""That are made at once, or as many as a row has."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """Rows of one matrix [rows, width] of E4M3, and its scales: one for each block of `rows` and `columns`."""

    numbers: StoredTensor
    scales: StoredTensor
    rows: int
    columns: int

    @property
    def widens(self) -> bool:
        return True

    def made(self, first: int, last: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Elements [first, last) in pieces. Raises BadTask: a file ends early."""
        width = self.numbers.shape[-1]
        across = -(-width // self.columns)
        step = max(1, _NUMBERS // width)
        for at in range(first // width, -(-last // width), step):
            to = min(at + step, -(-last // width))
            numbers = _read(self.numbers, at * width, to * width, torch.float8_e4m3fn).float().view(-1, width)
            begin, end = at // self.rows, (to - 1) // self.rows + 1
            scales = _read(self.scales, begin * across, end * across, torch.float32).view(-1, across)
            numbers *= scales[torch.arange(at, to) // self.rows - begin][:, torch.arange(width) // self.columns]
            yield numbers.to(dtype).view(-1)[max(0, first - at * width) : last - at * width]


def _read(stored: StoredTensor, first: int, last: int, dtype: torch.dtype) -> Tensor:
    return read(AssembledTensor(dtype, (last - first,), (elements(stored, first, last),)))
