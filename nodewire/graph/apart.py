"""Whether a program computes each row of its batch by itself, so that calls of several customers may be one batch.

A program is anybody's: one that mixes rows would show one customer's data to another. So rows count as apart only where
every operator is known to keep them apart; what is not known is refused. That is about which numbers a row is made of.
Their last bits may differ: a matrix product of few rows adds in another order than one of many (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from nodewire.errors import BadInput
from nodewire.graph.format import Node, Program
from nodewire.graph.interpret import Interpreter
from nodewire.graph.whitelist import Op, Ref

State = Literal["apart", "same", "size", "number"]
"""Of a value: its first dimension is the batch, and each row of it made of that row of the inputs; it does not depend
on the batch; it is the batch's size; or it has the rows' numbers, which are good for nothing but to pick rows by (as
transformers do to make masks)."""
_ROWS, _OTHERS = 5, 3
"""Sizes to run it with on the meta device, which computes shapes alone."""
_WIDE = (None, torch.int64)
"""What holds rows' numbers. Narrower types, and floats, make one number of several rows'."""
_Given = Mapping[str, Any]


class _Mixed(Exception):
    """An operator that is not known to keep rows apart."""


def batch_dim(program: Program) -> str | None:
    """The dim that is the batch, if the program's rows are apart along it; else None."""
    shapes = [i.shape for i in program.inputs] + [o.shape for o in program.outputs]
    names = {shape[0] if shape else None for shape in shapes}
    (name,) = names if len(names) == 1 else (None,)
    if not isinstance(name, str) or program.dims.get(name, 0) < 2:
        return None
    if any(shape.count(name) != 1 for shape in shapes):
        return None
    sizes = {dim: min(_OTHERS, most) for dim, most in program.dims.items()} | {name: _ROWS}
    inputs = {i.name: _meta([sizes[d] if isinstance(d, str) else d for d in i.shape], i.dtype) for i in program.inputs}
    weights = {w.name: _meta(w.shape, w.dtype) for w in program.weights}
    states: dict[str, State] = {dim: "size" if dim == name else "same" for dim in program.dims}
    states |= dict.fromkeys((i.name for i in program.inputs), "apart")
    states |= dict.fromkeys((w.name for w in program.weights), "same")

    def after(node: Node, op: Op, given: _Given, result: Any, _: Sequence[str]) -> None:
        states[node.name] = _state(node, op, given, result, states)

    try:
        Interpreter(program, weights, "meta")(inputs, sizes, after)
    except (_Mixed, BadInput):
        return None
    return name if all(states[out.value] == "apart" for out in program.outputs) else None


def _meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _state(node: Node, op: Op, given: _Given, result: Any, states: Mapping[str, State]) -> State:
    bound = op.bound(node.args, node.kwargs)
    raw = {p.name: bound[p.name] for p in op.parameters if p.name in bound}
    given = {name: given[name] for name in raw}
    found = {states[ref] for ref in node.refs()}
    of = {name: _of(value, states) for name, value in raw.items()}
    name = op.name.partition(".")[2]
    if name == "arange.default" and of["end"] == "size" and raw.get("dtype") in _WIDE:
        return "number"
    if "number" in found:
        return _numbered(name, raw, of, given, result, states)
    if "size" in found:
        return _sized(name, raw, of, given, result, states)
    if "apart" not in found:
        return "same"
    if op.name == "py.getitem":
        return "apart"
    rule = _RULES.get(name)
    if rule is None or not rule(raw, of, given, result):
        raise _Mixed(node.name)
    return "apart"


def _of(value: Any, states: Mapping[str, State]) -> State:
    if isinstance(value, Ref):
        return states[value.name]
    if isinstance(value, list):
        found = {_of(one, states) for one in value}
        return "apart" if found == {"apart"} else "same" if found <= {"same"} else "size"  # which no operator takes
    return "same"


def _sized(
    name: str, raw: _Given, of: Mapping[str, State], given: _Given, result: Any, states: Mapping[str, State]
) -> State:
    """A shape whose first number is the batch's size, and no other: a reshaped tensor's rows are what they were."""
    formal = next((key for key in ("size", "shape") if isinstance(raw.get(key), list)), None)
    sizes = [_of(one, states) for one in raw[formal]] if formal else []
    others = [state for key, state in of.items() if key != formal]
    if sizes[:1] != ["size"] or "size" in sizes[1:] or "apart" in sizes[1:] or "size" in others:
        raise _Mixed(name)
    if name.partition(".")[0] in _CREATING:
        return "apart"
    own = given["self"]
    if name in ("view.default", "reshape.default") and of["self"] == "apart":
        return "apart"
    if name == "expand.default" and _operand(own, of["self"], result.dim()):
        return "apart"
    raise _Mixed(name)


def _numbered(
    name: str, raw: _Given, of: Mapping[str, State], given: _Given, result: Any, states: Mapping[str, State]
) -> State:
    """The rows' numbers, given another shape; or what they pick, of each row its own."""
    if name == "_to_copy.default" and raw.get("dtype") in _WIDE:
        return "number"
    if name == "unsqueeze.default" and _DIM_MORE(raw, {**of, "self": "apart"}, given, result):
        return "number"
    if name == "index.Tensor" and of["self"] == "apart":
        first, *others = given["indices"]
        rank = max(index.dim() for index in given["indices"] if index is not None)
        if (
            [_of(one, states) for one in raw["indices"]] == ["number", *["same"] * len(others)]
            and first.dim() == rank
            and first.shape[0] == first.numel()
            and all(index is not None and (index.dim() < rank or index.shape[0] == 1) for index in others)
        ):
            return "apart"
    raise _Mixed(name)


