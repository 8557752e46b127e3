"""The customer's side: pays each chunk's zap once, whatever dies in between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import debts, zaps
from nodewire.pay.accounts.debts import Debt, JobBudget, Key, Payment
from nodewire.pay.accounts.dues import CREDIT_PARTS
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.funds import Funds

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.debt_book import Tab
    from nodewire.pay.accounts.debts import Debt, JobBudget, Key
    from nodewire.pay.accounts.dues import CreditTerms
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.lightning.lnurl import Fetch
    from nodewire.pay.lightning.wallet import Transfer, Wallet, WalletInfo

BuildRequest = Callable[..., Event]
"""Signs a zap request, as `zaps.build_request` does."""
Route = Callable[[str, int], Awaitable["Fetch | None"]]
"""The wallet's own way to pay a payee (pubkey) an amount (msat), without its endpoint; None where it has none."""
log = logging.getLogger("nodewire.pay")
_WAIT_S = 60.0
"""For a payment to arrive or fail. One that is on its way for longer is left to it, and asked after later."""
PAID = "chunk"
"""The field of a payee's error that says that a chunk is paid already."""
_ASK_S, _LONGEST_S = 0.1, 2.0
"""Between two looks into the wallet's record: the first pause, and the longest."""
LUMP_FEES = 128
"""A payment is at least so many routing fees, as far as its payee was paid that much before. So the customer trusts a
payee with no more than it has had work for, and fees fall below a hundredth. Of fees the lowest so far counts: where
they are in proportion, larger lumps save nothing."""
LEAST_FEE_MSAT = 1_000
"""A fee below a satoshi is not worth that trust."""


