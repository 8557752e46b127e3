"""Along which axis the batch lies in what an operator makes, if each row of it follows from the same row of its inputs.

For `nodewire.protocol.rowwise`. Shapes are followed only as far as rows depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

_ELEMENTWISE = """
abs.default neg.default exp.default log.default sqrt.default rsqrt.default reciprocal.default sin.default cos.default
tanh.default sigmoid.default relu.default silu.default gelu.default erf.default logical_not.default bitwise_not.default
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
pow.Tensor_Scalar maximum.default minimum.default clamp.default clamp_min.default clamp_max.default
eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
logical_and.default logical_or.default bitwise_and.Tensor bitwise_or.Tensor __and__.Tensor __or__.Tensor
where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar _to_copy.default clone.default
"""
ELEMENTWISE = frozenset(f"aten.{name}" for name in _ELEMENTWISE.split())


class Unproven(Exception):
    """No rule says that rows stay apart; `str()` says why, or by which node."""


@dataclass(frozen=True, slots=True)
class Value:
    """`shape`: sizes where they are known; `axis`: where the batch lies, None if the value does not depend on it;
    `counts`: the value along it is the row's own number."""

    shape: tuple[int | None, ...]
    axis: int | None = None
    counts: bool = False


class Number:
    """A size or another number of which nothing is known, but whether it is the `batch`'s size."""

    def __init__(self, *, batch: bool = False) -> None:
        self.batch = batch


class Unknown:
    """A tensor of which nothing is known, but that it does not depend on the batch."""


SIZE, NUMBER, UNKNOWN = Number(batch=True), Number(), Unknown()
Known = Value | Number | Unknown
Rule = Callable[[list[Any], dict[str, Any]], Known]
_NAMED = ("bias", "attn_mask")
"""Tensors that rules find by their formal names, too; all others stand in their places."""
_FAULTS = (Unproven, IndexError, TypeError, ValueError, AttributeError)
"""Of a rule that meets arguments which it was not made for."""


def value_of(operator: str, args: list[Any], named: dict[str, Any]) -> Known:
    """What an operator makes of its arguments: values, numbers, lists of them. Raises Unproven."""
    flat = [one for arg in (*args, *named.values()) for one in (arg if isinstance(arg, list) else [arg])]
    rule = _RULES.get(operator) or (_elementwise if operator in ELEMENTWISE else None)
    if not any(one is SIZE or (isinstance(one, Value) and one.axis is not None) for one in flat):
        try:
            return rule(args, named) if rule is not None else UNKNOWN
        except _FAULTS:
            return UNKNOWN
    counting = any(isinstance(one, Value) and one.counts for one in flat)
    sized = any(one is SIZE for one in flat)
    if rule is None or (counting and operator not in _COUNTING) or (sized and operator not in _SIZED):
        raise Unproven("no rule")
    if any(isinstance(one, Value | Unknown) and name not in _NAMED for name, one in named.items()):
        raise Unproven("a tensor where no rule looks for one")
    try:
        return rule(args, named)
    except _FAULTS as error:
        raise Unproven(str(error)) from error


def _of(value: Any) -> Value:
    if not isinstance(value, Value):
        raise Unproven("of a value of which nothing is known")
    return value


