"""A step taken down as a graph of torch.fx, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodewire.llm.cuda_graphs.capture import Replay


class FxCapture:
    """A Capture (capture.py) of the operations of one run.

    What cannot be in a CUDA graph is refused, so that a machine without a GPU shows whether a step can be captured, and
    that a replay says what the step says.
    """

    def __call__(self, step: Callable[[], None]) -> Replay:
        made: Callable[[], Any] = make_fx(_pure(step), tracing_mode="real")()
        assert isinstance(made, fx.GraphModule)
        for node in made.graph.nodes:
            _check(node)
        return made


def _pure(step: Callable[[], None]) -> Callable[[], tuple[Tensor, ...]]:
    def run() -> tuple[Tensor, ...]:
        with _DeviceReadGuard():
            step()
        return ()

    return run


class _DeviceReadGuard(TorchFunctionMode):
    """Raises RuntimeError: what reads a tensor's memory, which is no operation and would not be seen."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.data_ptr):
            raise RuntimeError(f"{func.__name__} asks the device for numbers")
        return func(*args, **(kwargs or {}))


_ASKING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def _check(node: fx.Node) -> None:
    """Raises RuntimeError: an operation that asks the device for a number, or has a shape that depends on one."""
    if isinstance(node.target, torch._ops.OpOverload) and any(tag in node.target.tags for tag in _ASKING):
        raise RuntimeError(f"{node.target} depends on numbers of the device")
