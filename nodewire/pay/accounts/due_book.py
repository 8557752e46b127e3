"""The provider's side of the ledger: what customers owe, what its wallet got, and the receipts for that."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.pay.accounts import dues
from nodewire.pay.accounts.book import BY_NAME, KEY, Book
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.lightning.invoices import opens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.pay.accounts.unbilled_payments import UnbilledPayments
    from nodewire.pay.lightning.wallet import Receipt

_OWN_FAULT = 0
"""When a job broke off, of those that the provider itself did."""
_QUOTE = "payment_hash, customer, job, payee, chunk, attempt, zap_request, bolt11, wallet"


@dataclass(frozen=True, slots=True)
class Quote:
    """An invoice that a provider made: the zap request (JSON as received), its bolt11, and whose it is."""

    key: Key
    payment_hash: str
    zap_request: str
    bolt11: str
    wallet: str = ""
    """The id of the wallet that it pays into."""


@dataclass(frozen=True, slots=True)
class Income:
    """A payment that came in by an invoice of a quote, and proves it."""

    quote: Quote
    customer: str
    amount_msat: int
    preimage: str
    settled_at_s: int


@dataclass(frozen=True, slots=True)
class Account:
    """What stands between a provider and one customer. `ahead_msat` was paid for nothing yet: it is the customer's."""

    customer: str
    owed_msat: int
    ahead_msat: int
    paid_msat: int
    """In all, ever."""


