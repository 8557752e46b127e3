"""Money that came without a claim for it: what customers pay in ahead (deposits), and what others give (tips).

An ordinary zap, which names no chunk, is a deposit of the key that signed it if that key is a customer, else a tip. A
plain payment over LNURL has no sender and is a tip. Which it is, is decided when the money has come.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NotAllowed
from nodewire.pay.lightning.invoices import opens

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from nodewire.pay.lightning.wallet import Receipt

_MONEY = """payment_hash TEXT PRIMARY KEY, sender TEXT NOT NULL, amount_msat INTEGER NOT NULL, at_s INTEGER NOT NULL,
    preimage TEXT NOT NULL, comment TEXT NOT NULL, request TEXT NOT NULL, zap_request TEXT NOT NULL,
    bolt11 TEXT NOT NULL, receipt TEXT NOT NULL"""
_UNRECEIPTED = "zap_request <> '' AND receipt = ''"
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS unbilled (
    payment_hash TEXT PRIMARY KEY, sender TEXT NOT NULL, comment TEXT NOT NULL, request TEXT NOT NULL,
    zap_request TEXT NOT NULL, bolt11 TEXT NOT NULL, wallet TEXT NOT NULL, expires_at_s INTEGER NOT NULL,
    origin TEXT NOT NULL, is_customer INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS unbilled_of_request ON unbilled (request);
CREATE INDEX IF NOT EXISTS unbilled_of_origin ON unbilled (origin);
CREATE TABLE IF NOT EXISTS deposits ({_MONEY}) STRICT;
CREATE INDEX IF NOT EXISTS deposits_of_customer ON deposits (sender);
CREATE INDEX IF NOT EXISTS deposits_unreceipted ON deposits (at_s) WHERE {_UNRECEIPTED};
CREATE TABLE IF NOT EXISTS tips ({_MONEY}) STRICT;
CREATE INDEX IF NOT EXISTS tips_unreceipted ON tips (at_s) WHERE {_UNRECEIPTED}
"""
_TABLES = ("deposits", "tips")


@dataclass(frozen=True, slots=True)
class UnbilledInvoice:
    """An unpaid invoice that no claim asked for. `sender` is a pubkey, empty for a plain payment."""

    payment_hash: str
    sender: str
    comment: str
    request: str
    """The zap request's event id; empty for a plain payment."""
    zap_request: str
    bolt11: str
    wallet: str
    expires_at_s: int
    origin: str
    """Who asked: the key of a customer, or a stranger's address. Each may have so many open."""
    is_customer: bool


@dataclass(frozen=True, slots=True)
class PaidZap:
    """A paid zap whose receipt is not signed yet."""

    payment_hash: str
    zap_request: str
    bolt11: str
    at_s: int
    preimage: str


@dataclass(frozen=True, slots=True)
class Tip:
    """`sender` is a pubkey, empty for a plain payment; `comment` is a stranger's text."""

    sender: str
    amount_msat: int
    at_s: int
    comment: str


