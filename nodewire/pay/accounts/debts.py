"""What a customer owes for one chunk, and the payments that settle it: pure transitions, no I/O, no clock.

A payment:  invoiced ──attempt──▶ paying ──paid──▶ paid
                                     └───failed──▶ failed    (only when the wallet's own record says so)

A payment settles one debt or several of one payee, and what it is more than these is left for the payee's next ones. It
is known by its payment hash, and none is ever forgotten or tried a second time once it has failed. Each step is written
before it is acted on. "paying" is the one state in which money may have moved unseen; it is left only on the wallet's
word about that hash. So a chunk is paid at most once, whenever a process dies, and whatever another one does meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nodewire.errors import BadInput, NotAllowed
from nodewire.pay.lightning.invoices import opens

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
    """One invoice for one or several debts to a payee, and what became of it."""

    payment_hash: str
    bolt11: str
    amount_msat: int
    state: PaymentState = "invoiced"
    wallet: str = ""
    """The id of the wallet that was told to pay it: no other knows what became of it."""
    preimage: str | None = None
    fee_msat: int = 0
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Part:
    """How much of a debt a payment settles. `bears_fee`: the payment's fee counts as this debt's."""

    payment: Payment
    msat: int
    bears_fee: bool = True


@dataclass(frozen=True, slots=True)
class Debt:
    key: Key
    amount_msat: int
    parts: tuple[Part, ...] = ()
    """Oldest first. Those whose payments failed settle nothing."""
    lnurl: str = ""
    """The payee's endpoint ("lnurl1..."), so that the debt can be paid when the job is long over."""

    @property
    def paid_msat(self) -> int:
        return sum(part.msat for part in self.parts if part.payment.state == "paid")

    @property
    def left_msat(self) -> int:
        """What no payment has settled."""
        return self.amount_msat - self.paid_msat

    @property
    def payment(self) -> Payment | None:
        """The payment that settled the last of it, or else the newest that is not paid."""
        is_paid = self.left_msat <= 0
        wanted = [part.payment for part in self.parts if part.msat and (part.payment.state == "paid") == is_paid]
        return wanted[-1] if wanted else None

    @property
    def state(self) -> State:
        if self.left_msat <= 0:
            return "paid"
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
        return sum(one.payment.fee_msat for one in self.parts if one.payment.state == "paid" and one.bears_fee)

    @property
    def reason(self) -> str:
        """Why the last payment failed."""
        return self.payment.reason if self.payment is not None else ""


@dataclass(frozen=True, slots=True)
class PaymentAttempt:
    """The wallet with this id is about to be told to pay the invoice."""

    wallet: str


@dataclass(frozen=True, slots=True)
class PaymentSettlement:
    """The wallet's own record says that it is paid."""

    preimage: str
    fee_msat: int


@dataclass(frozen=True, slots=True)
class PaymentFailure:
    """The wallet's own record says that nothing was paid by this hash, and nothing will be."""

    reason: str


Event = PaymentAttempt | PaymentSettlement | PaymentFailure


def apply(event: Event, payment: Payment) -> Payment:
    """The payment after `event`; the same payment if the event tells nothing new.

    Raises:
        NotAllowed: no wallet was told to make it.
        BadInput: the preimage does not open the payment hash.

    """
    match event:
        case PaymentAttempt(wallet):
            return replace(payment, state="paying", wallet=wallet) if payment.state == "invoiced" else payment
        case _ if payment.state == "invoiced":
            raise NotAllowed("payment", "no wallet was told to make it")
        case PaymentSettlement(preimage, fee_msat):
            if not opens(preimage, payment.payment_hash):
                reason = f"the wallet's does not hash to {payment.payment_hash}: look the payment up there"
                raise BadInput("preimage", reason)
            if payment.state == "paid":
                return payment
            return replace(payment, state="paid", preimage=preimage, fee_msat=fee_msat, reason="")
        case PaymentFailure(reason):
            return replace(payment, state="failed", reason=reason) if payment.state == "paying" else payment
