"""The book of the bond holder and treasurer: whose the coins on its account are. Pure: no I/O, no clock.

The holder is one node of the network. What its account has (and what its own payments hold in flight) is at every
moment the sum of: bonds that are not over, payouts of them that nobody has claimed, what customers have paid ahead, and
all that the treasury's book (`nodewire.pay.bond.treasury.book`) has. Applying an event twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from nodewire.core.persistent_map import PersistentMap
from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.pay.bond import bonds
from nodewire.pay.bond.bonds import Bond, Payout
from nodewire.pay.bond.treasury.book import InvoicePayout, TreasuryBook, credit_key
from nodewire.protocol.job.share_statement import ShareStatement
from simnet.network import CoinTransfer
from simnet.steps import (
    FEES,
    BondLock,
    BondRaise,
    BondRelease,
    ClaimLapse,
    DueCredit,
    HolderSeat,
    PayoutClaim,
    RequestClosure,
    ShareEntry,
    StatementStep,
    Step,
    UnbondRequest,
    VerdictStep,
    ZapQuote,
)


@dataclass(frozen=True, slots=True)
class Deposit:
    """A bond, whose coins it is, and the newest statement about it (JSON)."""

    bond: Bond
    locked: BondLock
    statement: str = ""

    @property
    def account(self) -> str:
        return self.locked.account


def _empty() -> TreasuryBook:
    nothing: PersistentMap[Any] = PersistentMap()
    return TreasuryBook(*(nothing for _ in fields(TreasuryBook)))


@dataclass(frozen=True, slots=True)
class HolderBook:
    node: str = ""
    deposits: PersistentMap[Deposit] = field(default_factory=PersistentMap)
    newest: PersistentMap[str] = field(default_factory=PersistentMap)
    """By provider, the id of its newest bond."""
    cases: PersistentMap[VerdictStep] = field(default_factory=PersistentMap)
    quotes: PersistentMap[ZapQuote] = field(default_factory=PersistentMap)
    """By payment hash."""
    received: PersistentMap[int] = field(default_factory=PersistentMap)
    """When each lump came in, by payment hash."""
    lumps: PersistentMap[int] = field(default_factory=PersistentMap)
    """All that a customer ever paid ahead."""
    treasury: TreasuryBook = field(default_factory=_empty)

    def deposit(self, bond: str) -> Deposit:
        """Raises NotFound."""
        if bond not in self.deposits:
            raise NotFound("bond", "no such bond")
        return self.deposits[bond]

    def find_deposit(self, provider: str) -> Deposit | None:
        """The provider's newest bond."""
        return self.deposits[self.newest[provider]] if provider in self.newest else None

    def case(self, case: str) -> VerdictStep:
        """Raises NotFound."""
        if case not in self.cases:
            raise NotFound("case", "no verdict on it was presented")
        return self.cases[case]

    def ahead_msat(self, customer: str) -> int:
        """What a customer has paid, and not stated yet."""
        return self.lumps.get(customer, 0) - self.treasury.stated_msat(customer)

    def case_due_msat(self, ref: str, payee: str) -> int:
        """What the settled case `ref` still gives `payee`, in msat; 0 if it was credited.

        Raises:
            NotFound: no such case.
            NotAllowed: it gives the payee nothing.

        """
        case = self.case(ref)
        if payee not in case.payouts:
            return self.treasury.verifier_due_msat(case, payee)
        return 0 if credit_key(ref, payee) in self.treasury.credits else case.payouts[payee]

    def owed_msat(self) -> int:
        """Everything that the holder's account is kept for."""
        total = self.treasury.owed_msat() + sum(self.lumps.values()) - sum(self.treasury.stated.values())
        for deposit in self.deposits.values():
            total += deposit.bond.remainder_msat if deposit.bond.is_liable else 0
        for case in self.cases.values():
            total += sum(self.case_due_msat(case.case, payee) for payee in case.payouts)
        return total


