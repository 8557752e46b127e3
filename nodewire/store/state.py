"""A daemon's own state: one SQLite file, one connection, numbered migrations, explicit transactions.

Calls are plain and synchronous, made from the event loop's thread: a transaction here is a few rows, and it must not be
interleaved with another. So it must not contain an `await` either; one that does is found out as soon as another task
opens a transaction meanwhile. Synchronous FULL: what has been committed survives a power cut (DESIGN, rule 3).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodewire.errors import BadConfig, NotAllowed


class State:
    """The database at `path`, brought to the newest of `migrations` (SQL scripts; number n leads to version n).

    Raises:
        BadConfig: the file is no database, or was written by newer software.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.execute("PRAGMA busy_timeout = 5000")
            self._migrate(migrations)
        except sqlite3.Error as error:
            self._db.close()
            raise BadConfig(str(path), f"cannot be used as a database: {error}") from error
        except BadConfig:
            self._db.close()
            raise

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """All rows of a SELECT; inside a transaction it sees what that has written."""
        return self._db.execute(sql, params).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: committed (durably) when the block ends, rolled back when it raises.

        Raises:
            NotAllowed: another transaction is open.
        """
        if self._db.in_transaction:
            raise NotAllowed("transaction", "another one is open; it may not be nested, nor contain an await")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def _migrate(self, migrations: Sequence[str]) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(migrations):
            raise BadConfig(str(self.path), f"has version {version}, this software knows {len(migrations)}")
        for number, script in enumerate(migrations[version:], start=version + 1):
            try:
                self._db.executescript(f"BEGIN IMMEDIATE;\n{script};\nPRAGMA user_version = {number};\nCOMMIT;")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
