"""A curve drawn in a terminal: each character is two by four dots."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Unicode's braille patterns, by row and column of a character."""


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """`values` from left to right, in `height` lines of `width` characters; the largest touches the top."""
    columns, rows = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    before: int | None = None
    for column in range(columns if values else 0):
        at = column / max(1, columns - 1) * (len(values) - 1)
        left = int(at)
        right = min(left + 1, len(values) - 1)
        value = values[left] + (at - left) * (values[right] - values[left])
        row = round((high - value) / (high - low) * (rows - 1)) if high > low else rows // 2
        first, last = (row, row) if before is None else sorted((row, before))
        for dot in range(first, last + 1):
            cells[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
        before = row
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]
