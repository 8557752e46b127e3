"""MXINT8: numbers of a row in blocks of 32 codes of one byte, under scales that are powers of two.

The layout and its numbers: `nodewire.protocol.tensors.mxint8`. What travels on a narrowed edge is written here, and
what a stage's lanes keep of keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.protocol.tensors.frame import BLOCK
from nodewire.protocol.tensors.mxint8 import LEAST_SCALE, LIMIT, STEP

_MANTISSA_BITS = 23
_INVERSE = 254 + STEP
"""The biased exponent of 1 / 2^e is 254 less that of 2^e."""


def row_bytes(width: int) -> int:
    """Of a row of so many numbers."""
    return -(-width // BLOCK) + width


def narrowed(rows: Tensor) -> Tensor:
    """Floating rows [..., width] as uint8 [..., row_bytes(width)].

    Of a block with numbers that are not finite no code says anything: who may have such looks before.
    """
    width = rows.shape[-1]
    matrix = _blocks(rows.float(), width)
    scales = matrix.abs().amax(-1).view(torch.int32) >> _MANTISSA_BITS
    scales = torch.where(scales < LEAST_SCALE, 0, scales)
    units = torch.where(scales == 0, 0, (_INVERSE - scales) << _MANTISSA_BITS).view(torch.float32)
    # Times a power of two is exact; only the rounding loses. 127.5 and more would round to 128.
    codes = (matrix * units[..., None]).round_().clamp_(-LIMIT, LIMIT).to(torch.int8)
    return torch.cat((scales.to(torch.uint8), codes.flatten(-2)[..., :width].view(torch.uint8)), -1)


def widened(raw: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """The rows [..., width] in float32 or bfloat16, which both hold every such number."""
    blocks = -(-width // BLOCK)
    scales = raw[..., :blocks].int()
    units = torch.where(scales == 0, 0, (scales - STEP) << _MANTISSA_BITS).view(torch.float32).to(dtype)
    matrix = _blocks(raw[..., blocks:].view(torch.int8).to(dtype), width).mul_(units[..., None])
    return matrix.flatten(-2)[..., :width]


def _blocks(rows: Tensor, width: int) -> Tensor:
    """[..., width] as [..., blocks, BLOCK], the last one filled up; not copied where nothing is to be filled."""
    if width % BLOCK:
        rows = F.pad(rows, (0, -width % BLOCK))
    return rows.view(*rows.shape[:-1], -1, BLOCK)