class DueBook(Book):
    _credit: CreditTerms
    unbilled: UnbilledPayments
    """Deposits and tips."""

    def owe(self, due: Due, *, under_way: bool = False, claim: str = "", by_name: bool = False) -> Due:
        """Enter a due, or find it as it stands: settled at once where the customer's balance does.

        It is on disk after `flushed`.

        `under_way`: whether it must be paid hangs on how its job ends. `went_through`, `broke_off` or `interrupted`
        will say that; the last will, too, if this process ends before. `claim`: the event that asks for it, which has
        to be told: until `mark_claimed` it is among the `untold`, for nobody is in debt for what he never heard of.
        `by_name`: the customer has yet to judge what it is for. It is settled when a zap request of its names it.

        Raises:
            NotAllowed: it is entered with another customer or amount.


        """
        with self._transaction(is_flushed=False):
            known = self._due(due.key)
            if known is None:
                if under_way:
                    self._db.execute("INSERT INTO broken VALUES (?, ?, ?, ?, NULL)", astuple(due.key))
                if by_name:
                    self.set_by_name(due.key)
                key, *rest = astuple(due)
                self._db.execute("INSERT INTO dues VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *rest))
                if claim:
                    self._db.execute("INSERT INTO untold VALUES (?, ?, ?, ?, ?)", (*astuple(due.key), claim))
                self._settle_dues(due.customer, 0, None, None, 0)
                return self.due(due.key)
            if (known.customer, known.amount_msat) != (due.customer, due.amount_msat):
                raise NotAllowed("due", "entered with another customer or amount")
            return known

    def mark_claimed(self, key: Key, due_by_s: int = 0) -> None:
        """A relay has taken the claim; the customer is not in debt before `due_by_s`, either."""
        with self._transaction():
            self._db.execute(f"DELETE FROM untold WHERE {KEY}", astuple(key))
            sql = f"UPDATE dues SET due_by_s = max(due_by_s, ?) WHERE {KEY}"
            self._db.execute(sql, (due_by_s, *astuple(key)))

    def untold(self) -> list[tuple[Key, str]]:
        """Claims of unpaid dues that no relay is known to have taken."""
        sql = "SELECT job, payee, chunk, attempt, claim FROM untold JOIN dues USING (job, payee, chunk, attempt)"
        return [(Key(*key), claim) for *key, claim in self._db.execute(f"{sql} WHERE state = 'due'")]

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
            quoted = "EXISTS (SELECT 1 FROM quotes AS q WHERE q.job = dues.job AND q.payee = dues.payee"
            quoted += " AND q.chunk = dues.chunk AND q.attempt = dues.attempt)"
            sql = f"DELETE FROM dues WHERE {KEY} AND state = 'due' AND NOT {quoted}"
            if self._db.execute(sql, astuple(key)).rowcount:
                for table in ("untold", "broken", "by_name"):
                    self._db.execute(f"DELETE FROM {table} WHERE {KEY}", astuple(key))

    def due(self, key: Key) -> Due:
        """Raises NotFound."""
        due = self._due(key)
        if due is None:
            raise NotFound("due", "nothing is owed for that")
        return due

    def is_due_from(self, key: Key, customer: str) -> bool:
        """Whether a due was ever entered for this, as this customer's: paid or not."""
        due = self._due(key)
        return due is not None and due.customer == customer

    def acknowledge(self, job: str, customer: str, chunk: int, total_msat: int, document: str) -> None:
        """Keep what the customer has signed that it owes for a job: `total_msat` up to `chunk`.

        Raises:
            BadInput: it falls behind what it signed before, or is for more than is due here.

        """
        with self._transaction(is_flushed=False):
            sql = "SELECT chunk, total_msat FROM signed_tabs WHERE job = ?"
            known = self._db.execute(sql, (job,)).fetchone() or (-1, 0)
            if total_msat < known[1] or chunk < known[0]:
                raise BadInput(
                    "total_msat", f"{total_msat} msat up to chunk {chunk}, and {known[1]} were signed before"
                )
            sql = "SELECT coalesce(sum(amount_msat), 0) FROM dues WHERE job = ? AND customer = ? AND chunk <= ?"
            (due_msat,) = self._db.execute(sql, (job, customer, chunk)).fetchone()
            if total_msat > due_msat:
                raise BadInput(
                    "total_msat", f"{total_msat} msat are signed, and {due_msat} are due up to chunk {chunk}"
                )
            row = (job, customer, chunk, total_msat, document)
            sql = "INSERT INTO signed_tabs VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET chunk = excluded.chunk, "
            self._db.execute(f"{sql} total_msat = excluded.total_msat, document = excluded.document", row)

    def signed_tab(self, job: str) -> tuple[int, str]:
        """What the customer of a job has signed that it owes: msat, and the document. (0, "") if it has not."""
        row = self._db.execute("SELECT total_msat, document FROM signed_tabs WHERE job = ?", (job,)).fetchone()
        return (0, "") if row is None else (int(row[0]), str(row[1]))

    def settle_by_name(self, key: Key) -> list[Due]:
        """The customer has named a due: what its balance settles then, if it covers that one. Raises NotFound."""
        with self._transaction():
            due = self.due(key)
            if due.state != "due" or due.amount_msat > self.balance_msat(due.customer):
                return []
            return self._settle_dues(due.customer, 0, key, None, 0)

    # Invoices and payments.

    def quoted(self, quote: Quote) -> None:
        """Write down an invoice before the customer gets it.

        Raises:
            NotFound: nothing is owed for what it names.
            NotAllowed: the payment hash was quoted before.

        """
        with self._transaction():
            if self.unbilled.has(quote.payment_hash):
                raise NotAllowed("payment_hash", "a deposit or a tip has it")
            due = self.due(quote.key)
            row = (quote.payment_hash, due.customer, *astuple(quote.key), quote.zap_request, quote.bolt11, quote.wallet)
            sql = "INSERT INTO quotes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', 0, NULL, 0, NULL)"
            try:
                self._db.execute(sql, row)
            except sqlite3.IntegrityError as error:
                raise NotAllowed("payment_hash", "quoted before") from error

    def quotes(self, key: Key) -> list[Quote]:
        """The invoices made for a due, oldest first. A nutzap, which has none, is not among them."""
        sql = f"SELECT {_QUOTE} FROM quotes WHERE {KEY} AND bolt11 <> '' ORDER BY rowid"
        return [_to_quote(row)[0] for row in self._db.execute(sql, astuple(key))]

    def quote(self, payment_hash: str) -> Quote | None:
        row = self._db.execute(f"SELECT {_QUOTE} FROM quotes WHERE payment_hash = ?", (payment_hash,)).fetchone()
        return None if row is None else _to_quote(row)[0]

    def settled(self, came: Receipt, wallet: str) -> list[Due]:
        """The provider's wallet received a payment: the dues that are settled by it, the named one first.

        None is where it is no quote's, was told before, or is too little; what is left over is the customer's balance.
        What came for no due at all is a deposit, which is balance, or a tip (`unbilled`), if an invoice was made for
        it. The cursor, if there is one, is stored with it, as that of the wallet with the id `wallet`.

        Raises:
            BadInput: the preimage does not open the payment hash. Nothing is stored.

        """
        payment_hash = came.payment_hash
        with self._transaction():
            if came.cursor:
                sql = "INSERT INTO cursors VALUES (?, ?) ON CONFLICT DO UPDATE SET cursor = excluded.cursor"
                self._db.execute(sql, (wallet, came.cursor))
            sql = f"SELECT {_QUOTE} FROM quotes WHERE payment_hash = ? AND state = 'open'"
            row = self._db.execute(sql, (payment_hash,)).fetchone()
            if row is None:
                depositor = self.unbilled.settle(came, self.is_depositor)
                if not depositor:
                    return []
                return self._settle_dues(depositor, came.amount_msat, None, payment_hash, came.settled_at_s)
            if not opens(came.preimage, payment_hash):
                reason = f"the wallet's does not hash to {payment_hash}: look the payment up there"
                raise BadInput("preimage", reason)
            quote, customer = _to_quote(row)
            sql = "UPDATE quotes SET state = 'settled', amount_msat = ?, preimage = ?, settled_at_s = ?"
            told = (came.amount_msat, came.preimage, came.settled_at_s, payment_hash)
            self._db.execute(f"{sql} WHERE payment_hash = ?", told)
            self._db.execute(f"DELETE FROM untold WHERE {KEY}", astuple(quote.key))  # who pays has heard of it
            return self._settle_dues(customer, came.amount_msat, quote.key, payment_hash, came.settled_at_s)

    def _settle_dues(
        self, customer: str, came_msat: int, named: Key | None, payment_hash: str | None, at_s: int
    ) -> list[Due]:
        """Add to a customer's balance, and settle by it what it suffices for."""
        balance_msat = self.balance_msat(customer) + came_msat
        if not balance_msat:
            return []
        which, values = (f"NOT {BY_NAME}", ()) if named is None else (f"({KEY} OR NOT {BY_NAME})", astuple(named))
        unpaid = self._dues(f"customer = ? AND state = 'due' AND {which} ORDER BY rowid", (customer, *values))
        settled, left_msat = dues.settle(balance_msat, unpaid, named)
        sql = f"UPDATE dues SET state = 'settled', payment_hash = ?, settled_at_s = ? WHERE {KEY}"
        if payment_hash is None and settled:  # the balance stands from the last payment
            quoted = "SELECT payment_hash, settled_at_s AS at_s, rowid AS n FROM quotes WHERE customer = ?"
            given = "SELECT payment_hash, at_s, rowid FROM deposits WHERE sender = ?"
            last = f"{quoted} AND state <> 'open' UNION ALL {given} ORDER BY at_s DESC, n DESC LIMIT 1"
            payment_hash, at_s, _ = self._db.execute(last, (customer, customer)).fetchone()
        for due in settled:
            self._db.execute(sql, (payment_hash, at_s, *astuple(due.key)))
        sql = "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET msat = excluded.msat"
        self._db.execute(sql, (customer, left_msat))
        return [replace(due, state="settled", payment_hash=payment_hash, settled_at_s=at_s) for due in settled]

    def balance_msat(self, customer: str) -> int:
        """What a customer key has paid ahead."""
        row = self._db.execute("SELECT msat FROM balances WHERE customer = ?", (customer,)).fetchone()
        return 0 if row is None else int(row[0])

    def receipted(self, payment_hash: str, receipt: str) -> None:
        """The receipt with this event id is signed, and kept until relays have it (`Ledger.receipts`).

        The id is empty where nobody asked for a receipt.
        """
        sql = "UPDATE quotes SET state = 'receipted', receipt = ? WHERE payment_hash = ? AND state = 'settled'"
        self._db.execute(sql, (receipt, payment_hash))

    def receipt(self, payment_hash: str) -> str:
        """The event id of a payment's receipt; empty where none was asked for, or is signed yet."""
        row = self._db.execute("SELECT receipt FROM quotes WHERE payment_hash = ?", (payment_hash,)).fetchone()
        return "" if row is None else str(row[0] or "")

    def unreceipted(self) -> list[Income]:
        """Payments whose receipt is not signed yet, the oldest first."""
        sql = f"SELECT {_QUOTE}, amount_msat, preimage, settled_at_s FROM quotes WHERE state = 'settled' ORDER BY rowid"
        return [Income(*_to_quote(row[:9]), *row[9:]) for row in self._db.execute(sql)]

    def cursor(self, wallet: str) -> str:
        """Where the stream of settled payments of the wallet with this id goes on; empty for one that is new here."""
        row = self._db.execute("SELECT cursor FROM cursors WHERE wallet = ?", (wallet,)).fetchone()
        return "" if row is None else str(row[0])

    # Customers.

    def has_job(self, job: str) -> bool:
        """Whether anything was ever due for a job."""
        return self._db.execute("SELECT 1 FROM dues WHERE job = ? LIMIT 1", (job,)).fetchone() is not None

    def open_dues(self, customer: str, chunk: int) -> int:
        """How many of a customer key's dues of that number are not paid, overdue or not."""
        sql = "SELECT count(*) FROM dues WHERE customer = ? AND chunk = ? AND state = 'due'"
        return int(self._db.execute(sql, (customer, chunk)).fetchone()[0])

    def newest_dues(self, most: int) -> list[Due]:
        """The last that were entered, newest first. A deposit that nobody has to pay is none."""
        where = "due_by_s < ? OR settled_at_s ORDER BY rowid DESC LIMIT ?"
        return self._dues(where, (dues.NEVER_S, most))

    def owed_msat(self, customer: str) -> int:
        """What a customer key has not paid, overdue or not."""
        sql = "SELECT coalesce(sum(amount_msat), 0) FROM dues WHERE customer = ? AND state = 'due'"
        return int(self._db.execute(sql, (customer,)).fetchone()[0])

    def tab_msat(self, customer: str) -> int:
        """What a customer key owes for what was done, overdue or not: no deposits."""
        row = self._db.execute("SELECT owed_msat FROM accounts WHERE customer = ?", (customer,)).fetchone()
        return 0 if row is None else int(row[0])

    def paid_msat(self, customer: str) -> int:
        """What a customer key has paid in all."""
        row = self._db.execute("SELECT paid_msat FROM accounts WHERE customer = ?", (customer,)).fetchone()
        return (0 if row is None else int(row[0])) + self.deposit_msat(customer)

    def accounts(self) -> list[Account]:
        """Those of every customer that ever owed or paid, the largest debt first."""
        customers = self._db.execute("SELECT customer FROM dues UNION SELECT customer FROM balances").fetchall()
        found = [Account(one, self.tab_msat(one), self.balance_msat(one), self.paid_msat(one)) for (one,) in customers]
        return sorted(found, key=lambda one: (-one.owed_msat, one.customer))

    def unpaid_dues(self, customer: str) -> dict[Key, int]:
        """What a customer key has not paid, overdue or not: the amounts in msat."""
        return {due.key: due.amount_msat for due in self._dues("customer = ? AND state = 'due'", (customer,))}

    def is_customer(self, key: str) -> bool:
        """Whether anything was ever due from a key."""
        return self._db.execute("SELECT 1 FROM dues WHERE customer = ? LIMIT 1", (key,)).fetchone() is not None

    def is_depositor(self, key: str) -> bool:
        """Whether an ordinary zap of a key is a deposit, and no tip."""
        return self.is_customer(key)

    def deposit_msat(self, customer: str) -> int:
        """All that a customer key has ever paid in by ordinary zaps, whatever it has bought since."""
        return self.unbilled.deposit_msat(customer)

    def has_paid(self, customer: str) -> bool:
        """Whether a customer key has ever paid for a chunk."""
        sql = "SELECT 1 FROM dues WHERE customer = ? AND state = 'settled' LIMIT 1"
        return self._db.execute(sql, (customer,)).fetchone() is not None

    def is_covered(self, customer: str) -> bool:
        """Whether all that a customer key owes is within the credit that it has."""
        return self.tab_msat(customer) <= self._credit.allowed_msat(self.paid_msat(customer))

    def in_debt(self, customer: str, now_s: float) -> bool:
        """Whether a customer key owes more than the credit that it has earned, and let a due pass its time.

        Or too many of its jobs broke off unpaid: such a key gets no more.
        """
        unpaid = "FROM dues LEFT JOIN broken USING (job, payee, chunk, attempt)"
        unpaid += " LEFT JOIN untold USING (job, payee, chunk, attempt) WHERE customer = ? AND state = 'due'"
        sql = f"SELECT coalesce(sum(amount_msat), 0) {unpaid} AND due_by_s <= ? AND at_s IS NULL AND claim IS NULL"
        overdue_msat = int(self._db.execute(sql, (customer, int(now_s))).fetchone()[0])
        if overdue_msat > self._credit.earned_msat(self.paid_msat(customer)):
            return True
        sql = f"SELECT min(at_s) AS broke_s {unpaid} AND at_s <> {_OWN_FAULT} GROUP BY job ORDER BY broke_s"
        return dues.is_too_much([at_s for (at_s,) in self._db.execute(sql, (customer,))])

    def earned_msat(self, *, job: str | None = None) -> int:
        """Settled dues, all or one job's."""
        sql = "SELECT coalesce(sum(amount_msat), 0) FROM dues WHERE state = 'settled'"
        rows = self._db.execute(sql) if job is None else self._db.execute(sql + " AND job = ?", (job,))
        return int(rows.fetchone()[0])

    def _due(self, key: Key) -> Due | None:
        found = self._dues(KEY, astuple(key))
        return found[0] if found else None

    def _dues(self, where: str, values: Iterable[object]) -> list[Due]:
        rows = self._db.execute(f"SELECT * FROM dues WHERE {where}", tuple(values)).fetchall()
        return [Due(Key(*row[:4]), *row[4:]) for row in rows]


def _to_quote(row: tuple[str, ...]) -> tuple[Quote, str]:
    payment_hash, customer, *key, zap_request, bolt11, wallet = row
    return Quote(Key(*key), payment_hash, zap_request, bolt11, wallet), customer  # type: ignore[arg-type]  # STRICT
