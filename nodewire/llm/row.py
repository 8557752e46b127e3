"""One row times a plain matrix: on a CPU in bfloat16 by oneDNN or by PyTorch's own kernel, whichever was quicker here.

oneDNN's product is made for many rows. Of a single one it took 1.6 times as long as PyTorch's own with AVX-512.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F

_RUNS = 7
_CLEARLY = 0.9
"""oneDNN's is preferred if it takes less than so much of the other's time: what is measured here lies in a cache, where
the two are more alike than beyond it."""
_is_own_quicker: dict[tuple[int, ...], bool] = {}
"""By shape and number of threads."""


class Row:
    """What multiplies a row with `matrix` [out, in]. The first of a shape is measured; that stays for the process."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._is_own = False
        if matrix.dtype == torch.bfloat16 and matrix.device.type == "cpu":
            key = (*matrix.shape, torch.get_num_threads())
            if key not in _is_own_quicker:
                _is_own_quicker[key] = _measured(matrix)
            self._is_own = _is_own_quicker[key]

    @property
    def name(self) -> str:
        dtype = str(self.matrix.dtype).removeprefix("torch.")
        lies = "rows" if self.matrix.is_contiguous() else "columns"
        return f"PyTorch{' without oneDNN' if self._is_own else ''}, {dtype} in {lies}"

    def times(self, x: Tensor) -> Tensor:
        """[1, in] of the matrix's dtype to [1, out]."""
        return _own(x, self.matrix) if self._is_own else F.linear(x, self.matrix)


def _own(x: Tensor, matrix: Tensor) -> Tensor:
    was = torch.backends.mkldnn.set_flags(False)[0]
    try:
        return F.linear(x, matrix)
    finally:
        torch.backends.mkldnn.set_flags(was)


@torch.inference_mode()
def _measured(matrix: Tensor) -> bool:
    """Whether oneDNN's is not clearly quicker, by the shortest time of each."""
    x, taken_ns = matrix.new_ones(1, matrix.shape[1]), {F.linear: list[int](), _own: list[int]()}
    for _ in range(1 + _RUNS):
        for product, times in taken_ns.items():
            began_ns = time.perf_counter_ns()
            product(x, matrix)
            times.append(time.perf_counter_ns() - began_ns)
    theirs, own = (min(times[1:]) for times in taken_ns.values())
    return theirs >= _CLEARLY * own
