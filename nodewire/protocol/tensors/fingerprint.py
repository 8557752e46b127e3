"""Sketches of tensors: so small that they can be committed to, compared and shown instead of what they stand for.

A float tensor is a matrix of rows (its last dimension). Each row x of width n becomes 32 numbers, x . S / sqrt(n),
where S [n, 32] has the entries +1 and -1 out of SHAKE-256 over (tag, manifest, edge, tensor). A tensor of more than 64
rows is first folded into 64, by signs from the same source. Distances between sketches are, up to a few percent, those
between the tensors; who does not know the right tensor cannot make its sketch. A small integer tensor is its own
sketch; a larger one has none, and is compared by hash. nips/12-narrowed-edges.md.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import prod

import numpy as np

from nodewire.protocol.tensors import mxint8
from nodewire.protocol.tensors.frame import MXINT8, Array

COLUMNS = 32
ROWS = 64
MAX_EXACT_BYTES = 512
_FLOATS = frozenset({"float32", "float16", "bfloat16", MXINT8})
MILLION = 1_000_000


def sketch(manifest: str, edge: str, index: int, array: Array) -> bytes:
    """The sketch of an edge's tensor number `index`: float32, little-endian, [min(rows, 64), 32]; or raw integers.

    Raises:
        BadFrame: an MXINT8 array that is none.

    """
    if array.dtype not in _FLOATS:
        return bytes(array.data) if array.nbytes <= MAX_EXACT_BYTES else b""
    matrix = _matrix(array)
    rows, width = matrix.shape
    with np.errstate(over="ignore", invalid="ignore"):
        if rows > ROWS:
            folded = np.zeros((ROWS, width), np.float32)
            signed = matrix * _signs(manifest, edge, index, "rows", rows, 1)
            for first in range(0, rows, ROWS):
                part = signed[first : first + ROWS]
                folded[: len(part)] += part
            matrix = folded
        found = matrix @ _signs(manifest, edge, index, "columns", width, COLUMNS) / np.float32(max(width, 1)) ** 0.5
    return np.ascontiguousarray(found, "<f4").tobytes()


def is_float(dtype: str) -> bool:
    """Whether a tensor's sketch is of rows of numbers, not its raw bytes."""
    return dtype in _FLOATS


def distance_ppm(dtype: str, mine: bytes, theirs: bytes) -> int:
    """How far `theirs` is from `mine`, in millionths, at most 1,000,000.

    Floats: the largest relative L2 distance of a row (rows that are nearly zero are measured by the whole sketch's
    root mean square); what is not finite, or not whole rows, is as far as can be. Others: 0 if they are equal.
    """
    if len(mine) != len(theirs):
        return MILLION
    if dtype not in _FLOATS:
        return MILLION if mine != theirs else 0
    if len(mine) % (4 * COLUMNS):
        return MILLION  # not whole rows: whoever committed to it computed nothing
    gaps = row_distances(mine, theirs)
    if gaps is None:
        return MILLION
    return min(MILLION, int(max(gaps, default=0.0) * MILLION))


def row_distances(mine: bytes, theirs: bytes) -> list[float] | None:
    """The relative L2 distance of each row of numbers in `theirs` from that in `mine`, two sketches of whole rows.

    A row that is nearly zero is measured by the whole sketch's root mean square. None: a number is not finite, or the
    forms are not alike.
    """
    if len(mine) != len(theirs) or len(mine) % (4 * COLUMNS):
        return None
    a, b = (np.frombuffer(x, "<f4").reshape(-1, COLUMNS).astype(np.float64) for x in (mine, theirs))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    if not a.size:
        return []
    norms = np.linalg.norm(a, axis=1)
    scale = np.maximum(norms, 0.05 * float(np.sqrt(np.mean(norms**2))))
    gaps = np.linalg.norm(a - b, axis=1)
    if not scale.all():
        return [1.0 if gap else 0.0 for gap in gaps]
    return [float(gap) for gap in gaps / scale]


def _matrix(array: Array) -> np.ndarray:
    if array.dtype == MXINT8:
        return mxint8.numbers(array)
    shape = array.shape or (1,)
    if array.dtype == "bfloat16":
        raw = np.frombuffer(array.data, "<u2").astype(np.uint32) << 16
        flat = raw.view(np.float32)
    else:
        flat = np.frombuffer(array.data, "<f4" if array.dtype == "float32" else "<f2").astype(np.float32)
    return flat.reshape(prod(shape[:-1]), shape[-1])


@lru_cache(maxsize=256)
def _signs(manifest: str, edge: str, index: int, what: str, rows: int, columns: int) -> np.ndarray:
    """+1 and -1, float32 [rows, columns]."""
    count = rows * columns
    seed = f"nodewire/sketch/1/{manifest}/{edge}/{index}/{what}".encode()
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(seed).digest(-(-count // 8)), np.uint8))[:count]
    return (bits.astype(np.float32) * 2 - 1).reshape(rows, columns)