def _argument(args: list[Any], named: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if place < len(args) else named.get(name, default)


def _dim(dim: Any, rank: int) -> int:
    if type(dim) is not int or not -rank <= dim < max(rank, 1):
        raise Unproven("along a dim that is not fixed")
    return dim % max(rank, 1)


def _along(x: Value, dim: Any) -> int:
    """A dim of `x` that is not the batch's."""
    found = _dim(dim, len(x.shape))
    if found == x.axis:
        raise Unproven("along the batch")
    return found


def _broadcast(values: Sequence[Value]) -> Value:
    """Values against each other: those that depend on the batch have it at one place from the right, the others 1."""
    rank = max((len(one.shape) for one in values), default=0)
    places = {rank - len(one.shape) + one.axis for one in values if one.axis is not None}
    if len(places) > 1:
        raise Unproven("two batches")
    axis = next(iter(places), None)
    shape: list[int | None] = []
    for place in range(rank):
        sizes = [one.shape[k] for one in values if (k := place - rank + len(one.shape)) >= 0]
        if place == axis:
            fixed = [one for one in values if one.axis is None and place - rank + len(one.shape) >= 0]
            if any(one.shape[place - rank + len(one.shape)] != 1 for one in fixed):
                raise Unproven("a constant has rows, too")
        shape.append(None if None in sizes else max((n for n in sizes if n is not None), default=1))
    return Value(tuple(shape), axis, any(one.counts for one in values))


def _elementwise(args: list[Any], named: dict[str, Any]) -> Value:
    if UNKNOWN in args:
        raise Unproven("of a value of which nothing is known")
    return _broadcast([one for one in args if isinstance(one, Value)])


def _kept(args: list[Any], named: dict[str, Any]) -> Value:
    """As softmax and cumsum have it: along a dim, of the same shape."""
    x = _of(args[0])
    _along(x, _argument(args, named, 1, "dim", None))
    return x


def _reduced(args: list[Any], named: dict[str, Any], *, first: int = 1) -> Value:
    x = _of(args[0])
    dims = _argument(args, named, first, "dim", None)
    keep = _argument(args, named, first + 1, "keepdim", False)
    if dims is None or dims == []:
        raise Unproven("over everything")
    gone = {_along(x, dim) for dim in (dims if isinstance(dims, list) else [dims])}
    if keep:
        return replace(x, shape=tuple(1 if k in gone else n for k, n in enumerate(x.shape)))
    axis = None if x.axis is None else x.axis - sum(k < x.axis for k in gone)
    return Value(tuple(n for k, n in enumerate(x.shape) if k not in gone), axis)


def _linear(args: list[Any], named: dict[str, Any]) -> Value:
    x, weight = _of(args[0]), _of(args[1])
    bias = _argument(args, named, 2, "bias", None)
    if weight.axis is not None or (isinstance(bias, Value) and bias.axis is not None):
        raise Unproven("weights that depend on the batch")
    _along(x, -1)
    return replace(x, shape=(*x.shape[:-1], weight.shape[0]))


def _matmul(args: list[Any], named: dict[str, Any]) -> Value:
    a, b = _of(args[0]), _of(args[1])
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Unproven("of vectors")
    if a.axis is not None:
        _along(a, -1)
    if a.axis == len(a.shape) - 2:  # rows of one matrix
        if b.axis is not None or len(b.shape) != 2:
            raise Unproven("two batches")
        return replace(a, shape=(*a.shape[:-1], b.shape[-1]))
    if b.axis is not None and b.axis >= len(b.shape) - 2:
        raise Unproven("a product over the batch")
    ahead = _broadcast([Value(a.shape[:-2], a.axis), Value(b.shape[:-2], b.axis)])
    return Value((*ahead.shape, a.shape[-2], b.shape[-1]), ahead.axis)


def _bmm(args: list[Any], named: dict[str, Any]) -> Value:
    a, b = _of(args[0]), _of(args[1])
    if (a.axis, b.axis) != (0, 0):
        raise Unproven("not batch by batch")
    return Value((None, a.shape[1], b.shape[2]), 0)


def _addmm(args: list[Any], named: dict[str, Any]) -> Value:
    return _broadcast([_matmul(args[1:3], {}), _of(args[0])])


def _attention(args: list[Any], named: dict[str, Any]) -> Value:
    query, key, value = (_of(one) for one in args[:3])
    mask = _argument(args, named, 3, "attn_mask", None)
    for one in (query, key, value):
        if one.axis is not None and one.axis >= len(one.shape) - 2:
            raise Unproven("attention over the batch")
    parts = [Value(one.shape[:-2], one.axis) for one in (query, key, value)]
    if mask is not None:
        masked = _of(mask)
        if masked.axis is not None and masked.axis >= len(masked.shape) - 2:
            raise Unproven("attention over the batch")
        parts.append(Value(masked.shape[:-2], masked.axis))
    ahead = _broadcast(parts)
    return Value((*ahead.shape, query.shape[-2], value.shape[-1]), ahead.axis)


def _normed(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    if x.axis is not None and x.axis >= len(x.shape) - len(args[1]):
        raise Unproven("over the batch")
    bias = named.get("bias")
    if any(one is not None and _of(one).axis is not None for one in (*args[2:4], bias)):
        raise Unproven("weights that depend on the batch")
    return x


def _reshaped(args: list[Any], named: dict[str, Any]) -> Value:
    x, sizes = _of(args[0]), args[1]
    shape = tuple(n if type(n) is int and n >= 0 else None for n in sizes)
    if x.axis is None:
        if any(n is SIZE for n in sizes):
            raise Unproven("a constant of the batch's size")
        return Value(shape)
    rest, others = shape[1:], x.shape[1:]
    same = None not in rest and None not in others and prod(map(int, _ints(rest))) == prod(map(int, _ints(others)))
    if x.axis != 0 or not (sizes[0] is SIZE or (sizes[0] == -1 and same)):
        raise Unproven("rows are not kept apart")
    return replace(x, shape=(None, *rest))


def _ints(sizes: Sequence[int | None]) -> list[int]:
    return [n for n in sizes if n is not None]


def _permuted(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    order = [_dim(dim, len(x.shape)) for dim in args[1]]
    return Value(tuple(x.shape[k] for k in order), None if x.axis is None else order.index(x.axis), x.counts)


def _transposed(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    order = list(range(len(x.shape)))
    a, b = (_dim(dim, len(order)) for dim in args[1:3]) if len(args) > 1 else (0, 1)
    order[a], order[b] = order[b], order[a]
    return _permuted([x, order], {})


def _unsqueezed(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    at = _dim(args[1], len(x.shape) + 1)
    axis = None if x.axis is None else x.axis + (at <= x.axis)
    return Value((*x.shape[:at], 1, *x.shape[at:]), axis, x.counts)


def _squeezed(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    at = _along(x, args[1])
    if x.shape[at] is None:
        raise Unproven("of a size that is not fixed")
    return _reduced([x, at], {}) if x.shape[at] == 1 else x


def _expanded(args: list[Any], named: dict[str, Any]) -> Value:
    x, sizes = _of(args[0]), args[1]
    ahead = len(sizes) - len(x.shape)
    shape = [n if type(n) is int and n >= 0 else None for n in sizes]
    shape = [x.shape[k - ahead] if sizes[k] == -1 and k >= ahead else n for k, n in enumerate(shape)]
    own = None if x.axis is None else x.axis + ahead
    places = [k for k, n in enumerate(sizes) if n is SIZE]
    if own is None and len(places) == 1 and (places[0] < ahead or x.shape[places[0] - ahead] == 1):
        own = places[0]  # one row for all
    elif own is None and places:
        raise Unproven("a constant has rows, too")
    elif places not in ([], [own]):
        raise Unproven("two batches")
    elif own is not None and sizes[own] is not SIZE and sizes[own] != -1:
        raise Unproven("a batch of one size")
    if own is not None:
        shape[own] = None
    return Value(tuple(shape), own, x.counts)


def _sliced(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    at = _dim(_argument(args, named, 1, "dim", 0), len(x.shape))
    first, last = _argument(args, named, 2, "start", None), _argument(args, named, 3, "end", None)
    step = _argument(args, named, 4, "step", 1)
    ends = last is None or (type(last) is int and last >= 2**31) or (last is SIZE and at == x.axis)
    if first in (None, 0) and ends and step == 1:
        return x
    if any(one is SIZE for one in (first, last, step)):
        raise Unproven("the batch's size")
    at = _along(x, at)
    size = x.shape[at]
    if all(type(one) is int and one >= 0 for one in (first, last)) and step == 1 and size is not None:
        size = max(0, min(last, size) - first)
    else:
        size = None
    return replace(x, shape=(*x.shape[:at], size, *x.shape[at + 1 :]))


def _selected(args: list[Any], named: dict[str, Any]) -> Value:
    return _reduced([args[0], args[1]], {})


def _catenated(args: list[Any], named: dict[str, Any]) -> Value:
    values = [_of(one) for one in args[0]]
    if len({one.axis for one in values}) != 1:
        raise Unproven("with a constant that has rows")
    at = _along(values[0], _argument(args, named, 1, "dim", 0))
    sizes = [one.shape[at] for one in values]
    size = None if None in sizes else sum(_ints(sizes))
    first = values[0]
    return replace(first, shape=(*first.shape[:at], size, *first.shape[at + 1 :]))


def _stacked(args: list[Any], named: dict[str, Any]) -> Value:
    at = _argument(args, named, 1, "dim", 0)
    one = _unsqueezed([_of(args[0][0]), at], {})
    if len({_of(value).axis for value in args[0]}) != 1:
        raise Unproven("with a constant that has rows")
    place = _dim(at, len(one.shape))
    return replace(one, shape=(*one.shape[:place], len(args[0]), *one.shape[place + 1 :]))


def _flattened(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    first, last = (
        _dim(_argument(args, named, 1, "start_dim", 0), len(x.shape)),
        _dim(_argument(args, named, 2, "end_dim", -1), len(x.shape)),
    )
    if x.axis is not None and x.axis >= first:
        raise Unproven("rows are not kept apart")
    inside = x.shape[first : last + 1]
    return replace(x, shape=(*x.shape[:first], None if None in inside else prod(_ints(inside)), *x.shape[last + 1 :]))


def _pieces(args: list[Any], named: dict[str, Any]) -> Value:
    """Every piece of a split: it is asked for by its number."""
    x = _of(args[0])
    at = _along(x, _argument(args, named, 2, "dim", 0))
    return replace(x, shape=(*x.shape[:at], None, *x.shape[at + 1 :]))


def _unbound(args: list[Any], named: dict[str, Any]) -> Value:
    return _reduced([args[0], _argument(args, named, 1, "dim", 0)], {})


def _triangle(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    if x.axis is not None and x.axis >= len(x.shape) - 2:
        raise Unproven("over the batch")
    return x


def _padded(args: list[Any], named: dict[str, Any]) -> Value:
    x, pads = _of(args[0]), args[1]
    shape = list(x.shape)
    for k in range(len(pads) // 2):
        at = len(shape) - 1 - k
        if pads[2 * k] or pads[2 * k + 1]:
            _along(x, at)
            size = shape[at]
            shape[at] = None if size is None else size + pads[2 * k] + pads[2 * k + 1]
    return replace(x, shape=tuple(shape))


def _flipped(args: list[Any], named: dict[str, Any]) -> Value:
    x = _of(args[0])
    for dim in args[1]:
        _along(x, dim)
    return x


def _looked_up(args: list[Any], named: dict[str, Any]) -> Value:
    table, ids = _of(args[0]), _of(args[1])
    if table.axis is not None:
        raise Unproven("of a table that depends on the batch")
    return replace(ids, shape=(*ids.shape, table.shape[1]))


def _indexed(args: list[Any], named: dict[str, Any]) -> Value:
    x, indices = _of(args[0]), [_of(one) for one in args[1]]
    place = _broadcast(indices)
    rest = x.shape[len(indices) :]
    if x.axis is None:
        if place.counts:
            raise Unproven("by the rows' numbers")
        return Value((*place.shape, *rest), place.axis)
    if x.axis >= len(indices) and place.axis is None:
        return Value((*place.shape, *rest), len(place.shape) + x.axis - len(indices))
    counts = x.axis < len(indices) and indices[x.axis].counts
    if not counts or any(one.counts for k, one in enumerate(indices) if k != x.axis):
        raise Unproven("rows of others")
    return Value((*place.shape, *rest), place.axis)


def _chosen(args: list[Any], named: dict[str, Any]) -> Value:
    x, index = _of(args[0]), _of(args[2])
    at = _along(x, args[1])
    if index.axis is not None:
        raise Unproven("by the batch")
    return replace(x, shape=(*x.shape[:at], index.shape[0] if index.shape else 1, *x.shape[at + 1 :]))


def _gathered(args: list[Any], named: dict[str, Any]) -> Value:
    x, index = _of(args[0]), _of(args[2])
    _along(x, args[1])
    if x.axis != index.axis:
        raise Unproven("rows of others")
    return index


def _counted(args: list[Any], named: dict[str, Any]) -> Value:
    if args[0] is SIZE or (len(args) > 1 and args[0] == 0 and args[1] is SIZE):
        return Value((None,), 0, True)
    if any(one is SIZE for one in args):
        raise Unproven("the batch's size")
    return Value((args[0] if len(args) == 1 and type(args[0]) is int else None,))


def _filled(args: list[Any], named: dict[str, Any], *, first: int = 0) -> Value:
    sizes = args[first]
    places = [k for k, n in enumerate(sizes) if n is SIZE]
    if len(places) > 1 or any(one is SIZE for one in args):
        raise Unproven("the batch's size")
    return Value(tuple(n if type(n) is int else None for n in sizes), places[0] if places else None)


def _same(args: list[Any], named: dict[str, Any]) -> Value:
    return replace(_of(args[0]), counts=False)


def _picked(args: list[Any], named: dict[str, Any]) -> Value:
    return _of(args[0])


def _computed(args: list[Any], named: dict[str, Any]) -> Known:
    return NUMBER


_RULES: dict[str, Rule] = {
    **{f"py.{name}": _computed for name in ("mul", "add", "sub", "floordiv")},
    "py.getitem": _picked,
    **{
        f"aten.{name}": rule
        for names, rule in (
            ("softmax.int _softmax.default log_softmax.int cumsum.default", _kept),
            ("sum.dim_IntList mean.dim amax.default amin.default argmax.default any.dim var.correction", _reduced),
            ("linalg_vector_norm.default", lambda args, named: _reduced(args, named, first=2)),
            ("linear.default", _linear),
            ("matmul.default mm.default", _matmul),
            ("bmm.default", _bmm),
            ("addmm.default", _addmm),
            ("scaled_dot_product_attention.default", _attention),
            ("layer_norm.default", _normed),
            ("view.default reshape.default", _reshaped),
            ("permute.default", _permuted),
            ("transpose.int t.default", _transposed),
            ("unsqueeze.default", _unsqueezed),
            ("squeeze.dim", _squeezed),
            ("expand.default", _expanded),
            ("slice.Tensor", _sliced),
            ("select.int", _selected),
            ("cat.default", _catenated),
            ("stack.default", _stacked),
            ("flatten.using_ints", _flattened),
            ("split.Tensor split_with_sizes.default", _pieces),
            ("unbind.int", _unbound),
            ("tril.default triu.default", _triangle),
            ("constant_pad_nd.default", _padded),
            ("flip.default", _flipped),
            ("embedding.default", _looked_up),
            ("index.Tensor", _indexed),
            ("index_select.default", _chosen),
            ("gather.default", _gathered),
            ("arange.default arange.start", _counted),
            ("full.default ones.default zeros.default", _filled),
            ("new_ones.default new_zeros.default new_full.default", lambda args, named: _filled(args, named, first=1)),
            ("zeros_like.default ones_like.default full_like.default", _same),
        )
        for name in names.split()
    },
}
_COUNTING = frozenset(
    f"aten.{name}.default" for name in ("_to_copy", "clone", "unsqueeze", "view", "reshape", "expand", "permute")
) | {"aten.index.Tensor"}
"""What takes rows' numbers."""
_FILLING = ("full", "ones", "zeros", "new_full", "new_ones", "new_zeros", "arange")
_SIZED = frozenset(f"aten.{name}.default" for name in ("view", "reshape", "expand", *_FILLING)) | {
    "aten.slice.Tensor",
    "aten.arange.start",
}
"""What takes the batch's size."""
