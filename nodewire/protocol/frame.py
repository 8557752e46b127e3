"""A frame: tensors that travel together on one edge of a job, and the plain form they have outside of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Generic, TypeVar

from nodewire.errors import BadFrame, TooLarge

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
MAX_RANK = 8
MAX_TENSORS = 64

T = TypeVar("T")
Meta = Mapping[str, int | str | bytes | bool | None]


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor as its type and raw little-endian, row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes | bytearray

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def check(self, max_bytes: int) -> None:
        """Check that dtype, shape and data agree and stay under `max_bytes`.

        Raises:
            BadFrame: unknown dtype, rank over 8, a negative dimension, or data of another length.
            TooLarge: more than `max_bytes`.
        """
        if self.dtype not in ITEM_BYTES:
            raise BadFrame("dtype", f"{self.dtype[:20]!r} is not one of {', '.join(ITEM_BYTES)}")
        if len(self.shape) > MAX_RANK or [n for n in self.shape if type(n) is not int or not 0 <= n < 2**40]:
            raise BadFrame("shape", f"rank over {MAX_RANK} or a dimension out of range")
        nbytes = self.nbytes
        if nbytes > max_bytes:
            raise TooLarge("tensor", f"{nbytes} bytes, at most {max_bytes}")
        if nbytes != len(self.data):
            raise BadFrame("shape", f"says {nbytes} bytes, {len(self.data)} came")


@dataclass(frozen=True, slots=True)
class Frame(Generic[T]):
    """`tensors` (arrays in the daemon, torch tensors in the worker) are the `seq`-th on `edge`.

    `meta` is small: `pos` (first position), `chunk` (which payment covers it), `end` (nothing follows), `text` ...
    """

    edge: str
    seq: int
    tensors: tuple[T, ...] = ()
    meta: Meta = field(default_factory=dict)
