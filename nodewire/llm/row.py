"""One row times a plain matrix: on a CPU in bfloat16 by oneDNN or by PyTorch's own kernel, whichever was quicker here.

oneDNN's product is made for many rows. With AVX-512 a single one took it 1.6 times as long as PyTorch's own where the
matrix came from memory, and less where it lay in a cache. So all matrices of a shape are measured, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_ONEDNN: Any = torch.backends.mkldnn
_RUNS = 3
_is_own_quicker: dict[tuple[int, ...], bool] = {}
"""By shape and number of threads."""


class Row:
    """What multiplies a row with `matrix` [out, in], as `choose` has found for its shape; until then oneDNN."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._key = _key(matrix)

    @property
    def name(self) -> str:
        dtype = str(self.matrix.dtype).removeprefix("torch.")
        lies = "rows" if self.matrix.is_contiguous() else "columns"
        return f"PyTorch{' without oneDNN' if self._is_own else ''}, {dtype} in {lies}"

    def times(self, x: Tensor) -> Tensor:
        """[1, in] of the matrix's dtype to [1, out]."""
        return _own(x, self.matrix) if self._is_own else F.linear(x, self.matrix)

    @property
    def _is_own(self) -> bool:
        return self.matrix.dtype == torch.bfloat16 and _is_own_quicker.get(self._key, False)


def choose(rows: Iterable[Row]) -> None:
    """Measure the products of these, of each shape all; what is chosen stays for the process."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for row in rows:
        if row.matrix.dtype == torch.bfloat16 and row.matrix.device.type == "cpu":
            by_shape.setdefault(_key(row.matrix), []).append(row.matrix)
    for key, matrices in by_shape.items():
        if key not in _is_own_quicker:
            _is_own_quicker[key] = _measured(matrices)


def _key(matrix: Tensor) -> tuple[int, ...]:
    return (*matrix.shape, torch.get_num_threads())


def _own(x: Tensor, matrix: Tensor) -> Tensor:
    was = _ONEDNN.set_flags(False)[0]
    try:
        return F.linear(x, matrix)
    finally:
        _ONEDNN.set_flags(was)


@torch.inference_mode()
def _measured(matrices: Sequence[Tensor]) -> bool:
    """Whether PyTorch's own is quicker, by the sum of the shortest times."""
    x, took_ns = matrices[0].new_ones(1, matrices[0].shape[1]), list[float]()
    for product in (F.linear, _own):
        shortest = [float("inf")] * len(matrices)
        for _ in range(1 + _RUNS):
            for number, matrix in enumerate(matrices):
                began_ns = time.perf_counter_ns()
                product(x, matrix)
                shortest[number] = min(shortest[number], time.perf_counter_ns() - began_ns)
        took_ns.append(sum(shortest))
    return took_ns[1] < took_ns[0]
