"""The ledger in SQLite: a customer's debts, a provider's dues. Their rules are pure (`debts`, `dues`); this keeps them.

A debt's primary key is its chunk, and a payment's is its hash, so that no chunk is paid twice and no payment counts
twice. No payment is ever deleted, and what a wallet said is kept with the wallet's id: another wallet knows nothing of
it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned
from nodewire.pay.accounts import own_transfers, receipt_outbox, unbilled_payments, work_log
from nodewire.pay.accounts.debt_book import DebtBook
from nodewire.pay.accounts.due_book import DueBook
from nodewire.pay.accounts.dues import NEVER_S, NO_CREDIT, CreditTerms
from nodewire.pay.accounts.own_transfers import OwnTransfers
from nodewire.pay.accounts.receipt_outbox import ReceiptBook
from nodewire.pay.accounts.unbilled_payments import UnbilledPayments
from nodewire.pay.accounts.work_log import WorkLog

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHUNK = "job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL"
_CHUNK_KEY = "PRIMARY KEY (job, payee, chunk, attempt)"
_DEBTS = f"""CREATE TABLE IF NOT EXISTS debts (
    {_CHUNK}, amount_msat INTEGER NOT NULL, state TEXT NOT NULL, lnurl TEXT NOT NULL, at_s INTEGER NOT NULL,
    {_CHUNK_KEY}
) STRICT"""
_PAYMENTS = """CREATE TABLE IF NOT EXISTS payments (
    payment_hash TEXT PRIMARY KEY, payee TEXT NOT NULL, bolt11 TEXT NOT NULL, amount_msat INTEGER NOT NULL,
    state TEXT NOT NULL, wallet TEXT NOT NULL, preimage TEXT, fee_msat INTEGER NOT NULL, reason TEXT NOT NULL,
    ahead_msat INTEGER NOT NULL
) STRICT"""
_PARTS = f"""CREATE TABLE IF NOT EXISTS parts (
    payment_hash TEXT NOT NULL, {_CHUNK}, msat INTEGER NOT NULL,
    PRIMARY KEY (payment_hash, job, payee, chunk, attempt)
) STRICT"""
_DUES = f"""CREATE TABLE IF NOT EXISTS dues (
    {_CHUNK}, customer TEXT NOT NULL, amount_msat INTEGER NOT NULL, due_by_s INTEGER NOT NULL, state TEXT NOT NULL,
    payment_hash TEXT, settled_at_s INTEGER NOT NULL, {_CHUNK_KEY}
) STRICT"""
_QUOTES = f"""CREATE TABLE IF NOT EXISTS quotes (
    payment_hash TEXT PRIMARY KEY, customer TEXT NOT NULL, {_CHUNK}, zap_request TEXT NOT NULL, bolt11 TEXT NOT NULL,
    wallet TEXT NOT NULL, state TEXT NOT NULL, amount_msat INTEGER NOT NULL, preimage TEXT,
    settled_at_s INTEGER NOT NULL, receipt TEXT
) STRICT"""
_BALANCES = "CREATE TABLE IF NOT EXISTS balances (customer TEXT PRIMARY KEY, msat INTEGER NOT NULL) STRICT"
_TABS = """CREATE TABLE IF NOT EXISTS tabs (
    payee TEXT PRIMARY KEY, owed_msat INTEGER NOT NULL DEFAULT 0, settled_msat INTEGER NOT NULL DEFAULT 0,
    paid_msat INTEGER NOT NULL DEFAULT 0, ahead_msat INTEGER NOT NULL DEFAULT 0
) STRICT"""
_BY_NAME = f"CREATE TABLE IF NOT EXISTS by_name ({_CHUNK}, {_CHUNK_KEY}) STRICT"
_ACCOUNTS = """CREATE TABLE IF NOT EXISTS accounts (
    customer TEXT PRIMARY KEY, owed_msat INTEGER NOT NULL DEFAULT 0, paid_msat INTEGER NOT NULL DEFAULT 0
) STRICT"""
_OWED = "(ROW.state = 'owed') * ROW.amount_msat"
_SETTLED = "(ROW.state = 'paid') * ROW.amount_msat"
_AHEAD = "(ROW.state = 'paid') * ROW.ahead_msat"
_ON_TAB = f"(ROW.state = 'due' AND ROW.due_by_s < {NEVER_S}) * ROW.amount_msat"


def _kept(total: str, key: str, table: str, sums: Mapping[str, str]) -> str:
    """Triggers that keep sums over the rows of `table` in the table `total`, by `key`. `sums`: by column what ROW adds.

    A tab may have 100,000 chunks, and is looked at for each of them.
    """

    def change(row: str, sign: str) -> str:
        changes = ", ".join(f"{name} = {name} {sign} {adds.replace('ROW', row)}" for name, adds in sums.items())
        return f"UPDATE {total} SET {changes} WHERE {key} = {row}.{key};"

    new = f"INSERT INTO {total} ({key}) VALUES (new.{key}) ON CONFLICT DO NOTHING;"
    does = {
        "INSERT": f"{new} {change('new', '+')}",
        "UPDATE": f"{change('old', '-')} {change('new', '+')}",
        "DELETE": change("old", "-"),
    }
    return "\n".join(
        f"CREATE TRIGGER IF NOT EXISTS {total}_{table}_{event.lower()} AFTER {event} ON {table} BEGIN {steps} END;"
        for event, steps in does.items()
    )


_VERSION = 7
_STEPS = {
    1: "ALTER TABLE debts ADD COLUMN lnurl TEXT NOT NULL DEFAULT ''",
    2: "CREATE TABLE IF NOT EXISTS ended (job TEXT PRIMARY KEY) STRICT; ALTER TABLE ended ADD COLUMN came INTEGER",
    # The cursor may be any wallet's: each is asked from its first payment on, and none counts twice.
    3: """
