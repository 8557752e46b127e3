"""The worker entry that measures a machine: how fast its best kernels run, at the threads and device that it is given.

Engine "machine" has no program and no weights. A frame on `measure` is answered by one on `rates`, float32 [3, 4]: a
row for each of float32, bfloat16, float16 with operations and bytes a second, and microseconds of the smallest call
(0 where the device has no such kernels); the last column is the seconds that the row took.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from nodewire.errors import BadTask
from nodewire.protocol.tensors.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nodewire.kind import Actor, Limits

ENGINE = "machine"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LONG_S = 0.2
"""A figure is of repetitions that take at least this long together."""
_LONGEST_S = 2.0
"""What a single product may take."""
_SHARE = 8
"""Tensors take up to an eighth of the memory that there is, and 256 MB: far more than caches hold."""
_MOST_BYTES = 256 * 2**20


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """Raises BadTask: anything but the machine's own engine."""
    if engine != ENGINE or weights:
        raise BadTask("engine", f"{engine[:40]!r} is not {ENGINE}")
    return _Machine(limits)


class _Machine:
    def __init__(self, limits: Limits) -> None:
        torch.set_num_threads(limits.threads)
        self._device = torch.device(limits.device)
        self._bytes = min(limits.memory_bytes // _SHARE, _MOST_BYTES)

    def open(self, session: str, params: Mapping[str, Any]) -> None:
        return

    def close(self, session: str) -> None:
        return

    def receive(self, session: str, frame: Frame[torch.Tensor]) -> list[Frame[torch.Tensor]]:
        rows = [self._rates(dtype) for dtype in DTYPES]
        return [Frame("rates", frame.seq, (torch.tensor(rows, dtype=torch.float32),))]

    @torch.inference_mode()
    def _rates(self, dtype: torch.dtype) -> list[float]:
        began_s = time.perf_counter()
        try:
            a = self._matrix(dtype)
            side = len(a)
            small = torch.ones(1, dtype=dtype, device=self._device)
            product_s = self._seconds(lambda: a @ a, at_most=side)
            call_s = self._seconds(lambda: small + small)
        except RuntimeError:  # no kernels for this dtype here
            return [0.0, 0.0, 0.0, time.perf_counter() - began_s]
        source = torch.ones(max(1, self._bytes // 2 // dtype.itemsize), dtype=dtype, device=self._device)
        target = torch.empty_like(source)
        copy_s = self._seconds(lambda: target.copy_(source))
        return [
            2.0 * side**3 / product_s,
            2.0 * source.nbytes / copy_s,
            call_s * 1e6,
            time.perf_counter() - began_s,
        ]

    def _matrix(self, dtype: torch.dtype) -> torch.Tensor:
        """The largest square one, up to 4096, that memory and time have room to multiply.

        What a processor has no instructions for takes a thousand times as long as what it has.
        """
        side = 64
        while True:
            a = torch.ones(side, side, dtype=dtype, device=self._device)
            began_s = time.perf_counter()
            a @ a
            self._wait()
            took_s = time.perf_counter() - began_s
            if side == 4096 or 3 * (2 * side) ** 2 * dtype.itemsize > self._bytes or 8 * took_s > _LONGEST_S:
                return a
            side *= 2

    def _seconds(self, run: Callable[[], Any], at_most: int = 10**6) -> float:
        """The least that one of several repetitions takes: what else the machine does only ever adds."""
        run()
        self._wait()
        best, spent, count = float("inf"), 0.0, 1
        while spent < _LONG_S and count <= at_most:
            began_s = time.perf_counter()
            for _ in range(count):
                run()
            self._wait()
            took_s = time.perf_counter() - began_s
            best, spent = min(best, took_s / count), spent + took_s
            count *= 2 if took_s < _LONG_S / 8 else 1
        return best

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
