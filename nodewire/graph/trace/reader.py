"""An exported module as a program: operators as they stand, sizes as arithmetic on dims, branches as a choice of both.

`torch.cond` becomes the operators of both branches and a `where` for each result. They are pure, so this is the same
function; both are computed, the one that is not taken with indices of 0. Sizes that the model derives (s + 1, b * s)
are `py.` operators on dims.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

from nodewire.errors import BadTask
from nodewire.graph.program.format import DTYPES, Node, Output, Program, Shape, Weight
from nodewire.graph.program.whitelist import TRANSPOSED, Ref
from nodewire.graph.trace.guards import Guard, counterexample
from nodewire.graph.trace.places import Place, own, traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.graph.trace.examples import Signature

_DROPPED = ("aten._assert", "aten.sym_constrain")
KNOWN = {
    "aten.min.other": "aten.minimum.default",
    "aten.max.other": "aten.maximum.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    **dict.fromkeys(
        ("aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default"), "aten.clone.default"
    ),
}
"""Operators that are others by another name in a functional graph."""
_RESHAPES = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_PLACING = ("device", "layout", "pin_memory", "non_blocking")
INDEX_AT = {
    "aten.embedding.default": 1,
    "aten.index.Tensor": 1,
    "aten.index_select.default": 2,
    "aten.gather.default": 2,
}
"""Which argument of an operator are indices that must be in range."""
_MOST_FACTORS = 8
_BY_DATA = "makes a tensor as large as its data says: give it a size of the inputs', and a mask"
_RELATIONS: Mapping[Any, str] = {
    sympy.Gt: "gt",
    sympy.Ge: "ge",
    sympy.Lt: "lt",
    sympy.Le: "le",
    sympy.Eq: "eq",
    sympy.Ne: "ne",
}


def _convolution(args: tuple[Any, ...], op: str) -> tuple[str, tuple[Any, ...]]:
    """What a convolution is called that is transposed, or whose padding was said in a word, and its arguments.

    One over volumes stays as it is.
    """
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    if len(stride) > 2:
        return op, args
    if transposed:
        return TRANSPOSED[len(stride) - 1], (x, weight, bias, stride, padding, output_padding, groups, dilation)
    return f"aten.conv{len(stride)}d.default", (x, weight, bias, stride, padding, dilation, groups)


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A whole model as one program, not yet normalized.

    `shapes` has every tensor's shape where each size is a number or a dim's name; a tensor with a derived size is not
    in it. `constants` are tensors that are part of the module's code, not of its weights. `tied` has all names of the
    weights that have several, `places` where in the model each node was made, `sources` what the model calls
    each weight.
    """

    program: Program
    shapes: Mapping[str, Shape]
    constants: Mapping[str, torch.Tensor]
    tied: Mapping[str, Sequence[str]] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> Mapping[str, str]:
        """Of each node, the path of its module."""
        return {name: place.path for name, place in self.places.items()}


