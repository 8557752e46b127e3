"""One side of a ledger's file: the database and its transactions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

KEY = "job = ? AND payee = ? AND chunk = ? AND attempt = ?"
"""Of one debt or due, in SQL."""


class Book:
    """A method is one transaction, on disk (synchronous=FULL) before it returns.

    Those that say so leave that to `Ledger.flushed`.
    """

    _db: sqlite3.Connection
    _unflushed = 0
    """How many transactions were left to that, ever."""

    @contextmanager
    def _transaction(self, *, is_flushed: bool = True) -> Iterator[None]:
        if not is_flushed:
            self._unflushed += 1
            self._db.execute("PRAGMA synchronous = NORMAL")
        # IMMEDIATE: what is read inside cannot change before it is written, in another process either.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        else:
            self._db.execute("COMMIT")
        finally:
            if not is_flushed:
                self._db.execute("PRAGMA synchronous = FULL")
