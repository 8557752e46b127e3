"""The book of a treasury: whose the money is that came as shares. Pure rules; a holder keeps the tables its own way.

    customer ──lump──▶ paid ahead ──statement──▶ pot of the request ──(nothing more came for a while)──▶ pool
                                                  │ └─ fee ──▶ oracles' parts                             │
                                                  └────────────▶ what a payee is due ◀────────────────────┘
                                                                     └──payout, in whole units──▶ its wallet

The verifiers of one task's chunk get no more than its share covers: the task's part of it, less the fee, divided by the
rate, of what was there before the sample could be known. It comes out of the pot first, then out of the pool. So on
average nobody draws more than was paid in, whatever plan a customer and a provider agree on, and in whatever order
verifiers claim.

A payout is bound to one invoice before that is paid. It is undone only if the invoice can never be paid any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar

from nodewire.errors import BadInput, NotAllowed, PaymentFailed
from nodewire.pay.bond.settlement import funded_units, verifier_pay_msat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodewire.protocol.job.share_statement import ShareStatement

V = TypeVar("V")
POOL, FEES = "pool", "fees"
"""Totals: what belongs to no request, and all fees that ever came in. Each oracle may have an equal part of these."""
MOST_CHUNKS = 2**16
"""Chunks whose shares are looked at. A verdict may be about any number: of a claim it is the claimant's word alone."""
MAX_BOUND = 8
"""Payouts of one payee that are under way."""


class Table(Protocol[V]):
    """A mapping from text. With a change it gives the table after it, which may be itself."""

    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: str, /) -> V: ...
    def get(self, key: str, default: V, /) -> V: ...
    def items(self) -> Iterable[tuple[str, V]]: ...
    def values(self) -> Iterable[V]: ...
    def including(self, key: str, value: V) -> Self: ...
    def without(self, key: str) -> Self: ...


@dataclass(frozen=True, slots=True)
class Share:
    """What one customer's share for one chunk came to, fee included: `came`, when, how much and the fee, in all."""

    amount_msat: int
    came: tuple[tuple[int, int, int], ...] = ()

    def before_ms(self, at_ms: int, *, less_fees: bool = False) -> int:
        """What was there before, by the whole seconds in which it came."""
        early = [(msat, fee_msat) for at_s, msat, fee_msat in self.came if (at_s + 1) * 1000 <= at_ms]
        return sum(msat - fee_msat * less_fees for msat, fee_msat in early)


@dataclass(frozen=True, slots=True)
class Pot:
    """What came in for one request, less fees, and what is left of it. `quiet_since_s`: the last share."""

    received_msat: int = 0
    left_msat: int = 0
    quiet_since_s: int = 0
    is_closed: bool = False
    fees_msat: int = 0
    """The committee's part of what came."""


@dataclass(frozen=True, slots=True)
class InvoicePayout:
    """One invoice by which `payee` is paid. `reserve_msat` is kept for the route, and what is left of it comes back."""

    payment_hash: str
    payee: str
    bolt11: str
    amount_msat: int
    reserve_msat: int = 0
    state: Literal["bound", "paid", "failed"] = "bound"


