"""RMSNorm, https://arxiv.org/abs/1910.07467, and LayerNorm, https://arxiv.org/abs/1607.06450."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.llm.spec.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Norm:
    """One norm of a model; `centred` says whether numbers are less their mean first."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    centred: bool

    def __call__(self, x: Tensor) -> Tensor:
        """`x` [..., width]; of a weight [heads, head_dim] each head is normed alone."""
        if self.centred:
            return layer_norm(x, self.weight, self.bias, self.eps)
        return rms_norm(x, self.weight, self.eps)


def norm_of(config: DecoderConfig, weights: Mapping[str, Any], role: str) -> Norm | None:
    """The norm that a parameter is, if there is one."""
    weight = weights.get(role)
    if weight is None:
        return None
    return Norm(weight, weights.get(f"{role}_bias"), float(config.rms_norm_eps), config.norm == "layer")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`x` [..., width] less its mean, over its standard deviation, times `weight`, plus `bias`."""
    if weight.ndim == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    return F.layer_norm(x, weight.shape[-1:], None, None, eps).mul_(weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [..., width] over its root mean square, times `weight`; computed in the weight's dtype, returned in x's."""
    if weight.ndim > 1:
        return F.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight)
    if x.ndim == 2 and len(x) == 1 and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu":
        # A row's squares are its product with itself: a third of the operations that PyTorch makes of it.
        square = torch.mm(x, x.t()).mul_(1 / x.shape[1])
        return torch.mul(x, square.add_(eps).rsqrt_()).mul_(weight)
    if x.dtype != weight.dtype:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, eps)
