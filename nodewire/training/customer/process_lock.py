"""One process at a time works on a training: two would buy every shard twice, and spoil each other's journal."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodewire.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a training's folder, as long as the block (and no longer than this process) lives.

    Raises:
        Busy: another process holds it.

    """
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy("training", f"another process is at it in {folder}: wait for it, or stop it first") from error
        yield
