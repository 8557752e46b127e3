"""Along which axis the batch lies in what an operator makes, if each row of it follows from the same row of its inputs.

For `nodewire.taskgraph.batch_axis`. A rule takes those of its operator's arguments that it asks for, by their formal
names; the others must be constants. Rules rest on ranks and sizes (what broadcasts against a batch, what a squeeze
drops), so what they say of these must hold in every call that runs at all: a program is a stranger's, who may want rows
mixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any

from nodewire.taskgraph.batch_axis_values import (
    NUMBER,
    SIZE,
    UNKNOWN,
    First,
    Known,
    Unknown,
    Unproven,
    Value,
    along,
    broadcast,
    dim_of,
    fixed,
    resized,
    to_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ELEMENTWISE = """
abs.default neg.default exp.default log.default sqrt.default rsqrt.default reciprocal.default sin.default cos.default
tanh.default sigmoid.default relu.default silu.default gelu.default erf.default logical_not.default bitwise_not.default
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
pow.Tensor_Scalar maximum.default minimum.default clamp.default clamp_min.default clamp_max.default
eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
logical_and.default logical_or.default bitwise_and.Tensor bitwise_or.Tensor __and__.Tensor __or__.Tensor
where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar
hardtanh.default hardsigmoid.default hardswish.default leaky_relu.default elu.default softplus.default
sign.default ceil.default floor.default round.default fmod.Scalar fmod.Tensor remainder.Scalar remainder.Tensor
"""
ELEMENTWISE = frozenset(f"aten.{name}" for name in _ELEMENTWISE.split())


_FAULTS = (Unproven, IndexError, TypeError, ValueError, AttributeError)
"""Of a rule that meets arguments which it was not made for."""
_INT64 = {"dtype": "int64"}
"""As it stands in a program. Narrower types, and floats, make one number of several rows'."""
_MOST = 2**40
"""No dim is larger (nips/26-graph-programs.md)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """`formals` are the operator's positional arguments, `asked` those of them, and of the named, that `call` takes."""

    formals: tuple[str, ...]
    asked: frozenset[str]
    call: Callable[..., Known]

    def __call__(self, args: Sequence[Any], named: Mapping[str, Any]) -> Known:
        given = dict(zip(self.formals, args, strict=False))
        if len(args) > len(self.formals) or given.keys() & named.keys():
            raise Unproven("arguments that it does not take")
        given.update(named)
        for name, value in given.items():
            inside = value if isinstance(value, list) else [value]
            if any(one is SIZE for one in inside) and name not in _SIZES:
                raise Unproven("the batch's size as a number")
            if name not in self.asked and any(isinstance(one, Value | Unknown) for one in inside):
                raise Unproven("a tensor where no rule looks for one")
        return self.call(**{name: value for name, value in given.items() if name in self.asked})


def value_of(operator: str, args: Sequence[Any], named: Mapping[str, Any]) -> Known:
    """What an operator makes of its arguments: values, numbers, constants as they stand in a program, lists of them.

    Raises:
        Unproven: it depends on the batch, and no rule says that rows stay apart.

    """
    flat = [one for arg in (*args, *named.values()) for one in (arg if isinstance(arg, list) else [arg])]
    rule = RULES.get(operator)
    if not any(one is SIZE or (isinstance(one, Value) and one.axis is not None) for one in flat):
        try:
            return _elementwise(flat) if operator in ELEMENTWISE else rule(args, named) if rule else UNKNOWN
        except _FAULTS:
            return UNKNOWN
    counting = any(isinstance(one, Value) and one.counts for one in flat)
    try:
        if operator in ELEMENTWISE and not counting:
            return _elementwise(flat)
        if rule is None or (counting and rule.call not in _COUNTING):
            raise Unproven("no rule")
        return rule(args, named)
    except _FAULTS as error:
        raise Unproven(str(error)) from error


def _elementwise(operands: Sequence[Any]) -> Value:
    if UNKNOWN in operands:
        raise Unproven("of a value of which nothing is known")
    if SIZE in operands:
        raise Unproven("the batch's size as a number")
    return broadcast([one for one in operands if isinstance(one, Value)])


