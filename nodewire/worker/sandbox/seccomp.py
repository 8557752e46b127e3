"""Seccomp: system calls that a worker has no use for fail with EPERM.

https://docs.kernel.org/userspace-api/seccomp_filter.html

A list of refusals, not of permissions: torch and its allocators call what they like and change it by version. What
the daemon and the worker use between them (read, write and mapped memory on inherited descriptors) stays.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

# x86_64 and aarch64 numbers (asm/unistd_64.h, asm-generic/unistd.h); None where the architecture has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # network; the worker talks by read and write on an inherited descriptor
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "recvfrom": (45, 207), "recvmsg": (47, 212), "recvmmsg": (299, 243),
    # processes, and other processes
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kill": (62, 129), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setrlimit": (160, 164),
    # the file system; opening is looked at below
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "truncate": (76, 45), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None), "open_by_handle_at": (304, 265),
    # the machine, and ways around a filter
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "fsopen": (430, 430), "fsmount": (432, 432), "move_mount": (429, 429),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
# Shared memory that RLIMIT_DATA does not count; GPU drivers use some of it.
_UNCOUNTED_MEMORY: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "mq_open": (240, 180),
}  # fmt: skip
_WITH_ARGUMENTS: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "clone": (56, 220), "clone3": (435, 435),
    "mmap": (9, 222), "prlimit64": (302, 261), "tgkill": (234, 131), "prctl": (157, 167),
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS, _GET_ACTION_AVAIL = 1, 1, 2
_CLONE_THREAD, _MAP_SHARED_ANONYMOUS, _PR_SET_PDEATHSIG = 0x00010000, 0x21, 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Instruction = tuple[int, int, int, int]


def available() -> bool:
    if sys.platform != "linux" or platform.machine() not in _AUDIT_ARCH or struct.calcsize("P") != 8:
        return False
    action = ctypes.c_uint32(_KILL)
    return _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0


def restrict(*, strict_memory: bool, write_opens: bool) -> None:
    """Put the filter on every thread of this process, for good. no_new_privs must be set.

    `strict_memory` also refuses memory that RLIMIT_DATA does not count; `write_opens` leaves opening for writing to
    Landlock (a GPU's nodes are opened so). Raises OSError.
    """
    instructions = program(platform.machine(), os.getpid(), strict_memory=strict_memory, write_opens=write_opens)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    held = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(held)))
    if _seccomp(_SET_MODE_FILTER, _ALL_THREADS, header):
        raise OSError(ctypes.get_errno(), "seccomp")


def program(machine: str, pid: int, *, strict_memory: bool, write_opens: bool) -> list[Instruction]:
    """The filter as classic BPF instructions (code, jump if true, jump if false, operand)."""
    column = list(_AUDIT_ARCH).index(machine)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _EPERM)]
    for numbers in (_REFUSED | (_UNCOUNTED_MEMORY if strict_memory else {})).values():
        if numbers[column] is not None:
            code += [(_JUMP_EQUAL, 0, 1, numbers[column] or 0), (_RETURN, 0, 0, _EPERM)]
    for name, body in _argument_checks(pid, strict_memory, write_opens).items():
        number = _WITH_ARGUMENTS[name][column]
        if number is not None:
            code += [(_JUMP_EQUAL, 0, len(body), number), *body]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _argument_checks(pid: int, strict_memory: bool, write_opens: bool) -> dict[str, list[Instruction]]:
    """What follows a call's number when it matches; every body ends in a return."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)
    unsupported = [(_RETURN, 0, 0, _ENOSYS)]  # libc falls back to the older call, whose flags a filter can see
    checks = {
        "openat2": unsupported,
        "clone3": unsupported,
        "clone": [(_LOAD, 0, 0, _low(0)), (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD), allow, refuse],
        "prlimit64": [
            (_LOAD, 0, 0, _low(2)), (_JUMP_EQUAL, 0, 3, 0),
            (_LOAD, 0, 0, _low(2) + 4), (_JUMP_EQUAL, 0, 1, 0),
            allow, refuse,
        ],
        "tgkill": [(_LOAD, 0, 0, _low(0)), (_JUMP_EQUAL, 0, 1, pid), allow, refuse],
        "prctl": [(_LOAD, 0, 0, _low(0)), (_JUMP_EQUAL, 1, 0, _PR_SET_PDEATHSIG), allow, refuse],
    }  # fmt: skip
    if not write_opens:
        checks["open"] = [(_LOAD, 0, 0, _low(1)), (_JUMP_ANY_BIT, 1, 0, _WRITING), allow, refuse]
        checks["openat"] = [(_LOAD, 0, 0, _low(2)), (_JUMP_ANY_BIT, 1, 0, _WRITING), allow, refuse]
    if strict_memory:
        checks["mmap"] = [
            (_LOAD, 0, 0, _low(3)), (_AND, 0, 0, _MAP_SHARED_ANONYMOUS), (_JUMP_EQUAL, 1, 0, _MAP_SHARED_ANONYMOUS),
            allow, refuse,
        ]  # fmt: skip
    return checks


def _low(argument: int) -> int:
    """Offset of the low half of a call's argument (both architectures are little-endian)."""
    return 16 + 8 * argument


def _seccomp(operation: int, flags: int, argument: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = ctypes.c_long(_SECCOMP_CALL[platform.machine()])
    return int(libc.syscall(number, ctypes.c_long(operation), ctypes.c_long(flags), argument))
