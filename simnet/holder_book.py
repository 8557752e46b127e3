"""The book of the bond holder and treasurer: whose the coins on its account are. Pure: no I/O, no clock.

The holder is one node of the network. What its account has (and what its own payments hold in flight) is at every
moment the sum of: bonds that are not over, payouts not yet pulled, the requests' pots, the pool, the committee's fees.

    customer ──share──▶ pot of the request ──(nothing more came for a while)──▶ pool ◀──burn── slashed bond
                          │ └─ fee ──▶ committee                                 │
                          └──────────────▶ verifiers' pay ◀────────────────────┘

The verifiers of one task's chunk get no more than its share covers: the task's part of it, less the fee, divided by the
rate, of what was there before the sample could be known. It comes out of the pot first, then out of the pool. So on
average nobody draws more than was paid in, whatever plan a customer and a provider agree on, and in whatever order
verifiers claim.

A claim binds an entitlement to one invoice before that is paid; only an invoice that can never be paid any more sets it
free again. Applying an event twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nodewire.core.persistent_map import PersistentMap
from nodewire.errors import BadInput, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.bond import bonds
from nodewire.pay.bond.bonds import Bond, Payout
from nodewire.pay.bond.settlement import funded_units, verifier_pay_msat
from simnet.network import CoinTransfer
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


MAX_ZAPS = 64
"""For one chunk by one sender that cover something: the first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one sender zapped for one chunk, fee included: `came`, when, how much and the fee, adds up to it."""

    amount_msat: int
    came: tuple[tuple[int, int, int], ...] = ()

    def before_ms(self, at_ms: int, *, less_fees: bool = False) -> int:
        """What was there before, by the whole seconds in which it came."""
        early = [(msat, fee_msat) for at_s, msat, fee_msat in self.came if (at_s + 1) * 1000 <= at_ms]
        return sum(msat - fee_msat * less_fees for msat, fee_msat in early)


@dataclass(frozen=True, slots=True)
class Pot:
    """What came in for one request, less fees, and what is left of it. `quiet_since_s`: the last zap."""

    received_msat: int = 0
    left_msat: int = 0
    quiet_since_s: int = 0
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """`pool_msat` is the part that came out of the pool, `pot` the request whose pot gave the rest (empty: neither)."""

    event: PayoutClaim
    is_paid: bool = False
    pot: str = ""
    pool_msat: int = 0


@dataclass(frozen=True, slots=True)
class HolderBook:
    node: str = ""
    deposits: PersistentMap[Deposit] = field(default_factory=PersistentMap)
    newest: PersistentMap[str] = field(default_factory=PersistentMap)
    """By provider, the id of its newest bond."""
    cases: PersistentMap[VerdictStep] = field(default_factory=PersistentMap)
    quotes: PersistentMap[ZapQuote] = field(default_factory=PersistentMap)
    """By payment hash."""
    shares: PersistentMap[Share] = field(default_factory=PersistentMap)
    """By `share_key`."""
    pots: PersistentMap[Pot] = field(default_factory=PersistentMap)
    claims: PersistentMap[Claim] = field(default_factory=PersistentMap)
    """By `claim_key`."""
    claimed: PersistentMap[str] = field(default_factory=PersistentMap)
    """By payment hash, the key of the claim that it pays."""
    fees_msat: int = 0
    """All fees that ever came in; each oracle may take an equal part."""
    taken: PersistentMap[int] = field(default_factory=PersistentMap)
    """Fees that each oracle has claimed."""
    pool_msat: int = 0
    drawn: PersistentMap[int] = field(default_factory=PersistentMap)
    """What verifiers had of pot and pool, by request, task and chunk."""
    received: PersistentMap[int] = field(default_factory=PersistentMap)
    """When each share came in, by payment hash."""

    def deposit(self, bond: str) -> Deposit:
        """Raises NotFound."""
        if bond not in self.deposits:
            raise NotFound("bond", "no such bond")
        return self.deposits[bond]

    def find_deposit(self, provider: str) -> Deposit | None:
        """The provider's newest bond."""
        return self.deposits[self.newest[provider]] if provider in self.newest else None

    def following(self, request: str, customer: str, chunk: int, share_msat: int, at_ms: int) -> int:
        """How many chunks right after `chunk` the customer had zapped the whole share for before `at_ms`."""
        count = 0
        while share_msat and self._share(request, customer, chunk + count + 1).before_ms(at_ms) >= share_msat:
            count += 1
        return count

    def share_msat(self, request: str, customer: str, chunk: int, before_ms: int | None = None) -> int:
        """What the customer has zapped for one chunk of the job, fee included."""
        share = self._share(request, customer, chunk)
        return share.amount_msat if before_ms is None else share.before_ms(before_ms)

    def computed_units(self, request: str, customer: str, chunk: int, unit_msat: int, at_ms: int) -> int:
        """Units that the customer had zapped shares for before `at_ms`, up to `chunk`.

        The first of it costs `unit_msat`. At least 1.
        """
        if not unit_msat:
            return 1
        came = sum(self._share(request, customer, one).before_ms(at_ms) for one in range(chunk + 1))
        return funded_units(came, unit_msat)

    def covered_msat(self, case: VerdictStep) -> int:
        """What the share still covers for the chunk of the task that a verdict is about, in msat."""
        share = self._share(case.request, case.customer, case.chunk)
        if not case.rate_ppm or not case.chunk_msat:
            return 0
        net_msat = share.before_ms(case.drawn_at_ms, less_fees=True)
        part_msat = net_msat * case.price_msat * 1_000_000 // (case.rate_ppm * case.chunk_msat)
        return max(0, part_msat - self.drawn.get(_drawn_key(case), 0))

    def _share(self, request: str, customer: str, chunk: int) -> Share:
        return self.shares.get(share_key(request, customer, chunk), Share(0))

    def case(self, case: str) -> VerdictStep:
        """Raises NotFound."""
        if case not in self.cases:
            raise NotFound("case", "no verdict on it was presented")
        return self.cases[case]

    def entitlement(self, ref: str, payee: str) -> int:
        """What the settled case `ref` gives `payee`, in msat.

        Raises:
            NotFound: no such case.
            NotAllowed: it gives the payee nothing.

        """
        case = self.case(ref)
        if payee in case.payouts:
            return case.payouts[payee]
        if payee in case.agreed:
            return min(verifier_pay_msat(case.price_msat, case.computed_units), self.covered_msat(case))
        raise NotAllowed("payee", "the verdict gives this key nothing")

    def owed_msat(self) -> int:
        """Everything that the holder's account is kept for."""
        total = (
            self.pool_msat + self.fees_msat - sum(self.taken.values()) + sum(p.left_msat for p in self.pots.values())
        )
        for deposit in self.deposits.values():
            total += deposit.bond.payouts_msat + (deposit.bond.remainder_msat if deposit.bond.is_liable else 0)
        for claim in self.claims.values():
            if self._is_bonds(claim.event):
                total -= claim.event.amount_msat if claim.is_paid else 0
            else:
                total += 0 if claim.is_paid else claim.event.amount_msat
        return total

    def _is_bonds(self, claimed: PayoutClaim) -> bool:
        return claimed.ref in self.cases and claimed.payee in self.cases[claimed.ref].payouts


