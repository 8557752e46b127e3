"""What a CPU kernel allocates beside its result, told from its arguments' types and strides on the meta device.

| operators | beside the result |
|---|---|
| elementwise, `cat`, `where` | each operand of another dtype than is computed in, converted |
| reductions, `cumsum`, norms | the operand converted, if it is not of the dtype that is summed in |
| softmax, `layer_norm` | a contiguous operand; a converted one; mean and deviation of every row |
| products of matrices | an operand whose strides BLAS does not take; batches spread out; oneDNN's reorders |
| convolutions | oneDNN's blocked copies of operand, result and weight; hardly anything where channels are last |
| transposed convolutions | columns of an image in float32, or blocked copies of operand and result |
| resized images | operand and result with their channels last |
| `masked_scatter` | the mask, and a contiguous source |
| pools, `group_norm`, `sort`, `topk` | a contiguous operand; places of maxima; one row of an order |
| attention, flash | a tile for each thread, log-sum-exp, a boolean mask as floats, bfloat16 keys and values reordered |
| attention, otherwise | scores and their softmax, scaled queries and keys, the mask as floats |
| rows selected and scattered | masks, the places where they are true |
| lookups | indices as contiguous int64, an operand that must be contiguous |

Each line was found by measuring torch 2.13's allocator over dtypes and layouts; `python -m bench.tasks.task_memory`
holds whole models against it, and `make fuzz-tasks` every operator. Products in bfloat16 and float16 are bounds: what
oneDNN keeps differs with the processor. What is not listed allocates nothing beside its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nodewire.graph.program.whitelist import TRANSPOSED, Op

Given = Mapping[str, Any]
"""Arguments by formal name: meta tensors, numbers, lists."""

ATTENTION = "aten.scaled_dot_product_attention.default"
_LOGICAL = ("aten.logical_and.default", "aten.logical_or.default")
_PAIRS = """
add.Tensor sub.Tensor mul.Tensor div.Tensor maximum.default minimum.default bitwise_and.Tensor bitwise_or.Tensor
__and__.Tensor __or__.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
fmod.Tensor remainder.Tensor
"""
RELAID = {ATTENTION, *_LOGICAL, *TRANSPOSED, *(f"aten.{name}" for name in _PAIRS.split())}
"""Operators of whose results the meta device may say other strides than a CPU's kernels give them: `as_on_cpu`."""
_HALVES = (torch.bfloat16, torch.float16)
_BUFFERS = 98_304
"""A thread's, of a transposed convolution; measured 68 kB."""
_KEY_TILE = 512
"""Keys in a tile of flash attention (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp)."""


def workspace_bytes(op: Op, given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """At most what the kernel allocates at once, less its results, by `threads` threads."""
    packet = op.name.split(".")[1]
    model = _MODELS.get(packet)
    if model is not None:
        return model(given, results, threads)
    if op.name.startswith("py."):
        return 0
    return _converted(given, results, threads)


def as_on_cpu(op: Op, given: Given, result: Any) -> Any:
    """A meta result with the strides that the CPU's kernel gives it, where torch's meta kernel says others."""
    if op.name == ATTENTION:
        flash = isinstance(result, torch.Tensor) and is_flash(given)
        return result.transpose(1, 2).contiguous().transpose(1, 2) if flash else result
    if op.name in TRANSPOSED:
        if not _suggests_last(given["input"]):
            return result
        return torch.empty(result.shape, dtype=result.dtype, device="meta", memory_format=torch.channels_last)
    return _as_converted(op, given, result)


def _is_last(operand: torch.Tensor) -> bool:
    """Whether channels are last in an image, and not elsewhere as well."""
    return (
        operand.dim() == 4 and operand.is_contiguous(memory_format=torch.channels_last) and not operand.is_contiguous()
    )


def _suggests_last(operand: torch.Tensor) -> bool:
    """Whether a kernel takes an image to have its channels last (c10/core/MemoryFormat.h)."""
    if operand.dim() != 4 or 0 in operand.shape or not operand.stride(1):
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        stride = operand.stride(dim)
        if stride < least or (dim == 0 and least == operand.stride(1)):
            return False
        least = stride * operand.shape[dim]
    return True


def _as_converted(op: Op, given: Given, result: torch.Tensor) -> torch.Tensor:
    """A CPU's kernel lays its result out as its operands are once they are converted.

    Meta's does as they were; it does otherwise where half precision is repeated; and its logical operators are written
    in Python, of other operators.
    """
    operands, common = _operands(given), _common_dtype(given, result.dtype)
    repeated = common in _HALVES and any(0 in t.stride() for t in operands)
    if result.numel() == 0 or not (op.name in _LOGICAL or repeated or any(t.dtype != common for t in operands)):
        return result
    laid = {k: _laid(v.to(common)) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    call = torch.ops.aten.eq.Tensor if op.name in _LOGICAL else op.call
    return torch.empty_strided(result.shape, call(**laid).stride(), dtype=result.dtype, device="meta")


def _laid(tensor: torch.Tensor) -> torch.Tensor:
    """Of these strides, and not of half precision."""
    dtype = torch.float32 if tensor.dtype in _HALVES else tensor.dtype
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _bytes(tensor: torch.Tensor, itemsize: int | None = None) -> int:
    return tensor.numel() * (itemsize or tensor.element_size())


def _copied(tensor: torch.Tensor | None) -> int:
    """A contiguous copy, if it is not contiguous."""
    return 0 if tensor is None or tensor.is_contiguous() else _bytes(tensor)


def _tensors(given: Given) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in given.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, torch.Tensor)]
    return found