def _copied(self: Any, dtype: Any = None) -> Value:
    x = to_value(self)
    if x.counts and dtype not in (None, _INT64):
        raise Unproven("rows' numbers as another type")
    return x


def _kept(self: Any, dim: Any) -> Value:
    """As softmax and cumsum have it: along a dim, of the same shape."""
    x = to_value(self)
    along(x, dim)
    return x


def _reduced(self: Any, dim: Any = None, keepdim: Any = False) -> Value:
    x = to_value(self)
    if dim is None or dim == []:
        raise Unproven("over everything")
    gone = {along(x, one) for one in (dim if isinstance(dim, list) else [dim])}
    if keepdim:
        return replace(x, shape=tuple(1 if k in gone else n for k, n in enumerate(x.shape)))
    axis = None if x.axis is None else x.axis - sum(k < x.axis for k in gone)
    return Value(tuple(n for k, n in enumerate(x.shape) if k not in gone), axis)


def _linear(input: Any, weight: Any, bias: Any = None) -> Value:
    x, matrix = to_value(input), fixed(weight, 2)
    if bias is not None:
        fixed(bias, 1)
    return resized(x, along(x, -1), matrix.shape[0])


def _convolved(input: Any, weight: Any, bias: Any = None) -> Value:
    x = to_value(input)
    channels = fixed(weight, len(x.shape)).shape[0]
    if bias is not None:
        fixed(bias, 1)
    if x.axis not in (0, None):
        raise Unproven("over the batch")
    return Value((x.shape[0], channels, *(None for _ in x.shape[2:])), x.axis)


def _convolved_back(input: Any, weight: Any, bias: Any = None, groups: Any = 1) -> Value:
    """Of a transposed one, whose weight says a group's channels second."""
    made = _convolved(input, weight, bias)
    channels = fixed(weight, len(made.shape)).shape[1]
    known = type(channels) is int and type(groups) is int
    return replace(made, shape=(made.shape[0], channels * groups if known else None, *made.shape[2:]))


def _resampled(input: Any) -> Value:
    x = to_value(input)
    if x.axis not in (0, None):
        raise Unproven("over the batch")
    return replace(x, shape=(*x.shape[:2], *(None for _ in x.shape[2:])))


def _matmul(self: Any, other: Any) -> Value:
    a, b = to_value(self), to_value(other)
    if len(a.shape) > 1 and len(b.shape) == 1 and b.axis is None:
        along(a, -1)
        return Value(a.shape[:-1], a.axis)
    if len(a.shape) == 1 and a.axis is None and len(b.shape) > 2 and b.axis not in (len(b.shape) - 1, len(b.shape) - 2):
        return Value((*b.shape[:-2], b.shape[-1]), b.axis)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Unproven("of vectors")
    if a.axis is not None:
        along(a, -1)
    if a.axis == len(a.shape) - 2:  # rows of one matrix
        if b.axis is not None or len(b.shape) != 2:
            raise Unproven("two batches")
        return replace(a, shape=(*a.shape[:-1], b.shape[-1]))
    if a.axis is None and b.axis == 1 and len(b.shape) == 2:  # columns of one matrix
        return Value((*a.shape[:-1], None), len(a.shape) - 1)
    if b.axis is not None and b.axis >= len(b.shape) - 2:
        raise Unproven("a product over the batch")
    ahead = broadcast([Value(a.shape[:-2], a.axis), Value(b.shape[:-2], b.axis)])
    return Value((*ahead.shape, a.shape[-2], b.shape[-1]), ahead.axis)


def _mm(self: Any, mat2: Any) -> Value:
    return _matmul(self, mat2)


def _bmm(self: Any, mat2: Any) -> Value:
    a, b = to_value(self), to_value(mat2)
    if (a.axis, b.axis) != (0, 0):
        raise Unproven("not batch by batch")
    return Value((None, a.shape[1], b.shape[2]), 0)