def share_key(request: str, sender: str, chunk: int) -> str:
    return f"{chunk}/{request}/{sender}"


def claim_key(ref: str, payee: str) -> str:
    return f"{ref}/{payee}"


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
        case ZapQuote():
            return book if event.payment_hash in book.quotes else _with_quote(event, book)
        case PayoutClaim():
            return _claim(event, book)
        case ClaimLapse():
            return _lapse(event, book)
        case RequestClosure(request, _):
            return _close(request, book)


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
    return replace(after_book, pool_msat=book.pool_msat + burnt_msat) if burnt_msat else after_book


def _close(request: str, book: HolderBook) -> HolderBook:
    """What is left in the pot of a `request` goes to the pool."""
    pot = book.pots.get(request)
    if pot is None or pot.is_closed:
        return book
    pots = book.pots.including(request, replace(pot, left_msat=0, is_closed=True))
    return replace(book, pots=pots, pool_msat=book.pool_msat + pot.left_msat)


def settled(payment_hash: str, payer: str | None, at_s: int, book: HolderBook) -> HolderBook:
    """The book after `payer` has paid an invoice of the network: a share that came in, or a claim that is paid."""
    if payment_hash in book.quotes and payment_hash not in book.received:
        return _receive(book.quotes[payment_hash], at_s, book)
    if payment_hash in book.claimed and payer == book.node:
        key = book.claimed[payment_hash]
        claim = book.claims.get(key)
        if claim is not None and claim.event.payment_hash == payment_hash and not claim.is_paid:
            return replace(book, claims=book.claims.including(key, replace(claim, is_paid=True)))
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
    after = replace(book, cases=book.cases.including(event.case, event), pool_msat=book.pool_msat + event.forfeit_msat)
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
    pot = book.pots.get(quote.request, Pot())
    came_msat = quote.amount_msat - quote.fee_msat
    pot = Pot(pot.received_msat + came_msat, pot.left_msat + came_msat, at_s)
    key = share_key(quote.request, quote.sender, quote.chunk)
    before = book.shares.get(key, Share(0))
    came = (*before.came, (at_s, quote.amount_msat, quote.fee_msat))[:MAX_ZAPS]
    return replace(
        book,
        pots=book.pots.including(quote.request, pot),
        shares=book.shares.including(key, Share(before.amount_msat + quote.amount_msat, came)),
        fees_msat=book.fees_msat + quote.fee_msat,
        received=book.received.including(quote.payment_hash, at_s),
    )


