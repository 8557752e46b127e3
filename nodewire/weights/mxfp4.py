"""MXFP4: blocks of 32 four-bit numbers under one power of two.

OCP Microscaling Formats (MX) 1.0, https://www.opencompute.org: an element is E2M1 (sign, two bits of exponent, one of
mantissa), two to a byte, the lower half first; a scale is E8M0, 2^(byte - 127), of which 255 is no number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nodewire.errors import BadTask

GROUP = 32
"""Numbers to a block."""
_NO_NUMBER = 255
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor((*_POSITIVE, *(-value for value in _POSITIVE)))


def decoded(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [n, 16] and uint8 [n] to float32 [n, 32].

    Raises:
        BadTask: a scale is no number.

    """
    if bool((scales == _NO_NUMBER).any()):
        raise BadTask("weights", "a scale of MXFP4 is no number")
    return torch.ldexp(elements(blocks), scales.int()[:, None] - 127)


def elements(octets: Tensor) -> Tensor:
    """E2M1 in uint8 [n, bytes] to float32 [n, 2 bytes]."""
    halves = torch.stack((octets & 15, octets >> 4), -1).flatten(1)
    return _VALUES[halves.int()]
