"""What a customer owes for one chunk, from plan to proof of payment: a pure state machine, no I/O, no clock.

planned ──invoice──▶ invoiced ──attempt──▶ paying ──paid──▶ paid
                      ▲  ▲ └─another invoice  │
                      │  └──                  │
                      └──────── failed ◀──failed    (only when the wallet's own record says that nothing was paid)

Each invoice is a payment of its own, known by its payment hash, and none is ever forgotten or tried a second time once
it has failed. Each step is written before it is acted on. "paying" is the one state in which money may have moved
unseen; it is left only on the wallet's word about that hash. So a chunk is paid at most once, whenever a process dies,
and whatever another one does meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Literal

from nodewire.errors import BadInput, NotAllowed, NotFound

_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)

PaymentState = Literal["invoiced", "paying", "paid", "failed"]
State = Literal["planned"] | PaymentState


@dataclass(frozen=True, slots=True)
class Key:
    """One payment: chunk `chunk` of job `job` (request id) to `payee` (pubkey); `attempt` is 0."""

    job: str
    payee: str
    chunk: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class JobBudget:
    """The most that a job may pay its providers. Verification shares stand beside it in the ledger."""

    msat: int
    payees: frozenset[str]


@dataclass(frozen=True, slots=True)
class Payment:
    """One invoice for a debt, and what became of it."""

    payment_hash: str
    bolt11: str
    state: PaymentState = "invoiced"
    wallet: str = ""
    """The id of the wallet that was told to pay it: no other knows what became of it."""
    preimage: str | None = None
    fee_msat: int = 0
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Debt:
    key: Key
    amount_msat: int
    payments: tuple[Payment, ...] = ()
    """Oldest first."""
    lnurl: str = ""
    """The payee's endpoint ("lnurl1..."), so that the debt can be paid when the job is long over."""

    @property
    def payment(self) -> Payment | None:
        """The payment that settled it, or else the newest."""
        paid = (one for one in self.payments if one.state == "paid")
        return next(paid, self.payments[-1] if self.payments else None)

    @property
    def state(self) -> State:
        return self.payment.state if self.payment is not None else "planned"

    @property
    def payment_hash(self) -> str | None:
        return self.payment.payment_hash if self.payment is not None else None

    @property
    def bolt11(self) -> str | None:
        return self.payment.bolt11 if self.payment is not None else None

    @property
    def preimage(self) -> str | None:
        return self.payment.preimage if self.payment is not None else None

    @property
    def fee_msat(self) -> int:
        return self.payment.fee_msat if self.payment is not None else 0

    @property
    def reason(self) -> str:
        """Why the last payment failed."""
        return self.payment.reason if self.payment is not None else ""


@dataclass(frozen=True, slots=True)
class DebtInvoice:
    bolt11: str
    payment_hash: str


@dataclass(frozen=True, slots=True)
class PaymentAttempt:
    """The wallet with this id is about to be told to pay the newest invoice."""

    wallet: str


@dataclass(frozen=True, slots=True)
class DebtPayment:
    payment_hash: str
    preimage: str
    fee_msat: int


@dataclass(frozen=True, slots=True)
class PaymentFailure:
    """The wallet's own record says that nothing was paid by this hash, and nothing will be."""

    payment_hash: str
    reason: str


Event = DebtInvoice | PaymentAttempt | DebtPayment | PaymentFailure


def apply(event: Event, debt: Debt) -> Debt:
    """The debt after `event`; the same debt if the event tells nothing new.

    Raises:
        NotAllowed: the debt's state does not admit the event, or an invoice's hash was tried before and failed.
        NotFound: no invoice of this debt has that payment hash.
        BadInput: the preimage does not open the payment hash.

    """
    match event:
        case DebtInvoice(bolt11, payment_hash):
            known = next((one for one in debt.payments if one.payment_hash == payment_hash), None)
            if known is not None and (known.state == "failed" or known.bolt11 != bolt11):
                raise NotAllowed("payment_hash", "an invoice with it was tried before: another one is needed")
            if known is not None or debt.state in ("paying", "paid"):  # another process was quicker with another one
                return debt
            return replace(debt, payments=(*debt.payments, Payment(payment_hash, bolt11)))
        case PaymentAttempt(wallet):
            if debt.payment is None:
                raise NotAllowed("invoice", "there is none")
            if debt.state != "invoiced":
                return debt
            return _with(debt, replace(debt.payment, state="paying", wallet=wallet))
        case DebtPayment():
            return _paid(event, debt)
        case PaymentFailure(payment_hash, reason):
            known = _attempted(debt, payment_hash)
            return _with(debt, replace(known, state="failed", reason=reason)) if known.state == "paying" else debt


def _paid(event: DebtPayment, debt: Debt) -> Debt:
    known = _attempted(debt, event.payment_hash)
    if not opens(event.preimage, event.payment_hash):
        raise BadInput("preimage", f"the wallet's does not hash to {event.payment_hash}: look the payment up there")
    if known.state == "paid":
        return debt
    return _with(debt, replace(known, state="paid", preimage=event.preimage, fee_msat=event.fee_msat, reason=""))


def _attempted(debt: Debt, payment_hash: str) -> Payment:
    """The payment that a wallet was told to make."""
    known = next((one for one in debt.payments if one.payment_hash == payment_hash), None)
    if known is None:
        raise NotFound("payment_hash", "no invoice of this debt has it")
    if known.state == "invoiced":
        raise NotAllowed("payment", "no wallet was told to make it")
    return known


def _with(debt: Debt, payment: Payment) -> Debt:
    changed = (payment if one.payment_hash == payment.payment_hash else one for one in debt.payments)
    return replace(debt, payments=tuple(changed))


def opens(preimage: str, payment_hash: str) -> bool:
    """Whether `preimage` (64 hex digits) hashes to `payment_hash`: it proves that the payment was made."""
    if _HEX32.fullmatch(preimage) is None:
        return False
    return hashlib.sha256(bytes.fromhex(preimage)).hexdigest() == payment_hash
