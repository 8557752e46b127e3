"""One row times a plain matrix: on a CPU in bfloat16 by oneDNN or by PyTorch's own kernel, whichever was quicker here.

PyTorch multiplies a single row of float32 on one thread, however many there are. So a matrix that lies in columns is
multiplied in as many parts as there are threads. Each output is still the same sum, to the last bit.

oneDNN's product is made for many rows. With AVX-512 a single one took it 1.6 times as long as PyTorch's own where the
matrix came from memory, and less where it lay in a cache. So all matrices of a shape are measured, one after the other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ONEDNN: Any = torch.backends.mkldnn
_RUNS = 3
_PART = 65_536
"""The fewest numbers of a part: fewer are over before another thread has begun."""
_is_own_quicker: dict[tuple[int, ...], bool] = {}
"""By shape and number of threads."""


class Row:
    """What multiplies a row with `matrix` [out, in], as `choose` has found for its shape; until then oneDNN."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._key = _key(matrix)
        self._exact = Exact(matrix) if matrix.dtype == torch.float32 and matrix.device.type == "cpu" else None

    @property
    def name(self) -> str:
        dtype = str(self.matrix.dtype).removeprefix("torch.")
        lies = "rows" if self.matrix.is_contiguous() else "columns"
        return f"PyTorch{' without oneDNN' if self._is_own else ''}, {dtype} in {lies}"

    def times(self, x: Tensor) -> Tensor:
        """[1, in] of the matrix's dtype to [1, out]."""
        if self._exact is not None:
            return self._exact.product(x[0])[None]
        return _own(x, self.matrix) if self._is_own else F.linear(x, self.matrix)

    @property
    def _is_own(self) -> bool:
        return self.matrix.dtype == torch.bfloat16 and _is_own_quicker.get(self._key, False)


class Exact:
    """What multiplies a row with `matrix` [out, in] of float32 on a CPU.

    It uses as many threads as the process has when this is made.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._parts = _parts(matrix)

    def product(self, x: Tensor) -> Tensor:
        """[in] to [out]."""
        out = x.new_empty(self.matrix.shape[0])
        self.times(x, None, out)
        return out

    def times(self, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Put matrix times `x`, and `bias`, into `out`."""
        parts = self._parts
        if parts is None:
            torch.mv(self.matrix, x, out=out) if bias is None else torch.addmv(bias, self.matrix, x, out=out)
            return
        count, width, rows = parts.shape
        x, out = x.expand(count, 1, width), out.view(count, 1, rows)
        if bias is None:
            torch.bmm(x, parts, out=out)
        else:
            torch.baddbmm(bias.view(count, 1, rows), x, parts, out=out)

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """`x` and matrix times `to`."""
        if self._parts is None:
            return torch.addmv(x, self.matrix, to)
        out = torch.empty_like(x)
        self.times(to, x, out)
        return out


def _parts(matrix: Tensor) -> Tensor | None:
    """A matrix in columns as [parts, in, out / parts], a part for each thread; None where one thread takes it all."""
    rows, width = matrix.shape
    most = min(torch.get_num_threads(), matrix.numel() // _PART)
    if most < 2 or not matrix.t().is_contiguous():
        return None
    count = next(count for count in range(most, 0, -1) if rows % count == 0)
    return matrix.t().view(width, count, rows // count).transpose(0, 1) if count > 1 else None


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
