"""What nodewire asks of a Lightning wallet. A provider believes its own wallet and nothing else.

Packages bring implementations (`registry`). One contract suite in tests/pay runs against those of this repository.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from nodewire.pay.lightning.invoices import Invoice


@dataclass(frozen=True, slots=True)
class Payment:
    """An outgoing payment that has settled; `preimage` (64 hex digits) proves it."""

    payment_hash: str
    preimage: str
    amount_msat: int
    fee_msat: int
    """Routing fee, on top of the amount."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a wallet knows of one payment hash.

    An incoming one is open (unpaid), held (a hold invoice met its payment), settled or failed (cancelled, expired);
    an outgoing one is held (in flight), settled or failed (nothing was paid and nothing will be).
    """

    payment_hash: str
    direction: Literal["in", "out"]
    state: Literal["open", "held", "settled", "failed"]
    amount_msat: int
    fee_msat: int
    preimage: str | None
    """Only when settled."""
    at_s: int
    """When the state was reached, unix seconds."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """An incoming invoice that has settled. `cursor` resumes `Wallet.settled` after this one."""

    cursor: int
    payment_hash: str
    preimage: str
    amount_msat: int
    settled_at_s: int


class Wallet(Protocol):
    """Every method may raise LinkLost or TimedOut (the wallet cannot be reached; what was asked may have happened)."""

    async def balance_msat(self) -> int:
        """What can be spent."""

    async def make_invoice(self, amount_msat: int, *, description_hash: str, expiry_s: int) -> Invoice:
        """An invoice that settles by itself when paid. Raises BadInvoice."""

    async def make_hold_invoice(
        self, amount_msat: int, *, payment_hash: str, description_hash: str, expiry_s: int
    ) -> Invoice:
        """An invoice whose payment is held until settled with the preimage.

        Raises:
            BadInvoice: a value is out of range.
            NotAllowed: another invoice has the payment hash.

        """

    async def settle_hold(self, preimage: str) -> None:
        """Take a held payment; again is no error. Raises NotFound, NotAllowed (nothing is held)."""

    async def cancel_hold(self, payment_hash: str) -> None:
        """Give a held payment back, or withdraw an unpaid invoice; again is no error.

        Raises:
            NotFound: the wallet never issued it.
            NotAllowed: it is settled or expired.

        """

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Payment:
        """Pay, and wait for the preimage. Paying the same invoice again returns the first payment and moves nothing.

        Raises:
            BadInvoice, PaymentFailed, OverBudget: nothing was paid and nothing will be.
            TimedOut, LinkLost: unknown; ask `lookup` before any retry with another invoice.

        """

    async def lookup(self, payment_hash: str) -> Transfer:
        """Raises NotFound if this wallet never saw the hash."""

    def settled(self, after: int = 0) -> AsyncIterator[Receipt]:
        """Incoming payments as they settle, from just after cursor `after` on, without end; none is missed."""

    async def close(self) -> None: ...
