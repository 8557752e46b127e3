"""Matrices [out, in] that layers multiply with: plain tensors, or blocks that stay so in memory.

PyTorch's kernel for four bits on CPUs multiplies bfloat16 with blocks of codes as they are, which is what makes
decoding faster: a step reads every weight once. Codes of eight bits go through it as two of four, the upper half under
a scale 16 times as large, one after the other along the row: the same bytes, the same numbers. Where it cannot be used
(float32, another device, odd sizes), rows are widened a few at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.config import Blocks
from nodewire.llm.quant.rounding import activations, unpacked, widened
from nodewire.llm.quant.sizes import WIDENED, in_panels

_HALF = 8
"""What the kernel takes from a code."""


class InRows:
    """Blocks as they are stored: `octets` uint8 [out, in * bits / 8], `scales` [out, in / size] of x's dtype."""

    def __init__(self, shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self._bits = shape, blocks.bits
        rows, width = shape
        self._octets = torch.empty(rows, width * blocks.bits // 8, dtype=torch.uint8, device=device)
        self._scales = torch.empty(rows, width // blocks.size, dtype=dtype, device=device)

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        self._octets[first : first + len(octets)] = octets
        self._scales[first : first + len(scales)] = scales

    def multiply(self, x: Tensor) -> Tensor:
        step = max(1, WIDENED // self.shape[1])
        out = x.new_empty(len(x), self.shape[0])
        for first in range(0, self.shape[0], step):
            some = slice(first, first + step)
            out[:, some] = F.linear(x, widened(unpacked(self._octets[some], self._bits), self._scales[some]))
        return out


class InPanels:
    """Blocks in the kernel's layout: codes, and a scale and an addend bfloat16 for each. `put` takes whole panels."""

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
        if self._bits == 8:
            x = torch.cat((x, x), -1)
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self._codes, self._size, self._scales
        )
        return found


class InBlocks:
    """A matrix in blocks: what `linear` takes besides tensors."""

    def __init__(self, shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.blocks = shape, blocks
        fits = device.type == "cpu" and in_panels(shape[0], blocks, dtype.itemsize)
        self.kept = InPanels(shape, blocks) if fits else InRows(shape, blocks, dtype, device)
        self.put = self.kept.put

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.blocks.scheme == "w8a8":
            x = activations(x, self.blocks.size)
        out = self.kept.multiply(x)
        return out if bias is None else out.add_(bias)


Matrix = Tensor | InBlocks


def linear(x: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """[n, in] to [n, out]."""
    return F.linear(x, matrix, bias) if isinstance(matrix, Tensor) else matrix.linear(x, bias)
