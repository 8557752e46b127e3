"""Which blobs of a cache go when nobody has asked for them for long, or when they are too many.

A blob's time of use is its file's mtime (`Blobs.get` sets it), so a sweep needs no record of its own: one that is cut
off has removed whole files, and the next begins from what stands there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

INCOMING = "incoming"
INCOMING_S = 86_400.0
"""A part that nobody has written to for so long is what a crash has left: no download is as slow."""
KEPT_S = 30 * 86_400.0
YOUNG_S = 3_600.0
"""Who has just got a blob's path has to be able to read it."""
EVERY_S = 3_600.0

_log = logging.getLogger("nodewire.store.sweeping")


@dataclass(frozen=True, slots=True)
class _File:
    used_s: float
    path: Path
    bytes: int


def sweep(
    cache: Path,
    most_bytes: int | None,
    now_s: float,
    *,
    kept_s: float = KEPT_S,
    young_s: float = YOUNG_S,
    but: Container[str] = (),
) -> int:
    """Remove blobs that nobody used in `kept_s`, then the longest unused until `most_bytes` are left.

    `most_bytes` may be unbounded. Returned is how many bytes went.

    Those used in `young_s` stay, and those whose hash is in `but`, even if they are too many. Blocks: for a thread.
    """
    freed = _abandoned(cache / INCOMING, now_s)
    files = sorted(files_of(cache), key=lambda file: file.used_s)
    left = sum(file.bytes for file in files)
    for file in files:
        is_room = most_bytes is None or left <= most_bytes
        if file.used_s > now_s - young_s or (is_room and file.used_s > now_s - kept_s):
            break
        if file.path.name in but:
            continue
        file.path.unlink(missing_ok=True)
        left -= file.bytes
        freed += file.bytes
    return freed


async def sweep_beside(
    cache: Path,
    most_bytes: int | None,
    *,
    young_s: float = YOUNG_S,
    but: Callable[[], Container[str]] = frozenset,
) -> None:
    """Sweep now and every hour, until cancelled. `but` is asked each time."""
    while True:
        try:
            freed = await asyncio.to_thread(sweep, cache, most_bytes, time.time(), young_s=young_s, but=but())
        except OSError as error:
            _log.warning("%s cannot be swept: %s", cache, error)
        else:
            if freed:
                _log.info("%.1f MB of blobs that nobody uses any more removed", freed / 1e6)
        await asyncio.sleep(EVERY_S)


def files_of(cache: Path) -> Iterator[_File]:
    """The blobs that stand in the cache."""
    for shelf in cache.glob("[0-9a-f][0-9a-f]"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(shelf) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process removes it, too
                    stat = entry.stat()
                    yield _File(stat.st_mtime, Path(entry.path), stat.st_size)


def _abandoned(incoming: Path, now_s: float) -> int:
    """Remove the parts that no process can be writing any more."""
    freed = 0
    for part in incoming.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = part.stat()
            if stat.st_mtime <= now_s - INCOMING_S:
                part.unlink()
                freed += stat.st_size
    return freed
