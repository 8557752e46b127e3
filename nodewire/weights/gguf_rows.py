"""Tensors as tasks know them, made of a GGUF file's rows: some rows at a time, when they are read.

Blocks of ggml (https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.h) are widened by the `gguf` library, or
kept: those of Q8_0, Q5_0 and Q4_0 are whole numbers under one scale, 32 of a row together, as tasks have them
(nodewire.llm.quant); those of MXFP4 hold the same bytes in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from nodewire.core import extras
from nodewire.errors import BadTask
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF
from nodewire.weights.derived_tensors import DerivedTensor
from nodewire.weights.tensorfile import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.gguf.header import TensorEntry

KEPT = {"Q8_0": 8, "Q5_0": 8, "Q4_0": 4}
"""The types whose numbers are whole ones under a scale, and in how many bits they fit."""
GROUP = 32
"""Numbers to a block of those, and of MXFP4."""
_NUMBERS = 262_144
"""That are made at once, or as many as a head's rows have."""
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Octets = np.ndarray[Any, np.dtype[np.uint8]]
Form = Literal["numbers", "int8", "int4", "scales", "mxfp4", "mxfp4_scales"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one tensor, or of several in turn: the first of each, the second of each.

    `width`: numbers of a row. `first`: the row that is the first. `head`: if above 0 rows come in heads of so many, in
    which those that turn together lie beside each other, and are put half a head apart. `less_one`: of numbers.
    """

    sources: tuple[TensorEntry, ...]
    width: int
    form: Form = "numbers"
    first: int = 0
    head: int = 0
    less_one: bool = False

    @property
    def out(self) -> int:
        """Elements that are made of a row."""
        return {
            "numbers": self.width,
            "int8": self.width // 4,
            "int4": self.width // 8,
            "mxfp4": self.width // 2,
        }.get(self.form, self.width // GROUP)

    @property
    def widens(self) -> bool:
        return self.form == "numbers" and self.sources[0].type.name not in _PLAIN

    def made(self, first: int, last: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Elements [first, last) of what is made of all rows, in pieces. Raises BadTask: a file ends early."""
        out, group = self.out, self.head or len(self.sources)
        begin, end = first // out // group * group, ((last - 1) // out // group + 1) * group
        step = max(1, _NUMBERS // self.width // group) * group
        for at in range(begin, end, step):
            rows = self._decoded(self._read(at, min(at + step, end)), dtype).view(-1)
            yield rows[max(0, first - at * out) : last - at * out]

    def _read(self, first: int, last: int) -> Octets:
        """Rows as they are stored, in the order that they are wanted in: [last - first, bytes]."""
        turns = len(self.sources)
        parts = [_bytes(one, self.width, self.first + first // turns, (last - first) // turns) for one in self.sources]
        octets = parts[0] if turns == 1 else np.stack(parts, 1)
        if self.head:
            octets = octets.reshape(-1, self.head // 2, 2, octets.shape[-1]).swapaxes(1, 2)
        return octets.reshape(last - first, -1)

    def _decoded(self, octets: Octets, dtype: torch.dtype) -> Tensor:
        type_ = self.sources[0].type
        if self.form == "numbers":
            numbers = _widened(octets, type_.name, self.width)
            return (numbers - 1 if self.less_one else numbers).to(dtype)
        blocks = octets.reshape(-1, type_.nbytes)
        if self.form == "scales":
            made: np.ndarray[Any, Any] = blocks[:, :2]
        elif self.form == "mxfp4_scales":
            made = blocks[:, :1]
        elif self.form == "mxfp4":
            made = _paired(_halves(blocks[:, 1:]))
        elif self.form == "int4":
            made = _paired(_halves(blocks[:, 2:]))
        else:
            made = _in_octets(blocks, type_.name)
        return torch.from_numpy(np.ascontiguousarray(made)).view(-1).view(dtype)


def drawn(rows: Rows, shape: tuple[int, ...], dtype: str = "float32") -> StoredTensor:
    """What is made of `rows`, of `dtype` if it is numbers; a stretch of the file where that is all that they are."""
    source = rows.sources[0]
    name = {"int8": "int32", "int4": "int32", "scales": "float16"}.get(rows.form, "uint8")
    if rows.form == "numbers":
        kept = _PLAIN.get(source.type.name)
        name = dtype if kept is None else str(kept).removeprefix("torch.")
        if kept is not None and not (rows.head or rows.less_one or len(rows.sources) > 1):
            item = kept.itemsize
            return StoredTensor(
                source.path, name, shape, source.start + rows.first * rows.width * item, prod(shape) * item
            )
        if rows.less_one:
            name = "float32"
    nbytes = prod(shape) * cast("torch.dtype", getattr(torch, name)).itemsize
    return DerivedTensor(source.path, name if name in DTYPES else CODE_OF[name], shape, 0, nbytes, rows)


def check_library(sources: tuple[TensorEntry, ...]) -> None:
    """Raises BadConfig: there are blocks to be widened, and the library that does it is not installed."""
    if any(one.type.name not in _PLAIN for one in sources):
        extras.check("gguf")


def _bytes(source: TensorEntry, width: int, first: int, count: int) -> Octets:
    row = width // source.type.size * source.type.nbytes
    data = np.empty((count, row), np.uint8)
    with source.path.open("rb") as file:
        file.seek(source.start + first * row)
        if file.readinto(data.reshape(-1).data) != data.nbytes:
            raise BadTask("weights", "the file ends within a tensor")
    return data


def _widened(octets: Octets, name: str, width: int) -> Tensor:
    if (plain := _PLAIN.get(name)) is not None:
        return torch.from_numpy(np.ascontiguousarray(octets)).view(plain).float()
    from gguf import GGMLQuantizationType, quants

    # In one row: the library goes through rows in Python.
    with np.errstate(over="ignore", invalid="ignore"):  # who reads them refuses what is not finite
        numbers = quants.dequantize(np.ascontiguousarray(octets).reshape(1, -1), GGMLQuantizationType[name])
    return torch.from_numpy(numbers).view(-1, width)


def _halves(octets: Octets) -> Octets:
    """[n, 16] to the codes that they hold, [n, 32]: the lower halves of all, then the upper ones."""
    return np.concatenate((octets & np.uint8(15), octets >> np.uint8(4)), 1)


def _paired(codes: Octets) -> Octets:
    """[n, 32] to [n, 16]: neighbours in one byte, the first in the lower half."""
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4)


def _in_octets(blocks: Octets, name: str) -> Octets:
    """Codes plus 128, [n, 32]."""
    if name == "Q8_0":
        return blocks[:, 2:] ^ np.uint8(128)
    if name == "Q4_0":
        return _halves(blocks[:, 2:]) + np.uint8(128 - 8)
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    return (_halves(blocks[:, 6:]) | fifth << np.uint8(4)) + np.uint8(128 - 16)
