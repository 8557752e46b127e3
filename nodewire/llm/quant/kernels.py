"""Kernels for matrices in blocks: how the blocks lie in memory, and a product with them.

PyTorch's kernel for four bits on CPUs multiplies bfloat16 with blocks of codes as they are, which is what makes
decoding faster: a step reads every weight once. Codes of eight bits go through it as two of four, the upper half under
a scale 16 times as large, one after the other along the row: the same bytes, the same numbers. What is multiplied with
inputs in eight bits goes block by block through oneDNN, where the processor adds up products of bytes without rounding.
Where neither can be used (float32, another device, odd sizes), rows are widened a few at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.quant.blocks import in_codes, unpacked, widened
from nodewire.llm.spec.quant_memory import TOGETHER, WIDENED

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Blocks

_HALF = 8
"""What the kernel takes from a code."""
_SIGN = 128
"""What makes a code of eight bits a byte without a sign, which oneDNN wants of inputs."""


class Kernel(Protocol):
    """A matrix [out, in] in blocks, filled by `put`, rows in their order."""

    NAME: str
    ROUNDS: bool
    """Whether it rounds inputs to eight bits itself."""

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        """Rows from `first` on: codes uint8 [rows, in * bits / 8], scales float32 [rows, in / size]."""

    def multiply(self, x: Tensor) -> Tensor:
        """[n, in] of any dtype to [n, out] of this kernel's own."""


class InRows:
    """Blocks as they are stored: `octets` uint8 [out, in * bits / 8], `scales` [out, in / size] of the task's dtype."""

    NAME, ROUNDS = "PyTorch, rows widened a few at a time", False

    def __init__(self, shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self._bits = shape, blocks.bits
        rows, width = shape
        self._octets = torch.empty(rows, width * blocks.bits // 8, dtype=torch.uint8, device=device)
        self._scales = torch.empty(rows, width // blocks.size, dtype=dtype, device=device)

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        self._octets[first : first + len(octets)] = octets
        self._scales[first : first + len(scales)] = scales

    def multiply(self, x: Tensor) -> Tensor:
        x = x.to(self._scales.dtype)
        step = max(1, WIDENED // self.shape[1])
        out = x.new_empty(len(x), self.shape[0])
        for first in range(0, self.shape[0], step):
            some = slice(first, first + step)
            out[:, some] = F.linear(x, widened(unpacked(self._octets[some], self._bits), self._scales[some]))
        return out


class InPanels:
    """Blocks in the kernel's layout: codes, and a scale and an addend bfloat16 for each. `put` takes whole panels."""

    NAME, ROUNDS = "PyTorch's 4 bits", False

    def __init__(self, shape: tuple[int, int], blocks: Blocks) -> None:
        self._size, self._bits = blocks.size, blocks.bits
        rows, width = shape
        halves = blocks.bits // 4
        self._codes = torch.empty(rows, width * halves // 2, dtype=torch.uint8)
        self._scales = torch.empty(width * halves // blocks.size, rows, 2, dtype=torch.bfloat16)

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        rows = slice(first, first + len(octets))
        if self._bits == 8:  # 16 (upper - 8) + (lower - 8) + 8 is the code less 128
            codes = torch.cat((octets >> 4, octets & 15), -1)
            pairs = torch.stack((scales * 16, scales * _HALF), -1), torch.stack((scales, torch.zeros_like(scales)), -1)
            both = torch.cat(pairs, 1)
        else:
            codes = torch.stack((octets & 15, octets >> 4), -1).flatten(-2)
            both = torch.stack((scales, torch.zeros_like(scales)), -1)
        self._codes[rows] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 2)
        self._scales[:, rows] = both.transpose(0, 1)

    def multiply(self, x: Tensor) -> Tensor:
        x = x.bfloat16()
        if self._bits == 8:
            x = torch.cat((x, x), -1)
        found: Tensor = torch._weight_int4pack_mm_for_cpu(x.contiguous(), self._codes, self._size, self._scales)
        return found


class InColumns:
    """Blocks of eight bits in oneDNN's layout, all rows of some neighbouring blocks together.

    `put` takes rows in their order; with the last of them they are packed.

    It knows one scale for all that it sums up, and calling it takes as long as a block or two: so inputs lie a block
    each in rows of their own, with nothing in the place of the others, and what comes out is scaled and added here.
    """

    NAME, ROUNDS = "oneDNN's bytes", True

    def __init__(self, shape: tuple[int, int], blocks: Blocks) -> None:
        self._size = blocks.size
        self._rows, width = shape
        self._count = width // blocks.size
        self._together = TOGETHER if self._count % TOGETHER == 0 else 1
        self._wide = self._together * blocks.size
        self._columns = [torch.empty(self._rows, self._wide, dtype=torch.int8) for _ in range(width // self._wide)]
        self._scales = torch.empty(self._count, self._rows)
        self._one, self._none = torch.ones(1), torch.zeros(1, dtype=torch.int32)

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        rows = slice(first, first + len(octets))
        codes = (octets ^ _SIGN).view(torch.int8).view(len(octets), -1, self._wide)
        for column, some in zip(self._columns, codes.unbind(1), strict=True):
            column[rows] = some
        self._scales[:, rows] = scales.t()
        if rows.stop == self._rows:
            for number, column in enumerate(self._columns):
                self._columns[number] = torch.ops.onednn.qlinear_prepack(column, None)

    def multiply(self, x: Tensor) -> Tensor:
        codes, scales = in_codes(x, self._size)
        products = map(self._product, self._apart(codes), self._columns)
        if len(x) == 1:  # all at once
            return torch.mv(torch.cat(list(products)).mul_(self._scales).t(), scales[0])[None]
        out = x.new_zeros(len(x), self._rows, dtype=torch.float32)
        for number, sums in enumerate(products):
            blocks = slice(number * self._together, (number + 1) * self._together)
            each = sums.view(len(x), self._together, self._rows).mul_(self._scales[blocks])
            for of, own in zip(each.unbind(1), scales[:, blocks, None].unbind(1), strict=True):
                out.addcmul_(of, own)
        return out

    def _apart(self, codes: Tensor) -> tuple[Tensor, ...]:
        """[n, blocks, size] to bytes [n * together, together * size] for each column."""
        n, groups = len(codes), len(self._columns)
        found = torch.full((groups, n, self._together, self._together, self._size), _SIGN, dtype=torch.uint8)
        octets = codes.add_(_SIGN).view(n, groups, self._together, self._size)
        torch.diagonal(found, dim1=2, dim2=3).copy_(octets.permute(1, 0, 3, 2))
        return found.view(groups, n * self._together, self._wide).unbind()

    def _product(self, octets: Tensor, column: Tensor) -> Tensor:
        """Sums of products of whole numbers, float32 [len(octets), rows]."""
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            octets, 1.0, _SIGN, column, self._one, self._none, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found
