"""Curves and planes drawn in a terminal: each character is two by four dots."""

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


def plane(marks: Sequence[tuple[float, float, str]], width: int, height: int) -> tuple[list[str], float]:
    """Points (x, y, character) of a plane, true to scale, in `height` lines of `width` characters.

    The y axis points up. A point without a character is a dot. And how much of the x axis the width is.
    """
    columns, rows = 2 * width, 4 * height
    xs, ys = [x for x, _, _ in marks] or [0.0], [y for _, y, _ in marks] or [0.0]
    unit = max((max(xs) - min(xs)) / (columns - 1), (max(ys) - min(ys)) / (rows - 1)) or 1.0
    left, low = (max(xs) + min(xs)) / 2 - unit * (columns - 1) / 2, (max(ys) + min(ys)) / 2 - unit * (rows - 1) / 2
    cells = [[0] * width for _ in range(height)]
    letters: dict[tuple[int, int], str] = {}
    for x, y, character in marks:
        column, row = round((x - left) / unit), rows - 1 - round((y - low) / unit)
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        if character:
            letters[row // 4, column // 2] = character
    lines = [
        "".join(letters.get((row, column), chr(0x2800 + cell)) for column, cell in enumerate(line))
        for row, line in enumerate(cells)
    ]
    return lines, unit * (columns - 1)
