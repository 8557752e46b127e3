"""One daemon at a time works in a state folder, and one buyer at a time with a key.

A second daemon would announce the same key with addresses of its own. A second buyer's links would be refused by the
providers that the first has links to, and it would take the first one's payments for those of a dead process.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_PID_BYTES = 32
log = logging.getLogger("nodewire.store")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a daemon's state folder, made if missing, as long as the block (and no longer than this process) lives.

    Raises:
        Busy: another daemon holds it; its process is named.

    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            process = file.read(_MAX_PID_BYTES).strip() or "unknown"
            raise Busy("state", f"already running: state folder {folder} is in use by process {process}") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def is_held(folder: Path) -> bool:
    """Whether a daemon holds it. Raises OSError: it may not be looked at."""
    try:
        with (folder / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def sole_key(path: Path) -> Iterator[None]:
    """Hold a key file as long as the block (and no longer than this process) lives. Nothing is written beside it.

    Raises:
        Busy: another process, which is named where the system tells, holds the same file.

    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.fstat(file.fileno()).st_ino)
            advice = "stop that one, or give this one a key of its own"
            raise Busy("key", f"{path} is in use by {holder}: {advice}") from error
        except OSError as error:  # a network's file system may lock nothing that is only read
            log.warning("%s cannot be locked (%s): see that no other process uses this key", path, error.strerror)
        yield


def _holder(inode: int) -> str:
    """The process that has locked a file, by Linux's list of locks (proc_locks(5))."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        rows = []
    found = {row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}")}
    return f"process {found.pop()}" if len(found) == 1 else "another process"
