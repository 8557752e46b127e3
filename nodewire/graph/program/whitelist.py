"""The operators that a task may use: an explicit list of overloads, each checked against torch's own schema.

The namespace `torch.ops.aten` as such is not safe: it holds overloads that read files (`from_file`), write them
(`save`), rebind or resize storage (`set_`, `resize_`, `as_strided`), expose stale memory (`empty*`), print or draw
random numbers. So an operator is here because somebody has read what it does: it is pure, deterministic, and its memory
is its output, which the meta device computes without allocating. In-place and `out=` overloads are left out.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nodewire.errors import BadTask
from nodewire.graph.program.dispatch import scatter_rows, select_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_INT = 2**63 - 1
MAX_LIST = 256
MAX_TEXT = 16


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value by its name: a dimension, an input, a weight or an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One formal argument of an operator; `kind` is torch's name of its type."""

    name: str
    kind: str
    required: bool
    keyword: bool


@dataclass(frozen=True, slots=True)
class Op:
    """An allowed operator. `call` takes the decoded arguments; `places` is true when it must be told the device."""

    name: str
    call: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    places: bool = False

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by formal name; the caller has checked them."""
        named = {p.name: a for p, a in zip(self.parameters, args, strict=False)}
        return {**named, **kwargs}


_ELEMENTWISE = """
abs.default neg.default exp.default log.default sqrt.default rsqrt.default reciprocal.default sin.default cos.default
tanh.default sigmoid.default relu.default silu.default gelu.default erf.default logical_not.default bitwise_not.default
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
pow.Tensor_Scalar maximum.default minimum.default clamp.default clamp_min.default clamp_max.default
eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
logical_and.default logical_or.default bitwise_and.Tensor bitwise_or.Tensor __and__.Tensor __or__.Tensor
where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar _to_copy.default
hardtanh.default hardsigmoid.default hardswish.default leaky_relu.default elu.default softplus.default
sign.default ceil.default floor.default round.default fmod.Scalar fmod.Tensor remainder.Scalar remainder.Tensor
masked_scatter.default
"""
_REDUCE = """
sum.default sum.dim_IntList mean.default mean.dim amax.default amin.default argmax.default cumsum.default any.dim
var.correction softmax.int _softmax.default log_softmax.int linalg_vector_norm.default
topk.default sort.default max_pool2d.default avg_pool2d.default adaptive_avg_pool2d.default
"""
_CONTRACT = """
linear.default matmul.default mm.default bmm.default addmm.default scaled_dot_product_attention.default
layer_norm.default group_norm.default _native_batch_norm_legit_no_training.default conv1d.default conv2d.default
conv_transpose1d.default conv_transpose2d.input upsample_nearest2d.vec upsample_bilinear2d.vec
"""
_RESHAPE = """
view.default reshape.default transpose.int permute.default t.default unsqueeze.default squeeze.dim expand.default
clone.default slice.Tensor select.int cat.default stack.default flatten.using_ints repeat.default flip.default
split.Tensor split_with_sizes.default unbind.int tril.default triu.default constant_pad_nd.default
"""
_INDEX = "embedding.default index.Tensor index_select.default gather.default"
_CREATE = """
arange.default arange.start arange.start_step full.default ones.default zeros.default scalar_tensor.default
zeros_like.default ones_like.default full_like.default new_ones.default new_zeros.default new_full.default
"""

SAME_FLOAT = {f"aten.{name}" for name in _CONTRACT.split()}
"""Every tensor argument has one floating dtype (an attention mask may be boolean). Kernels check it; meta does not."""
INDEXING = {f"aten.{name}" for name in _INDEX.split()}
"""Integer indices, which only a run can bound."""
BITWISE = {"aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.__and__.Tensor", "aten.__or__.Tensor"}
REMAINDERS = {"aten.fmod.Scalar", "aten.fmod.Tensor", "aten.remainder.Scalar", "aten.remainder.Tensor"}
"""Of floats alone: of whole numbers a processor stops at the least one over -1."""
TRANSPOSED = ("aten.conv_transpose1d.default", "aten.conv_transpose2d.input")
VIEW = "aten.view.default"
RESHAPE = "aten.reshape.default"
SLICE, SQUEEZE = "aten.slice.Tensor", "aten.squeeze.dim"
SELECT, SCATTER = "nodewire.select_rows", "nodewire.scatter_rows"

# Left at their defaults: where a tensor lies is the interpreter's choice, and a dropout is a random number.
_FIXED: dict[str, Any] = {
    "device": None,
    "layout": None,
    "pin_memory": None,
    "non_blocking": False,
    "sparse": False,
    "scale_grad_by_freq": False,
    "sparse_grad": False,
    "dropout_p": 0.0,
}


def _aten(name: str) -> Op:
    packet, overload = name.split(".")
    # A traced `view` bakes in the strides of the backend that traced it; `reshape` says the same and is portable.
    call = (
        getattr(getattr(torch.ops.aten, packet), overload) if name != "view.default" else torch.ops.aten.reshape.default
    )
    schema = call._schema
    assert not schema.is_mutable, name
    parameters = tuple(
        Parameter(a.name, str(a.real_type), not a.has_default_value(), a.kwarg_only) for a in schema.arguments
    )
    kinds = {p.kind for p in parameters}
    places = "Optional[Device]" in kinds and "Tensor" not in kinds
    return Op(f"aten.{name}", call, parameters, places)


def _python(name: str, call: Callable[..., Any], *kinds: str) -> Op:
    return Op(f"py.{name}", call, tuple(Parameter(f"a{i}", k, True, False) for i, k in enumerate(kinds)))


def _own(name: str, call: Callable[..., Any], **kinds: str) -> Op:
    return Op(f"nodewire.{name}", call, tuple(Parameter(n, kind, True, False) for n, kind in kinds.items()))


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        *(_aten(name) for name in (_ELEMENTWISE + _REDUCE + _CONTRACT + _RESHAPE + _INDEX + _CREATE).split()),
        _python("mul", operator.mul, "int", "int"),
        _python("add", operator.add, "int", "int"),
        _python("sub", operator.sub, "int", "int"),
        _python("floordiv", operator.floordiv, "int", "int"),
        _python("getitem", operator.getitem, "Value", "Index"),
        _own("select_rows", select_rows, self="Value", chosen="Value", first="int", last="int"),
        _own("scatter_rows", scatter_rows, self="Value", chosen="Value", first="int", last="int"),
    )
}
"""Every operator that may stand in a program, by name."""


def check_call(node: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check a call's operator, arity and argument types, as far as they are known before shapes are.

    Raises:
        BadTask: with `node` as its field.

    """
    op = OPS.get(name)
    if op is None:
        raise BadTask(node, f"operator {name[:80]!r} is not on the whitelist")
    positional = [p for p in op.parameters if not p.keyword]
    if len(args) > len(positional):
        raise BadTask(node, f"{name} takes {len(positional)} arguments, {len(args)} given")
    given = dict(zip((p.name for p in positional), args, strict=False))
    by_name = {p.name: p for p in op.parameters}
    for key, value in kwargs.items():
        if key not in by_name or key in given:
            raise BadTask(node, f"{name} takes no further argument {key[:40]!r}")
        given[key] = value
    for parameter in op.parameters:
        if parameter.name not in given:
            if parameter.required:
                raise BadTask(node, f"{name} misses {parameter.name}")
        elif parameter.name in _FIXED:
            if given[parameter.name] != _FIXED[parameter.name]:
                raise BadTask(node, f"{name} may not set {parameter.name}")
        elif not _fits(given[parameter.name], parameter.kind):
            raise BadTask(node, f"{name}: {parameter.name} is not a {parameter.kind}")


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        inner = kind[5:-1]
        if isinstance(value, list):
            return len(value) <= MAX_LIST and all(_fits(item, inner) for item in value)
        return inner == "int" and _fits(value, "int")  # torch accepts one int for int[1]
    return kind in _CHECKS and _CHECKS[kind](value)


def _is_int(value: Any) -> bool:
    return isinstance(value, Ref) or (type(value) is int and -MAX_INT - 1 <= value <= MAX_INT)


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, bool | float)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_number,  # torch wraps a plain number where an operand is expected
    "number": _is_number,
    "int": _is_int,
    "float": lambda v: type(v) in (int, float),
    "bool": lambda v: type(v) is bool,
    "str": lambda v: isinstance(v, str) and len(v) <= MAX_TEXT,
    "ScalarType": lambda v: isinstance(v, torch.dtype),
    "MemoryFormat": lambda v: v in (torch.contiguous_format, torch.preserve_format),
    "Value": lambda v: isinstance(v, Ref),
    "Index": lambda v: type(v) is int and 0 <= v < MAX_LIST,
}
