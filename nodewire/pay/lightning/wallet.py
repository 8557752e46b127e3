"""What nodewire asks of a Lightning wallet. A provider believes its own wallet and nothing else.

Packages bring implementations (`registry`). One contract suite in tests/pay runs against those of this repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodewire.pay.lightning.invoices import Invoice

Direction = Literal["in", "out"]
State = Literal["open", "pending", "settled", "failed"]
Ability = Literal["balance", "invoice", "pay", "fee-cap", "lookup-in", "lookup-out", "failures", "settled", "hold"]
"""Balance, invoices with a description hash, payments, a cap on their fees, a record of what came, of what went and of
what could not be begun, a stream of what came, and hold invoices (`HoldWallet`)."""
ABILITIES: frozenset[Ability] = frozenset(get_args(Ability))


@dataclass(frozen=True, slots=True)
class WalletInfo:
    """`id` names the wallet for good: cursors and payments belong to it. Amounts are whole multiples of `unit_msat`."""

    id: str
    network: str
    """Of its invoices: one of `invoices.NETWORKS`."""
    unit_msat: int
    least_msat: int
    most_msat: int
    abilities: frozenset[Ability]
    has_preimages: bool = True
    """Whether all that settles comes with its preimage: a custodian's word may be all that there is."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a wallet's own record says of one payment hash.

    An incoming one is open (unpaid), pending (a hold invoice met its payment), settled or failed (cancelled, expired).
    An outgoing one is pending, settled or failed. Failed is for good: nothing was paid by this hash, and nothing will
    be, even if the wallet is told to pay it again.
    """

    payment_hash: str
    direction: Direction
    state: State
    amount_msat: int
    fee_msat: int
    """Routing fee, on top of the amount."""
    preimage: str | None
    """Only when settled: 64 hex digits that prove it."""
    at_s: int
    """When the state was reached, unix seconds."""
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """An incoming invoice that has settled. `cursor`, opaque, resumes `Wallet.settled` of this wallet after it."""

    cursor: str
    payment_hash: str
    preimage: str
    amount_msat: int
    settled_at_s: int


class Wallet(Protocol):
    """Every method may raise LinkLost or TimedOut, and NotAllowed.

    LinkLost and TimedOut: the wallet cannot be reached, and what was asked may have happened. NotAllowed: it does not
    know its owner, or lacks the ability.
    """

    async def info(self) -> WalletInfo:
        """Who it is and what it can do. The id never changes."""

    async def balance_msat(self) -> int:
        """What can be spent."""

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        """An invoice that settles by itself when paid. It commits to the SHA-256 of `description`.

        Raises:
            BadInput: a value is out of range, or no multiple of the unit.

        """

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        """Pay, and wait at most so long for the end; the wallet's record of it: settled, pending or failed.

        The same invoice again moves nothing and returns what became of it. An error says nothing about the payment:
        `lookup` does. A wallet without "failures" raises one for what it cannot begin.

        Raises:
            BadInvoice: the invoice is malformed, or of another network.

        """

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        """Raises NotFound if this wallet's record has no such payment in that direction."""

    def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        """Incoming payments as they settle, from just after a cursor of this wallet on, or from the first.

        It has no end and misses none. It may tell of one twice.

        Raises:
            BadInput: the cursor is not this wallet's.

        """

    async def close(self) -> None: ...


class HoldWallet(Wallet, Protocol):
    """A wallet with the ability "hold": payments that its owner takes or gives back."""

    async def hold_invoice(self, amount_msat: int, *, payment_hash: str, description: str, expiry_s: int) -> Invoice:
        """An invoice whose payment is held until settled with the preimage.

        Raises:
            BadInput: a value is out of range.
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