def _converted(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Operands in the dtype that is computed in. Views and copies have one operand, of the result's dtype."""
    if not results:
        return 0
    common = _common_dtype(given, results[0].dtype)
    return sum(_bytes(t, common.itemsize) for t in _operands(given) if t.dtype != common)


def _operands(given: Given) -> list[torch.Tensor]:
    return [v for v in given.values() if isinstance(v, torch.Tensor) and v.dim()]


def _common_dtype(given: Given, made: torch.dtype) -> torch.dtype:
    """What a result of dtype `made` is computed in."""
    operands = _operands(given)
    scalars = [v for v in given.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    common = made
    if operands and (common == torch.bool or len(operands) > 1 or scalars):
        common = operands[0].dtype
        for other in (*operands[1:], *scalars):
            common = torch.result_type(torch.empty(1, dtype=common, device="meta"), _like(other))
        if made.is_floating_point and not common.is_floating_point:
            common = made
    return common


def _like(value: torch.Tensor | float) -> Any:
    return torch.empty(1, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


def _none(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return 0


def _condition(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    choices = [v for k, v in given.items() if k != "condition" and isinstance(v, torch.Tensor) and v.dim()]
    return sum(_bytes(v, results[0].element_size()) for v in choices if v.dtype != results[0].dtype)


def _joined(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    dtypes = {t.dtype for t in given["tensors"]}
    return _bytes(results[0]) if len(dtypes) > 1 else 0


def _reduced(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Sums of another dtype convert first; those of half precision are made in float32, and converted back."""
    operand: torch.Tensor = given["self"]
    into: torch.dtype = results[0].dtype
    if operand.dtype in _HALVES and into in _HALVES:
        return _bytes(operand, 4) + _bytes(results[0], 4)
    return _bytes(operand, into.itemsize) if operand.dtype != into else 0


def _any(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return 0 if given["self"].dtype == torch.bool else _bytes(given["self"], 1)


def _argmax(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return _copied(given["self"]) if given.get("dim") is None else 0


def _triangle(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    operand: torch.Tensor = given["self"]
    return 0 if operand.dim() > 1 and operand.transpose(-2, -1).is_contiguous() else _copied(operand)


def _softmax(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    operand: torch.Tensor = given["self"]
    size = results[0].element_size()
    converted = _bytes(operand, size) if operand.dtype != results[0].dtype else 0
    return converted + (0 if operand.is_contiguous() else _bytes(operand, size))


def _layer_norm(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    operand: torch.Tensor = given["input"]
    rows: int = operand.numel() // max(1, math.prod(given["normalized_shape"]))
    return int(8 * rows) + _copied(operand) + _copied(given.get("weight")) + _copied(given.get("bias"))


def _index(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    indices: list[torch.Tensor] = [i for i in given["indices"] if i is not None]
    return sum(8 * i.numel() for i in indices if i.dtype != torch.int64) + max(map(_copied, indices), default=0)


def _lookup(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    index: torch.Tensor = given["indices"] if "indices" in given else given["index"]
    return (0 if index.is_contiguous() else 8 * index.numel()) + _copied(given.get("weight", given.get("self")))


def _gather(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return _copied(given["index"]) + (0 if given["index"].dtype == torch.int64 else 8 * given["index"].numel())


def _selected(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Masks over choices, which are gone when the rows are made; a mask over rows and the places where it is true."""
    choices: torch.Tensor = given["chosen"]
    copied = _copied(given["self"]) + _copied(choices)
    return copied + max(3 * choices.numel() - _bytes(results[0]), 9 * choices.shape[:-1].numel())


def _scattered(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    choices: torch.Tensor = given["chosen"]
    return _copied(choices) + max(3 * choices.numel(), 9 * choices.shape[:-1].numel())


# Products of matrices.


def _product(left: str, right: str, added: str = "") -> Callable[[Given, Sequence[torch.Tensor], int], int]:
    """`right` stands as [k, n]; a linear's weight is told by its name."""

    def model(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
        first, second = given[left], given[right]
        if right == "weight" and second.dim() == 2:
            second = second.t()
        more = given.get(added) if added else None
        bias = _unfit(more) if isinstance(more, torch.Tensor) and more.dim() > 1 else 0
        return _matmul(first, second, results[0]) + bias

    return model


def _matmul(first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> int:
    spread = 0
    if max(first.dim(), second.dim()) > 2 and min(first.dim(), second.dim()) > 0:
        batch = _broadcast(first.shape[:-2], second.shape[:-2])
        spread = sum(_spread(t, batch) for t in (first, second))
    taken = spread + _unfit(first) + _unfit(second)
    if result.dtype in _HALVES:
        turned = 0 if second.dim() < 2 or second.stride(-2) == 1 else _bytes(second) * 5 // 4
        taken += 2 * _bytes(first) + _bytes(result, 4) + turned
    return taken


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Of shapes that a kernel has taken together."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*full, strict=True))


def _spread(tensor: torch.Tensor, batch: Sequence[int]) -> int:
    """What it takes to see `tensor` as [batches, m, k]: nothing, or a copy for every batch."""
    if tensor.dim() < 3:
        return 0
    wide = tensor.expand(*batch, *tensor.shape[-2:])
    seen = wide.reshape(math.prod(batch), *tensor.shape[-2:])
    return 0 if seen.untyped_storage()._cdata == tensor.untyped_storage()._cdata else _bytes(seen)


def _unfit(tensor: torch.Tensor) -> int:
    """A copy, unless one of the last two strides is 1 and the other leaves room for a whole row."""
    if tensor.dim() < 2:
        return 0
    rows, columns = tensor.stride()[-2:]
    m, n = tensor.shape[-2:]
    fits = (columns == 1 and rows >= max(1, n)) or (rows == 1 and columns >= max(1, m))
    return 0 if fits or tensor.is_contiguous() else _bytes(tensor)


# Images, and orders.


def _convolution(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Blocked copies for oneDNN: of the weight and, unless channels are last, of the operand and the result."""
    operand, weight, result = given["input"], given["weight"], results[0]
    reordered = 2 * _bytes(weight)
    if _is_last(operand):
        return reordered
    if math.prod(weight.shape[2:]) == 1 and set(_many(given.get("stride", 1))) <= {1}:
        return reordered + _copied(operand)
    return max(_bytes(operand) + _bytes(weight), _bytes(result)) + _copied(operand)


def _transposed(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Columns in float32, or oneDNN's blocked copies and its own buffers.

    Columns are an image's, unless oneDNN takes no such padding, or might not take the dtype: then they are all images'.
    """
    operand, weight, result = given["input"], given["weight"], results[0]
    padded, steps = (_many(given.get(name, default)) for name, default in (("output_padding", 0), ("stride", 1)))
    is_all = operand.dtype in _HALVES or max(padded, default=0) >= min(steps, default=1)
    images = operand.shape[0] if is_all else 1
    each = math.prod(weight.shape[1:]) * max(1, int(given.get("groups", 1))) * math.prod(operand.shape[2:])
    copies = _bytes(result, 4) + 3 * _bytes(operand, 4)
    held = _bytes(result, 4) + _copied(operand) + 4 * _bytes(weight, 4)
    return int(max(4 * images * each, copies) + held + _BUFFERS * threads)


def _upsampled(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return _bytes(given["input"]) + _bytes(results[0])


def _scattered_in(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    mask: torch.Tensor = given["mask"]
    return _copied(given["source"]) + _bytes(mask)


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pooled(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return _copied(given["self"])


def _max_pooled(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return _copied(given["self"]) + 8 * results[0].numel()


def _group_norm(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    operand: torch.Tensor = given["input"]
    return _copied(operand) + 8 * operand.shape[0] * max(1, int(given["num_groups"]))


def _batch_norm(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    return 16 * int(given["input"].shape[1])


def _ordered(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    """Values and their places along the dimension."""
    operand: torch.Tensor = given["self"]
    along = given.get("dim", -1)
    return 16 * threads * (operand.shape[along] if operand.dim() and isinstance(along, int) else 1)


# Attention.


def is_flash(given: Given) -> bool:
    """Whether torch takes its flash kernel on a CPU (aten/src/ATen/native/transformers/sdp_utils_cpp.cpp)."""
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask: torch.Tensor | None = given.get("attn_mask")
    heads_match = query.dim() == 4 and (
        query.shape[1] == key.shape[1] == value.shape[1]
        or (given.get("enable_gqa", False) and key.shape[1] == value.shape[1] > 0 == query.shape[1] % key.shape[1])
    )
    return (
        query.dim() == key.dim() == value.dim() == 4
        and heads_match
        and query.shape[0] == key.shape[0] == value.shape[0]
        and query.shape[3] == key.shape[3] == value.shape[3] > 0
        and query.shape[2] > 0
        and key.shape[2] == value.shape[2] > 0
        and all(t.stride(-1) == 1 for t in (query, key, value))
        and (mask is None or (not given.get("is_causal", False) and mask.dim() in (2, 4)))
    )


def _attention(given: Given, results: Sequence[torch.Tensor], threads: int) -> int:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask: torch.Tensor | None = given.get("attn_mask")
    lengths, keys, size = query.shape[-2], key.shape[-2], query.element_size()
    as_floats = _bytes(mask, size) if mask is not None and mask.dtype != query.dtype else 0
    half = query.dtype in _HALVES
    if is_flash(given):
        rows = min(lengths, 256 if lengths >= 768 else 64 if lengths >= 192 else 32)
        columns, width = min(keys, _KEY_TILE), query.shape[-1]
        tile = 4 * (rows * columns + 2 * rows + rows * width)
        reordered = 0
        if half:
            tile += 2 * rows * columns + 2 * columns * width
            reordered = _bytes(key) + _bytes(value)
        return int(threads * tile + 4 * (query.numel() // width) + as_floats + reordered)
    wide = 4 if half else size
    batch = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    many = math.prod(batch)
    scores = many * lengths * keys * wide
    scaled = many * (lengths * query.shape[-1] + keys * key.shape[-1]) * wide
    if half:
        scaled = 2 * scaled + many * keys * value.shape[-1] * wide
        as_floats *= 2
    if given.get("is_causal", False):
        as_floats += lengths * keys * (wide + 1)
    # The result is made after the softmax has taken the place of the scores.
    return int(max(0, 2 * scores + scaled + as_floats - _bytes(results[0])))


_NOTHING = """
reshape view clone _to_copy expand transpose permute t unsqueeze squeeze slice select split split_with_sizes unbind
flatten repeat flip constant_pad_nd full_like ones_like zeros_like new_full new_ones new_zeros logical_not
bitwise_not stack amax amin masked_fill
"""

_MODELS: dict[str, Callable[[Given, Sequence[torch.Tensor], int], int]] = {
    **dict.fromkeys(_NOTHING.split(), _none),
    "where": _condition,
    "cat": _joined,
    **dict.fromkeys(("sum", "mean", "cumsum", "linalg_vector_norm", "var"), _reduced),
    "any": _any,
    "tril": _triangle,
    "triu": _triangle,
    "argmax": _argmax,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), _softmax),
    "layer_norm": _layer_norm,
    "index": _index,
    "embedding": _lookup,
    "index_select": _lookup,
    "gather": _gather,
    "linear": _product("input", "weight"),
    "matmul": _product("self", "other"),
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", "self"),
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv_transpose1d": _transposed,
    "conv_transpose2d": _transposed,
    "upsample_nearest2d": _upsampled,
    "upsample_bilinear2d": _upsampled,
    "masked_scatter": _scattered_in,
    "avg_pool2d": _pooled,
    "adaptive_avg_pool2d": _pooled,
    "max_pool2d": _max_pooled,
    "group_norm": _group_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "sort": _ordered,
    "topk": _ordered,
    "scaled_dot_product_attention": _attention,
    "select_rows": _selected,
    "scatter_rows": _scattered,
}
