"""A step taken down as a graph of torch.fx, on any device."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodewire.llm.cuda_graphs.capture import Replay


class FxCapture:
    """A Capture (capture.py) of the operations of one run.

    What cannot be in a CUDA graph is refused, so that a machine without a GPU shows whether a step can be captured, and
    that a replay says what the step says.
    """

    def __call__(self, step: Callable[[], None]) -> Replay:
        written = _WrittenRun()
        with _DeviceReadGuard(), written:
            step()
        return written.replay()


class _WrittenRun(TorchDispatchMode):
    """Writes the operations of a run into a graph, down to those that are made of no others.

    `torch.fx.experimental.proxy_tensor.make_fx` would note the stack, shapes and a fake tensor of each as well, which
    takes five times as long.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._given: dict[str, Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._met: list[Tensor] = []
        """Every tensor that has a node: while it lives its id is no other's."""

    def replay(self) -> Replay:
        self._graph.output(None)
        return fx.GraphModule(self._given, self._graph)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        _check(func)
        written, options = tree_map_only(Tensor, self._node, (tuple(args), dict(kwargs)))
        node = self._graph.call_function(func, written, options)
        made = func(*args, **kwargs)
        if isinstance(made, Tensor):
            self._note(made, node)
        else:
            for n, one in enumerate(made or ()):
                self._note(one, self._graph.call_function(operator.getitem, (node, n)))
        return made

    def _note(self, tensor: Any, node: fx.Node) -> None:
        """What an operation wrote in place keeps the node of the tensor that it was."""
        if isinstance(tensor, Tensor) and id(tensor) not in self._nodes:
            self._nodes[id(tensor)] = node
            self._met.append(tensor)

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            name = f"given_{len(self._given)}"
            self._given[name] = tensor
            self._note(tensor, self._graph.get_attr(name))
        return self._nodes[id(tensor)]


class _DeviceReadGuard(TorchFunctionMode):
    """Raises RuntimeError: what reads a tensor's memory, which is no operation and would not be seen."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.data_ptr):
            raise RuntimeError(f"{func.__name__} asks the device for numbers")
        return func(*args, **(kwargs or {}))


_ASKING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def _check(operation: Any) -> None:
    """Raises RuntimeError: one that asks the device for a number, or has a shape that depends on one."""
    if any(tag in operation.tags for tag in _ASKING):
        raise RuntimeError(f"{operation} depends on numbers of the device")
