"""Matrices in blocks from a checkpoint's tensors, some rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadTask
from nodewire.llm.quant.matrix import BlockMatrix
from nodewire.llm.spec.quant_memory import loaded_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.checkpoint.loader import Fill
    from nodewire.llm.families.fields.tensor_names import Piece, Pieces
    from nodewire.llm.spec.config import Blocks
    from nodewire.llm.spec.parameters import Parameters


def load(
    parameters: Parameters,
    pieces: Pieces,
    fill: Fill,
    dtype: torch.dtype,
    device: torch.device,
    *,
    alone: bool = False,
) -> dict[str, BlockMatrix | list[BlockMatrix]]:
    """Those of the parameters that are in blocks; of experts, one of each. `alone`: as `kernel_choice.kernel` has it.

    Raises:
        BadTask: the file ends early, or holds a scale that is not finite.

    """
    found: dict[str, BlockMatrix | list[BlockMatrix]] = {}
    for role, parameter in parameters.items():
        if parameter.blocks is None:
            continue
        *experts, rows, width = parameter.shape
        made = []
        for number in range(experts[0] if experts else 1):
            matrix = BlockMatrix((rows, width), parameter.blocks, dtype, device, alone=alone)
            for first, last in _steps(rows, width):
                at = number * rows + first
                matrix.put(first, *_read(pieces[role], parameter.blocks, at, at + last - first, fill))
            made.append(matrix)
        found[role] = made if experts else made[0]
    return found


def _steps(rows: int, width: int) -> list[tuple[int, int]]:
    step = loaded_rows(width)
    return [(first, min(rows, first + step)) for first in range(0, rows, step)]


def _read(pieces: Sequence[Piece], blocks: Blocks, first: int, last: int, fill: Fill) -> tuple[Tensor, Tensor]:
    """Rows [first, last) of the pieces put on top of each other: bytes and scales as they are stored."""
    width = pieces[0].width
    words = torch.empty(last - first, width * blocks.bits // 32, dtype=torch.int32)
    scales = torch.empty(last - first, width // blocks.size)
    at = 0
    for piece in pieces:
        rows = piece.count // width
        begin, end = max(first, at), min(last, at + rows)
        if begin < end:
            some = slice(begin - first, end - first)
            _fill(piece, blocks, begin - at, words[some], scales[some], fill)
        at += rows
    octets = words.view(torch.uint8)
    return octets ^ 128 if blocks.scheme == "w8a8" else octets, scales


def _fill(piece: Piece, blocks: Blocks, row: int, words: Tensor, scales: Tensor, fill: Fill) -> None:
    """Rows from `row` on, as they are kept."""
    for stretch in piece.stretches(row, row + len(words)):
        some = slice(stretch.at, stretch.at + stretch.count)
        if not stretch.pairs:
            _fill_rows(piece, blocks, stretch.stored, words[some], scales[some], fill)
            continue
        own, scale = (one.new_empty(stretch.pairs, one.shape[1]) for one in (words, scales))
        _fill_rows(piece, blocks, stretch.stored, own, scale, fill)
        for target, one in ((words, own), (scales, scale)):
            apart = one.view(-1, 2, one.shape[1]).transpose(0, 1).reshape(one.shape)
            target[some] = apart[stretch.begin : stretch.begin + stretch.count]


def _fill_rows(piece: Piece, blocks: Blocks, row: int, words: Tensor, scales: Tensor, fill: Fill) -> None:
    """Rows from `row` on, as they are stored."""
    signed = blocks.scheme == "w8a8"
    name = f"{piece.stem}.weight"
    target = words.view(torch.int8) if signed else words
    fill(name if signed else f"{name}_packed", target, row * target.shape[1])
    fill(f"{name}_scale", scales, row * scales.shape[1])
    if not bool((scales.abs() < torch.finfo(torch.bfloat16).max / 16).all()):
        raise BadTask("weights", f"a scale of {name} is too large")
