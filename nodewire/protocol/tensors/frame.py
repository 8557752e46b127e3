"""A frame: tensors that travel together on one edge of a job, and the plain form they have outside of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, TypeVar

from nodewire.errors import BadFrame, TooLarge

MXINT8 = "mxint8"
"""What only travels (`protocol.tensors.mxint8`): nothing is computed in it."""
BLOCK = 32
"""Numbers of a row that share a scale in MXINT8."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1, MXINT8: 1}
"""Of one number; MXINT8 has scales besides (`bytes_of`)."""
MAX_RANK = 8
MAX_TENSORS = 64

T = TypeVar("T")
Meta = Mapping[str, int | str | bytes | bool | None]


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """The raw bytes of a tensor: a number's each, and in MXINT8 one more for every block of a row."""
    if dtype != MXINT8:
        return prod(shape) * ITEM_BYTES[dtype]
    width = shape[-1] if shape else 1
    return prod(shape[:-1]) * (-(-width // BLOCK) + width)


def check_shape(shape: Sequence[object]) -> None:
    """Raises BadFrame: rank over 8, or a dimension that is none."""
    if len(shape) > MAX_RANK:
        raise BadFrame("shape", f"rank over {MAX_RANK}")
    for n in shape:
        if type(n) is not int or not 0 <= n < 2**40:
            raise BadFrame("shape", "a dimension out of range")


def chunk_of_turn(turn: int, size: int) -> int:
    """The chunk that pays for turn `turn` of a generation: 0 is the prompt's, then one for every `size`."""
    return 1 + (turn - 1) // size if turn else 0


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor as its type and raw little-endian, row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes | bytearray

    @property
    def nbytes(self) -> int:
        return bytes_of(self.dtype, self.shape)

    def copied(self) -> Array:
        """The same in memory of its own."""
        return Array(self.dtype, self.shape, bytes(self.data))

    def check(self, max_bytes: int) -> None:
        """Check that dtype, shape and data agree and stay under `max_bytes`.

        Raises:
            BadFrame: unknown dtype, rank over 8, a negative dimension, or data of another length.
            TooLarge: more than `max_bytes`.

        """
        if self.dtype not in ITEM_BYTES:
            raise BadFrame("dtype", f"{self.dtype[:20]!r} is not one of {', '.join(ITEM_BYTES)}")
        check_shape(self.shape)
        nbytes = bytes_of(self.dtype, self.shape)
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
