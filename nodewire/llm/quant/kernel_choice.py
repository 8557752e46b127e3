"""Which kernel a matrix in blocks goes to: of those that this machine has, the one that was quickest here.

What is quickest depends on the processor: oneDNN's products of bytes are six times as quick with AVX-512 as with AVX2,
where PyTorch's 4 bits are half as quick. So kernels are measured with a row and a part of such a matrix, in some
milliseconds, when the first of a shape is loaded; its choice stays for the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from nodewire.llm.quant import onnx_session
from nodewire.llm.quant.blocks import activations
from nodewire.llm.quant.kernels import InColumns, InPanels, InRows, Kernel
from nodewire.llm.spec.config import Blocks
from nodewire.llm.spec.quant_memory import in_panels, loaded_rows, measured_rows

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Quantization

_RUNS = 7
_CLEARLY = 0.9
"""A kernel is preferred to one before it if it takes less than so much of its time: of two alike it is the first."""

Make = Callable[[tuple[int, int]], Kernel]


def kernel(shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device, *, alone: bool) -> Kernel:
    """For a matrix [out, in] of a task in `dtype`, still empty.

    `alone`: of a model that this process decodes for itself. Then ONNX Runtime's kernels, where that is installed, are
    among them: the memory that it takes is not ours to foresee, which a market's task must be able to do.
    """
    found = _makes(shape, blocks, dtype, device, alone)
    if len(found) == 1:
        return found[0](shape)
    return found[_quickest(shape, blocks, dtype, device, alone, torch.get_num_threads())](shape)


def _makes(shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device, alone: bool) -> list[Make]:
    """The kernels that can be, those first that are preferred where two are alike."""
    found: list[Make] = []
    if device.type == "cpu" and in_panels(shape[0], blocks, dtype.itemsize):
        if blocks.scheme == "w8a8" and adds_bytes():
            found.append(lambda shape: InColumns(shape, blocks))
        found.append(lambda shape: InPanels(shape, blocks))
    else:
        found.append(lambda shape: InRows(shape, blocks, dtype, device))
    if alone and _may_be_in_session(blocks, device):
        found.append(lambda shape: onnx_session.InSession(shape, blocks))
    return found


def prepare_alone(quantization: Quantization | None, device: torch.device) -> None:
    """Give this process's threads to the library that may multiply its model's matrices, of a model that is alone."""
    if quantization and _may_be_in_session(Blocks(quantization.scheme, quantization.group_size), device):
        onnx_session.take_threads()


def _may_be_in_session(blocks: Blocks, device: torch.device) -> bool:
    return device.type == "cpu" and blocks.rounds_inputs and onnx_session.available(blocks)


def adds_bytes() -> bool:
    """Whether the processor adds up products of bytes in 32 bits; others saturate in 16."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_vnni") or found.get("avx_vnni"))


@lru_cache(maxsize=256)
def _quickest(
    shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype, device: torch.device, alone: bool, threads: int
) -> int:
    """The number of the kernel; `threads` are those that it is measured with."""
    best, least_ns = 0, 0.0
    for number, make in enumerate(_makes(shape, blocks, dtype, device, alone)):
        taken_ns = _taken_ns(make, shape, blocks, dtype)
        if number == 0 or taken_ns < _CLEARLY * least_ns:
            best, least_ns = number, taken_ns
    return best


@torch.inference_mode()
def _taken_ns(make: Make, shape: tuple[int, int], blocks: Blocks, dtype: torch.dtype) -> int:
    """The shortest time of a row times the first rows of such a matrix: other work only lengthens it."""
    width, drawn = shape[1], torch.Generator().manual_seed(0)
    rows = measured_rows(shape)
    made = make((rows, width))
    for first in range(0, rows, loaded_rows(width)):
        count = min(rows - first, loaded_rows(width))
        octets = torch.randint(256, (count, width * blocks.bits // 8), dtype=torch.uint8, generator=drawn)
        made.put(first, octets, torch.full((count, width // blocks.size), 0.01))
    x = torch.randn(1, width, generator=drawn).to(dtype)
    taken_ns = []
    for _ in range(1 + _RUNS):
        began_ns = time.perf_counter_ns()
        rounded = activations(x, blocks.size) if blocks.rounds_inputs and not made.ROUNDS else x
        made.multiply(rounded).to(dtype)
        taken_ns.append(time.perf_counter_ns() - began_ns)
    return min(taken_ns[1:])
