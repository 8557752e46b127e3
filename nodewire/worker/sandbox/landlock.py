"""Landlock: this process, from now on, sees only the files it is given.

https://docs.kernel.org/userspace-api/landlock.html

Covers the calling thread and the threads it starts later, so it is called before any library starts one.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _IOCTL_DEV = 1 << 1, 1 << 2, 1 << 3, 1 << 15
_FILESYSTEM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by ABI; 16 since 5
_TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11


def available() -> bool:
    return _abi() >= 1


def restrict(*, read: Iterable[Path], names: Iterable[Path], devices: Iterable[Path]) -> None:
    """Allow reading what is at or below `read`, listing directories below `names`, and using the nodes in `devices`.

    Everything else that the kernel's Landlock knows is refused: other reads, writes, execution, TCP, signals to
    processes outside. Paths that do not exist are left out. no_new_privs must be set. Raises OSError.
    """
    abi = _abi()
    files = (1 << _FILESYSTEM_RIGHTS.get(abi, 16)) - 1
    attributes = struct.pack("=Q", files)
    attributes += struct.pack("=Q", _TCP_BIND_AND_CONNECT) if abi >= 4 else b""
    attributes += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS) if abi >= 6 else b""
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for paths, rights in (
            (names, _READ_DIR),
            (read, _READ_FILE | _READ_DIR),
            (devices, (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV) & files),
        ):
            for path in paths:
                _allow(ruleset, path, rights)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what cannot be opened needs no rule: it stays refused
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        if rights:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _abi() -> int:
    """The kernel's Landlock version; 0 without."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def _call(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock call {number}: {os.strerror(ctypes.get_errno())}")
    return result