def movement(event: Step, before: HolderBook) -> CoinTransfer | None:
    """What `event` moves between the holder's account and others, if the book `before` does not have it yet."""
    match event:
        case BondLock(bond, account, _, amount_msat, _):
            return CoinTransfer(bond, account, before.node, amount_msat)
        case BondRaise(bond, key, amount_msat, _) if amount_msat:
            return CoinTransfer(f"{bond}/{key}", before.deposit(bond).account, before.node, amount_msat)
        case BondRelease(id_, _):
            deposit = before.deposit(id_)
            if deposit.bond.state == "unbonding" and deposit.bond.remainder_msat:
                return CoinTransfer(f"{id_}/free", before.node, deposit.account, deposit.bond.remainder_msat)
    return None


def apply(event: Step, book: HolderBook) -> HolderBook:
    """The book after `event`; the same book if the event has been applied before.

    Raises:
        NotFound, NotAllowed, BadInput: the event does not fit what stands in the book.
        PaymentFailed: the treasury does not hold what a claim asks for.

    """
    match event:
        case HolderSeat(node):
            return _seat(node, book)
        case BondLock():
            return _lock(event, book)
        case BondRaise(bond, key, amount_msat, until_s):
            return _transition(book, bond, bonds.Raise(key, amount_msat, until_s))
        case StatementStep():
            return _keep_statement(event, book)
        case UnbondRequest(bond, at_s, delay_s):
            return _transition(book, bond, bonds.Unbond(at_s, delay_s))
        case BondRelease():
            return _release(event, book)
        case VerdictStep():
            return _judge(event, book)
        case ZapQuote() | ShareEntry() | DueCredit() | PayoutClaim() | ClaimLapse() | RequestClosure():
            return _keep_treasury(event, book)


def _keep_treasury(event: Step, book: HolderBook) -> HolderBook:
    match event:
        case ZapQuote():
            return book if event.payment_hash in book.quotes else _with_quote(event, book)
        case ShareEntry(statement, fee_ppm, at_s):
            said = ShareStatement.parse(statement)
            after = book.treasury.with_statement(said, book.lumps.get(said.customer, 0), fee_ppm, at_s)
        case DueCredit(ref, payee, amount_msat):
            after = _credited(ref, payee, amount_msat, book)
        case PayoutClaim(payee, payment_hash, bolt11, amount_msat, ref):
            if ref and payment_hash not in book.treasury.payouts:
                book = replace(book, treasury=_credited(ref, payee, amount_msat, book))
            after = book.treasury.with_payout(InvoicePayout(payment_hash, payee, bolt11, amount_msat))
        case ClaimLapse(payment_hash):
            after = book.treasury.with_failure(payment_hash)
        case RequestClosure(request, _):
            after = book.treasury.with_closed_pot(request)
        case _:
            return book
    return book if after is book.treasury else replace(book, treasury=after)


def _credited(ref: str, payee: str, amount_msat: int, book: HolderBook) -> TreasuryBook:
    """What a case gives comes out of the convicted's bond, or out of the treasury."""
    if ref.startswith(FEES):
        return book.treasury.with_fee(payee, amount_msat)
    case = book.case(ref)
    if payee not in case.payouts:
        return book.treasury.with_verifiers_pay(case, payee, amount_msat)
    return book.treasury.with_credit(ref, payee, case.payouts[payee])


def _seat(node: str, book: HolderBook) -> HolderBook:
    """The holder's Lightning node, which it has for good."""
    if book.node not in ("", node):
        raise NotAllowed("node", "the holder has another")
    return book if book.node else replace(book, node=node)


def _keep_statement(step: StatementStep, book: HolderBook) -> HolderBook:
    deposit = book.deposit(step.bond)
    if deposit.statement == step.event:
        return book
    after = bonds.apply(bonds.HolderStatement(step.until_s), deposit.bond)
    return _put(book, replace(deposit, bond=after, statement=step.event))