@dataclass(frozen=True, slots=True)
class Fees:
    """The most that routing may cost: the larger of a flat amount and a share."""

    flat_msat: int = 2_000
    ppm: int = 10_000

    def most(self, amount_msat: int) -> int:
        return max(self.flat_msat, amount_msat * self.ppm // 1_000_000)


@dataclass(frozen=True, slots=True)
class ZapTerms:
    """How a debt is paid. `alone`: to the msat, by itself. `build` signs its zap request, as a chunk's by default.

    `is_asked`: the payee is to say first that it is not paid, at its endpoint.
    """

    alone: bool = False
    is_asked: bool = False
    is_prepaid: bool = False
    """The payee gives no credit, and takes what is owed out of what it was paid ahead. It hears of each debt by a
    statement of its customer. So a payment to it is at least a tenth of what it was paid before."""
    by_name: bool = False
    """Its payee waits for this customer's word: what was paid ahead settles it when a zap request names it."""
    goes_ahead: bool = False
    """More than is owed may be paid, so that the payment is worth its fee: the payee is bought from further."""
    credit: CreditTerms | None = None
    """How much the payee may be owed: a debt within that is only entered, and stands as it is."""
    build: BuildRequest = zaps.build_request


class Payer:
    """Pays from `wallet`, as `keys`, by the book of `ledger`. A wallet of another `network` than that pays nothing."""

    def __init__(
        self,
        keys: Keys,
        wallet: Wallet,
        ledger: Ledger,
        *,
        network: str = "",
        fees: Fees = Fees(),
        route: Route | None = None,
        lump_msat: int = 0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`route`: the wallet's own way to some payees. `lump_msat`: the least of a payment that may go ahead."""
        self._keys = keys
        self._lump_msat = lump_msat
        self._route = route
        self._wallet = wallet
        self._ledger = ledger
        self._network = network
        self._fees = fees
        self._now_s = now_s
        self._info: WalletInfo | None = None
        self._locks: WeakValueDictionary[str | Key, asyncio.Lock] = WeakValueDictionary()

    def is_due(self, payee: str) -> bool:
        """Whether what is owed to a payee should be paid even while no job is under way (`Ledger.is_due`)."""
        return self._ledger.is_due(payee, self._now_s())

    async def pay(
        self,
        key: Key,
        amount_msat: int,
        fetch: Fetch,
        *,
        relays: tuple[str, ...],
        lnurl: str | None = None,
        budget: JobBudget | None = None,
        terms: ZapTerms = ZapTerms(),
    ) -> Debt:
        """Zap `key.payee` for one chunk and return the paid debt; a chunk that is paid is not paid again.

        With it goes whatever else is owed to the payee, in whole units of both wallets. The payee says its own with its
        credit. What is more than is owed is paid ahead. `terms` say where it is otherwise. `fetch` gets the invoice
        (over LNURL, or over the wire), `relays` are where the receipt goes, `lnurl` is the endpoint's URL as
        "lnurl1...". A failed payment may be asked for again: it fetches a new invoice.

        Raises:
            PaymentFailed: the wallet's record says that nothing was paid.
            BadInvoice: the invoice is not what was asked for (fetch's own errors likewise). Nothing was paid.
            NotAllowed: the debt is entered with another amount, or another wallet was told to pay it.
            OverBudget: the job would cost more than `budget`.
            TimedOut, LinkLost, or what else the wallet answers: it may be paid; call `pay` or `recover` again.

        """
        now_s = int(self._now_s())
        debt = self._ledger.plan(
            key,
            amount_msat,
            budget=budget,
            lnurl=lnurl or "",
            at_s=now_s,
            is_prepaid=terms.is_prepaid,
            by_name=terms.by_name,
        )
        if terms.credit is not None:
            self._ledger.set_credit(key.payee, terms.credit)
            if self._may_stand(debt):
                return debt
        async with self._locks.setdefault(key if terms.alone else key.payee, asyncio.Lock()):
            debt = self._ledger.debt(key)
            if terms.credit is not None and self._may_stand(debt):  # another payment has made room meanwhile
                return debt
            if debt.state == "paying":
                debt = await self._resolve(debt, _WAIT_S)
            if debt.state == "paid":
                return debt
            if debt.state == "paying":
                raise _on_its_way()
            debt = await self._settle(debt, fetch, relays, lnurl, terms)
            if debt.state == "failed":
                raise PaymentFailed("payment", debt.reason)
            if debt.state != "paid":
                raise _on_its_way()
            return debt

    def _may_stand(self, debt: Debt) -> bool:
        """Whether a debt may stay on its payee's tab while its job runs."""
        return debt.state == "planned" and not self._ledger.is_due(debt.key.payee, self._now_s(), running=True)

    async def _settle(
        self, debt: Debt, fetch: Fetch, relays: tuple[str, ...], lnurl: str | None, terms: ZapTerms
    ) -> Debt:
        """Pay a debt, and with it what goes ahead. Where that much cannot be paid, what is owed is paid alone."""
        lump_msat = await self._lump_msat_of(debt, terms)
        try:
            debt = await self._try(debt, fetch, relays, lnurl, terms, lump_msat)
        except NotAllowed as error:
            if not lump_msat or error.field != "amount":
                raise
        if lump_msat and debt.state in ("planned", "failed"):
            debt = await self._try(debt, fetch, relays, lnurl, terms, 0)
        return debt

    async def _try(
        self, debt: Debt, fetch: Fetch, relays: tuple[str, ...], lnurl: str | None, terms: ZapTerms, lump_msat: int
    ) -> Debt:
        """The debt after one payment, of at least `lump_msat`."""
        if debt.state in ("planned", "failed") or (debt.state == "invoiced" and self._has_expired(debt)):
            debt = await self._ask(debt, fetch, relays, lnurl, terms, lump_msat)
        if debt.payment is not None and debt.state != "paid":
            await self._send(debt.payment)
        return self._ledger.debt(debt.key)

    async def _ask(
        self,
        debt: Debt,
        fetch: Fetch,
        relays: tuple[str, ...],
        lnurl: str | None,
        terms: ZapTerms,
        lump_msat: int,
    ) -> Debt:
        """Get an invoice for a debt, and for what else is owed to its payee; the debt with it."""
        info = await self._known_wallet()
        others = [] if terms.alone else [one for one in self._ledger.unpaid_to(debt.key.payee) if self._is_free(one)]
        wanted = [debt, *(one for one in others if one.key != debt.key)]
        # The payee may have spent the balance on others: it takes no less for a chunk than that costs.
        amount_msat = max(debt.amount_msat, sum(one.left_msat for one in wanted))
        if terms.is_prepaid:
            amount_msat = max(amount_msat, self._ledger.tab(debt.key.payee).paid_msat // CREDIT_PARTS)
        amount_msat = max(amount_msat, lump_msat)
        if not terms.alone:
            unit_msat = max(info.unit_msat, self._ledger.credit(debt.key.payee).unit_msat)
            amount_msat = max(info.least_msat, -(-amount_msat // unit_msat) * unit_msat)
        # A wallet tries no invoice again that failed, and who makes them gives the same one for one request.
        created_at = int(self._now_s()) + len(debt.parts)
        request = terms.build(self._keys, debt.key, amount_msat, relays=relays, lnurl=lnurl, created_at=created_at)
        own = await self._route(debt.key.payee, amount_msat) if self._route and not terms.is_asked else None
        try:
            invoice = await (own or fetch)(request, amount_msat)
        except NotAllowed as error:
            if error.field != PAID or terms.alone:  # a gift is in no ledger of its payee's
                raise
            if self._ledger.is_by_name(debt.key) and self._ledger.tab(debt.key.payee).paid_msat:
                if (settled := self._ledger.settle_by_ahead(debt.key)).state == "paid":
                    return settled
            else:  # a ledger that was lost had paid it
                self._ledger.forgive(debt.key)
            raise
        invoices.check(
            invoice,
            amount_msat=amount_msat,
            now_s=self._now_s(),
            description_hash=zaps.description_hash(request.to_json()),
            network=info.network,
        )
        invoices.check_route(invoice, self._fees.most(amount_msat))
        expired = [one.payment.payment_hash for one in debt.parts if self._is_stale(one.payment)]
        payment = Payment(invoice.payment_hash, invoice.bolt11, amount_msat)
        return self._ledger.begin(debt.key.payee, [one.key for one in wanted], payment, expired=expired)

    async def _lump_msat_of(self, debt: Debt, terms: ZapTerms) -> int:
        """The least that is worth its fee, beside what is owed; 0 where nothing goes ahead."""
        if not terms.goes_ahead or terms.is_prepaid or terms.alone or terms.by_name or debt.state == "failed":
            return 0
        fee_msat = self._ledger.least_fee_msat(debt.key.payee)
        paid_msat = self._ledger.tab(debt.key.payee).paid_msat
        earned_msat = min(paid_msat, LUMP_FEES * fee_msat) if fee_msat >= LEAST_FEE_MSAT else 0
        lump_msat = max(self._lump_msat, earned_msat)
        return min(lump_msat, (await self._known_wallet()).most_msat) if lump_msat else 0

    def _is_free(self, debt: Debt) -> bool:
        """Whether no payment is under way for a debt."""
        live = (one.payment for one in debt.parts if one.payment.state in ("invoiced", "paying"))
        return all(self._is_stale(payment) for payment in live)

    def _is_stale(self, payment: Payment) -> bool:
        """Whether an invoice was never paid, and is too old to be."""
        return payment.state == "invoiced" and invoices.decode(payment.bolt11).is_expired(self._now_s())

    def funds(self) -> Funds:
        """What the wallet holds; see `Funds.check`."""
        return Funds(self._wallet)

    async def recover(self) -> list[Debt]:
        """Settle with the wallet what an earlier run left in "paying", before anything else is paid.

        Returns the debts that turned out to be paid. Others stay in `unpaid`: failed ones (`pay` goes on with them),
        those that are on their way, and those that another wallet was told to pay. Raises LinkLost, TimedOut.
        """
        found = []
        for payee, payment in self._ledger.under_way():
            async with self._locks.setdefault(payee, asyncio.Lock()):
                try:
                    after = await self._recorded_or_sent(payment, 0.0)
                except (LinkLost, TimedOut):
                    raise
                except NodewireError as error:
                    log.warning("a payment to %s is not settled: %s", payee[:8], error)
                else:
                    found += self._ledger.settled_by(payment.payment_hash) if after.state == "paid" else []
        return found

    def close(self, job: str) -> None:
        """No receipt of this customer will be asked for what is paid under this name."""
        self._ledger.close_job(job)

    def unstated(self, payee: str) -> list[Debt]:
        """The prepaid debts to one payee that are settled, and of which it has not heard; by job and chunk."""
        return self._ledger.unstated(payee)

    def stated(self, keys: Iterable[Key]) -> None:
        """The payee has heard of these debts."""
        self._ledger.stated(keys)

    def unpaid(self) -> list[Debt]:
        """The debts that are not paid, oldest first."""
        return self._ledger.unpaid()

    def tab(self, payee: str) -> Tab:
        """What stands between this customer and one payee."""
        return self._ledger.tab(payee)

    def debts_of(self, job: str) -> list[Debt]:
        """Every debt of a job, oldest entry first."""
        return self._ledger.debts_of(job)

    def end(self, job: str, count_owed: int) -> None:
        """The customer has seen the job's end: nothing more will come. Its first `count_owed` chunks are owed."""
        self._ledger.end_job(job, count_owed)

    def count_owed(self, job: str) -> int | None:
        """How many chunks are owed of a job that has ended; None if that is not known."""
        return self._ledger.count_owed(job)

    def has_ended(self, job: str) -> bool:
        """Whether `end` was called for it, in this process or an earlier one; one that died in mid-job has not."""
        return self._ledger.has_ended(job)

    def has(self, key: Key) -> bool:
        """Whether the debt is entered, paid or not."""
        return self._ledger.has_debt(key)

    async def _known_wallet(self) -> WalletInfo:
        if self._info is None:
            info = await self._wallet.info()
            if self._network and info.network != self._network:
                raise BadConfig("wallet.network", f'the wallet is of "{info.network}", and "{self._network}" is meant')
            self._info = info
        return self._info

    async def _send(self, payment: Payment) -> Payment:
        """Tell the wallet to pay an invoice, or again one that it may not have heard of.

        What it answers counts where it is its record of the payment. Of an error the record is asked.
        """
        info = await self._known_wallet()
        payment = self._ledger.record(payment.payment_hash, debts.PaymentAttempt(info.id))
        if payment.state != "paying":
            return payment
        await self._check_own(payment)
        try:
            found = await self._wallet.pay(
                payment.bolt11, max_fee_msat=self._fees.most(payment.amount_msat), timeout_s=_WAIT_S
            )
        except NodewireError as error:
            try:
                found = await self._recorded(payment, _WAIT_S)
            except NotFound:
                refused = not isinstance(error, LinkLost | TimedOut)
                if not (refused and self._is_too_old(payment) and "lookup-out" in info.abilities):
                    raise _of_wallet(error) from None
                # It would have been recorded, and nobody begins to pay an invoice that has expired.
                return self._ledger.record(payment.payment_hash, debts.PaymentFailure(str(error)[:200]))
            except NodewireError:
                raise _of_wallet(error) from None
        return self._enter(payment, found)

    async def _resolve(self, debt: Debt, wait_s: float) -> Debt:
        """Ask the wallet what became of a debt's payment that was about to be made, and wait at most so long."""
        payment = next((one.payment for one in debt.parts if one.payment.state == "paying"), None)
        if payment is not None:
            await self._recorded_or_sent(payment, wait_s)
        return self._ledger.debt(debt.key)

    async def _recorded_or_sent(self, payment: Payment, wait_s: float) -> Payment:
        """What the wallet's record says of a payment after at most `wait_s`; it is told again if it never heard."""
        await self._check_own(payment)
        try:
            return self._enter(payment, await self._recorded(payment, wait_s))
        except NotFound:
            # Never heard of: the same invoice again is the one request that cannot pay twice.
            return await self._send(payment)

    async def _check_own(self, payment: Payment) -> None:
        """Check that a payment is this wallet's to make. Raises NotAllowed."""
        info = await self._known_wallet()
        if payment.wallet not in ("", info.id):
            told = f"wallet {payment.wallet[:80]} was told to make it, not {info.id[:80]}"
            raise NotAllowed("wallet", f"{told}: put that one back to learn what became of it")

    async def _recorded(self, payment: Payment, wait_s: float) -> Transfer:
        """The wallet's record of an outgoing payment, once it has ended or `wait_s` are over. Raises NotFound."""
        loop, pause_s = asyncio.get_running_loop(), _ASK_S
        until = loop.time() + wait_s
        while True:
            found = await self._wallet.lookup(payment.payment_hash, "out")
            if found.state in ("settled", "failed") or loop.time() >= until:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_S, 2 * pause_s)

    def _enter(self, payment: Payment, found: Transfer) -> Payment:
        """Write down what the wallet's record says. Raises NotAllowed: it has no preimage that proves the payment."""
        payment_hash = payment.payment_hash
        if found.state == "settled":
            try:
                return self._ledger.record(payment_hash, debts.PaymentSettlement(found.preimage or "", found.fee_msat))
            except BadInput as error:
                raise _of_wallet(error) from error
        if found.state == "failed":
            return self._ledger.record(payment_hash, debts.PaymentFailure(found.reason[:200]))
        return self._ledger.payment(payment_hash)

    def _has_expired(self, debt: Debt) -> bool:
        return debt.payment is not None and self._is_too_old(debt.payment)

    def _is_too_old(self, payment: Payment) -> bool:
        return invoices.decode(payment.bolt11).is_expired(self._now_s())


def _of_wallet(error: NodewireError) -> NodewireError:
    """An error of one's own wallet. What is bad input to it is nobody else's fault: the invoice was checked."""
    return NotAllowed("wallet", str(error)) if isinstance(error, BadInput) else error


def _on_its_way() -> TimedOut:
    return TimedOut("payment", "on its way: whether it arrives is not known yet, so nothing else is paid for this")
