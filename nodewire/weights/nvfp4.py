"""NVFP4: blocks of 16 four-bit numbers under a scale of eight bits, all of a matrix under one float32.

An element is E2M1, two to a byte, the lower half first, as in MXFP4; a block's scale is E4M3. The matrix's own scale
divides, as compressed-tensors stores it (https://github.com/vllm-project/compressed-tensors).
"""

from __future__ import annotations

import torch
from torch import Tensor

from nodewire.errors import BadTask
from nodewire.weights.mxfp4 import elements

GROUP = 16
"""Numbers to a block."""


def decoded(octets: Tensor, scales: Tensor, divisor: Tensor) -> Tensor:
    """uint8 [n, 8], float32 [n] and float32 [1] to float32 [n, 16].

    Raises:
        BadTask: the divisor is no positive number.

    """
    if not (bool(torch.isfinite(divisor).all()) and float(divisor) > 0):
        raise BadTask("weights", "a global scale of NVFP4 is not above 0")
    return elements(octets) * (scales / divisor)[:, None]
