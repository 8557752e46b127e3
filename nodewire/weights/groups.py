"""Matrices of whole numbers as GPTQ and AWQ store them, made as they are read: some rows at a time.

Numbers of a row share a scale and a zero in groups: a weight is (code - zero) scale. All lies in columns, codes of 4 or
8 bits in words of 32: GPTQ's hold numbers of one row (https://github.com/AutoGPTQ/AutoGPTQ,
auto_gptq/nn_modules/qlinear), AWQ's numbers of eight rows, in an order of their own
(https://github.com/casper-hansen/AutoAWQ, awq/modules/linear/gemm.py); zeros lie as AWQ's codes do, in GPTQ in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nodewire.errors import BadTask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.weights.tensorfile import StoredTensor

_NUMBERS = 262_144
"""That are made at once, or as many as 32 rows have."""
_WORD = 32
_FITS = {"int8": (-128, 127), "int4": (-8, 7)}

Form = Literal["numbers", "int8", "int4", "scales"]


class Layout(NamedTuple):
    """How codes lie.

    `down`: a word's are of one row, else of neighbour rows. `order`: which of its rows each code of a word is of, the
    lowest first. `less`: what zeros are less than what is meant.
    """

    down: bool
    order: tuple[int, ...] | None = None
    less: int = 0


LAYOUTS = {
    "gptq": Layout(down=True, less=1),
    "gptq_v2": Layout(down=True),
    "awq": Layout(down=False, order=(0, 2, 4, 6, 1, 3, 5, 7)),
}


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """One matrix [rows, width]. `name` is the module's; `group` numbers of a row share a scale.

    `columns` says of each number of a row its group; without it they are in turn.
    """

    name: str
    layout: Layout
    bits: int
    rows: int
    width: int
    group: int
    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    columns: StoredTensor | None = None
    form: Form = "numbers"

    @property
    def widens(self) -> bool:
        return self.form == "numbers"

    @property
    def out(self) -> int:
        """Elements that are made of a row."""
        return {"numbers": self.width, "int8": self.width // 4, "int4": self.width // 8}.get(
            self.form, self.width // self.group
        )

    def made(self, first: int, last: int, dtype: torch.dtype) -> Iterator[Tensor]:
        """Elements [first, last) of what is made of all rows, in pieces.

        Raises:
            BadTask: a file ends early, a column's group is none, or numbers are not what they were said to be.

        """
        out, unit = self.out, _WORD // self.bits
        begin, end = first // out // unit * unit, -(-last // out // unit) * unit
        step = max(1, _NUMBERS // self.width // _WORD) * _WORD
        for at in range(begin, end, step):
            made = self._made(at, min(at + step, end), dtype)
            yield made.reshape(-1)[max(0, first - at * out) : last - at * out]

    def _made(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        scales = _columns(self.scales, first, last)
        if self.form == "scales":
            return scales.T.contiguous().to(dtype)
        groups = self._groups()
        numbers = self._codes(first, last).sub_(self._zeros(first, last)[groups])
        if self.form == "numbers":
            return (numbers.float() * scales.float()[groups]).T.to(dtype).contiguous()
        least, most = _FITS[self.form]
        if int(numbers.min()) < least or int(numbers.max()) > most:
            raise BadTask(
                f"weights.{self.name}.qzeros",
                "not in the middle everywhere, as a symmetric checkpoint has it: let quantization_config say "
                '"sym": false',
            )
        octets = (numbers.T - least).to(torch.uint8)
        if self.form == "int4":
            octets = octets[:, ::2] | octets[:, 1::2] << 4
        return octets.contiguous().view(dtype)

    def _codes(self, first: int, last: int) -> Tensor:
        """int16 [width, last - first]."""
        if self.layout.down:
            words = _columns(self.codes, first, last)
            return _unpacked(words, self.bits).transpose(1, 2).reshape(self.width, -1)
        return self._across(self.codes, first, last)

    def _zeros(self, first: int, last: int) -> Tensor:
        """int16 [groups, last - first]."""
        return (self._across(self.zeros, first, last) + self.layout.less) & (1 << self.bits) - 1

    def _across(self, stored: StoredTensor, first: int, last: int) -> Tensor:
        """Of words that hold numbers of neighbour rows: int16 [n, last - first]."""
        each = _WORD // self.bits
        found = _unpacked(_columns(stored, first // each, last // each), self.bits)
        if self.layout.order is not None:
            place = torch.tensor(self.layout.order).argsort()
            found = found[..., place]
        return found.flatten(1)

    def _groups(self) -> Tensor:
        """Of each number of a row its group, int64 [width]."""
        in_turn = torch.arange(self.width) // self.group
        if self.columns is None:
            return in_turn
        found = _columns(self.columns, 0, 1).view(-1).long()
        count = -(-self.width // self.group)
        if int(found.min()) < 0 or int(found.max()) >= count:
            wrong = int(found[(found < 0) | (found >= count)][0])
            raise BadTask(f"weights.{self.name}.g_idx", f"group {wrong} of {count}: the file is damaged; take it anew")
        if self.form != "numbers" and not torch.equal(found, in_turn):
            raise BadTask(
                f"weights.{self.name}.g_idx",
                'columns are not in turn, which "desc_act": true in quantization_config says: let it say so',
            )
        return found


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 [n, m] to int16 [n, m, 32 / bits], the lowest bits first."""
    octets = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    if bits == 4:
        octets = torch.stack((octets & 15, octets >> 4), -1).flatten(-2)
    return octets.short()


def _columns(stored: StoredTensor, first: int, last: int) -> Tensor:
    """Columns [first, last) of a stored matrix; of a vector it is one. Raises BadTask: the file ends early."""
    rows = stored.shape[0]
    across = prod(stored.shape[1:])
    item = stored.nbytes // (rows * across)
    data: np.ndarray[Any, np.dtype[np.uint8]] = np.empty((rows, (last - first) * item), np.uint8)
    whole = last - first == across
    with stored.path.open("rb", buffering=0) as file:
        for number, target in enumerate([data.reshape(-1)] if whole else data):
            file.seek(stored.start + (number * across + first) * item)
            if file.readinto(target.data) != target.nbytes:
                raise BadTask("weights", "the file ends within a tensor")
    return torch.from_numpy(data).view(_TYPES[stored.dtype])


_TYPES = {"I32": torch.int32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