def _addmm(self: Any, mat1: Any, mat2: Any) -> Value:
    return broadcast([_matmul(mat1, mat2), to_value(self)])


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Value:
    parts = [to_value(one) for one in (query, key, value, attn_mask) if one is not None]
    ranks = [len(one.shape) for one in parts]
    if len(set(ranks[:3])) > 1 or min(ranks) < 2 or max(ranks) > ranks[0]:
        raise Unproven("attention of other ranks")
    if any(one.axis is not None and one.axis >= len(one.shape) - 2 for one in parts):
        raise Unproven("attention over the batch")
    ahead = broadcast([Value(one.shape[:-2], one.axis) for one in parts])
    return Value((*ahead.shape, query.shape[-2], value.shape[-1]), ahead.axis)


def _normed(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None) -> Value:
    x = to_value(input)
    if x.axis is not None and x.axis >= len(x.shape) - len(normalized_shape):
        raise Unproven("over the batch")
    for one in (weight, bias):
        if one is not None:
            fixed(one, len(normalized_shape))
    return x


def _batch_normed(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any) -> First:
    """By means and deviations of the training: channel by channel, each number for itself."""
    x = to_value(input)
    along(x, 1)
    for one in (weight, bias, running_mean, running_var):
        if one is not None:
            fixed(one, 1)
    return First(x.shape, x.axis)


def _group_normed(input: Any, weight: Any = None, bias: Any = None) -> Value:
    x = to_value(input)
    if x.axis not in (0, None) or len(x.shape) < 2:
        raise Unproven("over the batch")
    for one in (weight, bias):
        if one is not None:
            fixed(one, 1)
    return x


def _pooled(self: Any, output_size: Any = None) -> Value:
    """Over the last two dims; of adaptive pooling they are `output_size`."""
    x = to_value(self)
    ahead = len(x.shape) - 2
    if ahead < 1 or (x.axis is not None and x.axis >= ahead):
        raise Unproven("over the batch")
    sizes = output_size if isinstance(output_size, list) and len(output_size) == 2 else (None, None)
    return Value((*x.shape[:ahead], *(n if type(n) is int and n > 0 else None for n in sizes)), x.axis)


def _item(a0: Any, a1: Any) -> Value:
    x = to_value(a0)
    if isinstance(x, First):
        if type(a1) is not int or a1 != 0:
            raise Unproven("of several tensors not the first")
        return Value(x.shape, x.axis)
    return x


def _reshaped(self: Any, shape: Any) -> Value:
    x, sizes = to_value(self), tuple(n if type(n) is int and n >= 0 else None for n in shape)
    if SIZE in (shape if x.axis is None else shape[1:]):
        raise Unproven("as long as the batch is")
    if x.axis is None:
        return Value(sizes)
    rest, others = sizes[1:], x.shape[1:]
    same = None not in rest and None not in others and prod(_ints(rest)) == prod(_ints(others))
    if x.axis != 0 or not (shape[0] is SIZE or (shape[0] == -1 and same)):
        raise Unproven("rows are not kept apart")
    return replace(x, shape=(None, *rest))


def _ints(sizes: Sequence[int | None]) -> list[int]:
    return [n for n in sizes if n is not None]


def _permuted(self: Any, dims: Any) -> Value:
    x = to_value(self)
    order = [dim_of(dim, len(x.shape)) for dim in dims]
    return Value(tuple(x.shape[k] for k in order), None if x.axis is None else order.index(x.axis), x.counts)


