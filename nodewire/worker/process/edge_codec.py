"""Tensors of a narrowed edge: out of their own dtypes as they leave the worker, back into them as they come.

bfloat16 is torch's cast, to nearest even; MXINT8 is `nodewire.weights.mxint8`'s. What an actor is given, and what it
gives, is in the edge's own dtypes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadFrame
from nodewire.protocol.tensors.frame import BLOCK, MXINT8, Array, Frame
from nodewire.protocol.tensors.mxint8 import LEAST_SCALE, LIMIT, MOST_SCALE
from nodewire.weights.mxint8 import narrowed, row_bytes, widened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodewire.protocol.model.edge_codec import Coding

_AT_ONCE = 2**16
"""Numbers, about."""


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
    rows, width = _sizes(tensor.shape)
    if into is None:
        into = torch.empty(rows * row_bytes(width), dtype=torch.uint8, device=tensor.device)
    into = into.view(rows, row_bytes(width))
    matrix = tensor.detach().reshape(rows, width)
    for at in _stretches(rows, width):
        if not bool(torch.isfinite(matrix[at]).all()):
            raise BadFrame("tensors", "holds numbers that are not finite: they cannot be narrowed to int8")
        into[at] = narrowed(matrix[at])
    return into


def of_blocks(raw: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor that `in_blocks` narrowed, of `shape` and `dtype`.

    Raises:
        BadFrame: a scale that no block has, or a number beyond float32.

    """
    rows, width = _sizes(shape)
    raw = raw.view(rows, row_bytes(width))
    found = torch.empty(rows, width, dtype=dtype, device=raw.device)
    for at in _stretches(rows, width):
        _check_blocks(raw[at], width)
        found[at] = widened(raw[at], width, torch.float32)
    return found.view(tuple(shape))


def _sizes(shape: Sequence[int]) -> tuple[int, int]:
    """Rows, numbers of a row."""
    return prod(shape[:-1]), shape[-1] if shape else 1


def _stretches(rows: int, width: int) -> Iterator[slice]:
    """Rows that are looked at together: what that takes besides does not grow with the tensor."""
    step = max(1, _AT_ONCE // max(width, 1))
    return (slice(first, first + step) for first in range(0, rows if width else 0, step))


def _check_blocks(raw: Tensor, width: int) -> None:
    blocks = -(-width // BLOCK)
    scales, codes = raw[:, :blocks], raw[:, blocks:].view(torch.int8)
    if not bool(((scales == 0) | ((scales >= LEAST_SCALE) & (scales <= MOST_SCALE))).all()):
        raise BadFrame("scales", "a block's scale is no power of two that may be")
    if bool(((scales == MOST_SCALE).repeat_interleave(BLOCK, 1)[:, :width] & (codes < -LIMIT)).any()):
        raise BadFrame("codes", "a number is beyond float32")
