"""RMSNorm, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [..., width] over its root mean square, times `weight`; computed in the weight's dtype, returned in x's."""
    if x.ndim == 2 and len(x) == 1 and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu":
        # A row's squares are its product with itself: a third of the operations that PyTorch makes of it.
        square = torch.mm(x, x.t()).mul_(1 / x.shape[1])
        return torch.mul(x, square.add_(eps).rsqrt_()).mul_(weight)
    if x.dtype != weight.dtype:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, eps)
