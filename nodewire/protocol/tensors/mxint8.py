"""Block-wise int8 as it travels: MXINT8 of the OCP Microscaling Formats (MX) specification 1.0, with fewer scales.

A tensor is a matrix of rows (its last dimension). A row of n numbers is ceil(n / 32) scale bytes, then n codes of one
signed byte; 32 codes, or what is left of the row, make a block with one scale:

    number = code * 2^(scale - 133)         scale 7 to 254 (2^(scale - 127) is at most the block's largest number)
    number = 0                              scale 0: no number of the block reaches 2^-120

A scale is a power of two, so neither negative nor infinite, and numbers are read without rounding: the same on every
machine. Scales 1 to 6 would have subnormal steps, 255 is not a number: both are refused. Engines write it
(`nodewire.worker.process.edge_codec`); here it is read, for sketches.
"""

from __future__ import annotations

from math import prod

import numpy as np

from nodewire.errors import BadFrame
from nodewire.protocol.tensors.frame import BLOCK, Array

LEAST_SCALE, MOST_SCALE = 7, 254
STEP = 6
"""A scale byte less this is the biased float32 exponent of a code's unit."""
LIMIT = 127
"""Of codes."""


def numbers(array: Array) -> np.ndarray:
    """The numbers of an MXINT8 array, float32 [rows, width]. Raises BadFrame: no scale, or too large a number."""
    width = array.shape[-1] if array.shape else 1
    rows, blocks = prod(array.shape[:-1]), -(-width // BLOCK)
    raw = np.frombuffer(array.data, np.uint8).reshape(rows, blocks + width)
    scales = raw[:, :blocks].astype(np.int32)
    if not ((scales == 0) | ((scales >= LEAST_SCALE) & (scales <= MOST_SCALE))).all():
        raise BadFrame("scales", "a block's scale is no power of two that may be")
    steps = np.where(scales == 0, 0, (scales - STEP) << 23).astype(np.int32).view(np.float32)
    codes = raw[:, blocks:].view(np.int8).astype(np.float32)
    if ((np.repeat(scales, BLOCK, axis=1)[:, :width] == MOST_SCALE) & (codes < -LIMIT)).any():
        raise BadFrame("codes", "a number is beyond float32")
    found: np.ndarray = codes * np.repeat(steps, BLOCK, axis=1)[:, :width]
    return found
