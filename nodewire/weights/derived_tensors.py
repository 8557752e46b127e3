"""Tensors that are made as they are read, of what a file holds in another form: some rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from nodewire.weights.tensorfile import CODES, DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

READING_BYTES = 16 * 1_048_576
"""What it takes besides what is made: rows as they are stored, and numbers between; measured 7 MB of GGUF's blocks,
10 MB of what is packed in columns."""


class Source(Protocol):
    """What a tensor is made of."""

    @property
    def widens(self) -> bool:
        """Whether numbers are made of blocks, which can be of any dtype."""

    def made(self, first: int, last: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Elements [first, last) in pieces. Raises BadTask: a file ends early, or what it says fits no tensor."""


@dataclass(frozen=True, slots=True)
class DerivedTensor(StoredTensor):
    """A tensor that is made of `rows` as it is read."""

    rows: Source

    def octets(self) -> Iterator[memoryview]:
        dtype = DTYPES.get(self.dtype) or next(one for one, code in CODES.items() if code == self.dtype)
        item = dtype.itemsize
        for made in self.rows.made(self.start // item, (self.start + self.nbytes) // item, dtype):
            yield memoryview(made.view(torch.uint8).numpy().data)


def is_widened(stored: StoredTensor) -> bool:
    """Whether it is numbers that are made of blocks, so of few bits."""
    return isinstance(stored, DerivedTensor) and stored.rows.widens


def widened_to(stored: StoredTensor, dtype: str) -> StoredTensor:
    """The same, of `dtype`, where it is numbers that are made of blocks."""
    if not is_widened(stored):
        return stored
    return replace(stored, dtype=dtype, nbytes=prod(stored.shape) * DTYPES[dtype].itemsize)
