"""The holder at work: it checks what is asked for, and takes the step in its book. It believes no presenter.

Everything that moves coins is a step that the journal holds before it counts, and may be asked for again. Payouts go
through three: bound to an invoice, offered, settled; after a crash `resume` ends what was begun.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, BadInvoice, NodewireError, NotAllowed, NotFound, PaymentFailed
from nodewire.nostr.event import Event
from nodewire.nostr.event import parse as parse_event
from nodewire.pay.bond import settlement
from nodewire.pay.bond.treasury.book import Pot, credit_key
from nodewire.pay.lightning import invoices
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job import request as job
from nodewire.protocol.market import bond as statements
from nodewire.protocol.verification import verdict
from simnet.shares import Shares
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
    UnbondRequest,
    VerdictStep,
)

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bonds import Bond
    from nodewire.pay.bond.settlement import PricedVerdict
    from nodewire.pay.bond.treasury.book import InvoicePayout, TreasuryBook
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.share_statement import ShareStatement
    from simnet.holder_book import Deposit
    from simnet.service import Simnet

log = logging.getLogger("nodewire.pay.treasurer")

VERDICT_EPOCHS = 16
"""A root is certified by its deadline epoch (closed + 2), drawn in the next, open to verifiers for 6 more; a dispute
has the rest. No bond is free sooner after the last statement about it."""
STATEMENT_S = 3_600
MAX_LOCK_S = 5 * 366 * 86_400
MAX_KEY_CHARS = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """`delay_s` from a bond's release to its coins; a statement is good for `statement_s`; seconds."""

    delay_s: int
    statement_s: int = STATEMENT_S

    @classmethod
    def for_committee(cls, committee: Committee, statement_s: int = STATEMENT_S, delay_s: int | None = None) -> Rules:
        """With the shortest delay that covers the committee's verdicts, or a longer one.

        Raises:
            BadInput: shorter than that, or no time at all.

        """
        least_s = -(-VERDICT_EPOCHS * committee.epoch_ms // 1000)
        if delay_s is not None and delay_s < least_s:
            raise BadInput("unbonding_s", f"{VERDICT_EPOCHS} epochs of this committee are {least_s} s")
        if statement_s < 1:
            raise BadInput("statement_s", "less than a second")
        return cls(least_s if delay_s is None else delay_s, statement_s)


class Treasurer:
    """Holder of bonds and treasurer for `committee`, signing with `keys`, with an account on `simnet`."""

    def __init__(self, simnet: Simnet, keys: Keys, committee: Committee, rules: Rules | None = None) -> None:
        self._simnet = simnet
        self._keys = keys
        self._committee = committee
        self.rules = rules or Rules.for_committee(committee)
        self._due: list[tuple[int, str, str]] = []
        self._watching: set[tuple[int, str, str]] = set()
        if not simnet.book.node:
            node, _ = simnet.open_account("bonds and treasury", 0)
            simnet.apply(HolderSeat(node))
        for deposit in simnet.book.deposits.values():
            self._watch(deposit.bond)
        for request, pot in self._treasury.pots.items():
            if not pot.is_closed:
                self._watch_pot(request, pot.quiet_since_s)
        self.shares = Shares(simnet, keys)
        self._bound = {one.payment_hash for one in self._treasury.payouts.values() if one.state == "bound"}
        self.resume()

    @property
    def public(self) -> str:
        return self._keys.public

    @property
    def committee(self) -> Committee:
        return self._committee

    @property
    def _treasury(self) -> TreasuryBook:
        return self._simnet.book.treasury

    # Bonds

    def lock(self, account: str, provider: str, key: str, amount_msat: int, until_s: int) -> Deposit:
        """A bond of `provider` out of `account`; asked again with the same `key`, the same bond.

        Raises:
            BadInput: an impossible amount or end.
            NotAllowed: the provider has a bond already or was convicted; the key stood for something else.
            PaymentFailed: the account has too little.

        """
        self.sweep()
        bond = canonical.digest("nodewire/bond/1", [account, provider, _key(key)])
        if bond not in self._simnet.book.deposits and not 0 < until_s - self._now_s() <= MAX_LOCK_S:
            raise BadInput("until_s", f"not within the next {MAX_LOCK_S} s")
        self._simnet.apply(BondLock(bond, account, provider, amount_msat, until_s))
        return self._watched(bond)

    def top_up(self, account: str, provider: str, key: str, amount_msat: int, until_s: int) -> Deposit:
        """More coins (0: none), a later end, or both, for the provider's bond. Raises as `lock`, and NotFound."""
        self.sweep()
        deposit = self._own(account, provider)
        if until_s - self._now_s() > MAX_LOCK_S:
            raise BadInput("until_s", f"not within the next {MAX_LOCK_S} s")
        self._simnet.apply(BondRaise(deposit.bond.id, _key(key), amount_msat, until_s))
        return self._watched(deposit.bond.id)

    def bond(self, provider: str) -> Deposit:
        """The provider's newest bond. Raises NotFound."""
        self.sweep()
        deposit = self._simnet.book.find_deposit(provider)
        if deposit is None:
            raise NotFound("provider", "it never had a bond here")
        return deposit

    def statement(self, provider: str) -> Event:
        """The signed statement (kind 8858) about the provider's bond.

        A new one comes when half its time is over, or when the amount has changed.

        Raises:
            NotFound: it never had a bond.
            NotAllowed: the bond is no longer locked.

        """
        deposit, now_s = self.bond(provider), self._now_s()
        bond = deposit.bond
        if bond.state != "locked":
            raise NotAllowed("bond", f"it is {bond.state}; nothing is stated of it any more")
        if deposit.statement:
            event = parse_event(deposit.statement)
            said = statements.parse(event)
            half_s = min(self.rules.statement_s // 2, bond.until_s - said.expires_at_s)
            if said.amount_msat == bond.remainder_msat and said.expires_at_s - now_s > half_s:
                return event
        expires_at_s = min(bond.until_s, now_s + self.rules.statement_s)
        event = statements.build(self._keys, provider, bond.remainder_msat, expires_at_s=expires_at_s, created_at=now_s)
        self._simnet.apply(StatementStep(bond.id, max(expires_at_s, bond.stated_until_s), event.to_json()))
        return event

    def release(self, account: str, provider: str) -> Deposit:
        """Ask for the provider's bond back: it is free `delay_s` after now or the last statement's end.

        Raises:
            NotFound: it never had a bond.
            NotAllowed: another account's, or slashed.

        """
        self.sweep()
        deposit = self._own(account, provider)
        self._simnet.apply(UnbondRequest(deposit.bond.id, self._now_s(), self.rules.delay_s))
        return self._watched(deposit.bond.id)

    # Verdicts

    def present(self, certificate: Event, request: Event) -> VerdictStep:
        """Settle a certified verdict; both events are verified. Presented again, the first settlement stands.

        A verdict that no bond answers for is settled, too, and says so in `refused`: its verifiers are paid.

        Raises:
            BadQuorum, BadInput ...: the certificate does not hold, or the request is not its job's.
            NotAllowed: another verdict on the same sample was settled before.

        """
        certified = verdict.parse(certificate)
        certified.check(self._committee)
        finding = settlement.find(certified.verdict, job.parse(request), self._committee)
        units = self._treasury.computed_units(
            finding.request, finding.customer, finding.chunk, finding.share_msat, finding.drawn_at_ms
        )
        finding = replace(finding, computed_units=units)
        self.sweep()
        known = self._simnet.book.cases.get(finding.case)
        if known is not None and known.digest == finding.digest:
            return known
        judged = self._judged(finding)
        self._simnet.apply(judged)
        for bond in (judged.bond, *judged.burnt):
            if bond:
                self._watch(self._simnet.book.deposit(bond).bond)
        if judged.refused:
            log.warning("verdict on %s: %s of %s refused: %s", *_words(judged))
        return judged

    def _judged(self, finding: PricedVerdict) -> VerdictStep:
        deposit = self._simnet.book.find_deposit(finding.culprit) if finding.culprit else None
        bond, refused, given, forfeit_msat = "", "", dict[str, int](), 0
        if finding.culprit and deposit is None:
            refused = "it never had a bond here"
        elif deposit is not None and not deposit.bond.is_liable:
            refused = f"its bond is {deposit.bond.state} since {deposit.bond.frees_at_s}"
        elif deposit is not None:
            bond = deposit.bond.id
            following = self._treasury.following(
                finding.request, finding.customer, finding.chunk, finding.share_msat, finding.drawn_at_ms
            )
            given = settlement.payouts(finding, following=following, payable_msat=deposit.bond.payable_msat)
            left_msat = deposit.bond.remainder_msat - sum(given.values())
            forfeit_msat = settlement.forfeit_msat(finding, remainder_msat=left_msat)
        theirs = [self._simnet.book.find_deposit(accomplice) for accomplice in finding.accomplices]
        return VerdictStep(
            case=finding.case,
            digest=finding.digest,
            request=finding.request,
            outcome=finding.outcome,
            customer=finding.customer,
            task=finding.task,
            chunk=finding.chunk,
            price_msat=finding.price_msat,
            chunk_msat=finding.chunk_msat,
            rate_ppm=finding.rate_ppm,
            drawn_at_ms=finding.drawn_at_ms,
            agreed=list(finding.agreed),
            culprit=finding.culprit,
            slashes=finding.slashes,
            bond=bond,
            payouts=given,
            refused=refused,
            at_s=self._now_s(),
            delay_s=self.rules.delay_s,
            forfeit_msat=forfeit_msat,
            computed_units=finding.computed_units,
            burnt=[one.bond.id for one in theirs if one is not None and one.bond.is_liable],
        )

    def case(self, case: str) -> VerdictStep:
        """Raises NotFound."""
        return self._simnet.book.case(case)

    def case_due_msat(self, case: str, payee: str) -> int:
        """What a settled case still gives `payee`: nothing if it was credited. Raises NotFound, NotAllowed."""
        return self._simnet.book.case_due_msat(case, payee)

    # What is due, and payouts

    def claim(self, payee: str, case: str) -> int:
        """Put what a settled case gives `payee` to its dues; asked again, the first time stands. Returns msat.

        Raises:
            NotFound, NotAllowed: no such case, or it gives this key nothing.
            PaymentFailed: the treasury does not hold it yet, or no share covers it.

        """
        self.sweep()
        due_msat = self._simnet.book.case_due_msat(case, payee)
        if due_msat:
            self._simnet.apply(DueCredit(case, payee, due_msat))
        elif (key := credit_key(case, payee)) in self._treasury.credits:
            return self._treasury.credits[key]
        else:
            raise PaymentFailed("treasury", "no share that came before the draw covers it")
        return due_msat

    def due_msat(self, payee: str) -> int:
        """What is due to `payee`, an oracle's part of the fees included."""
        self.sweep()
        return self._treasury.due_msat(payee) + self._fee_msat(payee)

    def payable_msat(self, payee: str) -> int:
        """What of it can be paid now, in whole units."""
        due_msat = self.due_msat(payee)
        return due_msat - due_msat % self._simnet.unit_msat

    def _fee_msat(self, oracle: str) -> int:
        oracles = self._committee.oracles
        return self._treasury.fee_msat(oracle, len(oracles)) if self._committee.oracle(oracle) is not None else 0

    async def payout(self, payee: str, bolt11: str) -> InvoicePayout:
        return self.pay_out(payee, bolt11)

    def pay_out(self, payee: str, bolt11: str) -> InvoicePayout:
        """Pay `payee` (authenticated) a part of what is due to it by its invoice. Again is no error, and pays nothing.

        Raises:
            BadInvoice: not an open invoice of this network.
            PaymentFailed: so much is not due.
            NotAllowed: the invoice served before, or too many of the payee's are under way.

        """
        self.sweep()
        asked = invoices.decode(bolt11, network=invoices.REGTEST)
        if asked.payment_hash not in self._treasury.payouts:
            invoice = self._simnet.state.invoices.get(asked.payment_hash)
            if invoice is None or invoice.bolt11 != asked.bolt11:
                raise BadInvoice("invoice", "no node of this network knows it")
            if invoice.phase != "open" or invoice.payee == self._simnet.book.node:
                raise BadInvoice("invoice", f"it is {invoice.phase}" if invoice.phase != "open" else "the holder's own")
            self._treasury.check_room(payee)
            if (fee_msat := self._fee_msat(payee)) > 0:
                self._simnet.apply(DueCredit(FEES, payee, fee_msat))
        self._simnet.apply(PayoutClaim(payee, asked.payment_hash, asked.bolt11, asked.amount_msat))
        self._bound.add(asked.payment_hash)
        self._send(self._treasury.payouts[asked.payment_hash])
        return self._treasury.payouts[asked.payment_hash]

    def _send(self, payout: InvoicePayout) -> None:
        if payout.state == "bound":
            self._simnet.pay(self._simnet.book.node, payout.bolt11, 0)

    def _end_payouts(self) -> None:
        """What was paid is done with; an invoice that can never be paid any more gives back what was bound to it."""
        for payment_hash in list(self._bound):
            invoice = self._simnet.state.invoice(payment_hash)
            if invoice.phase in ("expired", "cancelled") or invoice.payer not in (None, self._simnet.book.node):
                self._simnet.apply(ClaimLapse(payment_hash))
            if self._treasury.payouts[payment_hash].state != "bound":
                self._bound.discard(payment_hash)

    def resume(self) -> None:
        """Pay what was bound before the process died."""
        self._simnet.sweep()
        self._end_payouts()
        for payment_hash in list(self._bound):
            try:
                self._send(self._treasury.payouts[payment_hash])
            except NodewireError as error:  # it stays bound until the payee asks again
                log.warning("payout by %s: %s", payment_hash[:8], error)

    # The treasury

    def book_shares(self, said: ShareStatement) -> int:
        """Book a customer's statement of shares. Again is no error. Returns what the customer has left ahead, in msat.

        Raises:
            BadSignature: the customer did not sign it.
            NotAllowed: it is for another holder, or a chunk's share was stated otherwise.
            PaymentFailed: the customer has not paid so much ahead.

        """
        if said.holder != self.public:
            raise NotAllowed("holder", "the statement is for another")
        said.check()
        self.sweep()
        now_s = self._now_s()
        self._simnet.apply(ShareEntry(said.to_json(), self._committee.fee_ppm, now_s))
        self._watch_pot(said.request, now_s)
        return self.ahead_msat(said.customer)

    def ahead_msat(self, customer: str) -> int:
        """What a customer has paid ahead."""
        self.sweep()
        return self._simnet.book.ahead_msat(customer)

    def pot(self, request: str) -> tuple[int, int]:
        """What came in for a request, less fees, and what is left of it, in msat."""
        self.sweep()
        pot = self._treasury.pots.get(request, Pot())
        return pot.received_msat, pot.left_msat

    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None) -> int:
        """What the customer's share for one chunk of the job came to, fee included."""
        self.sweep()
        return self._treasury.share_msat(request, customer, chunk, before_ms)

    @property
    def pool_msat(self) -> int:
        return self._treasury.pool_msat

    # Time

    def sweep(self) -> None:
        """Take the steps that time brings: bonds end and are freed, pots are closed."""
        self._simnet.sweep()
        self._end_payouts()
        now_s = self._now_s()
        while self._due and self._due[0][0] <= now_s:
            due = heapq.heappop(self._due)
            self._watching.discard(due)
            _, kind, id_ = due
            if kind == "pot":
                self._close(id_, now_s)
            else:
                self._step(id_, now_s)

    def next_deadline_s(self) -> int | None:
        return self._due[0][0] if self._due else None

    def _step(self, id_: str, now_s: int) -> None:
        bond = self._simnet.book.deposits[id_].bond
        if bond.state == "locked" and bond.until_s <= now_s:
            self._simnet.apply(UnbondRequest(id_, bond.until_s, self.rules.delay_s))
        elif bond.state in ("unbonding", "slashed") and bond.frees_at_s <= now_s:
            self._simnet.apply(BondRelease(id_, now_s))
        else:
            return  # an earlier deadline of a bond that has a later one, too
        self._watch(self._simnet.book.deposits[id_].bond)

    def _close(self, request: str, now_s: int) -> None:
        pot = self._treasury.pots[request]
        if not pot.is_closed and pot.quiet_since_s + self.rules.delay_s <= now_s:
            self._simnet.apply(RequestClosure(request, now_s))  # else a later share is watched for itself

    def _watch(self, bond: Bond) -> None:
        due = (bond.until_s if bond.state == "locked" else bond.frees_at_s, "bond", bond.id)
        if bond.is_liable and due not in self._watching:
            heapq.heappush(self._due, due)
            self._watching.add(due)

    def _watch_pot(self, request: str, quiet_since_s: int) -> None:
        due = (quiet_since_s + self.rules.delay_s, "pot", request)
        if due not in self._watching:
            heapq.heappush(self._due, due)
            self._watching.add(due)

    def _watched(self, bond: str) -> Deposit:
        deposit = self._simnet.book.deposit(bond)
        self._watch(deposit.bond)
        return deposit

    def _own(self, account: str, provider: str) -> Deposit:
        deposit = self._simnet.book.find_deposit(provider)
        if deposit is None:
            raise NotFound("provider", "it never had a bond here")
        if deposit.account != account:
            raise NotAllowed("account", "the bond came from another account")
        return deposit

    def _now_s(self) -> int:
        return int(self._simnet.time_s())


def _key(key: str) -> str:
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise BadInput("key", f"not 1 to {MAX_KEY_CHARS} characters")
    return key


def _words(judged: VerdictStep) -> tuple[str, str, str, str]:
    what = "slash" if judged.slashes else "refund"
    return judged.case[:8], what, judged.culprit[:8], judged.refused
