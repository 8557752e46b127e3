"""Random numbers that every implementation draws alike: 64-bit words of SHAKE-256 over what they are drawn for.

Libraries promise nothing about their generators across releases; a recomputed batch must be the very same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nodewire.protocol.encoding.random_draw import stream


def words(count: int, *of: int | str) -> npt.NDArray[np.uint64]:
    """`count` uniform 64-bit words of the stream of `of`, little-endian."""
    return np.frombuffer(stream(8 * count, *of), "<u8")


def order(count: int, *of: int | str) -> npt.NDArray[np.int64]:
    """A permutation of range(count): its numbers sorted by their words, equal words by number."""
    return np.argsort(words(count, *of), kind="stable").astype(np.int64, copy=False)


def uniform(count: int, bound: float, *of: int | str) -> npt.NDArray[np.float32]:
    """`count` float32 from [-bound, bound): (word / 2^31 - 1) x bound of 32-bit words, in float64."""
    return ((np.frombuffer(stream(4 * count, *of), "<u4") / 2.0**31 - 1.0) * bound).astype(np.float32)