_CREATING = frozenset({"full", "ones", "zeros", "new_ones", "new_zeros", "new_full"})


def _list(value: Any) -> list[Any]:
    """Torch takes a number where it wants a list of one."""
    return value if isinstance(value, list) else [value]


def _operand(value: Any, state: State, rank: int) -> bool:
    """Whether it lines up with a result of that rank: the batch with the batch, or with nothing."""
    if not isinstance(value, torch.Tensor):
        return value is None or state == "same"
    return bool(value.dim() == rank if state == "apart" else value.dim() < rank or value.shape[0] == 1)


def _lines_up(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return all(_operand(value, of[name], result.dim()) for name, value in given.items())


def _inner(formal: str, more: int = 0) -> Callable[..., bool]:
    """Only the first argument has rows, and `formal` names dimensions other than theirs."""

    def rule(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
        own, said = next(iter(given.values())), raw.get(formal, 0)
        tensors = own if isinstance(own, list) else [own]
        rank = tensors[0].dim() + more
        dims = _list(said)
        others = [state for name, state in list(of.items())[1:] if state != "same"]
        return (
            next(iter(of.values())) == "apart"
            and not others
            and bool(dims)
            and all(type(dim) is int and dim % rank for dim in dims)
            and len({tensor.dim() for tensor in tensors}) == 1
        )

    return rule


def _transposed(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    rank = given["self"].dim()
    return all(type(raw[key]) is int and raw[key] % rank for key in ("dim0", "dim1"))


def _permuted(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    first = _list(raw["dims"])[0]
    return bool(type(first) is int and first % given["self"].dim() == 0)


def _expanded(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return bool(_list(raw["size"])[0] == -1 and given["self"].dim() == result.dim())


def _linear(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    weights = {of["weight"], of.get("bias", "same")}
    return of["input"] == "apart" and given["input"].dim() >= 2 and weights == {"same"}


def _normed(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    weights = {of.get("weight", "same"), of.get("bias", "same"), of["normalized_shape"]}
    return of["input"] == "apart" and weights == {"same"} and len(_list(raw["normalized_shape"])) < given["input"].dim()


def _product(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    names = ("self", "other") if "other" in given else ("self", "mat2") if "self" in given else ()
    (left, right), (one, other) = (given[n] for n in names), (of[n] for n in names)
    if (one, other) == ("apart", "apart"):
        return bool(left.dim() == right.dim() >= 3)
    if one == "apart":
        return bool(left.dim() >= 2 and (right.dim() < left.dim() or right.dim() == 2))
    return bool(right.dim() >= 3 and left.dim() < right.dim())


def _added_product(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return of["mat1"] == "apart" and of["mat2"] == "same" and _operand(given["self"], of["self"], 2)


def _attended(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    rank = given["query"].dim()
    return (
        rank >= 3
        and all(of[name] == "apart" and given[name].dim() == rank for name in ("query", "key", "value"))
        and _operand(given.get("attn_mask"), of.get("attn_mask", "same"), rank)
    )


def _looked_up(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return of["weight"] == "same" and of["indices"] == "apart"


def _selected(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    if of["self"] == "same":
        return bool(raw["dim"] == 0 and of["index"] == "apart")
    return _inner("dim")(raw, of, given, result)


def _padded(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return bool(len(_list(raw["pad"])) < 2 * given["self"].dim())


def _masked(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return bool(given["self"].dim() >= 3)


def _like(raw: _Given, of: Mapping[str, State], given: _Given, result: Any) -> bool:
    return True


_ELEMENTWISE = """
abs.default neg.default exp.default log.default sqrt.default rsqrt.default reciprocal.default sin.default cos.default
tanh.default sigmoid.default relu.default silu.default gelu.default erf.default logical_not.default bitwise_not.default
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
pow.Tensor_Scalar maximum.default minimum.default clamp.default clamp_min.default clamp_max.default
eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
logical_and.default logical_or.default bitwise_and.Tensor bitwise_or.Tensor __and__.Tensor __or__.Tensor
where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar _to_copy.default clone.default
"""
_ALONG_DIM = """
sum.dim_IntList mean.dim amax.default amin.default argmax.default cumsum.default any.dim var.correction
softmax.int _softmax.default log_softmax.int linalg_vector_norm.default
select.int slice.Tensor squeeze.dim split.Tensor split_with_sizes.default unbind.int cat.default
"""
_DIM, _DIMS, _DIM_MORE = _inner("dim"), _inner("dims"), _inner("dim", more=1)
_RULES: dict[str, Callable[[_Given, Mapping[str, State], _Given, Any], bool]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _lines_up),
    **dict.fromkeys(("zeros_like.default", "ones_like.default", "full_like.default"), _like),
    **dict.fromkeys(_ALONG_DIM.split(), _DIM),
    "flip.default": _DIMS,
    "unsqueeze.default": _DIM_MORE,
    "stack.default": _DIM_MORE,
    "flatten.using_ints": _inner("start_dim"),
    "transpose.int": _transposed,
    "permute.default": _permuted,
    "expand.default": _expanded,
    "linear.default": _linear,
    "layer_norm.default": _normed,
    "matmul.default": _product,
    "mm.default": _product,
    "bmm.default": _product,
    "addmm.default": _added_product,
    "scaled_dot_product_attention.default": _attended,
    "embedding.default": _looked_up,
    "index_select.default": _selected,
    "constant_pad_nd.default": _padded,
    "tril.default": _masked,
    "triu.default": _masked,
}
"""By operator, whether rows stay apart, given the raw arguments, their states, their values and the result."""
