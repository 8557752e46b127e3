"""The ledger in SQLite: a customer's debts, a provider's dues. Transitions are pure (`debts`, `dues`); this keeps them.

Every method is one transaction, on disk (synchronous=FULL) before it returns. A debt's primary key is its chunk, and a
payment's is its hash, so that no chunk is paid twice and no payment counts for two chunks. No payment is ever deleted,
and what a wallet said is kept with the wallet's id: another wallet knows nothing of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from nodewire.core.sqlite import open_versioned
from nodewire.errors import NotAllowed, NotFound, OverBudget
from nodewire.pay.accounts import debts, dues
from nodewire.pay.accounts.debts import Debt, JobBudget, Key, Payment
from nodewire.pay.accounts.dues import Due

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodewire.pay.lightning.wallet import Receipt

_DEBTS = """CREATE TABLE IF NOT EXISTS debts (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    amount_msat INTEGER NOT NULL, state TEXT NOT NULL, lnurl TEXT NOT NULL,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT"""
_PAYMENTS = """CREATE TABLE IF NOT EXISTS payments (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, bolt11 TEXT NOT NULL, state TEXT NOT NULL, wallet TEXT NOT NULL, preimage TEXT,
    fee_msat INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT"""
_VERSION = 4
_STEPS = {
    1: "ALTER TABLE debts ADD COLUMN lnurl TEXT NOT NULL DEFAULT ''",
    2: "CREATE TABLE IF NOT EXISTS ended (job TEXT PRIMARY KEY) STRICT; ALTER TABLE ended ADD COLUMN came INTEGER",
    # The cursor may be any wallet's: each is asked from its first payment on, and none counts twice.
    3: f"""
{_PAYMENTS};
INSERT INTO payments SELECT payment_hash, job, payee, chunk, attempt, bolt11, state, '', preimage, fee_msat, reason
    FROM debts WHERE payment_hash IS NOT NULL ORDER BY rowid;
ALTER TABLE debts RENAME TO debts_before;
{_DEBTS};
INSERT INTO debts SELECT job, payee, chunk, attempt, amount_msat, state, lnurl FROM debts_before ORDER BY rowid;
DROP TABLE debts_before;
ALTER TABLE quotes ADD COLUMN wallet TEXT NOT NULL DEFAULT '';
DROP TABLE IF EXISTS cursor
""",
}
_SCHEMA = f"""
{_DEBTS};
{_PAYMENTS};
CREATE INDEX IF NOT EXISTS payments_of_debt ON payments (job, payee, chunk, attempt);
CREATE INDEX IF NOT EXISTS payments_under_way ON payments (state) WHERE state = 'paying';
CREATE INDEX IF NOT EXISTS debts_unpaid ON debts (state) WHERE state <> 'paid';
CREATE TABLE IF NOT EXISTS dues (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    customer TEXT NOT NULL, amount_msat INTEGER NOT NULL, due_by_s INTEGER NOT NULL, state TEXT NOT NULL,
    payment_hash TEXT, preimage TEXT, settled_at_s INTEGER NOT NULL, receipt TEXT,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
CREATE INDEX IF NOT EXISTS dues_of_customer ON dues (customer, state);
CREATE INDEX IF NOT EXISTS dues_unreceipted ON dues (state) WHERE state = 'settled';
CREATE TABLE IF NOT EXISTS quotes (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, zap_request TEXT NOT NULL, bolt11 TEXT NOT NULL,
    overpaid_msat INTEGER NOT NULL DEFAULT 0, wallet TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS quotes_of_due ON quotes (job, payee, chunk, attempt);
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
"""
_OWN_FAULT = 0
"""When a job broke off, of those that the provider itself did."""
_KEY = "job = ? AND payee = ? AND chunk = ? AND attempt = ?"


@dataclass(frozen=True, slots=True)
class Expenses:
    """Money out: paid amounts and their routing fees, and what is planned or on its way."""

    paid_msat: int
    fees_msat: int
    pending_msat: int


@dataclass(frozen=True, slots=True)
class Quote:
    """An invoice that a provider made for a due: the zap request (JSON as received), its bolt11, and whose it is."""

    key: Key
    payment_hash: str
    zap_request: str
    bolt11: str
    wallet: str = ""
    """The id of the wallet that it pays into."""


class Ledger:
    """The ledger at `path` (":memory:" for none).

    Raises:
        BadConfig: the file cannot be opened or is another version's.

    """

    def __init__(self, path: Path | str) -> None:
        self._db = open_versioned(path, "a ledger", _SCHEMA, _VERSION, _STEPS)

    def close(self) -> None:
        self._db.close()

    def check(self) -> None:
        """Write to the file what stands in it. Raises sqlite3.OperationalError: it cannot be written."""
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    # The customer's side.

    def plan(self, key: Key, amount_msat: int, *, budget: JobBudget | None = None, lnurl: str = "") -> Debt:
        """Enter a debt, or find it as it stands. Routing fees come on top of the budget.

        Raises:
            NotAllowed: it is entered with another amount.
            OverBudget: with it, the job would cost the budget's payees more than that.

        """
        with self._transaction():
            known = self._debt(key)
            if known is not None:
                if known.amount_msat != amount_msat:
                    raise NotAllowed("amount_msat", f"planned with {known.amount_msat} msat, not {amount_msat} msat")
                return known
            if amount_msat <= 0:
                raise NotAllowed("amount_msat", "nothing to pay")
            if budget is not None:
                each = [self.spent(job=key.job, payee=payee) for payee in budget.payees]
                total_msat = sum(spent.paid_msat + spent.pending_msat for spent in each) + amount_msat
                if total_msat > budget.msat:
                    allowed = f"at most {budget.msat} msat allowed"
                    raise OverBudget("amount_msat", f"{total_msat} msat for the job, {allowed}")
            debt = Debt(key, amount_msat, lnurl=lnurl)
            row = (*astuple(key), amount_msat, debt.state, lnurl)
            self._db.execute("INSERT INTO debts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return debt

    def has_debt(self, key: Key) -> bool:
        return self._debt(key) is not None

    def debt(self, key: Key) -> Debt:
        """Raises NotFound."""
        debt = self._debt(key)
        if debt is None:
            raise NotFound("debt", "never planned")
        return debt

    def record(self, key: Key, event: debts.Event) -> Debt:
        """Apply `event` to a debt and write it down.

        Raises:
            NotFound: no such debt, or no such payment of it.
            NotAllowed, BadInput: the transition does not exist (`debts.apply`), or the payment hash is another debt's.

        """
        with self._transaction():
            before = self.debt(key)
            after = debts.apply(event, before)
            known = {one.payment_hash: one for one in before.payments}
            for one in after.payments:
                if one.payment_hash not in known:
                    row = (one.payment_hash, *astuple(key), *astuple(one)[1:])
                    try:
                        self._db.execute("INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                    except sqlite3.IntegrityError as error:
                        raise NotAllowed("payment_hash", "another debt is paid with it") from error
                elif one != known[one.payment_hash]:
                    sql = (
                        "UPDATE payments SET state = ?, wallet = ?, preimage = ?, fee_msat = ?, reason = ? "
                        "WHERE payment_hash = ?"
                    )
                    self._db.execute(sql, (*astuple(one)[2:], one.payment_hash))
            if after.state != before.state:
                self._db.execute(f"UPDATE debts SET state = ? WHERE {_KEY}", (after.state, *astuple(key)))
            return after

    def unpaid(self) -> list[Debt]:
        """Every debt that is not paid, oldest entry first."""
        return self._debts("state <> 'paid' ORDER BY rowid", ())

    def under_way(self) -> list[Debt]:
        """Every debt with a payment of which the wallet has yet to say what became of it, oldest entry first."""
        under_way = "SELECT job, payee, chunk, attempt FROM payments WHERE state = 'paying'"
        return self._debts(f"(job, payee, chunk, attempt) IN ({under_way}) ORDER BY rowid", ())

    def debts_of(self, job: str) -> list[Debt]:
        """Every debt of a job, oldest entry first."""
        return self._debts("job = ? ORDER BY rowid", (job,))

    def unclosed(self) -> list[str]:
        """The jobs something was paid for, and whose receipts are not all given and closed; oldest first."""
        sql = (
            "SELECT job FROM debts WHERE state = 'paid' AND job NOT IN (SELECT job FROM closed) "
            "GROUP BY job ORDER BY min(rowid)"
        )
        return [str(job) for (job,) in self._db.execute(sql)]

    def close_job(self, job: str) -> None:
        """Every receipt of the job is given and closed: relays have taken them."""
        self._db.execute("INSERT INTO closed VALUES (?) ON CONFLICT DO NOTHING", (job,))

    def end_job(self, job: str, came: int) -> None:
        """The customer has seen the job's end: nothing more of it will come. Its first `count_received` chunks did."""
        self._db.execute("INSERT INTO ended VALUES (?, ?) ON CONFLICT DO NOTHING", (job, came))

    def has_ended(self, job: str) -> bool:
        return self._db.execute("SELECT 1 FROM ended WHERE job = ?", (job,)).fetchone() is not None

    def count_received(self, job: str) -> int | None:
        """How many chunks of a job that has ended came; None if that is not known."""
        row = self._db.execute("SELECT came FROM ended WHERE job = ?", (job,)).fetchone()
        return None if row is None else row[0]

    def spent(self, *, job: str | None = None, payee: str | None = None) -> Expenses:
        """Sums over all debts, those of one job, to one payee, or both."""
        asked = {name: value for name, value in (("job", job), ("payee", payee)) if value is not None}
        also = "".join(f" AND {name} = :{name}" for name in asked)
        payments = "debts JOIN payments USING (job, payee, chunk, attempt) WHERE payments.state = 'paid'"
        paid = self._db.execute(f"SELECT sum(amount_msat), sum(fee_msat) FROM {payments}{also}", asked).fetchone()
        sql = f"SELECT sum(amount_msat) FROM debts WHERE state <> 'paid'{also}"
        return Expenses(*(value or 0 for value in (*paid, *self._db.execute(sql, asked).fetchone())))

    # The provider's side.

    def owe(self, due: Due, *, under_way: bool = False, claim: str = "") -> Due:
        """Enter a due, or find it as it stands.

        `under_way`: whether it must be paid hangs on how its job ends. `went_through`, `broke_off` or `interrupted`
        will say that; the last will, too, if this process ends before. `claim`: the event that asks for it, which has
        to be told: until `mark_claimed` it is among the `untold`, for nobody is in debt for what he never heard of.

        Raises:
            NotAllowed: it is entered with another customer or amount.

        """
        with self._transaction():
            known = self._due(due.key)
            if known is None:
                if under_way:
                    self._db.execute("INSERT INTO broken VALUES (?, ?, ?, ?, NULL)", astuple(due.key))
                self._db.execute("INSERT INTO dues VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _row(due))
                if claim:
                    self._db.execute("INSERT INTO untold VALUES (?, ?, ?, ?, ?)", (*astuple(due.key), claim))
                return due
            if (known.customer, known.amount_msat) != (due.customer, due.amount_msat):
                raise NotAllowed("due", "entered with another customer or amount")
            return known

    def mark_claimed(self, key: Key, due_by_s: int = 0) -> None:
        """A relay has taken the claim; the customer is not in debt before `due_by_s`, either."""
        with self._transaction():
            self._db.execute(f"DELETE FROM untold WHERE {_KEY}", astuple(key))
            sql = f"UPDATE dues SET due_by_s = max(due_by_s, ?) WHERE {_KEY}"
            self._db.execute(sql, (due_by_s, *astuple(key)))

    def untold(self) -> list[tuple[Key, str]]:
        """Claims of unpaid dues that no relay is known to have taken."""
        sql = "SELECT job, payee, chunk, attempt, claim FROM untold JOIN dues USING (job, payee, chunk, attempt)"
        rows = self._db.execute(f"{sql} WHERE state IN ('due', 'invoiced')")
        return [(Key(*key), claim) for *key, claim in rows]

    def went_through(self, job: str) -> None:
        """A job under way has ended, and did not break off."""
        self._db.execute("DELETE FROM broken WHERE job = ? AND at_s IS NULL", (job,))

    def broke_off(self, job: str, at_s: float) -> None:
        """Others broke off a job under way: what it left unpaid counts as `dues.is_too_much` says."""
        self._db.execute("UPDATE broken SET at_s = ? WHERE job = ? AND at_s IS NULL", (int(at_s), job))

    def interrupted(self, job: str | None = None) -> None:
        """The provider itself broke off a job under way, or died amid all that were.

        Their customers are not in debt for what that left unpaid, however often.
        """
        sql, told = "UPDATE broken SET at_s = ? WHERE at_s IS NULL", (_OWN_FAULT, *(() if job is None else (job,)))
        self._db.execute(sql if job is None else sql + " AND job = ?", told)

    def forgo(self, key: Key) -> None:
        """Forget a due that no invoice was made for: nobody can pay it any more. Others stay as they are."""
        with self._transaction():
            if self._db.execute(f"DELETE FROM dues WHERE {_KEY} AND state = 'due'", astuple(key)).rowcount:
                for table in ("untold", "broken"):
                    self._db.execute(f"DELETE FROM {table} WHERE {_KEY}", astuple(key))

    def due(self, key: Key) -> Due:
        """Raises NotFound."""
        due = self._due(key)
        if due is None:
            raise NotFound("due", "nothing is owed for that")
        return due

    def quoted(self, quote: Quote) -> Due:
        """Write down an invoice for a due before the customer gets it.

        Raises:
            NotFound: nothing is owed for that.
            NotAllowed: it is paid, or the payment hash is another due's.

        """
        with self._transaction():
            due = self._apply(self.due(quote.key), dues.DueInvoice(quote.payment_hash))
            row = (quote.payment_hash, *astuple(quote.key), quote.zap_request, quote.bolt11, quote.wallet)
            sql = "INSERT INTO quotes VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)"
            try:
                self._db.execute(sql, row)
            except sqlite3.IntegrityError as error:
                raise NotAllowed("payment_hash", "quoted before") from error
            return due

    def quotes(self, key: Key) -> list[Quote]:
        """The invoices made for a due, oldest first."""
        sql = f"SELECT payment_hash, zap_request, bolt11, wallet FROM quotes WHERE {_KEY} ORDER BY rowid"
        return [Quote(key, *row) for row in self._db.execute(sql, astuple(key))]

    def quote(self, payment_hash: str) -> Quote | None:
        sql = "SELECT job, payee, chunk, attempt, payment_hash, zap_request, bolt11, wallet FROM quotes"
        row = self._db.execute(f"{sql} WHERE payment_hash = ?", (payment_hash,)).fetchone()
        return None if row is None else Quote(Key(*row[:4]), *row[4:])

    def settled(self, came: Receipt, wallet: str) -> Due | None:
        """The provider's wallet received a payment; the due that it is for, or None if it is for none, or too little.

        What came beyond the due, or less than it, is kept as overpaid. The cursor is stored with it, as that of the
        wallet with the id `wallet`.

        Raises:
            BadInput: the preimage does not open the payment hash. Nothing is stored.

        """
        payment_hash, amount_msat = came.payment_hash, came.amount_msat
        with self._transaction():
            sql = "INSERT INTO cursors VALUES (?, ?) ON CONFLICT DO UPDATE SET cursor = excluded.cursor"
            self._db.execute(sql, (wallet, came.cursor))
            quote = self.quote(payment_hash)
            if quote is None:
                return None
            due = self.due(quote.key)
            is_paid_by_another = due.state in ("settled", "receipted") and due.payment_hash != payment_hash
            clears = not is_paid_by_another and amount_msat >= due.amount_msat
            besides_msat = amount_msat - due.amount_msat if clears else amount_msat
            self._db.execute("UPDATE quotes SET overpaid_msat = ? WHERE payment_hash = ?", (besides_msat, payment_hash))
            self._db.execute(f"DELETE FROM untold WHERE {_KEY}", astuple(due.key))  # who paid has heard of it
            if not clears:
                return due if is_paid_by_another else None
            settlement = dues.DueSettlement(payment_hash, came.preimage, amount_msat, came.settled_at_s)
            return self._apply(due, settlement)

    def receipted(self, key: Key, receipt: str) -> Due:
        """A relay has taken the receipt with this event id. Raises NotFound, NotAllowed."""
        with self._transaction():
            return self._apply(self.due(key), dues.DueReceipt(receipt))

    def unreceipted(self) -> list[Due]:
        """Paid dues whose receipt no relay has taken yet."""
        return [_to_due(row) for row in self._db.execute("SELECT * FROM dues WHERE state = 'settled' ORDER BY rowid")]

    def cursor(self, wallet: str) -> str:
        """Where the stream of settled payments of the wallet with this id goes on; empty for one that is new here."""
        row = self._db.execute("SELECT cursor FROM cursors WHERE wallet = ?", (wallet,)).fetchone()
        return "" if row is None else str(row[0])

    def has_job(self, job: str) -> bool:
        """Whether anything was ever due for a job."""
        return self._db.execute("SELECT 1 FROM dues WHERE job = ? LIMIT 1", (job,)).fetchone() is not None

    def open_dues(self, customer: str, chunk: int) -> int:
        """How many of a customer key's dues of that number are not paid, overdue or not."""
        sql = "SELECT count(*) FROM dues WHERE customer = ? AND chunk = ? AND state IN ('due', 'invoiced')"
        return int(self._db.execute(sql, (customer, chunk)).fetchone()[0])

    def owed_msat(self, customer: str) -> int:
        """What a customer key has not paid, overdue or not."""
        sql = "SELECT sum(amount_msat) FROM dues WHERE customer = ? AND state IN ('due', 'invoiced')"
        return int(self._db.execute(sql, (customer,)).fetchone()[0] or 0)

    def unpaid_dues(self, customer: str) -> dict[Key, int]:
        """What a customer key has not paid, overdue or not: the amounts in msat."""
        sql = "SELECT job, payee, chunk, attempt, amount_msat FROM dues WHERE customer = ?"
        sql += " AND state IN ('due', 'invoiced')"
        return {Key(*key): amount_msat for *key, amount_msat in self._db.execute(sql, (customer,))}

    def has_paid(self, customer: str) -> bool:
        """Whether a customer key has ever paid for a chunk."""
        sql = "SELECT 1 FROM dues WHERE customer = ? AND state IN ('settled', 'receipted') LIMIT 1"
        return self._db.execute(sql, (customer,)).fetchone() is not None

    def in_debt(self, customer: str, now_s: float) -> bool:
        """Whether a customer key has let a due pass its time, or too many of its jobs broke off unpaid.

        Such a key gets no credit.
        """
        unpaid = "FROM dues LEFT JOIN broken USING (job, payee, chunk, attempt)"
        unpaid += " LEFT JOIN untold USING (job, payee, chunk, attempt)"
        unpaid += " WHERE customer = ? AND state IN ('due', 'invoiced')"
        sql = f"SELECT 1 {unpaid} AND due_by_s <= ? AND at_s IS NULL AND claim IS NULL LIMIT 1"
        if self._db.execute(sql, (customer, int(now_s))).fetchone() is not None:
            return True
        sql = f"SELECT min(at_s) AS broke_s {unpaid} AND at_s <> {_OWN_FAULT} GROUP BY job ORDER BY broke_s"
        return dues.is_too_much([at_s for (at_s,) in self._db.execute(sql, (customer,))])

    def earned_msat(self, *, job: str | None = None) -> int:
        """Settled dues, all or one job's."""
        sql = "SELECT sum(amount_msat) FROM dues WHERE state IN ('settled', 'receipted')"
        rows = self._db.execute(sql) if job is None else self._db.execute(sql + " AND job = ?", (job,))
        return int(rows.fetchone()[0] or 0)

    def overpaid_msat(self, customer: str) -> int:
        """What a customer key paid beyond its dues, or in payments too small to clear one."""
        sql = "SELECT sum(overpaid_msat) FROM quotes JOIN dues USING (job, payee, chunk, attempt) WHERE customer = ?"
        return int(self._db.execute(sql, (customer,)).fetchone()[0] or 0)

    def _apply(self, before: Due, event: dues.Event) -> Due:
        after = dues.apply(event, before)
        if after is not before:
            sql = (
                f"UPDATE dues SET state = ?, payment_hash = ?, preimage = ?, settled_at_s = ?, receipt = ? WHERE {_KEY}"
            )
            self._db.execute(sql, (*_row(after)[7:], *astuple(after.key)))
        return after

    def _debt(self, key: Key) -> Debt | None:
        found = self._debts(_KEY, astuple(key))
        return found[0] if found else None

    def _debts(self, where: str, values: tuple[object, ...]) -> list[Debt]:
        sql = "SELECT payment_hash, bolt11, state, wallet, preimage, fee_msat, reason FROM payments"
        found = []
        columns = "job, payee, chunk, attempt, amount_msat, lnurl"
        for *key, amount_msat, lnurl in self._db.execute(f"SELECT {columns} FROM debts WHERE {where}", values):
            rows = self._db.execute(f"{sql} WHERE {_KEY} ORDER BY rowid", key)
            found.append(Debt(Key(*key), amount_msat, tuple(Payment(*row) for row in rows), lnurl))
        return found

    def _due(self, key: Key) -> Due | None:
        row = self._db.execute(f"SELECT * FROM dues WHERE {_KEY}", astuple(key)).fetchone()
        return None if row is None else _to_due(row)

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


def _row(due: Due) -> tuple[object, ...]:
    key, *rest = astuple(due)
    return (*key, *rest)


def _to_due(row: tuple[object, ...]) -> Due:
    return Due(Key(*row[:4]), *row[4:])  # type: ignore[arg-type]  # STRICT tables hold these types