CREATE TABLE payments (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, bolt11 TEXT NOT NULL, state TEXT NOT NULL, wallet TEXT NOT NULL, preimage TEXT,
    fee_msat INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
INSERT INTO payments SELECT payment_hash, job, payee, chunk, attempt, bolt11, state, '', preimage, fee_msat, reason
    FROM debts WHERE payment_hash IS NOT NULL ORDER BY rowid;
ALTER TABLE quotes ADD COLUMN wallet TEXT NOT NULL DEFAULT '';
DROP TABLE IF EXISTS cursor
""",
    # A payment is for several debts and may be more than these; a payment in is its customer's.
    4: f"""
ALTER TABLE debts RENAME TO debts_before;
{_DEBTS};
INSERT INTO debts SELECT job, payee, chunk, attempt, amount_msat, iif(state = 'paid', 'paid', 'owed'), lnurl, 0
    FROM debts_before ORDER BY rowid;
ALTER TABLE payments RENAME TO payments_before;
{_PAYMENTS};
INSERT INTO payments SELECT payment_hash, payee, bolt11, amount_msat, payments_before.state, wallet,
    payments_before.preimage, payments_before.fee_msat, payments_before.reason, 0
    FROM payments_before JOIN debts USING (job, payee, chunk, attempt) ORDER BY payments_before.rowid;
{_PARTS};
INSERT INTO parts SELECT payment_hash, job, payee, chunk, attempt, amount_msat
    FROM payments_before JOIN debts USING (job, payee, chunk, attempt) ORDER BY payments_before.rowid;
DROP TABLE payments_before; DROP TABLE debts_before;
ALTER TABLE dues RENAME TO dues_before; ALTER TABLE quotes RENAME TO quotes_before;
{_DUES};
INSERT INTO dues SELECT job, payee, chunk, attempt, customer, amount_msat, due_by_s,
    iif(state IN ('settled', 'receipted'), 'settled', 'due'), payment_hash, settled_at_s
    FROM dues_before ORDER BY rowid;
{_QUOTES};
INSERT INTO quotes SELECT q.payment_hash, customer, job, payee, chunk, attempt, zap_request, bolt11, wallet,
    CASE WHEN d.payment_hash = q.payment_hash THEN d.state WHEN overpaid_msat > 0 THEN 'receipted' ELSE 'open' END,
    iif(d.payment_hash = q.payment_hash, d.amount_msat, 0) + overpaid_msat,
    iif(d.payment_hash = q.payment_hash, d.preimage, NULL),
    iif(d.payment_hash = q.payment_hash, d.settled_at_s, 0), iif(d.payment_hash = q.payment_hash, d.receipt, NULL)
    FROM quotes_before AS q JOIN dues_before AS d USING (job, payee, chunk, attempt) ORDER BY q.rowid;
{_BALANCES};
INSERT INTO balances SELECT customer, sum(overpaid_msat) FROM quotes_before JOIN dues_before
    USING (job, payee, chunk, attempt) GROUP BY customer HAVING sum(overpaid_msat) > 0;
DROP TABLE quotes_before; DROP TABLE dues_before
""",
    # Sums over a tab stand beside it.
    5: f"""
{_TABS};
INSERT INTO tabs SELECT payee, sum(owed), sum(settled), sum(paid), sum(ahead) FROM (
    SELECT payee, {_OWED.replace("ROW.", "")} AS owed, {_SETTLED.replace("ROW.", "")} AS settled, 0 AS paid, 0 AS ahead
    FROM debts UNION ALL
    SELECT payee, 0, 0, {_SETTLED.replace("ROW.", "")}, {_AHEAD.replace("ROW.", "")} FROM payments
) GROUP BY payee;
{_ACCOUNTS};
INSERT INTO accounts SELECT customer, sum(owed), sum(paid) FROM (
    SELECT customer, {_ON_TAB.replace("ROW.", "")} AS owed, 0 AS paid FROM dues UNION ALL
    SELECT customer, 0, amount_msat FROM quotes
) GROUP BY customer
""",
    # What settles a due, or a debt, is the customer's word where there is anything to judge before.
    6: f"{_BY_NAME}; INSERT INTO by_name SELECT job, payee, chunk, attempt FROM dues WHERE due_by_s >= {NEVER_S}",
}
_SCHEMA = f"""
{_DEBTS};
{_PAYMENTS};
{_PARTS};
CREATE INDEX IF NOT EXISTS parts_of_debt ON parts (job, payee, chunk, attempt);
CREATE INDEX IF NOT EXISTS payments_under_way ON payments (state) WHERE state = 'paying';
CREATE INDEX IF NOT EXISTS payments_of_payee ON payments (payee, state);
CREATE INDEX IF NOT EXISTS payments_ahead ON payments (payee) WHERE ahead_msat > 0;
CREATE INDEX IF NOT EXISTS debts_owed ON debts (payee) WHERE state = 'owed';
{_DUES};
CREATE INDEX IF NOT EXISTS dues_of_customer ON dues (customer, state);
{_QUOTES};
CREATE INDEX IF NOT EXISTS quotes_of_due ON quotes (job, payee, chunk, attempt);
CREATE INDEX IF NOT EXISTS quotes_of_customer ON quotes (customer);
CREATE INDEX IF NOT EXISTS quotes_unreceipted ON quotes (state) WHERE state = 'settled';
{_BALANCES};
{_BY_NAME};
{_TABS};
{_kept("tabs", "payee", "debts", {"owed_msat": _OWED, "settled_msat": _SETTLED})}
{_kept("tabs", "payee", "payments", {"paid_msat": _SETTLED, "ahead_msat": _AHEAD})}
{_ACCOUNTS};
{_kept("accounts", "customer", "dues", {"owed_msat": _ON_TAB})}
{_kept("accounts", "customer", "quotes", {"paid_msat": "ROW.amount_msat"})}
CREATE TABLE IF NOT EXISTS credits (
    payee TEXT PRIMARY KEY, first_msat INTEGER NOT NULL, most_msat INTEGER NOT NULL, unit_msat INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS signed_tabs (
    job TEXT PRIMARY KEY, customer TEXT NOT NULL, chunk INTEGER NOT NULL, total_msat INTEGER NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS unstated ({_CHUNK}, {_CHUNK_KEY}) STRICT;
CREATE TABLE IF NOT EXISTS closed (job TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS ended (job TEXT PRIMARY KEY, came INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS broken (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL, at_s INTEGER,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
CREATE INDEX IF NOT EXISTS broken_under_way ON broken (at_s) WHERE at_s IS NULL;
CREATE TABLE IF NOT EXISTS untold (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL, claim TEXT NOT NULL,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
CREATE TABLE IF NOT EXISTS cursors (wallet TEXT PRIMARY KEY, cursor TEXT NOT NULL) STRICT;
{receipt_outbox.SCHEMA};
{unbilled_payments.SCHEMA};
{own_transfers.TABLE};
{work_log.TABLE};
"""


def _sync(log: Path) -> None:
    """Have SQLite's log on disk. Without one the database is in memory, or all was moved into its file and synced."""
    try:
        descriptor = os.open(log, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Ledger(DebtBook, DueBook):
    """The ledger at `path` (":memory:" for none).

    Raises:
        BadConfig: the file cannot be opened or is another version's.

    """

    def __init__(self, path: Path | str, credit: CreditTerms = NO_CREDIT) -> None:
        """`credit`: what customers may owe."""
        self._credit = credit
        self._log = Path(f"{path}-wal")
        self._flushed = 0
        self._flush = asyncio.Lock()
        self._db = open_versioned(path, "a ledger", _SCHEMA, _VERSION, _STEPS)
        self.own, self.work = OwnTransfers(self._db), WorkLog(self._db)
        self.receipts = ReceiptBook(self._db)
        """Of a provider: the zap receipts that relays have yet to take."""
        self.unbilled = UnbilledPayments(self._db)
        """Of a provider: deposits and tips."""

    def close(self) -> None:
        self._db.close()

    async def flushed(self) -> None:
        """Return when all that was entered before is on disk. Any number that wait are served by one write to it.

        Raises OSError: the disk fails.
        """
        wanted = self._unflushed
        async with self._flush:
            if self._flushed < wanted:
                written = self._unflushed
                await asyncio.to_thread(_sync, self._log)
                self._flushed = written

    def check(self) -> None:
        """Write to the file what stands in it. Raises sqlite3.OperationalError: it cannot be written."""
        self._db.execute(f"PRAGMA user_version = {_VERSION}")
