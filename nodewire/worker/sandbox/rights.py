"""What the worker process may do: rlimits, capabilities, Landlock and seccomp, strongest that this kernel has.

Enforced, by layer (the hello names the layers in force, `nodewire doctor` shows them):
- always: no core dumps, no files written (RLIMIT_FSIZE 0), at most 1024 descriptors, private memory capped
  (RLIMIT_DATA; file mappings that are only read, and the arenas, do not count);
- Linux: dies with the daemon, gains no privileges, drops all capabilities;
- `landlock` (Linux 5.13): reads only the interpreter, system libraries, /proc, /sys and what the daemon named; writes,
  creates, executes nothing; cannot trace the daemon, nor read its memory through /proc;
- `seccomp`: no sockets, no new processes, no exec, no opening for writing, no signals to others, no memory outside of
  the cap's books; see seccomp.py.

A kernel that lacks one of the last two confines no worker fully: none starts, unless `sandbox = "weak"` stands in the
operator's file. Then keys and tokens are kept from it: by Landlock if that is there, else by namespaces (`namespaces`).
A worker that could read one of them all the same does not start.

Not enforced: CPU time (the daemon's call timeout is that), /proc/PID/cmdline of other processes, and without Landlock
the reading of other files of the operator's user.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, WorkerFailed
from nodewire.worker.sandbox import landlock, namespaces, seccomp

if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
CAPABILITY_VERSION_3 = 0x20080522
MAX_DESCRIPTORS = 1024
RESERVE_BYTES = 4 * 2**20
"""On top of a worker's cap, for reading calls and writing answers; actors do not get it."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/opt", "/nix/store", "/etc/ld.so.cache", "/proc", "/sys")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def missing_layers() -> list[str]:
    """The kernel's layers that this machine has not."""
    layers = {"Landlock": landlock.available, "seccomp": seccomp.available}
    return [name for name, is_available in layers.items() if not is_available()]


def refusal(layers: Iterable[str]) -> str:
    """The sentence for a worker that does not start because the kernel lacks `layers`."""
    return (
        f"this kernel has no {' and no '.join(layers)}, so a worker cannot be confined fully."
        ' Write sandbox = "weak" in [worker] to start it all the same (docs/explanation/sandbox.md has the price)'
    )


def keep_secrets(files: Iterable[Path], daemon: int) -> None:
    """Make `files` and the memory of the process `daemon` unreadable to this one, which has a single thread.

    With Landlock the fence that follows does it.

    Raises:
        BadConfig: one of them can be read all the same, so no worker may start here.

    """
    if landlock.available():
        return
    files = [path for path in files if path.exists()]
    reason = ""
    try:
        namespaces.hide(files)
    except OSError as error:
        reason = f" ({error.strerror}: {error.filename or error})"
    for path in (*files, Path("/proc", str(daemon), "mem"), Path("/proc", str(daemon), "environ")):
        if _can_read(path):
            raise BadConfig(
                "worker.sandbox",
                f"weak: nothing on this machine keeps {path} from a worker{reason}; allow user namespaces,"
                " or use a kernel with Landlock",
            )


def _can_read(path: Path) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return path.name == "mem" or bool(file.read(1))  # memory is readable where it can be opened
    except OSError:
        return False


def give_up_privileges(parent: int) -> None:
    """Before anything is imported: no cores, no files, no capabilities, and death with `parent` (the daemon's pid)."""
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, min(MAX_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    ):
        resource.setrlimit(limit, (most, most))
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_PDEATHSIG, SIGKILL), (PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    if os.getppid() != parent:
        raise WorkerFailed("worker", "the daemon is gone")
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def fence_files(packages: Iterable[Path], readable: Iterable[Path], device: str) -> str:
    """Leave only the interpreter, `packages` and `readable` to be read, and the device nodes; "landlock" or ""."""
    if not landlock.available():
        return ""
    roots = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, *_SYSTEM)}
    roots |= {path.resolve() for path in (*packages, *readable)}
    listed = {Path(p).resolve() for p in sys.path}
    roots |= {path for path in listed if path.name in ("site-packages", "dist-packages")}
    devices = [Path(p) for p in _DEVICES]
    if device != "cpu":
        devices += [p for p in Path("/dev").iterdir() if p.name.startswith(("nvidia", "kfd", "dri"))]
    landlock.restrict(read=roots, names=listed, devices=devices)
    return "landlock"


def fence_system_calls(device: str) -> str:
    """Refuse what a worker never needs, on all its threads; "seccomp", or "" where the kernel or machine has none."""
    if not seccomp.available():
        # Threads have been started by now; without a filter this is what is left against new processes.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return ""
    seccomp.restrict(strict_memory=device == "cpu", write_opens=device != "cpu")
    return "seccomp"


def private_bytes(pid: int | None = None) -> int:
    """What RLIMIT_DATA counts of a process, by default this one: writable private memory, bytes.

    0 once it has ended, or where the system does not say.
    """
    try:
        status = Path("/proc", "self" if pid is None else str(pid), "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:")), 0)


def cap_memory(memory_bytes: int) -> int:
    """Allow `memory_bytes` more private memory than is in use now; the baseline in bytes."""
    baseline = private_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (baseline + memory_bytes, baseline + memory_bytes))
    return baseline