def _transposed(self: Any, dim0: Any, dim1: Any) -> Value:
    order = list(range(len(to_value(self).shape)))
    a, b = dim_of(dim0, len(order)), dim_of(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return _permuted(self, order)


def _turned(self: Any) -> Value:
    return _transposed(self, 0, 1) if len(to_value(self).shape) == 2 else to_value(self)


def _unsqueezed(self: Any, dim: Any) -> Value:
    x = to_value(self)
    at = dim_of(dim, len(x.shape) + 1)
    axis = None if x.axis is None else x.axis + (at <= x.axis)
    return Value((*x.shape[:at], 1, *x.shape[at:]), axis, x.counts)


def _squeezed(self: Any, dim: Any) -> Value:
    x = to_value(self)
    at = along(x, dim)
    if x.shape[at] is None:
        raise Unproven("of a size that is not fixed")
    return _reduced(x, at) if x.shape[at] == 1 else x


def _expanded(self: Any, size: Any) -> Value:
    x = to_value(self)
    ahead = len(size) - len(x.shape)
    shape = [n if type(n) is int and n >= 0 else None for n in size]
    shape = [x.shape[k - ahead] if size[k] == -1 and k >= ahead else n for k, n in enumerate(shape)]
    own = None if x.axis is None else x.axis + ahead
    places = [k for k, n in enumerate(size) if n is SIZE]
    if own is None and len(places) == 1 and (places[0] < ahead or x.shape[places[0] - ahead] == 1):
        own = places[0]  # one row for all
    elif own is None and places:
        raise Unproven("a constant has rows, too")
    elif places not in ([], [own]):
        raise Unproven("two batches")
    elif own is not None and size[own] is not SIZE and size[own] != -1:
        raise Unproven("a batch of one size")
    if own is not None:
        shape[own] = None
    return Value(tuple(shape), own, x.counts)


def _repeated(self: Any, repeats: Any) -> Value:
    x = to_value(self)
    ahead = len(repeats) - len(x.shape)
    sizes = [*([1] * ahead), *x.shape]
    shape = [n * k if type(k) is int and n is not None else None for n, k in zip(sizes, repeats, strict=True)]
    own = None if x.axis is None else x.axis + ahead
    places = [k for k, n in enumerate(repeats) if n is SIZE]
    if own is None and len(places) == 1 and sizes[places[0]] == 1:
        own = places[0]  # one row for all
    elif places or (own is not None and repeats[own] != 1):
        raise Unproven("rows more than once")
    return Value(tuple(shape), own)


def _sliced(self: Any, dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    x = to_value(self)
    at = dim_of(dim, len(x.shape))
    whole = end is None or (type(end) is int and end >= _MOST) or (end is SIZE and at == x.axis)
    if start in (None, 0) and whole and step == 1:
        return x
    if SIZE in (start, end):
        raise Unproven("as long as the batch is")
    first, size = start or 0, x.shape[along(x, at)]
    if all(type(one) is int and one >= 0 for one in (first, end)) and step == 1 and size is not None:
        return resized(x, at, max(0, min(end, size) - first))
    return resized(x, at, None)


def _selected(self: Any, dim: Any) -> Value:
    return _reduced(self, dim_of(dim, len(to_value(self).shape)))


def _catenated(tensors: Any, dim: Any = 0) -> Value:
    values = [to_value(one) for one in tensors]
    if len({(one.axis, len(one.shape)) for one in values}) != 1:
        raise Unproven("of other ranks, or with a constant that has rows")
    at = along(values[0], dim)
    sizes = [one.shape[at] for one in values]
    return resized(values[0], at, None if None in sizes else sum(_ints(sizes)))


def _stacked(tensors: Any, dim: Any = 0) -> Value:
    rank = len(to_value(tensors[0]).shape)
    return _catenated([_unsqueezed(one, dim_of(dim, rank + 1)) for one in tensors], dim_of(dim, rank + 1))


def _flattened(self: Any, start_dim: Any = 0, end_dim: Any = -1) -> Value:
    x = to_value(self)
    first, last = dim_of(start_dim, len(x.shape)), dim_of(end_dim, len(x.shape))
    if x.axis is not None and x.axis >= first:
        raise Unproven("rows are not kept apart")
    inside = x.shape[first : last + 1]
    return replace(x, shape=(*x.shape[:first], None if None in inside else prod(_ints(inside)), *x.shape[last + 1 :]))


def _pieces(self: Any, dim: Any = 0) -> Value:
    """Every piece of a split: it is asked for by its number."""
    x = to_value(self)
    return resized(x, along(x, dim), None)


def _unbound(self: Any, dim: Any = 0) -> Value:
    return _reduced(self, dim)


def _triangle(self: Any) -> Value:
    x = to_value(self)
    if x.axis is not None and x.axis >= len(x.shape) - 2:
        raise Unproven("over the batch")
    return x


def _padded(self: Any, pad: Any) -> Value:
    x = to_value(self)
    for k in range(len(pad) // 2):
        if pad[2 * k] or pad[2 * k + 1]:
            at = along(x, -1 - k)
            size = x.shape[at]
            x = resized(x, at, None if size is None else size + pad[2 * k] + pad[2 * k + 1])
    return x


def _flipped(self: Any, dims: Any) -> Value:
    x = to_value(self)
    for dim in dims:
        along(x, dim)
    return x


def _looked_up(weight: Any, indices: Any) -> Value:
    table, ids = fixed(weight, 2), to_value(indices)
    return replace(ids, shape=(*ids.shape, table.shape[1]))


def _indexed(self: Any, indices: Any) -> Value:
    """What indices pick stands where they do, or first if they do not stand side by side."""
    x = to_value(self)
    if x.counts:
        raise Unproven("of the rows' numbers")
    used = {k: to_value(one) for k, one in enumerate(indices) if one is not None}
    kept = [k for k in range(len(x.shape)) if k not in used]
    at = min(used) if max(used) - min(used) < len(used) else 0
    place = broadcast(list(used.values()))
    shape = [x.shape[k] for k in kept]
    shape[at:at] = place.shape
    if x.axis is None:
        if place.counts:
            raise Unproven("by the rows' numbers")
        return Value(tuple(shape), None if place.axis is None else at + place.axis)
    if x.axis in kept:
        if place.axis is not None:
            raise Unproven("rows of others")
        axis = kept.index(x.axis)
        return Value(tuple(shape), axis + len(place.shape) * (axis >= at))
    if not used[x.axis].counts or any(one.counts for k, one in used.items() if k != x.axis):
        raise Unproven("rows of others")
    return Value(tuple(shape), at + (place.axis or 0))


def _chosen(self: Any, dim: Any, index: Any) -> Value:
    x, chosen = to_value(self), to_value(index)
    if chosen.axis is not None:  # each row its own of a table's
        x = fixed(x, len(x.shape))
        at = dim_of(dim, len(x.shape))
        return replace(resized(x, at, None), axis=at)
    return resized(x, along(x, dim), chosen.shape[0] if chosen.shape else 1)


def _gathered(self: Any, dim: Any, index: Any) -> Value:
    x, place = to_value(self), to_value(index)
    along(x, dim)
    if x.axis != place.axis or len(x.shape) != len(place.shape):
        raise Unproven("rows of others")
    return place


def _counted(end: Any, start: Any = 0, dtype: Any = None) -> Value:
    if SIZE not in (start, end):
        return Value((end if start == 0 and type(end) is int else None,))
    if end is not SIZE or start != 0 or dtype not in (None, _INT64):
        raise Unproven("the batch's size as a number")
    return Value((None,), 0, True)


def _filled(size: Any) -> Value:
    places = [k for k, n in enumerate(size) if n is SIZE]
    if len(places) > 1:
        raise Unproven("two batches")
    return Value(tuple(n if type(n) is int else None for n in size), places[0] if places else None)


def _refilled(self: Any, size: Any) -> Value:
    """Of `self` it takes the type alone."""
    return _filled(size)


def _same(self: Any) -> Value:
    return to_value(self)


def _single() -> Value:
    return Value(())


def _computed() -> Known:
    return NUMBER


_TABLE: tuple[tuple[str, str, Callable[..., Known]], ...] = (
    ("_to_copy clone", "self", _copied),
    ("softmax.int log_softmax.int", "self dim dtype", _kept),
    ("_softmax", "self dim half_to_float", _kept),
    ("cumsum", "self dim", _kept),
    ("sum.dim_IntList mean.dim amax amin argmax any.dim", "self dim keepdim", _reduced),
    ("var.correction", "self dim", _reduced),
    ("linalg_vector_norm", "self ord dim keepdim", _reduced),
    ("linear", "input weight bias", _linear),
    ("conv1d conv2d", "input weight bias stride padding dilation groups", _convolved),
    (
        "conv_transpose1d conv_transpose2d.input",
        "input weight bias stride padding output_padding groups dilation",
        _convolved_back,
    ),
    ("upsample_nearest2d.vec", "input output_size scale_factors", _resampled),
    ("upsample_bilinear2d.vec", "input output_size align_corners scale_factors", _resampled),
    ("matmul", "self other", _matmul),
    ("mm", "self mat2", _mm),
    ("bmm", "self mat2", _bmm),
    ("addmm", "self mat1 mat2", _addmm),
    ("scaled_dot_product_attention", "query key value attn_mask dropout_p is_causal", _attention),
    ("layer_norm", "input normalized_shape weight bias eps cudnn_enable", _normed),
    (
        "_native_batch_norm_legit_no_training",
        "input weight bias running_mean running_var momentum eps",
        _batch_normed,
    ),
    ("group_norm", "input num_groups weight bias eps cudnn_enabled", _group_normed),
    ("max_pool2d", "self kernel_size stride padding dilation ceil_mode", _pooled),
    ("avg_pool2d", "self kernel_size stride padding ceil_mode count_include_pad divisor_override", _pooled),
    ("adaptive_avg_pool2d", "self output_size", _pooled),
    ("view reshape", "self shape", _reshaped),
    ("permute", "self dims", _permuted),
    ("transpose.int", "self dim0 dim1", _transposed),
    ("t", "self", _turned),
    ("unsqueeze", "self dim", _unsqueezed),
    ("squeeze.dim", "self dim", _squeezed),
    ("expand", "self size", _expanded),
    ("repeat", "self repeats", _repeated),
    ("slice.Tensor", "self dim start end step", _sliced),
    ("select.int", "self dim index", _selected),
    ("cat", "tensors dim", _catenated),
    ("stack", "tensors dim", _stacked),
    ("flatten.using_ints", "self start_dim end_dim", _flattened),
    ("split.Tensor", "self split_size dim", _pieces),
    ("split_with_sizes", "self split_sizes dim", _pieces),
    ("unbind.int", "self dim", _unbound),
    ("tril triu", "self diagonal", _triangle),
    ("constant_pad_nd", "self pad value", _padded),
    ("flip", "self dims", _flipped),
    ("embedding", "weight indices padding_idx scale_grad_by_freq sparse", _looked_up),
    ("index.Tensor", "self indices", _indexed),
    ("index_select", "self dim index", _chosen),
    ("gather", "self dim index", _gathered),
    ("arange", "end", _counted),
    ("arange.start", "start end", _counted),
    ("full", "size fill_value", _filled),
    ("ones zeros", "size", _filled),
    ("new_full", "self size fill_value", _refilled),
    ("new_ones new_zeros", "self size", _refilled),
    ("full_like", "self fill_value", _same),
    ("ones_like zeros_like", "self", _same),
    ("scalar_tensor", "s", _single),
)
RULES: Mapping[str, _Rule] = {
    f"aten.{name}" if "." in name else f"aten.{name}.default": _Rule(
        tuple(formals.split()), frozenset(signature(call).parameters), call
    )
    for names, formals, call in _TABLE
    for name in names.split()
} | {
    **{f"py.{name}": _Rule(("a0", "a1"), frozenset(), _computed) for name in ("mul", "add", "sub", "floordiv")},
    "py.getitem": _Rule(("a0", "a1"), frozenset({"a0", "a1"}), _item),
}
_COUNTING = {_copied, _unsqueezed, _reshaped, _expanded, _permuted, _indexed}
"""What takes rows' numbers."""
_SIZES = ("size", "shape", "repeats", "start", "end")
"""What may be the batch's size: every rule that asks for one of these looks."""
