"""Room in the blob store: where it is nearly full, what nobody has used for long goes; so does what a crash left.

A blob's row goes before its file, and the file after the commit: cut off in between, a sweep leaves files that no row
names, and the next start removes these.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from relay.limits import BlobLimits

_TOUCHED_S = 86_400
"""How exactly a file's mtime says when it was used: browsers hold what they have by it."""
_MOST_AT_ONCE = 256
"""Blobs to a commit."""


def held_bytes(db: sqlite3.Connection, pubkey: str = "") -> int:
    """The bytes of an uploader's blobs; by default of all."""
    row = db.execute("SELECT bytes FROM held WHERE pubkey = ?", (pubkey,)).fetchone()
    return int(row[0]) if row else 0


def touch(path: Path, now_s: int) -> None:
    """Say that the blob is used now."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime <= now_s - _TOUCHED_S:
            os.utime(path, (now_s, now_s))


def sweep(directory: Path, db: sqlite3.Connection, limits: BlobLimits, now_s: int, going: set[str]) -> int:
    """Remove blobs unused in `limits.kept_s` until the store is no longer nearly full; how many. No other may write.

    `going` names those that are being removed, from before their time of use is looked at: who uses one of them
    meanwhile either is seen here or sees that.
    """
    full_bytes = limits.quota_bytes * limits.full_ppm // 1_000_000
    used = held_bytes(db)
    if used <= full_bytes:
        return 0
    oldest_s = now_s - limits.kept_s
    rows = db.execute("SELECT sha256, bytes FROM blob").fetchall()
    unused = sorted((at_s, sha256, size) for sha256, size in rows if (at_s := _used_s(directory, sha256)) <= oldest_s)
    gone = 0
    while unused and used > full_bytes:
        batch: dict[str, int] = {}
        while unused and used > full_bytes and len(batch) < _MOST_AT_ONCE:
            _, sha256, size = unused.pop(0)
            batch[sha256] = size
            used -= max(size, limits.least_blob_bytes)
        going.update(batch)
        try:
            batch = {sha256: size for sha256, size in batch.items() if _used_s(directory, sha256) <= oldest_s}
            _forget(db, list(batch))
            for sha256 in batch:
                (directory / sha256[:2] / sha256).unlink(missing_ok=True)
        finally:
            going.clear()
        gone += len(batch)
    return gone


def remove_strays(directory: Path, db: sqlite3.Connection) -> int:
    """Remove files that no row names; how many. Only before the store takes uploads, whose files come first."""
    gone = 0
    for folder in directory.glob("[0-9a-f][0-9a-f]"):
        for file in folder.iterdir():
            if not db.execute("SELECT 1 FROM blob WHERE sha256 = ?", (file.name,)).fetchone():
                file.unlink()
                gone += 1
    return gone


def _used_s(directory: Path, sha256: str) -> float:
    """0 where the file is gone: its row is of no use."""
    try:
        return (directory / sha256[:2] / sha256).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _forget(db: sqlite3.Connection, hashes: list[str]) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        for table in ("owner", "blob"):
            db.executemany(f"DELETE FROM {table} WHERE sha256 = ?", [(sha256,) for sha256 in hashes])
