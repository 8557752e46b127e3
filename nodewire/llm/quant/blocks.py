"""Numbers to whole ones in blocks and back. A block is `size` numbers of a row, one after the other, under one scale.

A scale is the block's largest magnitude over the largest whole number, rounded up to bfloat16, so none is cut off: a
number is then at most half a scale from what it was. How codes lie in bytes is compressed-tensors' `pack-quantized`:
each plus half of their range, the first in the lowest bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = {4: 7, 8: 127}
"""The largest magnitude by bits."""
_TINY = torch.finfo(torch.bfloat16).tiny


def rounded(numbers: Tensor, bits: int, size: int) -> tuple[Tensor, Tensor]:
    """float32 [..., width] to codes int8 [..., width] and scales bfloat16 [..., width / size]."""
    blocks = _blocks(numbers, size)
    exact = blocks.abs().amax(-1) / MOST[bits]
    scales = exact.bfloat16()
    scales = torch.where(scales < exact, torch.nextafter(scales, scales.new_full((), torch.inf)), scales)
    scales = scales.clamp_min(_TINY)
    codes = (blocks / scales.float()[..., None]).round_().clamp_(-MOST[bits], MOST[bits])
    return codes.flatten(-2).to(torch.int8), scales


def widened(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes int8 [..., width] times their scales [..., width / size], in the scales' dtype."""
    blocks = _blocks(codes.to(scales.dtype), codes.shape[-1] // scales.shape[-1])
    return blocks.mul_(scales[..., None]).flatten(-2)


def packed(codes: Tensor, bits: int) -> Tensor:
    """int8 [..., width] to int32 [..., width * bits / 32]."""
    halves = codes.view(torch.uint8) + (1 << bits - 1)
    octets = halves if bits == 8 else halves[..., ::2] | halves[..., 1::2] << 4
    return octets.contiguous().view(torch.int32)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 [..., n], or the bytes of it, to codes int8 [..., 32 n / bits]."""
    octets = words.view(torch.uint8)
    halves = octets if bits == 8 else torch.stack((octets & 15, octets >> 4), -1).flatten(-2)
    return (halves - (1 << bits - 1)).view(torch.int8)


def activations(x: Tensor, size: int) -> Tensor:
    """`x` [..., width] as its blocks in 8 bits have it, in its own dtype."""
    codes, scales = in_codes(x, size)
    return codes.mul_(scales[..., None]).flatten(-2).to(x.dtype)


def in_codes(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`x` [..., width] to whole numbers of 8 bits, float32 [..., width / size, size], and scales [..., width / size].

    A block's scale is its largest magnitude over 127. What is not finite leaves none that is.
    """
    blocks = _blocks(x.float(), size)
    scales = blocks.abs().amax(-1).div_(MOST[8]).clamp_min_(torch.finfo(torch.float32).tiny)
    return (blocks / scales[..., None]).round_(), scales


def _blocks(rows: Tensor, size: int) -> Tensor:
    """[..., width] as [..., width / size, size]."""
    return rows.reshape(*rows.shape[:-1], -1, size)
