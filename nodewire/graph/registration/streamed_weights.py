"""A module whose weights lie on the meta device, run on real inputs: a weight is read when an operator wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from nodewire.weights.tensorfile import AssembledTensor, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nodewire.graph.cut.writer import Parts

_PLAIN = tuple(getattr(torch.Tensor, name).__get__ for name in ("dtype", "shape", "ndim", "is_cuda", "requires_grad"))
"""What is asked of a tensor without its values."""
_PLACE = torch.Tensor.device.__get__


class StreamedWeights(TorchFunctionMode):
    """Within it, every parameter and buffer of `module` has the value that `parts` says; one at a time is in memory.

    `tied` has all names of weights that have several, `buffers` the values of what is stored nowhere.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parts: Parts,
        tied: Mapping[str, Sequence[str]],
        buffers: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        first = {name: names[0] for names in tied.values() for name in names}
        held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        self._names = {id(tensor): first.get(name, name) for name, tensor in held}
        self._parts, self._buffers = parts, buffers
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def __exit__(self, *raised: Any) -> None:
        self._last = ("", torch.empty(0))
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func == _PLACE and args[0].is_meta:
            return torch.device("cpu")
        if func in _PLAIN:
            return func(*args)
        args, kwargs = tree_map_only(torch.Tensor, self._real, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        name = self._names.get(id(tensor))
        if name is None or not tensor.is_meta:
            return tensor
        if name != self._last[0]:
            value = self._buffers.get(name)
            made = AssembledTensor(
                tensor.dtype, tuple(tensor.shape), tuple(self._parts(name) if value is None else (value,))
            )
            self._last = ("", torch.empty(0))
            self._last = (name, read(made))
        return self._last[1]
