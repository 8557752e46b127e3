"""Matrices in blocks in ONNX Runtime: its kernels multiply them with inputs of 8 bits, with VNNI and with AVX2 alone.

Each matrix is a session of one operator, MatMulNBits
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md), which is written here from codes and
scales; no file is read. Sessions compute in the thread that calls them, and in those that they were given together.
A pool for each session would be some hundred threads that wait for work without sleep.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Blocks

_IN_BYTES = 4
"""The operator's accuracy level at which inputs are rounded to 8 bits, block by block."""
_SIZES = (16, 32, 64, 128, 256)
_DOMAIN = "com.microsoft"


def available(blocks: Blocks) -> bool:
    """Whether the library is installed, and has such blocks."""
    return blocks.size in _SIZES and all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class _Pool:
    """The threads of all sessions that are made from now on; as long as there is one, that which calls them."""

    threads = 1


def take_threads() -> None:
    """Give the threads that PyTorch has to the sessions that are made from now on. PyTorch keeps one.

    The threads of both wait for work without sleep, so that they would take each other's cores. The library makes its
    pool once in a process: a second call finds that.
    """
    import onnxruntime

    if (count := torch.get_num_threads()) > 1:
        if _Pool.threads == 1:
            onnxruntime.set_global_thread_pool_sizes(count, 1)
            _Pool.threads = count
        torch.set_num_threads(1)


class InSession:
    """Blocks that ONNX Runtime keeps. With the last rows that are `put` they are handed over."""

    NAME, ROUNDS = "ONNX Runtime's MatMulNBits", True

    def __init__(self, shape: tuple[int, int], blocks: Blocks) -> None:
        self._shape, self._blocks = shape, blocks
        rows, width = shape
        self._octets = torch.empty(rows, width * blocks.bits // 8, dtype=torch.uint8)
        self._scales = torch.empty(rows, width // blocks.size)
        self._session: Any = None
        self._x, self._y = torch.empty(1, width), torch.empty(1, rows)

    def put(self, first: int, octets: Tensor, scales: Tensor) -> None:
        rows = slice(first, first + len(octets))
        self._octets[rows], self._scales[rows] = octets, scales
        if rows.stop == self._shape[0]:
            self._session = _session(_model(self._octets, self._scales, self._blocks))
            self._row = self._session.io_binding()
            for name, bind, buffer in (("x", self._row.bind_input, self._x), ("y", self._row.bind_output, self._y)):
                bind(name, "cpu", 0, np.float32, tuple(buffer.shape), buffer.data_ptr())
            del self._octets, self._scales

    def multiply(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            self._x.copy_(x)
            self._session.run_with_iobinding(self._row)
            return self._y.clone()
        (found,) = self._session.run(None, {"x": x.float().contiguous().numpy()})
        return torch.from_numpy(found)


def _model(octets: Tensor, scales: Tensor, blocks: Blocks) -> bytes:
    """The operator and its matrix as ONNX: codes uint8 [out, in * bits / 8], half of their range added."""
    from onnx import TensorProto, helper

    (rows, count), size = scales.shape, blocks.size
    width, nbytes = count * size, size * blocks.bits // 8
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain=_DOMAIN,
        K=width, N=rows, bits=blocks.bits, block_size=size, accuracy_level=_IN_BYTES,
    )  # fmt: skip
    kept = [
        helper.make_tensor("codes", TensorProto.UINT8, (rows, count, nbytes), octets.numpy().tobytes(), raw=True),
        helper.make_tensor("scales", TensorProto.FLOAT, (rows, count), scales.numpy().tobytes(), raw=True),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", w]) for n, w in (("x", width), ("y", rows))]
    graph = helper.make_graph([node], "matrix", ends[:1], ends[1:], kept)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def _session(model: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if _Pool.threads > 1:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
