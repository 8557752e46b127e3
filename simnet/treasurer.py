"""The holder at work: it checks what is asked for, and takes the step in its book. It believes no presenter.

Everything that moves coins is a step that the journal holds before it counts, and may be asked for again. Claims go
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
from nodewire.pay.lightning import invoices
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job import request as job
from nodewire.protocol.market import bond as statements
from nodewire.protocol.verification import verdict
from simnet.holder_book import Claim, Deposit, claim_key
from simnet.shares import Shares
from simnet.steps import (
    FEES,
    BondLock,
    BondRaise,
    BondRelease,
    ClaimLapse,
    HolderSeat,
    PayoutClaim,
    RequestClosure,
    StatementStep,
    UnbondRequest,
    VerdictStep,
    ZapQuote,
)

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bonds import Bond
    from nodewire.pay.bond.settlement import PricedVerdict
    from nodewire.protocol.committee.committee import Committee
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
        for quote in simnet.book.quotes.values():
            self._watch_pot(quote)
        self.shares = Shares(simnet, keys, committee.fee_ppm, self._watch_pot)
        self.resume()

    @property
    def public(self) -> str:
        return self._keys.public

    @property
    def committee(self) -> Committee:
        return self._committee

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
        units = self._simnet.book.computed_units(
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
            following = self._simnet.book.following(
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

    def due_msat(self, case: str, payee: str) -> int:
        """What a settled case still has for `payee`: nothing if it is paid. Raises NotFound, NotAllowed."""
        claim = self._simnet.book.claims.get(claim_key(case, payee))
        return 0 if claim is not None and claim.is_paid else self._simnet.book.entitlement(case, payee)

    # Payouts

    def claim(self, payee: str, case: str, bolt11: str) -> Claim:
        """Pay what a settled case gives `payee` (authenticated) by its invoice; asked again, the first payment stands.

        Raises:
            NotFound, NotAllowed: no such case, or it gives this key nothing.
            BadInvoice: not an open invoice of this network for exactly the amount.
            PaymentFailed: the treasury does not hold it yet.

        """
        self.sweep()
        self._lapse(claim_key(case, payee))
        due_msat = self._simnet.book.entitlement(case, payee)
        if not due_msat and claim_key(case, payee) not in self._simnet.book.claims:
            raise PaymentFailed("treasury", "no share that came before the draw covers it")
        return self._pay(payee, case, bolt11, due_msat)

    def fee_msat(self, oracle: str) -> int:
        """What an oracle of the committee may take of the fees. Raises NotAllowed for anybody else."""
        if self._committee.oracle(oracle) is None:
            raise NotAllowed("payee", "no oracle of the committee")
        book = self._simnet.book
        return book.fees_msat // len(self._committee.oracles) - book.taken.get(oracle, 0)

    def claim_fee(self, oracle: str, bolt11: str) -> Claim:
        """Pay an oracle (authenticated) at most its part of the fees by its invoice. Raises as `claim`."""
        asked = invoices.decode(bolt11, network=invoices.REGTEST)
        ref, left_msat = f"{FEES}/{asked.payment_hash}", self.fee_msat(oracle)
        if claim_key(ref, oracle) not in self._simnet.book.claims and asked.amount_msat > left_msat:
            raise NotAllowed("amount_msat", f"{left_msat} msat are due, not {asked.amount_msat} msat")
        return self._pay(oracle, ref, bolt11, asked.amount_msat)

    def _pay(self, payee: str, ref: str, bolt11: str, amount_msat: int) -> Claim:
        self.sweep()
        key = claim_key(ref, payee)
        self._lapse(key)
        known = self._simnet.book.claims.get(key)
        if known is None:
            asked = invoices.decode(bolt11, network=invoices.REGTEST)
            invoice = self._simnet.state.invoices.get(asked.payment_hash)
            if invoice is None or invoice.bolt11 != asked.bolt11:
                raise BadInvoice("invoice", "no node of this network knows it")
            if invoice.phase != "open" or invoice.payee == self._simnet.book.node:
                raise BadInvoice("invoice", f"it is {invoice.phase}" if invoice.phase != "open" else "the holder's own")
            if asked.amount_msat != amount_msat:
                raise BadInvoice("amount", f"{amount_msat} msat are due, not {asked.amount_msat} msat")
            self._simnet.apply(PayoutClaim(ref, payee, asked.payment_hash, asked.bolt11, amount_msat))
        self._send(self._simnet.book.claims[key])
        return self._simnet.book.claims[key]

    def _send(self, claim: Claim) -> None:
        if not claim.is_paid:
            self._simnet.pay(self._simnet.book.node, claim.event.bolt11, 0)

    def _lapse(self, key: str) -> None:
        """Unbind a claim whose invoice the holder can never pay any more."""
        claim = self._simnet.book.claims.get(key)
        if claim is None or claim.is_paid:
            return
        invoice = self._simnet.state.invoice(claim.event.payment_hash)
        if invoice.phase in ("expired", "cancelled") or invoice.payer not in (None, self._simnet.book.node):
            self._simnet.apply(ClaimLapse(claim.event.ref, claim.event.payee, claim.event.payment_hash))

    def resume(self) -> None:
        """Pay what was bound before the process died."""
        self._simnet.sweep()
        for claim in list(self._simnet.book.claims.values()):
            if claim.is_paid:
                continue
            try:
                self._send(claim)
            except NodewireError as error:  # it stays bound until the payee asks again
                log.warning("claim of %s: %s", claim.event.payee[:8], error)

    # The treasury

    def pot(self, request: str) -> tuple[int, int]:
        """What came in for a request, less fees, and what is left of it, in msat."""
        self.sweep()
        pot = self._simnet.book.pots.get(request)
        return (pot.received_msat, pot.left_msat) if pot is not None else (0, 0)

    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None) -> int:
        """What the customer has zapped for one chunk of the job, fee included."""
        self.sweep()
        return self._simnet.book.share_msat(request, customer, chunk, before_ms)

    @property
    def pool_msat(self) -> int:
        return self._simnet.book.pool_msat

    # Time

    def sweep(self) -> None:
        """Take the steps that time brings: bonds end and are freed, pots are closed."""
        self._simnet.sweep()
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
        pot = self._simnet.book.pots.get(request)
        if pot is not None and not pot.is_closed:
            closes_at_s = pot.quiet_since_s + self.rules.delay_s
            if closes_at_s <= now_s:
                self._simnet.apply(RequestClosure(request, now_s))
            else:
                heapq.heappush(self._due, (closes_at_s, "pot", request))

    def _watch(self, bond: Bond) -> None:
        due = (bond.until_s if bond.state == "locked" else bond.frees_at_s, "bond", bond.id)
        if bond.is_liable and due not in self._watching:
            heapq.heappush(self._due, due)
            self._watching.add(due)

    def _watch_pot(self, quote: ZapQuote) -> None:
        heapq.heappush(self._due, (quote.expires_at_s + self.rules.delay_s, "pot", quote.request))

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
