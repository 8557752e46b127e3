"""One daemon at a time works in a state folder: a second would announce the same key with addresses of its own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodewire.errors import Busy

_MAX_PID_BYTES = 32


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
