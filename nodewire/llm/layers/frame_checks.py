"""Checks of the frames that come to a decoder's tasks: whatever a neighbour sends is bounded before it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nodewire.errors import BadFrame

if TYPE_CHECKING:
    from nodewire.protocol.tensors.frame import Frame


def hidden_states(frame: Frame[Any], dtype: torch.dtype, width: int, positions: int, least: int = 1) -> Tensor:
    """The frame's one tensor [1, n, width], `least` <= n <= `positions`.

    Raises:
        BadFrame: another count, dtype, rank or shape, or a number that is not finite.

    """
    x = only_tensor(frame)
    if x.dtype != dtype:
        raise BadFrame("dtype", f"{x.dtype}, this task computes in {dtype}")
    if x.ndim != 3 or x.shape[0] != 1 or x.shape[2] != width or not least <= x.shape[1] <= positions:
        raise BadFrame("shape", f"{list(x.shape)}, not [1, {least}..{positions}, {width}]")
    check_finite(x)
    return x


def token_ids(frame: Frame[Any], vocab_size: int, positions: int) -> Tensor:
    """The frame's one tensor int64 [1, n, 1], n <= `positions`, of ids in the vocabulary.

    Raises:
        BadFrame: another count, dtype, rank or shape, or an id that is not in it.

    """
    ids = only_tensor(frame)
    if ids.dtype != torch.int64:
        raise BadFrame("dtype", f"{ids.dtype}, this task takes token ids, torch.int64")
    if ids.ndim != 3 or ids.shape[0] != 1 or ids.shape[2] != 1 or ids.shape[1] > positions:
        raise BadFrame("shape", f"{list(ids.shape)}, not [1, 0..{positions}, 1]")
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise BadFrame("tensors", f"an id that is not in the vocabulary of {vocab_size}")
    return ids


def only_tensor(frame: Frame[Any]) -> Tensor:
    if len(frame.tensors) != 1 or not isinstance(frame.tensors[0], Tensor):
        raise BadFrame("tensors", f"{len(frame.tensors)} came, one is expected")
    return frame.tensors[0]


def check_finite(x: Tensor) -> None:
    # A sum is finite unless a term is not, or the terms are absurd; it is cheaper than a mask of every element.
    if not bool(torch.isfinite(x.sum(dtype=torch.float32))):
        raise BadFrame("tensors", "holds numbers that are not finite, or too large")


def count(frame: Frame[Any], name: str) -> int:
    """A non-negative integer of the frame's meta."""
    value = frame.meta.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise BadFrame(f"meta.{name}", "missing, or not a non-negative integer")
    return value
