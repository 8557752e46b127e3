"""The customer's side: pays each chunk's zap once, whatever dies in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from nodewire.errors import BadInvoice, NotFound, OverBudget, PaymentFailed
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import debts, zaps
from nodewire.pay.accounts.debts import Debt, JobBudget, Key
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.funds import Funds
from nodewire.pay.lightning.lnurl import Fetch
from nodewire.pay.lightning.wallet import Wallet


@dataclass(frozen=True, slots=True)
class Fees:
    """The most that routing may cost: the larger of a flat amount and a share."""

    flat_msat: int = 1_000
    ppm: int = 10_000

    def most(self, amount_msat: int) -> int:
        return max(self.flat_msat, amount_msat * self.ppm // 1_000_000)


class Payer:
    """Pays from `wallet`, as `keys`, by the book of `ledger`."""

    def __init__(
        self,
        keys: Keys,
        wallet: Wallet,
        ledger: Ledger,
        *,
        fees: Fees = Fees(),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._wallet = wallet
        self._ledger = ledger
        self._fees = fees
        self._now_s = now_s
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def pay(
        self,
        key: Key,
        amount_msat: int,
        fetch: Fetch,
        *,
        relays: tuple[str, ...],
        lnurl: str | None = None,
        budget: JobBudget | None = None,
    ) -> Debt:
        """Zap `key.payee` for one chunk and return the paid debt; a chunk that is paid is not paid again.

        `fetch` gets the invoice (over LNURL, or over the wire), `relays` are where the receipt goes, `lnurl` is the
        endpoint's URL as "lnurl1...". A failed payment may be asked for again: it fetches a new invoice.

        Raises:
            PaymentFailed, BadInvoice, OverBudget: nothing was paid (fetch's own errors likewise).
            NotAllowed: the debt is entered with another amount.
            LinkLost, TimedOut: the wallet's answer is unknown; call `pay` or `recover` again.

        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            debt = self._ledger.plan(key, amount_msat, budget=budget, lnurl=lnurl or "")
            if debt.state == "paying":
                debt = await self._resolve(debt)
            if debt.state == "paid":
                return debt
            if debt.state in ("planned", "failed") or (debt.state == "invoiced" and self._has_expired(debt)):
                request = zaps.build_request(
                    self._keys, key, amount_msat, relays=relays, lnurl=lnurl, created_at=int(self._now_s())
                )
                invoice = await fetch(request, amount_msat)
                invoices.check(
                    invoice,
                    amount_msat=amount_msat,
                    now_s=self._now_s(),
                    description_hash=zaps.description_hash(request.to_json()),
                )
                debt = self._ledger.record(key, debts.DebtInvoice(invoice.bolt11, invoice.payment_hash))
            return await self._send(debt)

    def funds(self) -> Funds:
        """What the wallet holds; see `Funds.check`."""
        return Funds(self._wallet)

    async def recover(self) -> list[Debt]:
        """Settle with the wallet what an earlier run left in "paying", before anything else is paid.

        Returns those that turned out to be paid. Others stay in `unpaid`: failed ones (`pay` goes on with them), and
        those that are in flight. Raises LinkLost, TimedOut.
        """
        found = []
        for debt in self._ledger.unpaid():
            if debt.state == "paying":
                async with self._locks.setdefault(debt.key, asyncio.Lock()):
                    found.append(await self._resolve(self._ledger.debt(debt.key)))
        return [debt for debt in found if debt.state == "paid"]

    def unpaid(self) -> list[Debt]:
        """The debts that are not paid, oldest first."""
        return self._ledger.unpaid()

    def debts_of(self, job: str) -> list[Debt]:
        """Every debt of a job, oldest entry first."""
        return self._ledger.debts_of(job)

    def end(self, job: str, came: int) -> None:
        """The customer has seen the job's end: nothing more of it will come. Its first `count_received` chunks did."""
        self._ledger.end_job(job, came)

    def count_received(self, job: str) -> int | None:
        """How many chunks came of a job that has ended; None if that is not known."""
        return self._ledger.count_received(job)

    def has_ended(self, job: str) -> bool:
        """Whether `end` was called for it, in this process or an earlier one; one that died in mid-job has not."""
        return self._ledger.has_ended(job)

    def has(self, key: Key) -> bool:
        """Whether the debt is entered, paid or not."""
        return self._ledger.has_debt(key)

    async def _send(self, debt: Debt) -> Debt:
        """Tell the wallet to pay an invoiced debt, or again one that it may not have heard of."""
        # Another process of this customer may have fetched an invoice since: the one that the ledger has is paid.
        debt = self._ledger.record(debt.key, debts.PaymentAttempt())
        assert debt.bolt11 is not None
        try:
            payment = await self._wallet.pay(debt.bolt11, max_fee_msat=self._fees.most(debt.amount_msat))
        except (PaymentFailed, BadInvoice, OverBudget) as error:
            # The wallet's word that nothing was paid. Any other end leaves the debt in "paying".
            self._ledger.record(debt.key, debts.PaymentFailure(str(error)[:200]))
            raise
        return self._ledger.record(debt.key, debts.DebtPayment(payment.preimage, payment.fee_msat))

    async def _resolve(self, debt: Debt) -> Debt:
        """Ask the wallet what became of a payment that an earlier run was about to make."""
        if debt.state != "paying":
            return debt
        assert debt.payment_hash is not None
        try:
            known = await self._wallet.lookup(debt.payment_hash)
        except NotFound:
            known = None
        if known is not None and known.state == "settled" and known.preimage is not None:
            return self._ledger.record(debt.key, debts.DebtPayment(known.preimage, known.fee_msat))
        if known is not None and known.state == "failed":
            return self._ledger.record(debt.key, debts.PaymentFailure("the wallet reports failure"))
        if known is not None:
            return debt  # in flight
        # Never heard of: the same invoice again is the one request that cannot pay twice.
        try:
            return await self._send(debt)
        except (PaymentFailed, BadInvoice, OverBudget):
            return self._ledger.debt(debt.key)

    def _has_expired(self, debt: Debt) -> bool:
        assert debt.bolt11 is not None
        return invoices.decode(debt.bolt11).is_expired(self._now_s())
