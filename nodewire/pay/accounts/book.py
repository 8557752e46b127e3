"""One side of a ledger's file: the database and its transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

KEY = "job = ? AND payee = ? AND chunk = ? AND attempt = ?"
"""Of one debt or due, in SQL."""


class Book:
    """Every method of a book is one transaction, on disk (synchronous=FULL) before it returns."""

    _db: sqlite3.Connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: what is read inside cannot change before it is written, in another process either.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