class UnbilledPayments:
    """The tables of deposits and tips in the ledger's database."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def enter(self, invoice: UnbilledInvoice) -> None:
        """Write an invoice down before anybody gets it; the same one again changes nothing.

        Raises:
            NotAllowed: its payment hash is another invoice's, of a due or not, or one that was paid.

        """
        sql = "SELECT zap_request, bolt11 FROM unbilled WHERE payment_hash = ?"
        known = self._db.execute(sql, (invoice.payment_hash,)).fetchone()
        if known == (invoice.zap_request, invoice.bolt11):
            return
        if self.has(invoice.payment_hash) or self._is_in("quotes", invoice.payment_hash):
            raise NotAllowed("payment_hash", "it was used before: another invoice is needed")
        self._db.execute("INSERT INTO unbilled VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(invoice))

    def has(self, payment_hash: str) -> bool:
        """Whether an invoice with this payment hash was entered, paid or not."""
        return any(self._is_in(table, payment_hash) for table in ("unbilled", *_TABLES))

    def _is_in(self, table: str, payment_hash: str) -> bool:
        sql = f"SELECT 1 FROM {table} WHERE payment_hash = ?"
        return self._db.execute(sql, (payment_hash,)).fetchone() is not None

    def open_invoice(self, request: str, wallet: str, now_s: float) -> str | None:
        """The invoice (bolt11) of this wallet that a zap request has got and that has not expired."""
        sql = "SELECT bolt11 FROM unbilled WHERE request = ? AND wallet = ? AND expires_at_s > ? LIMIT 1"
        row = self._db.execute(sql, (request, wallet, int(now_s))).fetchone()
        return None if row is None else str(row[0])

    def is_paid(self, request: str) -> bool:
        """Whether a zap request (its id) was paid."""
        found = (self._db.execute(f"SELECT 1 FROM {table} WHERE request = ? LIMIT 1", (request,)) for table in _TABLES)
        return any(rows.fetchone() is not None for rows in found)

    def count_open(self, origin: str) -> int:
        """How many invoices are kept unpaid for one origin."""
        return int(self._db.execute("SELECT count(*) FROM unbilled WHERE origin = ?", (origin,)).fetchone()[0])

    def count_open_of_strangers(self) -> int:
        """How many invoices are kept unpaid for all who are no customers."""
        return int(self._db.execute("SELECT count(*) FROM unbilled WHERE NOT is_customer").fetchone()[0])

    def expired(self, now_s: float, most: int) -> list[tuple[str, str]]:
        """Payment hashes, and wallets, of invoices that have expired unpaid, the oldest first."""
        sql = "SELECT payment_hash, wallet FROM unbilled WHERE expires_at_s <= ? ORDER BY expires_at_s LIMIT ?"
        return [(str(one), str(wallet)) for one, wallet in self._db.execute(sql, (int(now_s), most))]

    def drop(self, payment_hashes: Sequence[str]) -> None:
        """Forget invoices that will never be paid."""
        self._db.executemany("DELETE FROM unbilled WHERE payment_hash = ?", [(one,) for one in payment_hashes])

    def settle(self, came: Receipt, is_customer: Callable[[str], bool]) -> str:
        """The wallet received a payment: book it, whatever amount came. It is nothing if it is for no invoice here.

        Returns the customer whose deposit it is; empty where it is none's.

        To be called in a transaction. Raises BadInput: the preimage does not open the payment hash.
        """
        sql = "SELECT sender, comment, request, zap_request, bolt11 FROM unbilled WHERE payment_hash = ?"
        row = self._db.execute(sql, (came.payment_hash,)).fetchone()
        if row is None or came.amount_msat <= 0:
            return ""
        if not opens(came.preimage, came.payment_hash):
            raise BadInput("preimage", f"the wallet's does not hash to {came.payment_hash}: look the payment up there")
        sender, *rest = row
        table = "deposits" if sender and is_customer(sender) else "tips"
        money = (came.payment_hash, sender, came.amount_msat, came.settled_at_s, came.preimage, *rest, "")
        self._db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", money)
        self.drop([came.payment_hash])
        return str(sender) if table == "deposits" else ""

    def unreceipted(self) -> list[PaidZap]:
        """Paid zaps whose receipt is not signed yet."""
        columns = "payment_hash, zap_request, bolt11, at_s, preimage"
        asked = (f"SELECT {columns} FROM {table} WHERE {_UNRECEIPTED} ORDER BY at_s" for table in _TABLES)
        return [PaidZap(*row) for sql in asked for row in self._db.execute(sql)]

    def receipted(self, payment_hash: str, receipt: str) -> None:
        """The receipt with this event id is signed and kept for the relays."""
        for table in _TABLES:
            sql = f"UPDATE {table} SET receipt = ? WHERE payment_hash = ?"
            self._db.execute(sql, (receipt, payment_hash))

    def deposit_msat(self, customer: str) -> int:
        """All that a customer key has ever paid in ahead."""
        sql = "SELECT sum(amount_msat) FROM deposits WHERE sender = ?"
        return int(self._db.execute(sql, (customer,)).fetchone()[0] or 0)

    def deposits_msat(self) -> int:
        """All that customers have ever paid in ahead."""
        return int(self._db.execute("SELECT sum(amount_msat) FROM deposits").fetchone()[0] or 0)

    def tips_msat(self) -> int:
        """All that was ever given."""
        return int(self._db.execute("SELECT sum(amount_msat) FROM tips").fetchone()[0] or 0)

    def tips(self, most: int) -> list[Tip]:
        """What was given last, the newest first."""
        sql = "SELECT sender, amount_msat, at_s, comment FROM tips ORDER BY rowid DESC LIMIT ?"
        return [Tip(*row) for row in self._db.execute(sql, (most,))]
