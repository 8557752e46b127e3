"""Results of the commonest calls by rule, where torch's meta kernels are slow: it takes some of them 0.2 ms to add.

A rule speaks only where it is simple: floating tensors of one dtype, contiguous. Everything else is asked of torch,
and a test holds every rule against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from nodewire.graph.program.workspace import ATTENTION, is_flash

if TYPE_CHECKING:
    from nodewire.graph.program.whitelist import Op

Given = Mapping[str, Any]

_QUICK = """
view.default reshape.default transpose.int permute.default t.default unsqueeze.default squeeze.dim slice.Tensor
select.int flatten.using_ints clone.default _to_copy.default
"""
"""Whose meta kernels are quick: what costs is the interpreter's care, which no shape of ours needs."""
_UNARY = "abs neg exp log sqrt rsqrt reciprocal sin cos tanh sigmoid relu silu gelu erf"


def by_rule(op: Op, given: Given) -> torch.Tensor | None:
    """The result of a call on meta tensors, which are `given` by formal name; None where no rule speaks."""
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(given)
    if op.name not in _DIRECT:
        return None
    try:
        return cast("torch.Tensor", op.call(**given))
    except (RuntimeError, TypeError, ValueError, LookupError):
        return None  # and the interpreter says why, and of which node


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0 and value.is_contiguous()


def _made(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")


def _same(given: Given) -> torch.Tensor | None:
    x = given.get("self", given.get("input"))
    return _made(tuple(x.shape), x) if _is_plain(x) else None


def _powered(given: Given) -> torch.Tensor | None:
    return _same(given) if type(given["exponent"]) in (int, float) else None


def _normed(given: Given) -> torch.Tensor | None:
    x = given["input"]
    more = [given[name] for name in ("weight", "bias") if given.get(name) is not None]
    return _same(given) if all(_is_plain(one) and one.dtype == x.dtype for one in more) else None


def _joined(given: Given) -> torch.Tensor | None:
    """One operand has the result's shape, or the other is a number."""
    x, y = given["self"], given["other"]
    if type(y) in (int, float) and _is_plain(x):
        return _made(tuple(x.shape), x)
    if "alpha" in given or "rounding_mode" in given or not (_is_plain(x) and _is_plain(y) and x.dtype == y.dtype):
        return None
    wide, other = (x, y) if x.dim() > y.dim() or (x.dim() == y.dim() and x.numel() >= y.numel()) else (y, x)
    sizes = wide.shape[wide.dim() - other.dim() :]
    fits = all(n in (1, size) for n, size in zip(other.shape, sizes, strict=True))
    return _made(tuple(wide.shape), wide) if fits else None


def _linear(given: Given) -> torch.Tensor | None:
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    tensors = [x, weight] if bias is None else [x, weight, bias]
    if not all(_is_plain(one) and one.dtype == x.dtype for one in tensors) or x.dim() < 2 or weight.dim() != 2:
        return None
    if x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return _made((*x.shape[:-1], weight.shape[0]), x)


def _expanded(given: Given) -> torch.Tensor | None:
    x, sizes = given["self"], given["size"]
    if not isinstance(x, torch.Tensor) or not isinstance(sizes, list) or len(sizes) != x.dim():
        return None
    shape = [have if want == -1 else want for have, want in zip(x.shape, sizes, strict=True)]
    if any(want != have and have != 1 for have, want in zip(x.shape, shape, strict=True)) or min(shape, default=1) < 0:
        return None
    strides = [s if have == want else 0 for have, want, s in zip(x.shape, shape, x.stride(), strict=True)]
    return x.as_strided(shape, strides)


def _attention(given: Given) -> torch.Tensor | None:
    """Torch's flash kernel puts out [batch, heads, positions, width] with the heads beside each other."""
    query = given["query"]
    if not is_flash(given) or any(given[name].dtype != query.dtype for name in ("key", "value")):
        return None
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return None
    batch, heads, length, width = query.shape
    return _made((batch, length, heads, width), query).transpose(1, 2)


_DIRECT = {f"aten.{name}" for name in _QUICK.split()}
_RULES: dict[str, Callable[[Given], torch.Tensor | None]] = {
    **{f"aten.{name}.default": _same for name in _UNARY.split()},
    "aten.pow.Tensor_Scalar": _powered,
    "aten.layer_norm.default": _normed,
    "aten.add.Tensor": _joined,
    "aten.sub.Tensor": _joined,
    "aten.mul.Tensor": _joined,
    "aten.div.Tensor": _joined,
    "aten.linear.default": _linear,
    "aten.expand.default": _expanded,
    ATTENTION: _attention,
}
