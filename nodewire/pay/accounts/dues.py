"""What a provider is owed for one chunk, from delivery to published receipt: a pure state machine, no I/O, no clock.

due ──invoiced──▶ invoiced ──settled──▶ settled ──receipted──▶ receipted
                     └─another invoice

A customer that lost an invoice may ask for another, so a due can have several. The first that the provider's own
wallet reports as settled, with its preimage and no less than is due, clears it. What came besides is kept as overpaid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadInput, NotAllowed
from nodewire.pay.accounts.debts import Key, opens

if TYPE_CHECKING:
    from collections.abc import Sequence

State = Literal["due", "invoiced", "settled", "receipted"]

MAX_BROKEN = 3
"""Of a customer's jobs that broke off within `BROKEN_S` so many may stand unpaid."""
BROKEN_S = 24 * 60 * 60
NEVER_S = 2**53 - 1
"""When a deposit is due that nobody need pay: nothing was done for it."""


@dataclass(frozen=True, slots=True)
class Due:
    """`customer` (pubkey) owes `amount_msat`; from `due_by_s` (unix seconds) on it is in debt."""

    key: Key
    customer: str
    amount_msat: int
    due_by_s: int
    state: State = "due"
    payment_hash: str | None = None
    """The invoice that cleared it."""
    preimage: str | None = None
    settled_at_s: int = 0
    receipt: str | None = None
    """The published receipt's event id."""


@dataclass(frozen=True, slots=True)
class DueInvoice:
    payment_hash: str


@dataclass(frozen=True, slots=True)
class DueSettlement:
    """The provider's own wallet says so."""

    payment_hash: str
    preimage: str
    amount_msat: int
    at_s: int


@dataclass(frozen=True, slots=True)
class DueReceipt:
    """A relay has taken the receipt with this event id."""

    receipt: str


Event = DueInvoice | DueSettlement | DueReceipt


def apply(event: Event, due: Due) -> Due:
    """The due after `event`; the same due if the event has been applied before.

    Raises:
        NotAllowed: the due's state does not admit the event, or less came than is due.
        BadInput: the preimage does not open the payment hash.

    """
    match event, due.state:
        case DueInvoice(), "due" | "invoiced":
            return replace(due, state="invoiced")
        case DueSettlement(payment_hash, preimage, amount_msat, at_s), "invoiced":
            if not opens(preimage, payment_hash):
                raise BadInput("preimage", f"the wallet's does not hash to {payment_hash}: look the payment up there")
            if amount_msat < due.amount_msat:
                raise NotAllowed("amount_msat", f"{amount_msat} msat came, {due.amount_msat} msat are due")
            return replace(due, state="settled", payment_hash=payment_hash, preimage=preimage, settled_at_s=at_s)
        case DueSettlement(payment_hash), "settled" | "receipted" if payment_hash == due.payment_hash:
            return due
        case DueReceipt(receipt), "settled":
            return replace(due, state="receipted", receipt=receipt)
        case DueReceipt(receipt), "receipted" if receipt == due.receipt:
            return due
    raise NotAllowed(f"{type(event).__name__} of a due that is {due.state}")


def is_too_much(broken_at_s: Sequence[int]) -> bool:
    """Whether a customer is in debt for jobs that broke off: when those that it has not paid did, the oldest first.

    `MAX_BROKEN` within `BROKEN_S` are none: a neighbour may have lied, and the customer got nothing of what its
    neighbours computed. One that as many younger ones follow within that time counts until it is paid.
    """
    return any(later - at < BROKEN_S for at, later in zip(broken_at_s, broken_at_s[MAX_BROKEN:], strict=False))
