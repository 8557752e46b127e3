"""Blobs by hash on disk: blobs/ab/<sha256>, written aside, fsynced and renamed; who uploaded what stands in SQLite.

A blob is kept as long as one of its uploaders wants it, or until the store is nearly full and nobody has asked for it
for long (sweep.py): its file's mtime says when it was used. Room is reserved step by step before bytes are written,
so that uploads at the same time cannot together exceed a quota, and an upload that is only announced holds none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from nodewire.errors import BadHash, NotFound, TooLarge
from relay.blobs import sweeping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from relay.limits import BlobLimits

_TABLES = """
CREATE TABLE IF NOT EXISTS blob (
    sha256 TEXT PRIMARY KEY, bytes INTEGER NOT NULL, type TEXT NOT NULL, uploaded_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (
    sha256 TEXT NOT NULL REFERENCES blob, pubkey TEXT NOT NULL, uploaded_at INTEGER NOT NULL,
    PRIMARY KEY (sha256, pubkey)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS owner_by_key ON owner (pubkey, uploaded_at);

-- What the blobs of each uploader take, and under '' all; counted anew at each start.
CREATE TABLE IF NOT EXISTS held (pubkey TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
DROP TRIGGER IF EXISTS blob_came;
CREATE TRIGGER blob_came AFTER INSERT ON blob BEGIN
    INSERT INTO held VALUES ('', max(new.bytes, {least}))
        ON CONFLICT (pubkey) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
DROP TRIGGER IF EXISTS blob_went;
CREATE TRIGGER blob_went AFTER DELETE ON blob BEGIN
    UPDATE held SET bytes = bytes - max(old.bytes, {least}) WHERE pubkey = '';
END;
DROP TRIGGER IF EXISTS owner_came;
CREATE TRIGGER owner_came AFTER INSERT ON owner BEGIN
    INSERT INTO held SELECT new.pubkey, max(bytes, {least}) FROM blob WHERE sha256 = new.sha256
        ON CONFLICT (pubkey) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
DROP TRIGGER IF EXISTS owner_went;
CREATE TRIGGER owner_went AFTER DELETE ON owner BEGIN  -- its blob goes after it
    UPDATE held SET bytes = bytes - coalesce((SELECT max(b.bytes, {least}) FROM blob b WHERE b.sha256 = old.sha256), 0)
        WHERE pubkey = old.pubkey;
    DELETE FROM held WHERE pubkey = old.pubkey AND bytes <= 0;
END;
DELETE FROM held;
INSERT INTO held SELECT pubkey, sum(max(bytes, {least})) FROM owner JOIN blob USING (sha256) GROUP BY pubkey;
INSERT INTO held SELECT '', coalesce(sum(max(bytes, {least})), 0) FROM blob;
"""

Arguments = TypeVarTuple("Arguments")
Made = TypeVar("Made")
_STEP_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class Blob:
    sha256: str
    bytes: int
    type: str
    uploaded_at_s: int


class Shelf:
    """The blobs under `directory`."""

    def __init__(self, directory: Path, limits: BlobLimits) -> None:
        self._directory, self._limits = directory, limits
        self._aside = directory / "incoming"
        self._aside.mkdir(parents=True, exist_ok=True)
        for left in self._aside.iterdir():  # uploads that a crash interrupted
            left.unlink()
        # Two threads must not use one connection at once: sqlite3 then answers with another statement's rows, or an
        # error, or the process dies. The event loop reads by `_db`; the one thread of `_writes` writes by `_writer`,
        # also what nobody waits for any more.
        index = directory / "index.sqlite"
        self._writer = sqlite3.connect(index, isolation_level=None, check_same_thread=False)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")
        self._writer.executescript(f"BEGIN;{_TABLES}COMMIT;".replace("{least}", str(limits.least_blob_bytes)))
        self._db = sqlite3.connect(index, isolation_level=None)
        self._db.execute("PRAGMA query_only = ON")
        self._reserved = {"": 0}  # bytes promised to uploads under way: in all (""), and by uploader
        self._writes = ThreadPoolExecutor(1, "blobs")
        self._going: set[str] = set()
        sweeping.remove_strays(directory, self._db)

    def path(self, sha256: str) -> Path:
        return self._directory / sha256[:2] / sha256

    def find(self, sha256: str) -> Blob:
        """Raises NotFound."""
        return _find(self._db, sha256)

    def use(self, sha256: str, now_s: int) -> Blob:
        """`find`, for somebody who relies on it: from now on it is not swept for a while. Raises NotFound."""
        blob = self.find(sha256)
        sweeping.touch(self.path(sha256), now_s)
        if sha256 in self._going:  # after the touch: the sweep names it before it looks at the time
            raise NotFound("sha256", "it is being removed")
        return blob

    async def sweep(self, now_s: int) -> int:
        """Make room if little is left; how many blobs went."""
        return await self._write(sweeping.sweep, self._directory, self._writer, self._limits, now_s, self._going)

    def list(self, pubkey: str, since_s: int, until_s: int) -> list[Blob]:
        """What `pubkey` uploaded in that span, newest first, at most `list_length`."""
        rows = self._db.execute(
            "SELECT b.sha256, b.bytes, b.type, o.uploaded_at FROM owner o JOIN blob b USING (sha256)"
            " WHERE o.pubkey = ? AND o.uploaded_at BETWEEN ? AND ? ORDER BY o.uploaded_at DESC, b.sha256 LIMIT ?",
            (pubkey, since_s, until_s, self._limits.list_length),
        )
        return [Blob(*row) for row in rows]

    async def take(
        self,
        chunks: AsyncIterator[bytes],
        announced_bytes: int | None,
        pubkey: str,
        wanted: set[str],
        type_: str,
        now_s: int,
    ) -> Blob:
        """Store what `chunks` bring, if its hash is one of `wanted`.

        Raises:
            TooLarge: above the cap for one blob, or for an uploader or all together (field "quota").
            BadHash: the bytes have another hash; nothing is kept.
            TimedOut, ConnectionError: whatever `chunks` raise; nothing is kept.

        """
        room = self._limits.blob_bytes if announced_bytes is None else announced_bytes
        self.fits(announced_bytes or 0, pubkey)
        reserved = 0  # grows with what has come: what is only announced takes no room from others
        try:
            descriptor, name = tempfile.mkstemp(dir=self._aside)
            try:
                digest, size = hashlib.sha256(), 0
                with os.fdopen(descriptor, "wb") as file:
                    async for chunk in chunks:
                        size += len(chunk)
                        if size > room:
                            raise TooLarge("blob", f"more than {room} bytes")
                        while size > reserved:
                            more = min(_STEP_BYTES, room - reserved)
                            self._reserve(pubkey, more)
                            reserved += more
                        digest.update(chunk)
                        file.write(chunk)
                    file.flush()
                    sha256 = digest.hexdigest()
                    if sha256 not in wanted:
                        raise BadHash("x", "the authorization is for another hash than the body's")
                    await asyncio.to_thread(os.fsync, file.fileno())
                return await self._write(self._place, Path(name), Blob(sha256, size, type_, now_s), pubkey)
            finally:
                with contextlib.suppress(FileNotFoundError):  # it has been moved to its place
                    os.unlink(name)
        finally:
            self._release(pubkey, reserved)

    def fits(self, size: int, pubkey: str) -> None:
        """Raises TooLarge if an upload of `size` bytes by `pubkey` would not be taken now."""
        if size > self._limits.blob_bytes:
            raise TooLarge("blob", f"{size} bytes, at most {self._limits.blob_bytes}: the store's `blob_bytes`")
        size = max(size, self._limits.least_blob_bytes)
        used = sweeping.held_bytes(self._db) + self._reserved[""]
        own = sweeping.held_bytes(self._db, pubkey) + self._reserved.get(pubkey, 0)
        for held, name in ((used, "quota_bytes"), (own, "key_quota_bytes")):
            if held + size > (most := getattr(self._limits, name)):
                raise TooLarge("quota", f"the store has no room for it: its `{name}` is {most}")

    async def drop(self, sha256: str, pubkey: str) -> bool:
        """Let go of `pubkey`'s claim on a blob, and of the blob with the last claim; whether there was a claim."""
        return await self._write(self._drop, sha256, pubkey)

    async def _write(self, what: Callable[[*Arguments], Made], *arguments: *Arguments) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._writes, what, *arguments)

    async def close(self) -> None:
        """When what is being written is done."""
        await asyncio.to_thread(self._writes.shutdown, cancel_futures=True)
        self._db.close()
        self._writer.close()

    def _reserve(self, pubkey: str, room: int) -> None:
        self.fits(room, pubkey)
        self._reserved[""] += room
        self._reserved[pubkey] = self._reserved.get(pubkey, 0) + room

    def _release(self, pubkey: str, room: int) -> None:
        if not room:
            return
        self._reserved[""] -= room
        self._reserved[pubkey] -= room
        if not self._reserved[pubkey]:
            del self._reserved[pubkey]

    def _place(self, written: Path, blob: Blob, pubkey: str) -> Blob:
        """Put the file where it belongs, then say so in the index: a file without a row does no harm."""
        target = self.path(blob.sha256)
        target.parent.mkdir(exist_ok=True)
        os.utime(written, (blob.uploaded_at_s, blob.uploaded_at_s))
        os.replace(written, target)
        _sync_directory(target.parent)
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.execute(
                "INSERT INTO blob VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (blob.sha256, blob.bytes, blob.type, blob.uploaded_at_s),
            )
            self._writer.execute(
                "INSERT INTO owner VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (blob.sha256, pubkey, blob.uploaded_at_s)
            )
        return _find(self._writer, blob.sha256)

    def _drop(self, sha256: str, pubkey: str) -> bool:
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            gone = self._writer.execute("DELETE FROM owner WHERE sha256 = ? AND pubkey = ?", (sha256, pubkey)).rowcount
            last = gone and not self._writer.execute("SELECT 1 FROM owner WHERE sha256 = ?", (sha256,)).fetchone()
            if last:
                self._writer.execute("DELETE FROM blob WHERE sha256 = ?", (sha256,))
        if last:
            self.path(sha256).unlink(missing_ok=True)
        return bool(gone)


def _find(db: sqlite3.Connection, sha256: str) -> Blob:
    """Raises NotFound."""
    row = db.execute("SELECT sha256, bytes, type, uploaded_at FROM blob WHERE sha256 = ?", (sha256,)).fetchone()
    if row is None:
        raise NotFound("sha256", "no such blob")
    return Blob(*row)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