def _release(release: BondRelease, book: HolderBook) -> HolderBook:
    """Of a slashed bond the pool gets what is left."""
    before = book.deposit(release.bond).bond
    after_book = _transition(book, release.bond, bonds.Free(release.at_s))
    burnt_msat = before.remainder_msat if before.state == "slashed" else 0
    return replace(after_book, treasury=after_book.treasury.with_pool(burnt_msat)) if burnt_msat else after_book


def settled(payment_hash: str, payer: str | None, at_s: int, book: HolderBook) -> HolderBook:
    """The book after `payer` has paid an invoice of the network: a lump that came in, or a payout that is paid."""
    if payment_hash in book.quotes and payment_hash not in book.received:
        return _receive(book.quotes[payment_hash], at_s, book)
    if payment_hash in book.treasury.payouts and payer == book.node:
        after = book.treasury.with_payment(payment_hash)
        return book if after is book.treasury else replace(book, treasury=after)
    return book


def _lock(event: BondLock, book: HolderBook) -> HolderBook:
    if event.bond in book.deposits:
        if book.deposits[event.bond].locked != event:
            raise NotAllowed("key", "it stands for another request")
        return book
    newest = book.find_deposit(event.provider)
    if newest is not None and newest.bond.state in ("slashed", "burnt"):
        raise NotAllowed("provider", "convicted; its key gets no new bond")
    if newest is not None and newest.bond.is_liable:
        raise NotAllowed("provider", f"it has a bond that is {newest.bond.state}; one at a time, which can be raised")
    bond = bonds.lock(bonds.Lock(event.bond, event.provider, event.amount_msat, event.until_s))
    after = _put(book, Deposit(bond, event))
    return replace(after, newest=after.newest.including(event.provider, event.bond))


def _judge(event: VerdictStep, book: HolderBook) -> HolderBook:
    if event.case in book.cases:
        if book.cases[event.case].digest == event.digest:
            return book
        raise NotAllowed("case", "another verdict on it stands")
    if (event.payouts or event.forfeit_msat) and not event.bond:
        raise BadInput("payouts", "out of no bond")
    treasury = book.treasury.with_pool(event.forfeit_msat) if event.forfeit_msat else book.treasury
    after = replace(book, cases=book.cases.including(event.case, event), treasury=treasury)
    for accomplices in event.burnt:
        after = _transition(after, accomplices, bonds.Slash(event.case, (), event.at_s, event.delay_s))
    if not event.bond:
        return after
    payouts = tuple(Payout(event.case, payee, amount) for payee, amount in sorted(event.payouts.items()))
    judged: bonds.Refund | bonds.Slash = bonds.Refund(event.case, payouts, event.forfeit_msat)
    if event.slashes:
        judged = bonds.Slash(event.case, payouts, event.at_s, event.delay_s)
    return _transition(after, event.bond, judged)


def _with_quote(event: ZapQuote, book: HolderBook) -> HolderBook:
    if not 0 <= event.fee_msat <= event.amount_msat:
        raise BadInput("fee_msat", "more than the amount")
    return replace(book, quotes=book.quotes.including(event.payment_hash, event))


def _receive(quote: ZapQuote, at_s: int, book: HolderBook) -> HolderBook:
    lumps = book.lumps.including(quote.sender, book.lumps.get(quote.sender, 0) + quote.amount_msat)
    treasury = book.treasury
    if quote.request:
        came = (at_s, quote.amount_msat, quote.fee_msat)
        treasury = treasury.with_share(quote.request, quote.sender, quote.chunk, came)
    received = book.received.including(quote.payment_hash, at_s)
    return replace(book, lumps=lumps, received=received, treasury=treasury)


def _transition(book: HolderBook, bond: str, event: bonds.Event) -> HolderBook:
    deposit = book.deposit(bond)
    after = bonds.apply(event, deposit.bond)
    return book if after is deposit.bond else _put(book, replace(deposit, bond=after))


def _put(book: HolderBook, deposit: Deposit) -> HolderBook:
    return replace(book, deposits=book.deposits.including(deposit.bond.id, deposit))
