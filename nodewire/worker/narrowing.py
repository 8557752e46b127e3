"""Tensors of a narrowed edge: out of their own dtypes as they leave the worker, back into them as they come.

bfloat16 is torch's cast, to nearest even. MXINT8 is written here (its layout: `nodewire.protocol.mxint8`). What an
actor is given, and what it gives, is in the edge's own dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.errors import BadFrame
from nodewire.protocol.codec import Coding
from nodewire.protocol.frame import BLOCK, MXINT8, Array, Frame
from nodewire.protocol.mxint8 import LEAST_SCALE, LIMIT, MOST_SCALE, STEP

_AT_ONCE = 2**16
"""Numbers, about."""
_MANTISSA_BITS = 23
_INVERSE = 254 + STEP
"""The biased exponent of 1 / 2^e is 254 less that of 2^e."""


def check(frame: Frame[Array], coding: Coding | None) -> None:
    """Check that a frame came as its edge carries it: narrowed exactly as the plan says, or not at all.

    Raises:
        BadFrame: a tensor more or less, or one of another dtype.
    """
    if coding is None:
        if any(array.dtype == MXINT8 for array in frame.tensors):
            raise BadFrame("dtype", f"{MXINT8} on {frame.edge}, which the plan does not narrow")
        return
    sent = [dtype for _, dtype in coding]
    if [array.dtype for array in frame.tensors] != sent:
        raise BadFrame("dtype", f"not {', '.join(sent)}, as the plan has {frame.edge}")


def sent_dtypes(edge: str, own: Sequence[str], coding: Coding | None) -> list[str]:
    """In which dtypes an actor's tensors travel on `edge`.

    Raises:
        BadFrame: they are not of those that the manifest says they are.
    """
    if coding is None:
        return list(own)
    if list(own) != [dtype for dtype, _ in coding]:
        raise BadFrame("dtype", f"{', '.join(own)} on {edge}, which the manifest has otherwise")
    return [dtype for _, dtype in coding]


def in_blocks(tensor: Tensor, into: Tensor | None = None) -> Tensor:
    """A floating tensor as MXINT8, uint8 [rows, ceil(width / 32) + width]; written to `into` where it is given.

    Raises:
        BadFrame: a number is not finite.
    """
    rows, blocks, width = _sizes(tensor.shape)
    if into is None:
        into = torch.empty(rows * (blocks + width), dtype=torch.uint8, device=tensor.device)
    into = into.view(rows, blocks + width)
    matrix = tensor.detach().reshape(rows, width)
    for at in _stretches(rows, width):
        _narrow(matrix[at].float(), into[at], blocks)
    return into


def of_blocks(raw: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor that `in_blocks` narrowed, of `shape` and `dtype`.

    Raises:
        BadFrame: a scale that no block has, or a number beyond float32.
    """
    rows, blocks, width = _sizes(shape)
    raw = raw.view(rows, blocks + width)
    found = torch.empty(rows, width, dtype=dtype, device=raw.device)
    for at in _stretches(rows, width):
        _widen(raw[at], found[at], blocks)
    return found.view(tuple(shape))


def _sizes(shape: Sequence[int]) -> tuple[int, int, int]:
    """Rows, blocks of a row, numbers of a row."""
    width = shape[-1] if shape else 1
    return prod(shape[:-1]), -(-width // BLOCK), width


def _stretches(rows: int, width: int) -> Iterator[slice]:
    """Rows that are looked at together: what that takes besides does not grow with the tensor."""
    step = max(1, _AT_ONCE // max(width, 1))
    return (slice(first, first + step) for first in range(0, rows if width else 0, step))


def _narrow(matrix: Tensor, into: Tensor, blocks: int) -> None:
    rows, width = matrix.shape
    matrix = F.pad(matrix, (0, blocks * BLOCK - width)).view(rows, blocks, BLOCK)
    largest = matrix.abs().amax(2)
    if not bool(torch.isfinite(largest).all()):
        raise BadFrame("tensors", "holds numbers that are not finite: they cannot be narrowed to int8")
    scales = largest.view(torch.int32) >> _MANTISSA_BITS
    scales = torch.where(scales < LEAST_SCALE, 0, scales)
    units = torch.where(scales == 0, 0, (_INVERSE - scales) << _MANTISSA_BITS).view(torch.float32)
    # Times a power of two is exact; only the rounding loses. 127.5 and more would round to 128.
    codes = (matrix * units[..., None]).round_().clamp_(-LIMIT, LIMIT).to(torch.int8)
    into[:, :blocks] = scales
    into[:, blocks:] = codes.view(rows, blocks * BLOCK)[:, :width].view(torch.uint8)


def _widen(raw: Tensor, into: Tensor, blocks: int) -> None:
    rows, width = into.shape
    scales = raw[:, :blocks].int()
    if not bool(((scales == 0) | ((scales >= LEAST_SCALE) & (scales <= MOST_SCALE))).all()):
        raise BadFrame("scales", "a block's scale is no power of two that may be")
    units = torch.where(scales == 0, 0, (scales - STEP) << _MANTISSA_BITS).view(torch.float32)
    codes = F.pad(raw[:, blocks:].view(torch.int8), (0, blocks * BLOCK - width)).reshape(rows, blocks, BLOCK)
    if bool(((scales == MOST_SCALE)[..., None] & (codes < -LIMIT)).any()):
        raise BadFrame("codes", "a number is beyond float32")
    into.copy_((codes * units[..., None]).view(rows, blocks * BLOCK)[:, :width])