def _claim(event: PayoutClaim, book: HolderBook) -> HolderBook:
    key = claim_key(event.ref, event.payee)
    if key in book.claims:
        if book.claims[key].event == event:
            return book
        raise NotAllowed("claim", "it is bound to another invoice")
    if event.payment_hash in book.claimed:
        raise NotAllowed("invoice", "another claim is bound to it")
    if event.amount_msat <= 0:
        raise BadInput("amount_msat", "not above zero")
    claim = Claim(event)
    if event.ref == f"{FEES}/{event.payment_hash}":
        if event.amount_msat > book.fees_msat - sum(book.taken.values()):
            raise PaymentFailed("treasury", "so much in fees has not come in")
        taken = book.taken.get(event.payee, 0) + event.amount_msat
        book = replace(book, taken=book.taken.including(event.payee, taken))
    else:
        amount_msat = book.entitlement(event.ref, event.payee)
        if event.amount_msat != amount_msat:
            raise NotAllowed("amount_msat", f"{amount_msat} msat are due, not {event.amount_msat} msat")
        if not book._is_bonds(event):
            claim, book = _from_treasury(claim, book)
    return replace(
        book, claims=book.claims.including(key, claim), claimed=book.claimed.including(event.payment_hash, key)
    )


def _from_treasury(claim: Claim, book: HolderBook) -> tuple[Claim, HolderBook]:
    """Out of the request's own pot first, then out of the pool; whole or not at all."""
    case, amount_msat = book.cases[claim.event.ref], claim.event.amount_msat
    request = case.request
    pot = book.pots.get(request, Pot())
    own_msat = min(amount_msat, pot.left_msat)
    pool_msat = amount_msat - own_msat
    if pool_msat > book.pool_msat:
        raise PaymentFailed("treasury", f"{pot.left_msat + book.pool_msat} msat are there, {amount_msat} msat needed")
    if own_msat:
        book = replace(book, pots=book.pots.including(request, replace(pot, left_msat=pot.left_msat - own_msat)))
    book = replace(book, drawn=_drawn(book, case, amount_msat), pool_msat=book.pool_msat - pool_msat)
    return replace(claim, pot=request, pool_msat=pool_msat), book


def _drawn(book: HolderBook, case: VerdictStep, amount_msat: int) -> PersistentMap[int]:
    key = _drawn_key(case)
    return book.drawn.including(key, book.drawn.get(key, 0) + amount_msat)


def _drawn_key(case: VerdictStep) -> str:
    return f"{case.task}/{case.chunk}/{case.request}"


def _lapse(event: ClaimLapse, book: HolderBook) -> HolderBook:
    key = claim_key(event.ref, event.payee)
    claim = book.claims.get(key)
    if claim is None or claim.event.payment_hash != event.payment_hash:
        return book
    if claim.is_paid:
        raise NotAllowed("claim", "it is paid")
    book = replace(book, claims=book.claims.without(key))
    if event.ref.startswith(FEES):
        taken = book.taken[event.payee] - claim.event.amount_msat
        return replace(book, taken=book.taken.including(event.payee, taken))
    if not claim.pot:
        return book
    book = replace(book, drawn=_drawn(book, book.cases[event.ref], -claim.event.amount_msat))
    pot = book.pots.get(claim.pot, Pot())
    own_msat, pool_msat = claim.event.amount_msat - claim.pool_msat, claim.pool_msat
    if pot.is_closed:
        own_msat, pool_msat = 0, claim.event.amount_msat
    pots = book.pots.including(claim.pot, replace(pot, left_msat=pot.left_msat + own_msat)) if own_msat else book.pots
    return replace(book, pots=pots, pool_msat=book.pool_msat + pool_msat)


def _transition(book: HolderBook, bond: str, event: bonds.Event) -> HolderBook:
    deposit = book.deposit(bond)
    after = bonds.apply(event, deposit.bond)
    return book if after is deposit.bond else _put(book, replace(deposit, bond=after))


def _put(book: HolderBook, deposit: Deposit) -> HolderBook:
    return replace(book, deposits=book.deposits.including(deposit.bond.id, deposit))
