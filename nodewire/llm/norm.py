"""RMSNorm, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [..., width] over its root mean square, times `weight`; computed in the weight's dtype, returned in x's."""
    if x.dtype != weight.dtype:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, eps)
