"""What a provider must still know after a crash, in SQLite: jobs that it has to show, roots to have certified.

    jobs          the request and the ticket of a sampled job, as long as the spool keeps its frames
    roots         of chunks that it claims or will claim payment for, up to the chunk's deadline epoch
    commitments   at most one an epoch, written before it is published, so that no crash makes a second one
    published     which roots stand in a commitment

Tickets are secret: nobody else may read the file. A file is of one committee.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned
from nodewire.errors import NodeFailed
from nodewire.nostr.event import Event, parse
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job.request import Ticket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    request TEXT PRIMARY KEY, event TEXT NOT NULL, ticket TEXT NOT NULL, until_s INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS roots (
    request TEXT NOT NULL, task TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL, root TEXT NOT NULL,
    deadline INTEGER NOT NULL, certified INTEGER,
    PRIMARY KEY (request, task, chunk, attempt)
) STRICT;
CREATE INDEX IF NOT EXISTS roots_uncertified ON roots (deadline) WHERE certified IS NULL;
CREATE TABLE IF NOT EXISTS commitments (
    epoch INTEGER PRIMARY KEY, id TEXT NOT NULL, created_at INTEGER NOT NULL, state TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS commitments_open ON commitments (state) WHERE state = 'open';
CREATE TABLE IF NOT EXISTS published (
    request TEXT NOT NULL, task TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL,
    root TEXT NOT NULL,
    PRIMARY KEY (request, task, chunk, attempt, epoch)
) STRICT;
CREATE INDEX IF NOT EXISTS published_in ON published (epoch);
"""
_KEY = "request, task, chunk, attempt"
_UNDECIDED = (
    "EXISTS (SELECT 1 FROM published p JOIN commitments c USING (epoch) WHERE c.state = 'open' AND p.request = "
    "roots.request AND p.task = roots.task AND p.chunk = roots.chunk AND p.attempt = roots.attempt)"
)
"""Whether nobody knows yet if a certificate holds a root of the table `roots`."""


@dataclass(frozen=True, slots=True)
class StoredCommitment:
    """A commitment as it was written down before it was published; `roots` are sorted."""

    epoch: int
    id: str
    created_at: int
    roots: tuple[ChunkRoot, ...]


