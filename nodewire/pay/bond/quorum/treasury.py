"""A registrar's treasury: the book of shares and dues, and payouts by a wallet that it is given.

A payout is bound in the book before the wallet hears of it. It is done with when the wallet's own record says what
became of it, also after a crash in between.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakValueDictionary

from nodewire.errors import BadInvoice, NodewireError, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.bond.treasury.book import InvoicePayout, Pot, TreasuryBook, credit_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.pay.bond.quorum.book import Book
    from nodewire.pay.bond.settlement import PricedVerdict
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.lnurl_server import Endpoint
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.share_statement import ShareStatement

_log = logging.getLogger("nodewire.pay.registrar")


class Cashier(Protocol):
    """Takes lumps and pays invoices: a wallet with the ledger of what it was told."""

    @property
    def unit_msat(self) -> int:
        """An amount is of so much, or whole multiples."""

    @property
    def lnurl(self) -> str:
        """Where lumps are zapped, once that is served."""

    def endpoint(self, base_url: str) -> Endpoint:
        """That endpoint, for who reaches the registrar by `base_url`."""

    def paid_msat(self, customer: str) -> int:
        """All that a customer has ever paid ahead, by the wallet's own word."""

    def most_fee_msat(self, amount_msat: int) -> int:
        """The most that the route of a payment may cost."""

    def read(self, bolt11: str) -> Invoice:
        """Raises BadInvoice: it is none that the wallet could pay now."""

    async def pay(self, bolt11: str) -> tuple[Literal["pending", "settled", "failed"], int]:
        """Pay an invoice, or learn what became of it; the route's fee with it. Again pays nothing twice.

        Raises LinkLost, TimedOut, or what else the wallet answers: it may be paid.
        """


@dataclass(frozen=True, slots=True)
class PricedCase:
    """A settled verdict as the treasury's rules need it (`treasury.book.SettledCase`)."""

    case: str
    request: str
    customer: str
    task: str
    chunk: int
    price_msat: int
    chunk_msat: int
    rate_ppm: int
    drawn_at_ms: int
    agreed: tuple[str, ...]
    payouts: Mapping[str, int]
    computed_units: int

    @classmethod
    def from_finding(cls, finding: PricedVerdict, payouts: Mapping[str, int], computed_units: int) -> PricedCase:
        names = ("case", "request", "customer", "task", "chunk", "price_msat", "chunk_msat", "rate_ppm", "drawn_at_ms")
        facts = {name: getattr(finding, name) for name in names}
        return cls(**facts, agreed=finding.agreed, payouts=payouts, computed_units=computed_units)

    def document(self) -> dict[str, Any]:
        return asdict(self)


