"""What glibc's malloc holds beside what is in use: mallinfo2(3), malloc_trim(3). Nothing where they are lacking."""

from __future__ import annotations

import ctypes

_LIBC = ctypes.CDLL(None)
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


if hasattr(_LIBC, "mallinfo2"):
    _LIBC.mallinfo2.restype = _Info


def free_bytes() -> int:
    """Of the heap, in all pieces."""
    return int(_LIBC.mallinfo2().fordblks) if hasattr(_LIBC, "mallinfo2") else 0


def give_back() -> bool:
    """Let the kernel have what is free at the heap's end; whether there was something."""
    return hasattr(_LIBC, "malloc_trim") and bool(_LIBC.malloc_trim(0))
