"""The one writer: drains its whole inbox, commits once, and only then says what became of each event.

It owns a thread and the only connection that writes. Under load one fsync serves hundreds of events; alone, an event
waits for its own. What it decides follows NIP-01 (replaceable and addressable kinds), NIP-09 and NIP-40.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from relay.events import deleting, expiring, schema
from relay.events.indexing import identifier, letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nodewire.nostr.event import Event
    from relay.limits import Config

_LOG = logging.getLogger("relay.storing")
_DELETION_BYTES = 512
_MOST_AT_ONCE = 4_096  # events per commit; bounds how long the first of a batch waits


class Outcome(NamedTuple):
    """What the writer did with an event: the OK's flag and message.

    If it is now stored, its `seq`, and by how many bytes more is stored than before it.
    """

    accepted: bool
    message: str
    seq: int | None = None
    grew: int = 0


DUPLICATE = Outcome(True, "duplicate: already have this event")
OUTDATED = Outcome(False, "duplicate: have a newer version")
DELETED = Outcome(False, "blocked: deleted by its author")
FAILED = Outcome(False, "error: could not store the event")
DISK_FULL = Outcome(False, "error: the relay's disk is full, try another relay or later")
FULL = Outcome(False, "error: the relay has no room for more events, try another relay")
KEY_FULL = Outcome(False, "blocked: this key has stored all that it may here, delete some of it")


@dataclass(frozen=True, slots=True)
class Job:
    """A verified event to store, and its JSON.

    `done` is called on the event loop, after the commit. `no_growth`: why no more may be stored after it than before;
    empty if more may.
    """

    event: Event
    json: str
    expires_at_s: int | None
    done: Callable[[Outcome], None]
    no_growth: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete what has expired before `now_s`."""

    now_s: int


class Writer:
    """Starts its thread at once; `close` commits what is in the inbox first."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._db = schema.open_writer(config.db, config.synchronous)
        self._loop = loop
        self._was_full = False
        self._inbox: queue.SimpleQueue[Job | Sweep | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="relay-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Job | Sweep) -> None:
        self._inbox.put(work)

    async def close(self) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._db.close()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch = [self._inbox.get()]
            while len(batch) < _MOST_AT_ONCE:
                try:
                    batch.append(self._inbox.get_nowait())
                except queue.Empty:
                    break
            open_ = None not in batch
            work = [item for item in batch if item is not None]
            if work:
                outcomes = self._commit(work)
                self._loop.call_soon_threadsafe(_tell, outcomes)

    def _commit(self, work: Sequence[Job | Sweep]) -> list[tuple[Job, Outcome]]:
        outcomes: list[tuple[Job, Outcome]] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for item in work:
                if isinstance(item, Sweep):
                    expiring.sweep(self._db, item.now_s)
                else:
                    outcomes.append((item, store(self._db, item, self._config)))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:  # nothing of the batch is stored, everybody is told so
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            failed = DISK_FULL if is_full(error) else FAILED
            if failed is FAILED:
                _LOG.exception("could not commit %d events", len(work))
            elif not self._was_full:
                _LOG.error("the disk is full: events are refused until there is room again")
            self._was_full = failed is DISK_FULL
            return [(item, failed) for item in work if isinstance(item, Job)]
        if self._was_full:
            _LOG.warning("there is room on the disk again")
            self._was_full = False
        return outcomes


def _tell(outcomes: Iterable[tuple[Job, Outcome]]) -> None:
    for job, outcome in outcomes:
        job.done(outcome)


def store(db: sqlite3.Connection, job: Job, config: Config) -> Outcome:
    """Store one verified event inside the caller's transaction."""
    event = job.event
    id_, author = bytes.fromhex(event.id), bytes.fromhex(event.pubkey)
    if db.execute("SELECT 1 FROM event WHERE id = ?", (id_,)).fetchone():
        return DUPLICATE
    if event.kind not in config.permanent_kinds and deleting.was_deleted(db, event):
        return DELETED
    d, grew, replaced = identifier(event), len(job.json.encode()), None
    if d is not None:
        older = db.execute(
            "SELECT seq, created_at, id, length(CAST(json AS BLOB)) FROM event WHERE kind = ? AND pubkey = ? AND d = ?",
            (event.kind, author, d),
        ).fetchone()
        if older:
            replaced, created_at, other, nbytes = older
            grew -= nbytes
            # Of two of the same second, the lower id stays.
            if created_at > event.created_at or (created_at == event.created_at and other < id_):
                return OUTDATED
    if event.kind == deleting.KIND:
        return _delete(db, job, config)
    # What makes room is taken even where there is none.
    if grew > 0 and (refused := _refusal(db, author, grew, config)):
        return refused
    if replaced is not None:
        deleting.remove(db, replaced)
    return Outcome(True, "", _insert(db, job, d), grew)


def _delete(db: sqlite3.Connection, job: Job, config: Config) -> Outcome:
    """Store a deletion and do what it asks for; neither if it takes more room than it makes, and that is not there.

    Short events are deleted all the same: for each a deletion may take a little more than what it frees.
    """
    author = bytes.fromhex(job.event.pubkey)
    db.execute("SAVEPOINT deletion")
    before = schema.held_bytes(db)
    stored = _insert(db, job, None)
    gone = deleting.obey(db, job.event, config.permanent_kinds)
    grew, refused = schema.held_bytes(db) - before, None
    if grew > gone * _DELETION_BYTES:
        refused = Outcome(False, job.no_growth) if job.no_growth else _refusal(db, author, 0, config)
    if refused is not None:
        db.execute("ROLLBACK TO deletion")
    db.execute("RELEASE deletion")
    return refused or Outcome(True, "", stored, grew)


def _refusal(db: sqlite3.Connection, author: bytes, grew: int, config: Config) -> Outcome | None:
    """Why so much more of an author's is not stored."""
    if schema.held_bytes(db) + grew > config.limits.events_bytes:
        return FULL
    if schema.held_bytes(db, author) + grew > config.limits.key_events_bytes:
        return KEY_FULL
    return None


def _insert(db: sqlite3.Connection, job: Job, d: str | None) -> int | None:
    """Put an event and its tags into the tables; its `seq`."""
    event = job.event
    id_, author = bytes.fromhex(event.id), bytes.fromhex(event.pubkey)
    cursor = db.execute(
        "INSERT INTO event (id, pubkey, created_at, kind, d, expires_at, json) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (id_, author, event.created_at, event.kind, d, job.expires_at_s, job.json),
    )
    db.executemany(
        "INSERT INTO tag (tag, created_at, seq, kind) VALUES (?, ?, ?, ?)",
        [(tag, event.created_at, cursor.lastrowid, event.kind) for tag in letters(event.tags)],
    )
    return cursor.lastrowid


def is_full(error: OSError | sqlite3.Error) -> bool:
    """Whether a disk, or somebody's quota on it, was full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
