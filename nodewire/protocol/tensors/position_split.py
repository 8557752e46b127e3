"""Frames of hidden states [1, n, width] cut into some of fewer positions, and what answers those joined.

A stage that is sent the parts one after the other is left where the whole frame leaves it: others' calls go between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.protocol.tensors.frame import Array, Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

_CELL_BYTES = 2
"""Of one number in `parents`."""


def count(frame: Frame[Array]) -> int:
    """How many positions a frame has; 0 if it is none of hidden states."""
    shape = frame.tensors[0].shape if len(frame.tensors) == 1 else ()
    return shape[1] if len(shape) == 3 and shape[0] == 1 else 0


def cut(frame: Frame[Array], most: int) -> list[Frame[Array]]:
    """The frame in parts of at most `most` positions; alone what has no more, or what is not to be read."""
    n, pos, parents = count(frame), frame.meta.get("pos"), frame.meta.get("parents")
    is_tree = isinstance(parents, bytes) and len(parents) == _CELL_BYTES * n
    if n <= most or type(pos) is not int or not (parents is None or is_tree):
        return [frame]
    (array,) = frame.tensors
    data, row_bytes = memoryview(array.data), array.nbytes // n
    parts = []
    for first in range(0, n, most):
        end = min(first + most, n)
        meta = {name: value for name, value in frame.meta.items() if name != "keep" or first == 0}
        meta["tokens"] = end - first
        if isinstance(parents, bytes):
            meta["parents"] = parents[_CELL_BYTES * first : _CELL_BYTES * end]
        else:
            meta["pos"] = pos + first
        rows = Array(array.dtype, (1, end - first, array.shape[2]), data[row_bytes * first : row_bytes * end])
        parts.append(Frame(frame.edge, frame.seq, (rows,), meta))
    return parts


def joined(parts: Sequence[Frame[Array]], answers: Sequence[Frame[Array]]) -> Frame[Array]:
    """The answer to what was cut into `parts`, of their answers: all rows; or the last alone, where each is that."""
    if count(answers[0]) < count(parts[0]):
        cached = _cached(answers)
        return replace(answers[-1], meta={**answers[-1].meta, **cached}) if cached else answers[-1]
    first = answers[0]
    (array,) = first.tensors
    n = sum(map(count, answers))
    rows = Array(array.dtype, (1, n, array.shape[2]), b"".join(answer.tensors[0].data for answer in answers))
    meta = dict(first.meta) | {"tokens": n} | _cached(answers)
    if "parents" in meta:
        meta["parents"] = b"".join(bytes(answer.meta["parents"]) for answer in answers)  # type: ignore[arg-type]
    return Frame(first.edge, first.seq, (rows,), meta)


def _cached(answers: Sequence[Frame[Array]]) -> dict[str, int]:
    """How many positions were found, if any (`cached`), and not computed."""
    found = [one.meta["cached"] for one in answers if "cached" in one.meta]
    return {"cached": sum(one for one in found if isinstance(one, int))} if found else {}
