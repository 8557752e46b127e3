"""What a customer owes for one chunk, from plan to proof of payment: a pure state machine, no I/O, no clock.

planned ──invoiced──▶ invoiced ──paying──▶ paying ──paid──▶ paid
                       ▲  ▲ └─another invoice  │
                       │  └──                  │
                       └──────── failed ◀──failed    (only when the wallet knows that nothing was or will be paid)

Each step is written before it is acted on. "paying" is the one state in which money may have moved unseen; it is left
only on the wallet's word. So a chunk is paid at most once, whenever the process dies.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

from nodewire.errors import BadInput, NotAllowed

State = Literal["planned", "invoiced", "paying", "paid", "failed"]


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
class Debt:
    key: Key
    amount_msat: int
    state: State = "planned"
    bolt11: str | None = None
    payment_hash: str | None = None
    preimage: str | None = None
    fee_msat: int = 0
    reason: str = ""
    """Why the last payment failed."""
    lnurl: str = ""
    """The payee's endpoint ("lnurl1..."), so that the debt can be paid when the job is long over."""


@dataclass(frozen=True, slots=True)
class DebtInvoice:
    bolt11: str
    payment_hash: str


@dataclass(frozen=True, slots=True)
class PaymentAttempt:
    """The wallet is about to be told."""


@dataclass(frozen=True, slots=True)
class DebtPayment:
    preimage: str
    fee_msat: int


@dataclass(frozen=True, slots=True)
class PaymentFailure:
    """The wallet has said that nothing was paid and nothing will be."""

    reason: str


Event = DebtInvoice | PaymentAttempt | DebtPayment | PaymentFailure


def apply(event: Event, debt: Debt) -> Debt:
    """The debt after `event`; the same debt if the event has been applied before.

    Raises:
        NotAllowed: the debt's state does not admit the event.
        BadInput: the preimage does not open the payment hash.

    """
    match event, debt.state:
        case DebtInvoice(bolt11, payment_hash), "planned" | "invoiced" | "failed":
            return replace(debt, state="invoiced", bolt11=bolt11, payment_hash=payment_hash)
        case DebtInvoice(bolt11, _), "paying" | "paid" if bolt11 == debt.bolt11:
            return debt
        case PaymentAttempt(), "invoiced":
            return replace(debt, state="paying")
        case DebtPayment(preimage, fee_msat), "paying":
            if hashlib.sha256(bytes.fromhex(preimage)).hexdigest() != debt.payment_hash:
                raise BadInput("preimage", "does not hash to the payment hash")
            return replace(debt, state="paid", preimage=preimage, fee_msat=fee_msat, reason="")
        case DebtPayment(preimage, _), "paid" if preimage == debt.preimage:
            return debt
        case PaymentFailure(reason), "paying":
            return replace(debt, state="failed", reason=reason)
        case (PaymentAttempt(), "paying") | (PaymentFailure(), "failed"):
            return debt
    raise NotAllowed(f"{type(event).__name__} of a debt that is {debt.state}")