class SettledCase(Protocol):
    """A verdict that was settled, with the prices of its job's plan. As `settlement.PricedVerdict` says them."""

    @property
    def case(self) -> str: ...
    @property
    def request(self) -> str: ...
    @property
    def customer(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def chunk(self) -> int: ...
    @property
    def price_msat(self) -> int: ...
    @property
    def chunk_msat(self) -> int: ...
    @property
    def rate_ppm(self) -> int: ...
    @property
    def drawn_at_ms(self) -> int: ...
    @property
    def agreed(self) -> Sequence[str]: ...
    @property
    def payouts(self) -> Mapping[str, int]:
        """What the bond gives: the treasury gives these payees nothing for the case."""

    @property
    def computed_units(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TreasuryBook:
    shares: Table[Share]
    """By `share_key`."""
    pots: Table[Pot]
    """By request."""
    stated: Table[int]
    """All that a customer's statements ever came to."""
    dues: Table[int]
    """What stands for a payee, and is bound to no invoice."""
    credits: Table[int]
    """What a case gave a payee, by `credit_key`: it gives once."""
    drawn: Table[int]
    """What verifiers had of pot and pool, by request, task and chunk."""
    taken: Table[int]
    """What each oracle had of the fees."""
    payouts: Table[InvoicePayout]
    """By payment hash."""
    bound: Table[int]
    """How many of a payee's payouts are under way."""
    totals: Table[int]

    # What stands in it

    @property
    def pool_msat(self) -> int:
        return self.totals.get(POOL, 0)

    @property
    def fees_msat(self) -> int:
        return self.totals.get(FEES, 0)

    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None) -> int:
        """What the customer's share for one chunk came to, fee included."""
        share = self._share(request, customer, chunk)
        return share.amount_msat if before_ms is None else share.before_ms(before_ms)

    def following(self, request: str, customer: str, chunk: int, share_msat: int, at_ms: int) -> int:
        """How many chunks right after `chunk` had the customer's whole share before `at_ms`."""
        count = 0
        while share_msat and self._share(request, customer, chunk + count + 1).before_ms(at_ms) >= share_msat:
            count += 1
        return count

    def computed_units(self, request: str, customer: str, chunk: int, unit_msat: int, at_ms: int) -> int:
        """Units for which the customer's shares had come before `at_ms`, up to `chunk`.

        The first of it costs `unit_msat`. At least 1.
        """
        if not unit_msat:
            return 1
        pot, came_msat = self.pots.get(request, Pot()), 0
        unseen_msat = pot.received_msat + pot.fees_msat
        for one in range(min(chunk + 1, MOST_CHUNKS)):
            if not unseen_msat:
                break
            share = self._share(request, customer, one)
            came_msat, unseen_msat = came_msat + share.before_ms(at_ms), unseen_msat - share.amount_msat
        return funded_units(came_msat, unit_msat)

    def covered_msat(self, case: SettledCase) -> int:
        """What the share still covers for the chunk of the task that a verdict is about, in msat."""
        share = self._share(case.request, case.customer, case.chunk)
        if not case.rate_ppm or not case.chunk_msat:
            return 0
        net_msat = share.before_ms(case.drawn_at_ms, less_fees=True)
        part_msat = net_msat * case.price_msat * 1_000_000 // (case.rate_ppm * case.chunk_msat)
        return max(0, part_msat - self.drawn.get(_drawn_key(case), 0))

    def verifier_due_msat(self, case: SettledCase, payee: str) -> int:
        """What a case still gives a verifier out of the treasury: 0 if it has it. Raises NotAllowed: it gives none."""
        if payee in case.payouts or payee not in case.agreed:
            raise NotAllowed("payee", "the verdict gives this key nothing")
        if credit_key(case.case, payee) in self.credits:
            return 0
        return min(verifier_pay_msat(case.price_msat, case.computed_units), self.covered_msat(case))

    def fee_msat(self, oracle: str, oracles: int) -> int:
        """What one of so many oracles has not had of the fees."""
        return self.fees_msat // oracles - self.taken.get(oracle, 0)

    def stated_msat(self, customer: str) -> int:
        """All that a customer's statements came to."""
        return self.stated.get(customer, 0)

    def due_msat(self, payee: str) -> int:
        """What stands for a payee, and is bound to no invoice."""
        return self.dues.get(payee, 0)

    def check_room(self, payee: str) -> None:
        """Raises NotAllowed: too many payouts of a payee are under way."""
        if (count := self.bound.get(payee, 0)) >= MAX_BOUND:
            raise NotAllowed("payee", f"{count} of its payouts are under way")

    def owed_msat(self) -> int:
        """All that is kept for requests, payees and oracles, and not yet on its way."""
        fees_msat = self.fees_msat - sum(self.taken.values())
        bound_msat = sum(one.amount_msat + one.reserve_msat for one in self.payouts.values() if one.state == "bound")
        pots_msat = sum(pot.left_msat for pot in self.pots.values())
        return self.pool_msat + fees_msat + pots_msat + sum(self.dues.values()) + bound_msat

    def _share(self, request: str, customer: str, chunk: int) -> Share:
        return self.shares.get(share_key(request, customer, chunk), Share(0))

    # What changes it

    def with_statement(self, said: ShareStatement, paid_msat: int, fee_ppm: int, at_s: int) -> TreasuryBook:
        """The shares of a statement, which was checked, are booked; the same book if all of them were before.

        `paid_msat` is all that the customer has ever paid ahead. A chunk's share is stated once.

        Raises:
            NotAllowed: a chunk's share was stated otherwise.
            PaymentFailed: the customer has not paid so much ahead. Nothing of the statement is booked then.

        """
        new = []
        for chunk, msat in said.by_chunk():
            known_msat = self._share(said.request, said.customer, chunk).amount_msat
            if not known_msat:
                new.append((chunk, msat))
            elif known_msat != msat:
                raise NotAllowed("shares", f"chunk {chunk} was stated with {known_msat} msat, not {msat} msat")
        ahead_msat = paid_msat - self.stated_msat(said.customer)
        if (total_msat := sum(msat for _, msat in new)) > ahead_msat:
            raise PaymentFailed("balance", f"{ahead_msat} msat are paid ahead, and {total_msat} msat are stated")
        book = self
        for chunk, msat in new:
            pot = book.pots.get(said.request, Pot())
            # Of the request's shares together: of one that is a few msat the part would round to nothing.
            fee_msat = (pot.received_msat + pot.fees_msat + msat) * fee_ppm // 1_000_000 - pot.fees_msat
            book = book.with_share(said.request, said.customer, chunk, (at_s, msat, max(0, fee_msat)))
        return book

    def with_share(self, request: str, customer: str, chunk: int, came: tuple[int, int, int]) -> TreasuryBook:
        """One share, or a part of it, is booked: when it came (unix), how much and the committee's fee, in msat."""
        at_s, msat, fee_msat = came
        pot, share = self.pots.get(request, Pot()), self._share(request, customer, chunk)
        net_msat = msat - fee_msat
        pot = Pot(pot.received_msat + net_msat, pot.left_msat + net_msat, at_s, False, pot.fees_msat + fee_msat)
        key = share_key(request, customer, chunk)
        return replace(
            self,
            pots=self.pots.including(request, pot),
            shares=self.shares.including(key, Share(share.amount_msat + msat, (*share.came, came))),
            stated=_added(self.stated, customer, msat),
            totals=_added(self.totals, FEES, fee_msat),
        )

    def with_verifiers_pay(self, case: SettledCase, payee: str, amount_msat: int) -> TreasuryBook:
        """Put to a verifier's dues what a case gives it: out of the request's own pot first, then out of the pool.

        Raises:
            NotAllowed: the case gives it nothing, or not so much.
            PaymentFailed: pot and pool do not hold it yet. It is given whole or not at all.

        """
        if amount_msat > self.verifier_due_msat(case, payee):
            raise NotAllowed("amount_msat", f"{self.verifier_due_msat(case, payee)} msat are due, not {amount_msat}")
        pot = self.pots.get(case.request, Pot())
        own_msat = min(amount_msat, pot.left_msat)
        if amount_msat - own_msat > self.pool_msat:
            there_msat = pot.left_msat + self.pool_msat
            raise PaymentFailed("treasury", f"{there_msat} msat are there, {amount_msat} msat needed")
        pots = self.pots.including(case.request, replace(pot, left_msat=pot.left_msat - own_msat)) if own_msat else None
        book = replace(
            self,
            pots=self.pots if pots is None else pots,
            drawn=_added(self.drawn, _drawn_key(case), amount_msat),
            totals=_added(self.totals, POOL, own_msat - amount_msat),
        )
        return book.with_credit(case.case, payee, amount_msat)

    def with_credit(self, case: str, payee: str, amount_msat: int) -> TreasuryBook:
        """Put to a payee's dues what a case gives it from elsewhere, as from a bond. Raises NotAllowed: it has it."""
        key = credit_key(case, payee)
        if amount_msat <= 0 or key in self.credits:
            raise NotAllowed("payee", "it has what the verdict gives it")
        return replace(
            self, credits=self.credits.including(key, amount_msat), dues=_added(self.dues, payee, amount_msat)
        )

    def with_fee(self, oracle: str, amount_msat: int) -> TreasuryBook:
        """Put to an oracle's dues a part of the fees. Raises PaymentFailed: so much has not come in."""
        if amount_msat <= 0 or amount_msat > self.fees_msat - sum(self.taken.values()):
            raise PaymentFailed("treasury", "so much in fees has not come in")
        return replace(self, taken=_added(self.taken, oracle, amount_msat), dues=_added(self.dues, oracle, amount_msat))

    def with_payout(self, payout: InvoicePayout) -> TreasuryBook:
        """Bind a part of a payee's dues to an invoice; the same book if it is bound to it.

        Raises:
            NotAllowed: the invoice serves another payout, or failed before.
            PaymentFailed: less than that is due.
            BadInput: it is for nothing.

        """
        if payout.payment_hash in self.payouts:
            known = self.payouts[payout.payment_hash]
            if known.state == "failed" or (known.payee, known.amount_msat) != (payout.payee, payout.amount_msat):
                raise NotAllowed("invoice", "it failed before, or serves another payout: another invoice is needed")
            return self
        if payout.amount_msat <= 0 or payout.reserve_msat < 0:
            raise BadInput("amount_msat", "not above zero")
        wanted_msat, due_msat = payout.amount_msat + payout.reserve_msat, self.due_msat(payout.payee)
        if wanted_msat > due_msat:
            raise PaymentFailed("amount_msat", f"{due_msat} msat are due, and {wanted_msat} msat needed")
        return replace(
            self,
            dues=_added(self.dues, payout.payee, -wanted_msat),
            payouts=self.payouts.including(payout.payment_hash, payout),
            bound=_added(self.bound, payout.payee, 1),
        )

    def with_payment(self, payment_hash: str, fee_msat: int = 0) -> TreasuryBook:
        """A payout's invoice was paid; what its route did not cost is due again. The same book if that was known."""
        one = self.payouts[payment_hash]
        if one.state != "bound":
            return self
        back_msat = max(0, one.reserve_msat - fee_msat)
        return replace(
            self,
            dues=_added(self.dues, one.payee, back_msat),
            payouts=self.payouts.including(payment_hash, replace(one, state="paid")),
            bound=_added(self.bound, one.payee, -1),
        )

    def with_failure(self, payment_hash: str) -> TreasuryBook:
        """A payout's invoice will never be paid. The same book if that was known, or if it is paid."""
        one = self.payouts[payment_hash]
        if one.state != "bound":
            return self
        return replace(
            self,
            dues=_added(self.dues, one.payee, one.amount_msat + one.reserve_msat),
            payouts=self.payouts.including(payment_hash, replace(one, state="failed")),
            bound=_added(self.bound, one.payee, -1),
        )

    def with_pool(self, amount_msat: int) -> TreasuryBook:
        """So much more belongs to no request."""
        return replace(self, totals=_added(self.totals, POOL, amount_msat))

    def with_closed_pot(self, request: str) -> TreasuryBook:
        """What is left in the pot of a request goes to the pool."""
        pot = self.pots.get(request, Pot(is_closed=True))
        if pot.is_closed:
            return self
        closed = replace(pot, left_msat=0, is_closed=True)
        return replace(self, pots=self.pots.including(request, closed)).with_pool(pot.left_msat)


def share_key(request: str, customer: str, chunk: int) -> str:
    return f"{chunk}/{request}/{customer}"


def credit_key(case: str, payee: str) -> str:
    return f"{case}/{payee}"


def _drawn_key(case: SettledCase) -> str:
    return f"{case.task}/{case.chunk}/{case.request}"


def _added(table: Table[int], key: str, msat: int) -> Table[int]:
    return table.including(key, table.get(key, 0) + msat) if msat else table
