"""The customer's side of the ledger: what it owes for chunks, and the payments that settle it."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed, NotFound, OverBudget
from nodewire.pay.accounts import debts
from nodewire.pay.accounts.book import BY_NAME, KEY, Book
from nodewire.pay.accounts.debts import Debt, JobBudget, Key, Part, Payment
from nodewire.pay.accounts.dues import NO_CREDIT, CreditTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

OLD_S = 7 * 86_400
"""A debt is paid after so long, however little it is."""
_PAYMENT = "payment_hash, bolt11, amount_msat, state, wallet, preimage, fee_msat, reason"


@dataclass(frozen=True, slots=True)
class Expenses:
    """Money out: paid amounts and their routing fees, and what is planned or on its way."""

    paid_msat: int
    fees_msat: int
    pending_msat: int


@dataclass(frozen=True, slots=True)
class Tab:
    """What stands between a customer and one payee. `ahead_msat` was paid for nothing yet: the payee holds it."""

    payee: str
    owed_msat: int
    ahead_msat: int
    paid_msat: int
    """In all, ever."""
    since_s: int
    """When the oldest debt was entered (unix); 0 where nothing is owed."""


class DebtBook(Book):
    def plan(
        self,
        key: Key,
        amount_msat: int,
        *,
        budget: JobBudget | None = None,
        lnurl: str = "",
        at_s: int = 0,
        is_prepaid: bool = False,
        by_name: bool = False,
    ) -> Debt:
        """Enter a debt, or find it as it stands.

        Routing fees come on top of the budget. What the payee was paid ahead settles it at once. If it is `by_name`, a
        payment that names it does, or `settle_by_ahead`. Of one that `is_prepaid` the payee hears by a statement alone.
        It is on disk after `flushed`, or a payment's next step.

        Raises:
            NotAllowed: it is entered with another amount.
            OverBudget: with it, the job would cost the budget's payees more than that.

        """
        with self._transaction(is_flushed=False):
            known = self._debt(key)
            if by_name:
                self.set_by_name(key)
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
            row = (*astuple(key), amount_msat, lnurl, at_s)
            self._db.execute("INSERT INTO debts VALUES (?, ?, ?, ?, ?, 'owed', ?, ?)", row)
            if is_prepaid:
                self._db.execute("INSERT INTO unstated VALUES (?, ?, ?, ?)", astuple(key))
            self._spend_ahead(key.payee)
            return self.debt(key)

    def has_debt(self, key: Key) -> bool:
        return self._debt(key) is not None

    def debt(self, key: Key) -> Debt:
        """Raises NotFound."""
        debt = self._debt(key)
        if debt is None:
            raise NotFound("debt", "never planned")
        return debt

    def unpaid(self) -> list[Debt]:
        """Every debt that is not paid, oldest entry first."""
        return self._debts("state = 'owed' ORDER BY rowid", ())

    def unpaid_to(self, payee: str) -> list[Debt]:
        """Those to one payee that any payment to it settles."""
        return self._debts(f"state = 'owed' AND payee = ? AND NOT {BY_NAME} ORDER BY rowid", (payee,))

    def unstated(self, payee: str) -> list[Debt]:
        """The prepaid debts to one payee that are settled, and of which it has not heard; by job and chunk."""
        keys = "SELECT job, payee, chunk, attempt FROM unstated WHERE payee = ?"
        where = f"state = 'paid' AND (job, payee, chunk, attempt) IN ({keys}) ORDER BY job, chunk"
        return self._debts(where, (payee,))

    def stated(self, keys: Iterable[Key]) -> None:
        """The payee has heard of these debts."""
        with self._transaction():
            self._db.executemany(f"DELETE FROM unstated WHERE {KEY}", [astuple(key) for key in keys])

    def debts_of(self, job: str) -> list[Debt]:
        """Every debt of a job, oldest entry first."""
        return self._debts("job = ? ORDER BY rowid", (job,))

    def newest_debts(self, most: int) -> list[Debt]:
        """The last that were entered, newest first."""
        found = self._debts("rowid IN (SELECT rowid FROM debts ORDER BY rowid DESC LIMIT ?) ORDER BY rowid", (most,))
        return found[::-1]

    def tab(self, payee: str) -> Tab:
        """What stands between this customer and one payee."""
        sql = "SELECT owed_msat, settled_msat, paid_msat, ahead_msat FROM tabs WHERE payee = ?"
        row = self._db.execute(sql, (payee,)).fetchone() or (0, 0, 0, 0)
        owed_msat, settled_msat, paid_msat, ahead_msat = row
        begun_msat = paid_msat - ahead_msat - settled_msat  # debts that are paid in part
        sql = "SELECT at_s FROM debts WHERE payee = ? AND state = 'owed' ORDER BY rowid LIMIT 1"
        oldest = self._db.execute(sql, (payee,)).fetchone()
        return Tab(payee, owed_msat - begun_msat, ahead_msat, paid_msat, 0 if oldest is None else oldest[0])

    def least_fee_msat(self, payee: str) -> int:
        """The lowest routing fee of a payment to a payee, which is about a route's flat part; 0 before any payment."""
        sql = "SELECT min(fee_msat) FROM payments WHERE payee = ? AND state = 'paid'"
        return int(self._db.execute(sql, (payee,)).fetchone()[0] or 0)

    def set_credit(self, payee: str, credit: CreditTerms) -> None:
        """Keep how much the payee says that it may be owed."""
        if credit == self.credit(payee):
            return
        sql = "INSERT INTO credits VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET first_msat = excluded.first_msat"
        sql += ", most_msat = excluded.most_msat, unit_msat = excluded.unit_msat"
        self._db.execute(sql, (payee, *astuple(credit)))

    def set_unit(self, payee: str, unit_msat: int) -> None:
        """Keep what the payee's wallet takes multiples of."""
        self.set_credit(payee, replace(self.credit(payee), unit_msat=unit_msat))

    def credit(self, payee: str) -> CreditTerms:
        """How much the payee may be owed, by what it said last; nothing where it never did."""
        row = self._db.execute(
            "SELECT first_msat, most_msat, unit_msat FROM credits WHERE payee = ?", (payee,)
        ).fetchone()
        return NO_CREDIT if row is None else CreditTerms(*row)

    def is_due(self, payee: str, now_s: float, *, running: bool = False) -> bool:
        """Whether what is owed to a payee should be paid now: it is more than half of the credit, or a week old.

        `running`: a job is under way. What may be owed before anything was paid counts then, too.
        """
        tab, credit = self.tab(payee), self.credit(payee)
        most_msat = credit.allowed_msat(tab.paid_msat) if running else credit.earned_msat(tab.paid_msat)
        return 2 * tab.owed_msat > most_msat or (tab.owed_msat > 0 and tab.since_s < now_s - OLD_S)

    def forgive(self, key: Key) -> None:
        """The payee itself says that nothing is owed for it any more. What was paid of it, or will be, is ahead."""
        with self._transaction():
            if not self._db.execute(f"DELETE FROM debts WHERE {KEY} AND state = 'owed'", astuple(key)).rowcount:
                return
            self._free(key)
            self._spend_ahead(key.payee)

    def settle_by_ahead(self, key: Key) -> Debt:
        """The payee itself says that a debt is settled by what it was paid ahead: so it is here, and no more by name.

        By its own book the payee may have spent less on others. Then what is left of this debt here is owed as theirs.
        """
        with self._transaction():
            self._db.execute(f"DELETE FROM by_name WHERE {KEY}", astuple(key))
            for debt in self.unpaid_to(key.payee):
                if debt.paid_msat:
                    self._free(debt.key, "AND payment_hash IN (SELECT payment_hash FROM payments WHERE state = 'paid')")
            self._spend_on([self.debt(key)], self._ahead(key.payee))
            self._spend_ahead(key.payee)
            return self.debt(key)

    def _free(self, key: Key, which: str = "") -> None:
        """What was paid of a debt, or will be, is ahead: of all its parts, or those that SQL says."""
        sql = f"SELECT payment_hash, msat FROM parts WHERE {KEY} {which}"
        for payment_hash, msat in self._db.execute(sql, astuple(key)).fetchall():
            sql = "UPDATE payments SET ahead_msat = ahead_msat + ? WHERE payment_hash = ?"
            self._db.execute(sql, (msat, payment_hash))
        self._db.execute(f"DELETE FROM parts WHERE {KEY} {which}", astuple(key))

    def tabs(self) -> list[Tab]:
        """Those with every payee that was ever owed or paid, the largest debt first."""
        payees = self._db.execute("SELECT payee FROM tabs").fetchall()
        return sorted((self.tab(payee) for (payee,) in payees), key=lambda tab: (-tab.owed_msat, tab.payee))

    # Payments.

    def begin(self, payee: str, keys: Sequence[Key], payment: Payment, *, expired: Collection[str] = ()) -> Debt:
        """Enter an invoice that settles the debts `keys` to `payee`, and return the first of these as it stands then.

        Nothing is entered if that one is paid, or has an invoice already that may still be paid: another process was
        quicker. Others of which that is so are left to theirs. `expired`: the payment hashes of invoices that nobody
        was told to pay, and that are too old to.

        Raises:
            NotFound: no such debt.
            NotAllowed: the payment hash is known, or the amount is less than the debts.

        """
        with self._transaction():
            found = [self.debt(key) for key in keys]
            free = [debt for debt in found if debt.left_msat and not _is_live(debt, expired)]
            if found[0] not in free:
                return found[0]
            ahead_msat = payment.amount_msat - sum(debt.left_msat for debt in free)
            if ahead_msat < 0:
                raise NotAllowed("amount_msat", f"{payment.amount_msat} msat is {-ahead_msat} msat less than is owed")
            sql = "INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            try:
                self._db.execute(sql, (payment.payment_hash, payee, *astuple(payment)[1:], ahead_msat))
            except sqlite3.IntegrityError as error:
                raise NotAllowed("payment_hash", "an invoice with it was asked for before") from error
            for debt in free:
                self._add_part(payment.payment_hash, debt.key, debt.left_msat)
            return self.debt(keys[0])

    def record(self, payment_hash: str, event: debts.Event) -> Payment:
        """Apply `event` to a payment and write it down, with what it settles.

        Raises:
            NotFound: no such payment.
            NotAllowed, BadInput: see `debts.apply`.

        """
        with self._transaction():
            before = self.payment(payment_hash)
            after = debts.apply(event, before)
            if after == before:
                return after
            sql = "UPDATE payments SET state = ?, wallet = ?, preimage = ?, fee_msat = ?, reason = ?"
            self._db.execute(f"{sql} WHERE payment_hash = ?", (*astuple(after)[3:], payment_hash))
            if after.state == "paid":
                self._settle_debts(payment_hash)
            return after

    def payment(self, payment_hash: str) -> Payment:
        """Raises NotFound."""
        row = self._db.execute(f"SELECT {_PAYMENT} FROM payments WHERE payment_hash = ?", (payment_hash,)).fetchone()
        if row is None:
            raise NotFound("payment_hash", "no invoice with it was asked for")
        return Payment(*row)

    def under_way(self) -> list[tuple[str, Payment]]:
        """Payments of which the wallet has yet to say what became of them, with their payees; the oldest first."""
        rows = self._db.execute(f"SELECT payee, {_PAYMENT} FROM payments WHERE state = 'paying' ORDER BY rowid")
        return [(payee, Payment(*row)) for payee, *row in rows]

    def settled_by(self, payment_hash: str) -> list[Debt]:
        """The debts that a payment is for, oldest entry first."""
        keys = "SELECT job, payee, chunk, attempt FROM parts WHERE payment_hash = ?"
        return self._debts(f"(job, payee, chunk, attempt) IN ({keys}) ORDER BY rowid", (payment_hash,))

    def _settle_debts(self, payment_hash: str) -> None:
        """A payment was made: its debts are paid, as far as no other payment was quicker."""
        payee, ahead_msat = self._db.execute(
            "SELECT payee, ahead_msat FROM payments WHERE payment_hash = ?", (payment_hash,)
        ).fetchone()
        for debt in self.settled_by(payment_hash):
            (msat,) = self._db.execute(
                f"SELECT msat FROM parts WHERE payment_hash = ? AND {KEY}", (payment_hash, *astuple(debt.key))
            ).fetchone()
            if (over_msat := max(0, -debt.left_msat)) > 0:
                self._db.execute(
                    f"UPDATE parts SET msat = ? WHERE payment_hash = ? AND {KEY}",
                    (msat - over_msat, payment_hash, *astuple(debt.key)),
                )
                ahead_msat += over_msat
            if debt.left_msat <= 0:
                self._close(debt.key)
        self._db.execute("UPDATE payments SET ahead_msat = ? WHERE payment_hash = ?", (ahead_msat, payment_hash))
        self._spend_ahead(payee)

    def _spend_ahead(self, payee: str) -> None:
        """Settle debts by what their payee was paid ahead, the oldest first; those that a payment is made for wait."""
        if ahead := self._ahead(payee):
            self._spend_on([debt for debt in self.unpaid_to(payee) if not _is_live(debt, ())], ahead)

    def _ahead(self, payee: str) -> list[tuple[str, int]]:
        """What a payee was paid ahead (msat), by payment, the oldest first."""
        sql = "SELECT payment_hash, ahead_msat FROM payments WHERE payee = ? AND state = 'paid' AND ahead_msat > 0"
        return self._db.execute(f"{sql} ORDER BY rowid", (payee,)).fetchall()

    def _spend_on(self, owed: Sequence[Debt], ahead: list[tuple[str, int]]) -> None:
        """Settle debts in this order, as far as what was paid ahead suffices."""
        for debt in owed:
            left_msat = debt.left_msat
            while left_msat and ahead:
                payment_hash, held_msat = ahead[0]
                used_msat = min(left_msat, held_msat)
                self._add_part(payment_hash, debt.key, used_msat)
                held_msat, left_msat = held_msat - used_msat, left_msat - used_msat
                self._db.execute("UPDATE payments SET ahead_msat = ? WHERE payment_hash = ?", (held_msat, payment_hash))
                ahead[0] = payment_hash, held_msat
                if not held_msat:
                    ahead.pop(0)
                if not left_msat:
                    self._close(debt.key)

    def _close(self, key: Key) -> None:
        self._db.execute(f"UPDATE debts SET state = 'paid' WHERE {KEY}", astuple(key))

    def _add_part(self, payment_hash: str, key: Key, msat: int) -> None:
        sql = "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET msat = msat + excluded.msat"
        self._db.execute(sql, (payment_hash, *astuple(key), msat))

    # Jobs.

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

    def end_job(self, job: str, count_owed: int) -> None:
        """The customer has seen the job's end: nothing more will come. Its first `count_owed` chunks are owed."""
        self._db.execute("INSERT INTO ended VALUES (?, ?) ON CONFLICT DO NOTHING", (job, count_owed))

    def has_ended(self, job: str) -> bool:
        return self._db.execute("SELECT 1 FROM ended WHERE job = ?", (job,)).fetchone() is not None

    def count_owed(self, job: str) -> int | None:
        """How many chunks of a job that has ended are owed; None if that is not known."""
        row = self._db.execute("SELECT came FROM ended WHERE job = ?", (job,)).fetchone()
        return None if row is None else row[0]

    def spent(self, *, job: str | None = None, payee: str | None = None) -> Expenses:
        """Sums over all debts, those of one job, to one payee, or both. What was paid ahead is in none."""
        asked = {name: value for name, value in (("job", job), ("payee", payee)) if value is not None}
        also = "".join(f" AND parts.{name} = :{name}" for name in asked)
        first = "parts.rowid = (SELECT min(rowid) FROM parts AS p WHERE p.payment_hash = parts.payment_hash)"
        sql = (
            f"SELECT coalesce(sum(msat), 0), coalesce(sum(fee_msat) FILTER (WHERE {first}), 0) "
            f"FROM parts JOIN payments USING (payment_hash) WHERE state = 'paid'{also}"
        )
        paid_msat, fees_msat = self._db.execute(sql, asked).fetchone()
        also = "".join(f" AND {name} = :{name}" for name in asked)
        sql = f"SELECT coalesce(sum(amount_msat), 0) FROM debts WHERE state = 'owed'{also}"
        (owed_msat,) = self._db.execute(sql, asked).fetchone()
        sql = (
            "SELECT coalesce(sum(msat), 0) FROM parts JOIN payments USING (payment_hash) "
            "JOIN debts USING (job, payee, chunk, attempt) "
            f"WHERE payments.state = 'paid' AND debts.state = 'owed'{also.replace('AND ', 'AND debts.')}"
        )
        (begun_msat,) = self._db.execute(sql, asked).fetchone()
        return Expenses(paid_msat, fees_msat, owed_msat - begun_msat)

    def _debt(self, key: Key) -> Debt | None:
        found = self._debts(KEY, astuple(key))
        return found[0] if found else None

    def _debts(self, where: str, values: Iterable[object]) -> list[Debt]:
        first = "parts.rowid = (SELECT min(rowid) FROM parts AS p WHERE p.payment_hash = parts.payment_hash)"
        sql = f"SELECT {_PAYMENT}, msat, {first} FROM parts JOIN payments USING (payment_hash)"
        found = []
        columns = "job, payee, chunk, attempt, amount_msat, lnurl"
        rows = self._db.execute(f"SELECT {columns} FROM debts WHERE {where}", tuple(values)).fetchall()
        for *key, amount_msat, lnurl in rows:
            asked = f"{sql} WHERE parts.job = ? AND parts.payee = ? AND chunk = ? AND attempt = ? ORDER BY parts.rowid"
            parts = tuple(
                Part(Payment(*row), msat, bool(is_first)) for *row, msat, is_first in self._db.execute(asked, key)
            )
            found.append(Debt(Key(*key), amount_msat, parts, lnurl))
        return found


def _is_live(debt: Debt, expired: Collection[str]) -> bool:
    """Whether an invoice for the debt may still be paid."""
    states = {one.payment.payment_hash: one.payment.state for one in debt.parts}
    return any(
        state == "paying" or (state == "invoiced" and payment_hash not in expired)
        for payment_hash, state in states.items()
    )