class Reader:
    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        module: torch.nn.Module,
        said: Signature,
        volume: int,
        buffers: Mapping[str, torch.Tensor],
        asked: Sequence[Guard] = (),
    ) -> None:
        self._exported, self._said, self._volume, self._buffers = exported, said, volume, buffers
        self._asked = asked
        self._undefined = iter(said.inputs)
        self._tied = _tied(module)
        self._names: dict[torch.fx.Node, str] = {}
        self._lists: dict[torch.fx.Node, list[str]] = {}
        self._taken: set[str] = set(said.dims)
        self._symbols: dict[sympy.Symbol, str] = {}
        self._sizes: dict[sympy.Expr, int | Ref] = {}
        self._shapes: dict[str, Shape] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._weights: dict[str, Weight] = {}
        self._called: dict[str, str] = {}
        """Weights' names here, by their names in the model."""
        self._nodes: list[Node] = []
        self._places: dict[str, Place] = {}
        self._tried: set[sympy.Expr] = set()
        self._within: list[tuple[Ref, bool]] = []
        """Conditions of the branches that are being read, and whether each is of what holds."""

    def read(self, names: Sequence[str]) -> TracedModel:
        """The program; `names` are those of its outputs."""
        signature = self._exported.graph_signature
        for spec in signature.output_specs:
            if spec.kind != OutputKind.USER_OUTPUT:
                raise BadTask(own(str(spec.target)), "is changed by a call, and a task keeps nothing between calls")
        results = self._read(self._exported.graph_module, None)
        outputs = []
        for name, fx in zip(names, results, strict=True):
            value, place = self._names[fx], traced(fx)
            if not _symbols(fx.meta["val"].shape) <= self._symbols.keys():
                raise BadTask(place.path or name, f"{_BY_DATA}{place}")
            if fx.meta["val"].dtype not in DTYPES.values():
                raise BadTask(name, f"leaves as {str(fx.meta['val'].dtype)[6:]}, which no task puts out{place}")
            if value not in self._shapes:
                size = " x ".join(str(n) for n in fx.meta["val"].shape)
                raise BadTask(name, f"leaves with the size {size}, derived from others: return it unflattened{place}")
            outputs.append(Output(name, value, fx.meta["val"].dtype, self._shapes[value]))
        program = Program(
            dims=dict(self._said.dims),
            volume=self._volume,
            inputs=self._said.inputs,
            weights=tuple(self._weights.values()),
            nodes=tuple(self._nodes),
            outputs=tuple(outputs),
        )
        tied = {names[0]: names for names in self._tied.values() if len(names) > 1}
        sources = {name: source for source, name in self._called.items()}
        return TracedModel(program, self._shapes, self._constants, tied, self._places, sources)

    def _read(self, graph_module: torch.fx.GraphModule, operands: Sequence[torch.fx.Node] | None) -> Sequence[Any]:
        """Read a graph; its placeholders are the operands, or the exported program's own. What it returns."""
        given = iter(operands or ())
        for fx in graph_module.graph.nodes:
            if fx.op == "placeholder":
                if operands is None:
                    self._placeholder(fx)
                else:
                    self._names[fx] = self._names.get(next(given), "")
            elif fx.op == "output":
                return list(fx.args[0])
            elif fx.op == "call_function":
                self._call(fx, graph_module)
        raise BadTask("model", "a graph without an output")

    def _placeholder(self, fx: torch.fx.Node) -> None:
        spec = next(s for s in self._exported.graph_signature.input_specs if s.arg.name == fx.name)
        val = fx.meta["val"]
        if spec.kind == InputKind.USER_INPUT:
            declared = next(self._undefined)
            self._name(fx, declared.name)
            for size, dim in zip(val.shape, declared.shape, strict=True):
                if isinstance(size, torch.SymInt) and isinstance(dim, str):
                    self._symbols[size.node.expr] = dim
            self._shapes[declared.name] = declared.shape
            return
        if not fx.users:
            return
        wanted = own(str(spec.target))
        name = next((names[0] for names in self._tied.values() if wanted in names), wanted)
        if name in self._called:
            self._names[fx] = self._called[name]
            return
        source, name = name, self._name(fx, name)
        self._called[source] = name
        if not isinstance(val, torch.Tensor) or val.dtype not in DTYPES.values():
            kind = str(getattr(val, "dtype", type(val).__name__)).removeprefix("torch.")
            raise BadTask(name, f"a weight of {kind}, which no task has: {', '.join(DTYPES)}")
        self._weights[name] = Weight(name, val.dtype, tuple(int(n) for n in val.shape))
        self._shapes[name] = tuple(int(n) for n in val.shape)
        if spec.kind == InputKind.CONSTANT_TENSOR or spec.persistent is False:
            tensor = self._exported.constants[str(spec.target)]
            tensor = self._buffers.get(wanted, tensor) if tensor.is_meta else tensor
            if tensor.is_meta:
                raise BadTask(wanted, "a constant of the model's code without a value: build it off the meta device")
            self._constants[name] = tensor

    def _call(self, fx: torch.fx.Node, graph_module: torch.fx.GraphModule) -> None:
        val, target = fx.meta.get("val"), fx.target
        if str(target).startswith(_DROPPED):
            self._try(fx)
            return
        if isinstance(val, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return  # made where it is used
        if target is operator.getitem and fx.args[0] in self._lists:
            self._names[fx] = self._lists[fx.args[0]][int(fx.args[1])]  # type: ignore[index, arg-type]
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            self._higher(fx, str(target), graph_module)
            return
        place = traced(fx)
        kwargs = {k: self._argument(v, place) for k, v in fx.kwargs.items() if k not in _PLACING}
        if target is torch.ops.aten._to_copy.default and not kwargs:  # a move to another device
            self._names[fx] = self._names[fx.args[0]]  # type: ignore[index]
            return
        args = tuple(self._argument(a, place) for a in fx.args)
        is_aten = isinstance(target, torch._ops.OpOverload)
        op = str(target) if is_aten else f"py.{getattr(target, '__name__', target)}"
        if op in _RESHAPES and isinstance(args[1], list) and val is not None:
            args = (args[0], [self._inferred(n, val.shape[k], place) for k, n in enumerate(args[1])])
        if op == "aten.convolution.default":
            op, args = _convolution(args, op)
        if self._within and op in INDEX_AT and len(args) > INDEX_AT[op]:
            at = INDEX_AT[op]
            args = (*args[:at], self._in_range(args[at], fx.args[at], place), *args[at + 1 :])
        name = self._name(fx, fx.name)
        self._nodes.append(Node(name, KNOWN.get(op, op), args, kwargs))
        self._places[name] = place
        self._note(name, val)

    def _try(self, fx: torch.fx.Node) -> None:
        """Raises BadTask: an assertion does not hold at some of the sizes that the program is to admit."""
        asserted = fx.args[0].meta.get("val") if fx.args and isinstance(fx.args[0], torch.fx.Node) else None
        expr = asserted.node.expr if isinstance(asserted, torch.SymBool) else None
        if expr is None or expr in self._tried or not expr.free_symbols <= self._symbols.keys():
            return
        self._tried.add(expr)
        at = counterexample(expr, {one: self._symbols[one] for one in expr.free_symbols}, self._said.dims)
        if at is not None:
            refusals = (guard.refusal(self._said.dims) for guard in self._asked)
            raise next(filter(None, refusals), _refused(traced(fx), f"cannot run at {at}: let sizes vary less"))

    def _higher(self, fx: torch.fx.Node, kind: str, graph_module: torch.fx.GraphModule) -> None:
        def graph(arg: Any) -> torch.fx.GraphModule:
            found = graph_module.get_submodule(str(arg.target))
            assert isinstance(found, torch.fx.GraphModule)
            return found

        place = traced(fx)
        match kind, list(fx.args):
            case "cond", [condition, left, right, operands]:
                chosen = self._condition(condition, fx.name, place)
                branches = []
                for one, taken in ((left, True), (right, False)):
                    self._within.append((chosen, taken))
                    branches.append(self._results(graph(one), operands))
                    self._within.pop()
                types = fx.meta["val"]
                self._lists[fx] = [
                    self._made(f"{fx.name}.{k}", "aten.where.self", (chosen, Ref(a), Ref(b)), types[k], place)
                    for k, (a, b) in enumerate(zip(*branches, strict=True))
                ]
            case "wrap_with_set_grad_enabled", [_, inner, *operands]:
                self._lists[fx] = self._results(graph(inner), operands)
            case "wrap_with_autocast", [_, _, False, _, inner, *operands]:
                self._lists[fx] = self._results(graph(inner), operands)
            case _:
                raise _refused(place, f"uses {kind}, which no task may: write it with tensors' operators")

    def _results(self, graph: torch.fx.GraphModule, operands: Any) -> list[str]:
        return [self._names[result] for result in self._read(graph, operands)]

    def _in_range(self, index: Any, fx: Any, place: Place) -> Any:
        """Indices of an operator in branches: 0 where these are not taken, since all are computed.

        What the model would not look up need not be there.
        """
        if isinstance(index, list):
            return [self._in_range(one, part, place) for one, part in zip(index, fx, strict=True)]
        if not isinstance(index, Ref) or fx.meta["val"].dtype == torch.bool:
            return index
        for chosen, taken in self._within:
            op, args = ("ScalarOther", (index, 0)) if taken else ("ScalarSelf", (0, index))
            index = Ref(self._made(f"{fx.name}.taken", f"aten.where.{op}", (chosen, *args), fx.meta["val"], place))
        return index

    def _condition(self, given: Any, name: str, place: Place) -> Ref:
        """A boolean tensor without dimensions."""
        val = given.meta["val"]
        if isinstance(val, torch.Tensor):
            value, rank = self._names[given], val.dim()
            if rank:
                value = self._made(f"{name}.condition", "aten.reshape.default", (Ref(value), []), None, place)
            return Ref(value)
        relation = val.node.expr
        if relation.func not in _RELATIONS:
            raise _refused(place, f"chooses by {relation}: compare two sizes")
        left, right = (self._expression(side, place) for side in relation.args)
        number = self._made(f"{name}.size", "aten.scalar_tensor.default", (left,), None, place, dtype=torch.int64)
        op = f"aten.{_RELATIONS[relation.func]}.Scalar"
        return Ref(self._made(f"{name}.condition", op, (Ref(number), right), None, place))

    def _made(self, wanted: str, op: str, args: tuple[Any, ...], val: Any, place: Place, **kwargs: Any) -> str:
        name = self._fresh(wanted)
        self._nodes.append(Node(name, op, args, kwargs))
        self._places[name] = place
        self._note(name, val)
        return name

    def _name(self, fx: torch.fx.Node, wanted: str) -> str:
        self._names[fx] = self._fresh(wanted)
        return self._names[fx]

    def _fresh(self, wanted: str) -> str:
        """A name that may also stand on an edge of a manifest: no leading underscore."""
        name = re.sub(r"[^A-Za-z0-9_.\-]", "_", wanted).lstrip("_.-")[:140] or "value"
        every = chain([name], (f"{name}.again{n if n > 1 else ''}" for n in count(1)))
        name = next(one for one in every if one not in self._taken)
        self._taken.add(name)
        return name

    def _note(self, name: str, val: Any) -> None:
        if isinstance(val, torch.Tensor):
            sizes = [n if isinstance(n, int) else self._symbols.get(n.node.expr) for n in val.shape]
            if None not in sizes:
                self._shapes[name] = tuple(n for n in sizes if n is not None)

    def _argument(self, arg: Any, place: Place) -> Any:
        if isinstance(arg, torch.fx.Node):
            val = arg.meta.get("val")
            if isinstance(val, torch.SymInt):
                return self._expression(val.node.expr, place)
            if isinstance(val, (int, float, bool)):
                return val
            if arg in self._names:
                return Ref(self._names[arg])
            if (
                isinstance(val, torch.SymFloat | torch.SymBool)
                and not val.node.expr.free_symbols <= self._symbols.keys()
            ):
                raise _refused(place, "takes a number out of a tensor: compute with the tensor, without item()")
            raise _refused(place, f"computes with {val}, a number made of sizes that has no form in a program")
        if isinstance(arg, torch.SymInt):
            return self._expression(arg.node.expr, place)
        if isinstance(arg, list | tuple):
            return [self._argument(item, place) for item in arg]
        if isinstance(arg, torch.dtype) and arg not in DTYPES.values():
            raise _refused(place, f"computes in {str(arg)[6:]}, which no task does: {', '.join(DTYPES)}")
        if arg is None or isinstance(arg, bool | int | float | str | torch.dtype | torch.memory_format):
            return arg
        raise _refused(place, f"a constant of type {type(arg).__name__} has no form in a program")

    def _inferred(self, said: Any, size: Any, place: Place) -> Any:
        """A size of a new shape; what is left to be inferred (-1) by its name, so that who follows rows knows it."""
        if said != -1 or (isinstance(size, torch.SymInt) and size.node.expr not in self._symbols):
            return said
        return self._argument(size, place)

    def _expression(self, expr: Any, place: Place) -> int | Ref:
        """A size: a number, a dim, or arithmetic on them."""
        if expr.is_Integer:
            return int(expr)
        if expr in self._symbols:
            return Ref(self._symbols[expr])
        if expr not in self._sizes:
            self._sizes[expr] = self._arithmetic(expr, place)
        return self._sizes[expr]

    def _arithmetic(self, expr: Any, place: Place) -> int | Ref:
        def call(name: str, left: int | Ref, right: int | Ref) -> Ref:
            return Ref(self._made("size", f"py.{name}", (left, right), None, place))

        if not expr.args:
            raise _refused(place, _BY_DATA)
        parts = [self._expression(part, place) for part in expr.args]
        first, *rest = parts
        match expr.func:
            case sympy.Add | sympy.Mul:
                for part in rest:
                    first = call("add" if expr.func is sympy.Add else "mul", first, part)
                return first
            case func if func in (FloorDiv, CleanDiv):
                return call("floordiv", *parts)
            case func if func in (Mod, PythonMod):
                return call("sub", first, call("mul", call("floordiv", *parts), rest[0]))
            case sympy.Pow if isinstance(rest[0], int) and 0 < rest[0] <= _MOST_FACTORS:
                made = first
                for _ in range(rest[0] - 1):
                    made = call("mul", made, first)
                return made
        raise _refused(place, f"the size {expr} has no form in a program: use sums, products and whole quotients")


def _tied(module: torch.nn.Module) -> dict[int, list[str]]:
    """All names of every parameter and buffer, by identity."""
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    return names


def _symbols(shape: Sequence[Any]) -> set[Any]:
    return {symbol for size in shape if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _refused(place: Place, why: str) -> BadTask:
    return BadTask(place.path or "model", f"{why}{place}")
