"""The memory of a link between two processes of one host: made by one, mapped by both, resized by nobody."""

from __future__ import annotations

import fcntl
import mmap
import os

from nodewire.errors import BadPeer
from nodewire.wire.shm.ring_buffer import Inflow, Outflow

RING_BYTES = 2 * 2**20
"""Of one direction: several of the largest segments, and small enough to stay in a processor's cache."""
LINK_BYTES = 2 * RING_BYTES


def fixed() -> int:
    """The seals of memory that nobody can resize, nor seal further."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create() -> int:
    """The descriptor of a link's memory, zeroed. Raises OSError."""
    descriptor = os.memfd_create("nodewire-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, LINK_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fixed())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check(descriptor: int) -> None:
    """See that what a peer has sent is memory that it cannot take away again: touching it would kill this process.

    Memory of huge pages can be taken away by a hole, and files by whoever has the disk: neither is on the kernel's own
    file system, where `create` puts it.

    Raises:
        BadPeer: it is something else.

    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        found = os.fstat(descriptor)
    except OSError as error:
        raise BadPeer("memory", "not memory") from error
    if seals & fixed() != fixed():
        raise BadPeer("memory", "not sealed against resizing")
    if found.st_size != LINK_BYTES:
        raise BadPeer("memory", f"{found.st_size} bytes, not {LINK_BYTES}")
    if found.st_dev != _device():
        raise BadPeer("memory", "not of ordinary pages")


class RingMapping:
    """The two rings in a link's memory: the dialler's comes first."""

    def __init__(self, descriptor: int, *, dialled: bool) -> None:
        """Takes nothing of the descriptor, which may be closed. Raises OSError, ValueError: it cannot be mapped."""
        self._memory = mmap.mmap(descriptor, LINK_BYTES)
        self._whole = memoryview(self._memory)
        halves = self._whole[:RING_BYTES], self._whole[RING_BYTES:]
        self.out = Outflow(halves[0 if dialled else 1])
        self.into = Inflow(halves[1 if dialled else 0])

    def close(self) -> None:
        self.out.release()
        self.into.release()
        self._whole.release()
        self._memory.close()


def _device() -> int:
    descriptor = os.memfd_create("nodewire-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