class KeptWork:
    """One provider's file (":memory:" for none). Used by any thread; every method is on disk before it returns.

    Raises:
        NodeFailed: here and by every method, when the file is damaged, or cannot be read or written.

    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._spoken():
            self._db = open_versioned(path, "kept work", _SCHEMA, _VERSION, threads=True)
            if (found := self._db.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise sqlite3.DatabaseError(str(found[0]))

    def close(self) -> None:
        """What is being written is waited for; what comes later is refused as by a file that cannot be written."""
        with self._lock:
            self._db.close()

    # Jobs.

    def begun(self, request: Event, ticket: Ticket) -> bool:
        """A job begins of which this provider will have to show its part. False if it is kept already.

        The operating system has it when this returns, the disk a little later: as with the frames in the spool,
        without which it is worth nothing.
        """
        with self._transaction(synchronous="NORMAL") as db:
            row = (request.id, request.to_json(), ticket.to_json())
            known = db.execute("SELECT 1 FROM jobs WHERE request = ?", (request.id,)).fetchone()
            db.execute("INSERT INTO jobs VALUES (?, ?, ?, NULL) ON CONFLICT DO UPDATE SET until_s = NULL", row)
        return known is None

    def ended(self, request: str, until_s: float) -> None:
        """A job has ended; it is kept until `until_s` (unix), or longer if something of it is published again."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET until_s = ? WHERE request = ?", (int(until_s), request))

    def interrupted(self, until_s: float) -> None:
        """The process that had jobs under way is no more: they have all ended."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET until_s = ? WHERE until_s IS NULL", (int(until_s),))

    def job(self, request: str) -> tuple[Event, Ticket] | None:
        """The request and ticket of a job that is kept."""
        with self._spoken():
            row = self._db.execute("SELECT event, ticket FROM jobs WHERE request = ?", (request,)).fetchone()
        return None if row is None else (parse(row[0]), Ticket.parse(row[1]))

    def jobs(self) -> frozenset[str]:
        """The ids of the jobs that are kept, and of which the frames must be kept."""
        with self._spoken():
            return frozenset(request for (request,) in self._db.execute("SELECT request FROM jobs"))

    def sweep(self, now_s: float) -> None:
        """Forget the jobs whose time has passed, but none of which a root may still be certified."""
        with self._transaction() as db:
            uncertified = "SELECT request FROM roots WHERE certified IS NULL"
            db.execute(f"DELETE FROM jobs WHERE until_s <= ? AND request NOT IN ({uncertified})", (int(now_s),))

    # Roots.

    def add(self, roots: Sequence[ChunkRoot], deadline: int) -> None:
        """Roots that epoch `deadline` is the last to certify. The first of a key counts, here as for the committee."""
        with self._transaction() as db:
            rows = [(*root.key, root.root, deadline) for root in roots]
            db.executemany("INSERT INTO roots VALUES (?, ?, ?, ?, ?, ?, NULL) ON CONFLICT DO NOTHING", rows)

    def due(self, epoch: int, most: int) -> list[ChunkRoot]:
        """What the commitment of `epoch` should hold, the most urgent first.

        It is what is not certified, and stands in no commitment of which that is still open; with no later chance, that
        as well.
        """
        query = (
            f"SELECT {_KEY}, root FROM roots WHERE certified IS NULL AND deadline >= :epoch "
            f"AND (deadline = :epoch OR NOT {_UNDECIDED}) ORDER BY deadline, rowid LIMIT :most"
        )
        with self._spoken():
            return [_root(row) for row in self._db.execute(query, {"epoch": epoch, "most": most})]

    def make(self, made: StoredCommitment, until_s: float) -> None:
        """A commitment is about to be published. The jobs that it is about are kept until `until_s` at least."""
        with self._transaction() as db:
            db.execute("INSERT INTO commitments VALUES (?, ?, ?, 'open')", (made.epoch, made.id, made.created_at))
            rows = [(*root.key, made.epoch, root.root) for root in made.roots]
            db.executemany("INSERT INTO published VALUES (?, ?, ?, ?, ?, ?)", rows)
            kept = [(int(until_s), request) for request in {root.request for root in made.roots}]
            db.executemany("UPDATE jobs SET until_s = max(until_s, ?) WHERE request = ?", kept)

    def made(self, epoch: int) -> StoredCommitment | None:
        """The commitment of `epoch`, if there is one."""
        with self._spoken():
            query = "SELECT id, created_at FROM commitments WHERE epoch = ?"
            if (row := self._db.execute(query, (epoch,)).fetchone()) is None:
                return None
            query = f"SELECT {_KEY}, root FROM published WHERE epoch = ? ORDER BY {_KEY}"
            roots = tuple(_root(one) for one in self._db.execute(query, (epoch,)))
            return StoredCommitment(epoch, row[0], row[1], roots)

    def undecided(self) -> list[tuple[int, str]]:
        """Epoch and event id of the commitments of which it is open whether a certificate holds them, oldest first."""
        with self._spoken():
            query = "SELECT epoch, id FROM commitments WHERE state = 'open' ORDER BY epoch"
            return [(epoch, id_) for epoch, id_ in self._db.execute(query)]

    def decide(self, epoch: int, *, certified: bool) -> None:
        """The certificate of `epoch` holds its commitment, or it does not and never will."""
        with self._transaction() as db:
            state = "certified" if certified else "lost"
            db.execute("UPDATE commitments SET state = ? WHERE epoch = ?", (state, epoch))
            if certified:
                db.execute(
                    f"UPDATE roots SET certified = ? WHERE certified IS NULL AND ({_KEY}) IN "
                    f"(SELECT {_KEY} FROM published WHERE epoch = ?)",
                    (epoch, epoch),
                )

    def certified(self, root: ChunkRoot) -> int | None:
        """The first epoch whose certificate holds the root, as far as is known."""
        with self._spoken():
            query = f"SELECT certified FROM roots WHERE ({_KEY}) = (?, ?, ?, ?)"
            row = self._db.execute(query, root.key).fetchone()
        return None if row is None else row[0]

    def give_up(self, epoch: int) -> list[tuple[ChunkRoot, int]]:
        """Forget the roots, and what was published of them, whose deadline was before `epoch`.

        Returned are those among them that no certificate holds, with their deadlines. What is undecided stays.
        """
        with self._transaction() as db:
            over = f"deadline < ? AND NOT {_UNDECIDED}"
            query = f"SELECT {_KEY}, root, deadline FROM roots WHERE {over} AND certified IS NULL"
            lost = [(_root(row), row[-1]) for row in db.execute(query, (epoch,))]
            db.execute(f"DELETE FROM published WHERE ({_KEY}) IN (SELECT {_KEY} FROM roots WHERE {over})", (epoch,))
            db.execute(f"DELETE FROM roots WHERE {over}", (epoch,))
            db.execute(
                "DELETE FROM commitments WHERE state <> 'open' AND epoch < ? "
                "AND epoch NOT IN (SELECT epoch FROM published)",
                (epoch,),
            )
            return lost

    # Inside.

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """One thread at a time; SQLite's faults as this house's, with what to do about them."""
        with self._lock:
            try:
                yield
            except sqlite3.IntegrityError:
                raise  # this software's own fault
            except (sqlite3.OperationalError, sqlite3.ProgrammingError, OSError) as error:
                raise NodeFailed(str(self._path), f"cannot be read or written: {error}") from error
            except sqlite3.Error as error:
                lost = "the roots that no certificate holds yet, and what shows the work of sampled jobs, are lost"
                what = f"damaged ({error}). Bring back a copy, or move it away to start without: {lost}"
                raise NodeFailed(str(self._path), what) from error

    @contextmanager
    def _transaction(self, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
        with self._spoken():
            self._db.execute(f"PRAGMA synchronous = {synchronous}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have ended it
                    self._db.execute("ROLLBACK")
                raise


def _root(row: Sequence[object]) -> ChunkRoot:
    request, task, chunk, attempt, root = row[:5]
    return ChunkRoot.model_validate(
        {"request": request, "task": task, "chunk": chunk, "attempt": attempt, "root": root}
    )
