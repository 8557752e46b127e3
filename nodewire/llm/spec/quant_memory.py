"""How much memory matrices in blocks take: while they are read, as they stay, while they are multiplied with.

`item` is the bytes of a number that a task computes with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.llm.spec.config import Blocks
    from nodewire.llm.spec.parameters import Parameter

PANEL = 64
"""Rows that the kernel's layout keeps together, or a multiple of how many."""
LOADED = 262_144
"""Codes that are read at once, or a panel of rows if they are more."""
MEASURED = 1_048_576
"""Codes of the matrix that a kernel is measured with, or a panel of rows if they are more."""
WIDENED = 262_144
"""Numbers that are widened at once, or a row if it has more."""
TOGETHER = 2
"""Blocks that go through oneDNN at once."""
_BFLOAT16_BYTES = 2
_SIZES = (32, 64, 128, 256)


def in_panels(rows: int, blocks: Blocks, item: int) -> bool:
    """Whether PyTorch's kernel knows a matrix of so many rows."""
    return item == _BFLOAT16_BYTES and rows % 16 == 0 and blocks.size in _SIZES


def nbytes(parameter: Parameter, item: int) -> int:
    """What the matrices of a parameter take; none if it has no blocks."""
    blocks = parameter.blocks
    if blocks is None:
        return 0
    each = blocks.bits if in_panels(parameter.shape[-2], blocks, item) else item  # a pair of bfloat16 for four bits
    return parameter.count * blocks.bits // 8 + parameter.count // blocks.size * each


def loaded_rows(width: int) -> int:
    """How many rows of `width` are read at once."""
    return max(1, LOADED // width // PANEL) * PANEL


def measured_rows(shape: tuple[int, int]) -> int:
    """How many rows of such a matrix a kernel is measured with."""
    return min(shape[0], max(1, MEASURED // shape[1] // PANEL) * PANEL)


def while_loading(parameters: Iterable[Parameter]) -> int:
    """The most bytes besides the matrices: those read, codes apart, codes as int32.

    Where there is a choice, the part of one that kernels are measured with counts, too.
    """
    return max((_while_loading(p.shape[-2], p.shape[-1], p.blocks) for p in parameters if p.blocks), default=0)


def _while_loading(rows: int, width: int, blocks: Blocks) -> int:
    read = min(loaded_rows(width), rows) * width * (blocks.bits // 4) * 6
    return read + 2 * measured_rows((rows, width)) * width if blocks.scheme == "w8a8" else read


def while_multiplying(parameters: Iterable[Parameter], item: int) -> tuple[int, int]:
    """The most bytes besides inputs and outputs: for each position, and whatever their number."""
    each = fixed = 0
    for parameter in parameters:
        blocks, width = parameter.blocks, parameter.shape[-1]
        if blocks is None:
            continue
        own = (3 * 4 + TOGETHER) * width if blocks.rounds_inputs else 0
        if in_panels(parameter.shape[-2], blocks, item):
            own += (blocks.bits // 4) * width * item
            if blocks.scheme == "w8a8":  # in columns, sums of a few blocks; for one position those of all, twice
                own += (2 * TOGETHER + 1) * 4 * parameter.shape[-2]
                fixed = max(fixed, 2 * 4 * width // blocks.size * parameter.shape[-2])
        else:
            fixed = max(fixed, min(max(WIDENED, width), parameter.shape[-2] * width) * (item + 4))
            own += max(1, WIDENED // width) * item
        each = max(each, own)
    return each, fixed
