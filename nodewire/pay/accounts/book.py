"""One side of a ledger's file: the database and its transactions."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from nodewire.pay.accounts.debts import Key

KEY = "job = ? AND payee = ? AND chunk = ? AND attempt = ?"
"""Of one debt or due, in SQL."""
BY_NAME = "(job, payee, chunk, attempt) IN (SELECT job, payee, chunk, attempt FROM by_name)"
"""Of those that nothing settles but a customer's zap request that names them."""


class Book:
    """A method is one transaction, on disk (synchronous=FULL) before it returns.

    Those that say so leave that to `Ledger.flushed`.
    """

    _db: sqlite3.Connection
    _unflushed = 0
    """How many transactions were left to that, ever."""

    def set_by_name(self, key: Key) -> None:
        """Nothing settles it from now on but what names it: a payment, or its customer's word."""
        self._db.execute("INSERT INTO by_name VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", astuple(key))

    def is_by_name(self, key: Key) -> bool:
        """Whether nothing settles it but what names it."""
        return self._db.execute(f"SELECT 1 FROM by_name WHERE {KEY}", astuple(key)).fetchone() is not None

    @contextmanager
    def _transaction(self, *, is_flushed: bool = True) -> Iterator[None]:
        if not is_flushed:
            self._unflushed += 1
            self._db.execute("PRAGMA synchronous = NORMAL")
        try:
            # IMMEDIATE: what is read inside cannot change before it is written, in another process either.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            else:
                self._db.execute("COMMIT")
        finally:  # also where another process holds the file: what comes next is on disk when it ends
            if not is_flushed:
                self._db.execute("PRAGMA synchronous = FULL")
