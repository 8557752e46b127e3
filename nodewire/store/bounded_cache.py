"""What one purpose keeps of a cache that others use, too: the blobs used longest ago go when they are too many.

A provider of training fetches new weights in every round and puts a result beside them; nothing of that is asked for
twice once the round is paid, and a disk that only fills is one that strangers can fill.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.protocol.model.manifest import BlobRef
    from nodewire.store.blobs import Blobs

YOUNG_S = 600.0
"""Who has just got a blob's path has to be able to read it."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS used (sha256 TEXT PRIMARY KEY, bytes INTEGER NOT NULL, at_s REAL NOT NULL) STRICT;
"""


class BoundedBlobs:
    """`get` and `put` of `blobs`, of which no more than `most_bytes` stay in the cache.

    What was there before, or came otherwise, is nobody's to remove. Raises BadConfig: the file of what was used cannot
    be.
    """

    def __init__(self, blobs: Blobs, path: Path, most_bytes: int) -> None:
        self._blobs = blobs
        self._most_bytes = most_bytes
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise BadConfig(str(path), str(error)) from error

    def close(self) -> None:
        self._db.close()

    async def get(self, blob: BlobRef, *, inline: bytes | None = None) -> Path:
        """Raises as `Blobs.get`."""
        is_others = self._is_others(blob.sha256)
        path = await self._blobs.get(blob, inline=inline)
        if not is_others:
            self._use(blob)
        return path

    async def put(self, source: Path | bytes) -> BlobRef:
        """Raises as `Blobs.put`."""
        ref = await self._blobs.put(source)
        self._use(ref)
        return ref

    def _is_others(self, sha256: str) -> bool:
        """Whether it stands in the cache for somebody else: a stranger may cite what this node needs."""
        if self._db.execute("SELECT 1 FROM used WHERE sha256 = ?", (sha256,)).fetchone() is not None:
            return False
        return self._blobs.path(sha256).exists()

    def _use(self, blob: BlobRef) -> None:
        sql = "INSERT INTO used VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET at_s = excluded.at_s"
        self._db.execute(sql, (blob.sha256, blob.bytes, time.time()))
        (left,) = self._db.execute("SELECT sum(bytes) FROM used").fetchone()
        if left <= self._most_bytes:
            return
        old = "SELECT sha256, bytes FROM used WHERE at_s < ? ORDER BY at_s"
        for sha256, size in self._db.execute(old, (time.time() - YOUNG_S,)).fetchall():
            self._blobs.path(sha256).unlink(missing_ok=True)
            self._db.execute("DELETE FROM used WHERE sha256 = ?", (sha256,))
            left -= size
            if left <= self._most_bytes:
                return
