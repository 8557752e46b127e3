"""One direction's shared memory between daemon and worker: the mapping, and which slabs of it are taken.

The writing side takes a slab per frame and alone keeps the books; the reading side copies out and says that it is
done. The daemon creates the memory, sealed: a worker that could shrink it would kill the daemon with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from bisect import insort

ALIGN = 64
"""Slabs and tensors start on cache lines, so that torch may map them as any dtype."""


class Slabs:
    """First fit over [0, size). Deterministic, lowest first, so that little of a large arena is ever touched."""

    def __init__(self, size: int) -> None:
        self.size = size // ALIGN * ALIGN
        self._free = [(0, self.size)]
        self._taken: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a slab of `nbytes`, or None while there is no room."""
        need = max(aligned(nbytes), ALIGN)
        for index, (offset, length) in enumerate(self._free):
            if length >= need:
                self._free[index : index + 1] = [(offset + need, length - need)] if length > need else []
                self._taken[offset] = need
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give a slab back. Raises KeyError if none is taken at `offset`."""
        insort(self._free, (offset, self._taken.pop(offset)))
        merged: list[tuple[int, int]] = []
        for start, length in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._free = merged


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def create(size: int) -> int:
    """The descriptor of `size` zeroed bytes that nobody can resize."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("nodewire-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def attach(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size)
