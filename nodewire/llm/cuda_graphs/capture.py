"""Ways to take down a step once and run it again, over the same buffers, whatever stands in them then.

A step that can be taken down is a function of tensors that stay where they are: it asks the device for no number, has
no shape that depends on one, and puts what it makes into a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], object]
"""Runs the step over what stands in its buffers now."""


class Capture(Protocol):
    def __call__(self, step: Callable[[], None]) -> Replay:
        """Take a step down; it may be run for that, and what it makes is not to be relied on before a replay.

        Raises:
            RuntimeError: something in it cannot be.

        """


class CudaGraphs:
    """`torch.cuda.CUDAGraph`.

    Only one replay runs at a time and none keeps anything, so all share one pool, which grows to what the largest
    takes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], None]) -> Replay:
        with torch.cuda.device(self._device):
            main = torch.cuda.current_stream()
            self._stream.wait_stream(main)
            with torch.cuda.stream(self._stream):
                step()  # libraries choose their kernels, and take what they keep of this stream
            main.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                step()
        return graph.replay
