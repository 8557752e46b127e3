"""A PyTorch module becomes a program: exported once, with dynamic sizes, without running it on data.

`torch.export` (non-strict) records the module; `run_decompositions({})` makes it functional and decomposes nothing, so
attention, linear and layer norm stay single operators, as fast as in the module. Parameters may lie on the meta device:
only their names and types go into the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from nodewire.errors import BadTask
from nodewire.graph.format import DTYPES, Input, Node, Output, Program, Shape, Weight
from nodewire.graph.whitelist import Ref

_TRACED_SIZE = 16
"""Example sizes are two different numbers over 1, so that export takes neither for a constant nor for the other."""
_DROPPED = ("aten._assert", "aten.sym_constrain", "aten._assert_tensor_metadata")
_PLACING = ("device", "layout", "pin_memory")


@dataclass(frozen=True, slots=True)
class Traced:
    """A whole model as one program, not yet normalized.

    `shapes` has every tensor's shape where each size is a number or a dim's name; a tensor with a derived size is not
    in it. `constants` are tensors that are part of the module's code, not of its weights.
    """

    program: Program
    shapes: Mapping[str, Shape]
    constants: Mapping[str, torch.Tensor]


def trace(
    module: torch.nn.Module, inputs: Sequence[Input], dims: Mapping[str, int], volume: int, output: str
) -> Traced:
    """Export `module(*inputs) -> Tensor`; the result leaves the program as `output`.

    Raises:
        BadTask: the module cannot be exported with dynamic dims, or holds what the format cannot express.
    """
    sizes = {name: min(_TRACED_SIZE + 3 * k, max(most, 2)) for k, (name, most) in enumerate(dims.items())}
    symbols = {name: torch.export.Dim(name, min=1, max=max(most, 2)) for name, most in dims.items()}
    examples = tuple(
        torch.zeros([sizes[d] if isinstance(d, str) else d for d in i.shape], dtype=i.dtype, device="meta")
        for i in inputs
    )
    dynamic = tuple({k: symbols[d] for k, d in enumerate(i.shape) if isinstance(d, str)} for i in inputs)
    try:
        with torch.no_grad():
            exported = torch.export.export(module, examples, dynamic_shapes=dynamic, strict=False)
            exported = exported.run_decompositions({})
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadTask("model", f"cannot be exported: {str(error).splitlines()[0][:300]}") from error
    return _Reader(exported, inputs, dims, volume).read(output)


class _Reader:
    def __init__(self, exported: Any, inputs: Sequence[Input], dims: Mapping[str, int], volume: int) -> None:
        self._exported = exported
        self._inputs = list(inputs)
        self._undefined = iter(inputs)
        self._dims, self._volume = dims, volume
        self._names: dict[torch.fx.Node, str] = {}
        self._taken: set[str] = set(dims)
        self._symbols: dict[str, str] = {}
        self._shapes: dict[str, Shape] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._weights: list[Weight] = []

    def read(self, output: str) -> Traced:
        nodes: list[Node] = []
        for fx in self._exported.graph.nodes:
            if fx.op == "placeholder":
                self._placeholder(fx)
            elif fx.op == "call_function" and not str(fx.target).startswith(_DROPPED):
                node = self._node(fx)
                if node is not None:
                    nodes.append(node)
            elif fx.op == "output":
                (result,) = fx.args[0]
        value = self._names[result]
        if value not in self._shapes:
            raise BadTask(value, "is the output and has a derived size")
        out = Output(output, value, result.meta["val"].dtype, self._shapes[value])
        program = Program(
            dims=dict(self._dims),
            volume=self._volume,
            inputs=tuple(self._inputs),
            weights=tuple(self._weights),
            nodes=tuple(nodes),
            outputs=(out,),
        )
        return Traced(program, self._shapes, self._constants)

    def _placeholder(self, fx: torch.fx.Node) -> None:
        kinds = {s.arg.name: s for s in self._exported.graph_signature.input_specs}
        spec, val = kinds[fx.name], fx.meta["val"]
        if spec.kind != InputKind.USER_INPUT and not fx.users:
            return
        if spec.kind == InputKind.USER_INPUT:
            declared = next(self._undefined)
            self._name(fx, declared.name)
            for size, dim in zip(val.shape, declared.shape, strict=True):
                if isinstance(size, torch.SymInt) and isinstance(dim, str):
                    self._symbols[str(size)] = dim
            self._shapes[declared.name] = declared.shape
            return
        self._name(fx, str(spec.target))
        name = self._names[fx]
        if val.dtype not in DTYPES.values():
            raise BadTask(name, f"a weight of {val.dtype}")
        self._weights.append(Weight(name, val.dtype, tuple(int(n) for n in val.shape)))
        self._shapes[name] = tuple(int(n) for n in val.shape)
        if spec.kind == InputKind.CONSTANT_TENSOR or spec.persistent is False:
            tensor = self._exported.constants[spec.target]
            if tensor.is_meta:
                raise BadTask(
                    name, "a constant of the model's code without a value; build the model off the meta device"
                )
            self._constants[name] = tensor

    def _node(self, fx: torch.fx.Node) -> Node | None:
        if fx.target is torch.ops.aten.sym_size.int and str(fx.meta["val"]) in self._symbols:
            # A dim is a value of its own in a program, so that no task needs another's tensor for its size alone.
            self._names[fx] = self._symbols[str(fx.meta["val"])]
            return None
        if isinstance(fx.target, torch._ops.OpOverload):
            op = str(fx.target)
        else:
            op = f"py.{getattr(fx.target, '__name__', fx.target)}"
        self._name(fx, fx.name)
        name = self._names[fx]
        shape = self._shape(fx.meta.get("val"))
        if shape is not None:
            self._shapes[name] = shape
        kwargs = {k: self._argument(v, name) for k, v in fx.kwargs.items() if k not in _PLACING}
        return Node(name, op, tuple(self._argument(a, name) for a in fx.args), kwargs)

    def _name(self, fx: torch.fx.Node, wanted: str) -> None:
        """A name that may also stand on an edge of a manifest: no leading underscore."""
        name = re.sub(r"[^A-Za-z0-9_.\-]", "_", wanted).lstrip("_.-")[:140] or "value"
        while name in self._taken:
            name += ".again"
        self._taken.add(name)
        self._names[fx] = name

    def _shape(self, val: Any) -> Shape | None:
        if not isinstance(val, torch.Tensor):
            return None
        sizes = [n if isinstance(n, int) else self._symbols.get(str(n)) for n in val.shape]
        return None if None in sizes else tuple(n for n in sizes if n is not None)

    def _argument(self, arg: Any, node: str) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Ref(self._names[arg])
        if isinstance(arg, list | tuple):
            return [self._argument(item, node) for item in arg]
        if arg is None or isinstance(arg, bool | int | float | str | torch.dtype | torch.memory_format):
            return arg
        raise BadTask(node, f"a constant of type {type(arg).__name__} has no form in a program")
