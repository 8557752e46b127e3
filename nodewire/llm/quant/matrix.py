"""Matrices [out, in] that layers multiply with: plain tensors, or blocks that stay so in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.quant.blocks import activations
from nodewire.llm.quant.kernel_choice import kernel
from nodewire.llm.quant.row_product import Row

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Blocks


class BlockMatrix:
    """A matrix in blocks: what `linear` takes besides tensors. `alone` is as `kernel_choice.kernel` has it."""

    def __init__(
        self, shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device, *, alone: bool = False
    ) -> None:
        self.shape, self.blocks = shape, blocks
        self.kept = kernel(shape, blocks, dtype, device, alone=alone)
        self.put = self.kept.put

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[n, in] to [n, out] of x's dtype."""
        out = self.product(x).to(x.dtype)
        return out if bias is None else out.add_(bias)

    def product(self, x: Tensor) -> Tensor:
        """[n, in] to [n, out] of the kernel's own dtype."""
        rounds = self.blocks.rounds_inputs and not self.kept.ROUNDS
        return self.kept.multiply(activations(x, self.blocks.size) if rounds else x)


Matrix = Tensor | BlockMatrix


def kernel_of(role: str, one: object) -> tuple[str, str] | None:
    """A layer's matrix by role and shape, and what multiplies with it; None of what is no matrix."""
    if isinstance(one, list):
        one = one[0]
    if isinstance(one, BlockMatrix):
        return f"{role} {list(one.shape)}", one.kept.NAME
    if isinstance(one, Tensor) and one.ndim == 2:
        return f"{role} {list(one.shape)}", Row(one).name
    return None


def linear(x: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """[n, in] to [n, out]."""
    return F.linear(x, matrix, bias) if isinstance(matrix, Tensor) else matrix.linear(x, bias)
