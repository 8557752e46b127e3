"""Memory for large frames that come, used again once nobody can see it: fresh memory costs zeroes and page faults."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import defaultdict
from functools import lru_cache

LEAST_BYTES = 131_072
"""What is smaller is not worth keeping."""
IDLE_BYTES = 128 * 2**20
"""Kept at most while nobody uses it."""
_STEPS = 4  # sizes between one power of two and the next


class Memory:
    """Of one node. What is handed out holds what was in it before; a frame is only read once all of it was written."""

    def __init__(self, idle_bytes: int = IDLE_BYTES) -> None:
        self._most = idle_bytes
        self._idle: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
        self._lent: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}

    @property
    def idle_bytes(self) -> int:
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))

    def allocate(self, nbytes: int) -> memoryview:
        """Bytes to be written over; they are free again when no view of them is left."""
        if nbytes < LEAST_BYTES:
            return memoryview(bytearray(nbytes))
        size = _size(nbytes)
        idle = self._idle[size]
        block = idle.pop() if idle else mmap.mmap(-1, size)
        lent = _bytes(size).from_buffer(block)
        key = id(lent)

        def returned(_: object) -> None:
            del self._lent[key]
            if size > self._most:
                return
            if self.idle_bytes + size > self._most:  # what was kept is of other sizes
                self.clear()
            self._idle[size].append(block)

        self._lent[key] = weakref.ref(lent, returned)
        return memoryview(lent).cast("B")[:nbytes]

    def clear(self) -> None:
        """Give back what nobody uses."""
        self._idle.clear()


@lru_cache(maxsize=64)  # more than there are sizes up to a frame's limit
def _bytes(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size


def _size(nbytes: int) -> int:
    """Of the block for so many bytes: at most a quarter more."""
    step = 1 << max(0, (nbytes - 1).bit_length() - 1 - _STEPS.bit_length() + 1)
    return -(-nbytes // step) * step