class QuorumTreasury:
    """For one committee, by the book of its registrar, whose key is `public`."""

    def __init__(
        self,
        public: str,
        committee: Committee,
        book: Book,
        cashier: Cashier,
        delay_s: int,
        *,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._public, self._committee, self._book, self.cashier = public, committee, book, cashier
        self._delay_s, self._time_s = delay_s, time_s
        pots = self._treasury.pots.items()
        self._pots = [(pot.quiet_since_s + delay_s, request) for request, pot in pots if not pot.is_closed]
        heapq.heapify(self._pots)
        self._bound = {one.payment_hash for one in self._treasury.payouts.values() if one.state == "bound"}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _treasury(self) -> TreasuryBook:
        return self._book.treasury

    @property
    def pool_msat(self) -> int:
        return self._treasury.pool_msat

    # Shares

    def book_shares(self, said: ShareStatement) -> int:
        if said.holder != self._public:
            raise NotAllowed("holder", "the statement is for another")
        said.check()
        now_s, paid_msat = int(self._time_s()), self.cashier.paid_msat(said.customer)
        with self._book.transaction():
            before = self._treasury
            if before.with_statement(said, paid_msat, self._committee.fee_ppm, now_s) is not before:
                self._book.keep_statement(said)
                heapq.heappush(self._pots, (now_s + self._delay_s, said.request))
        return self.ahead_msat(said.customer)

    def ahead_msat(self, customer: str) -> int:
        return self.cashier.paid_msat(customer) - self._treasury.stated_msat(customer)

    def pot(self, request: str) -> tuple[int, int]:
        self._close_pots()
        pot = self._treasury.pots.get(request, Pot())
        return pot.received_msat, pot.left_msat

    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None) -> int:
        return self._treasury.share_msat(request, customer, chunk, before_ms)

    def _close_pots(self) -> None:
        now_s = int(self._time_s())
        while self._pots and self._pots[0][0] <= now_s:
            _, request = heapq.heappop(self._pots)
            pot = self._treasury.pots.get(request, Pot(is_closed=True))
            if not pot.is_closed and pot.quiet_since_s + self._delay_s <= now_s:
                with self._book.transaction():
                    self._treasury.with_closed_pot(request)

    # Verdicts

    def price(self, finding: PricedVerdict, payouts: Mapping[str, int]) -> None:
        """Keep what a verdict that is being settled gives out of the treasury. To be called in a transaction."""
        units = self._treasury.computed_units(
            finding.request, finding.customer, finding.chunk, finding.share_msat, finding.drawn_at_ms
        )
        self._book.price(finding.case, PricedCase.from_finding(finding, payouts, units).document())

    def _case(self, case: str) -> PricedCase:
        """Raises NotFound."""
        said = self._book.priced(case)
        return PricedCase(**{**said, "agreed": tuple(said["agreed"])})

    def dues_of(self, case: str) -> dict[str, int]:
        """What a settled verdict still gives out of the treasury, by payee."""
        try:
            priced = self._case(case)
        except NotFound:  # settled before there was a treasury
            return {}
        payees = [payee for payee in priced.agreed if payee not in priced.payouts]
        return {payee: msat for payee in payees if (msat := self._treasury.verifier_due_msat(priced, payee))}

    def claim(self, payee: str, case: str) -> int:
        self._close_pots()
        priced, key = self._case(case), credit_key(case, payee)
        with self._book.transaction():
            due_msat = self._treasury.verifier_due_msat(priced, payee)
            if due_msat:
                self._treasury.with_verifiers_pay(priced, payee, due_msat)
                return due_msat
            if key in self._treasury.credits:
                return self._treasury.credits[key]
        raise PaymentFailed("treasury", "no share that came before the draw covers it")

    # Payouts

    def due_msat(self, payee: str) -> int:
        return self._treasury.due_msat(payee) + self._fee_msat(payee)

    def payable_msat(self, payee: str) -> int:
        """The most in whole units that what is due pays, with the most that its route may cost."""
        due_msat, unit_msat = self.due_msat(payee), self.cashier.unit_msat
        amount_msat = max(0, due_msat - self.cashier.most_fee_msat(due_msat)) // unit_msat * unit_msat
        return amount_msat if amount_msat + self.cashier.most_fee_msat(amount_msat) <= due_msat else 0

    def _fee_msat(self, oracle: str) -> int:
        oracles = self._committee.oracles
        return self._treasury.fee_msat(oracle, len(oracles)) if self._committee.oracle(oracle) is not None else 0

    async def payout(self, payee: str, bolt11: str) -> InvoicePayout:
        asked = self.cashier.read(bolt11)
        payment_hash = asked.payment_hash
        if asked.amount_msat % self.cashier.unit_msat:
            raise BadInvoice("amount", f"{asked.amount_msat} msat is no multiple of {self.cashier.unit_msat} msat")
        reserve_msat = self.cashier.most_fee_msat(asked.amount_msat)
        with self._book.transaction():
            if payment_hash not in self._treasury.payouts:
                self._treasury.check_room(payee)
                if (fee_msat := self._fee_msat(payee)) > 0:
                    self._treasury.with_fee(payee, fee_msat)
            payout = InvoicePayout(payment_hash, payee, asked.bolt11, asked.amount_msat, reserve_msat)
            self._treasury.with_payout(payout)
        self._bound.add(payment_hash)
        return await self._send(payment_hash)

    async def _send(self, payment_hash: str) -> InvoicePayout:
        """Have a bound payout paid, or learn what became of it; the payout as it stands then."""
        async with self._locks.setdefault(payment_hash, asyncio.Lock()):
            one = self._treasury.payouts[payment_hash]
            if one.state == "bound":
                try:
                    state, fee_msat = await self.cashier.pay(one.bolt11)
                except NodewireError as error:  # it may be paid: it stays bound until the wallet says more
                    _log.info("the payout by %s is not settled yet: %s", payment_hash[:8], error)
                    return one
                with self._book.transaction():
                    if state == "settled":
                        self._treasury.with_payment(payment_hash, fee_msat)
                    elif state == "failed":
                        self._treasury.with_failure(payment_hash)
                one = self._treasury.payouts[payment_hash]
            if one.state != "bound":
                self._bound.discard(payment_hash)
            return one

    async def sweep(self) -> None:
        """Take the steps that time brings, and settle payouts that were bound, also by an earlier process."""
        self._close_pots()
        for payment_hash in list(self._bound):
            await self._send(payment_hash)
