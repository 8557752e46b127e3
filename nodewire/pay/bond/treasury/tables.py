"""The tables of a treasury's book (`pay.bond.treasury.book`) in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import orjson

from nodewire.pay.bond.treasury.book import InvoicePayout, Pot, Share, TreasuryBook

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

V = TypeVar("V")
_NAMES = ("shares", "pots", "stated", "dues", "credits", "drawn", "taken", "payouts", "bound", "totals")
SCHEMA = ";\n".join(
    f"CREATE TABLE IF NOT EXISTS treasury_{name} (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"
    for name in _NAMES
)


class SqlTable(Generic[V]):
    """One table. A change is written at once, in the transaction that its caller has begun, and gives the same table.

    So whoever changes it reads what was there before it writes, and rolls back where a rule refuses the change.
    """

    def __init__(self, db: sqlite3.Connection, name: str, read: Callable[[Any], V]) -> None:
        self._db, self._name, self._read = db, f"treasury_{name}", read

    def __contains__(self, key: object) -> bool:
        return self._db.execute(f"SELECT 1 FROM {self._name} WHERE key = ?", (key,)).fetchone() is not None

    def __getitem__(self, key: str) -> V:
        row = self._db.execute(f"SELECT value FROM {self._name} WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        return self._read(orjson.loads(row[0]))

    def get(self, key: str, default: V) -> V:
        try:
            return self[key]
        except KeyError:
            return default

    def items(self) -> Iterator[tuple[str, V]]:
        for key, value in self._db.execute(f"SELECT key, value FROM {self._name}").fetchall():
            yield key, self._read(orjson.loads(value))

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())

    def including(self, key: str, value: V) -> Self:
        row = (key, orjson.dumps(value).decode())
        self._db.execute(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?)", row)
        return self

    def without(self, key: str) -> Self:
        self._db.execute(f"DELETE FROM {self._name} WHERE key = ?", (key,))
        return self


def open_book(db: sqlite3.Connection) -> TreasuryBook:
    """The book whose tables are in `db`, made by SCHEMA."""

    def amounts(name: str) -> SqlTable[int]:
        return SqlTable(db, name, int)

    return TreasuryBook(
        shares=SqlTable(db, "shares", _share),
        pots=SqlTable(db, "pots", lambda said: Pot(**said)),
        stated=amounts("stated"),
        dues=amounts("dues"),
        credits=amounts("credits"),
        drawn=amounts("drawn"),
        taken=amounts("taken"),
        payouts=SqlTable(db, "payouts", lambda said: InvoicePayout(**said)),
        bound=amounts("bound"),
        totals=amounts("totals"),
    )


def _share(said: dict[str, Any]) -> Share:
    return Share(said["amount_msat"], tuple((at_s, msat, fee_msat) for at_s, msat, fee_msat in said["came"]))
