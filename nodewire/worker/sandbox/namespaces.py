"""A user and a mount namespace of this process alone, in which given files are empty.

https://man7.org/linux/man-pages/man7/user_namespaces.7.html

For kernels without Landlock. In another user namespace than the daemon's this process can trace no process of its own
user, and so neither read the daemon's memory nor reach the files through `/proc/PID/root`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_BIND, _ALL_BELOW, _PRIVATE = 0x1000, 0x4000, 0x40000
_EMPTY = b"/dev/null"


def hide(files: Iterable[Path]) -> None:
    """Have every one of `files` be empty for this process from now on. It must have a single thread. Raises OSError."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this system has no namespaces")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount(libc, None, b"/", _ALL_BELOW | _PRIVATE)
    for file in files:
        if file.exists():
            _mount(libc, _EMPTY, os.fsencode(file.resolve()), _BIND)


def _mount(libc: ctypes.CDLL, source: bytes | None, target: bytes, flags: int) -> None:
    if libc.mount(source, target, None, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"mount over {os.fsdecode(target)}")
