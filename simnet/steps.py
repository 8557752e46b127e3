"""What happens to the holder's book, as it stands in the journal.

Every event is a whole step: the book (`holder_book`) and the network's accounts change together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FEES = "fees"
"""What an oracle's part of the fees refers to. A claim of earlier logs has the invoice's payment hash after it."""


@dataclass(frozen=True, slots=True)
class HolderSeat:
    """The holder's own node."""

    node: str


@dataclass(frozen=True, slots=True)
class BondLock:
    bond: str
    account: str
    """The node that the coins come from and go back to."""
    provider: str
    amount_msat: int
    until_s: int


@dataclass(frozen=True, slots=True)
class BondRaise:
    bond: str
    key: str
    amount_msat: int
    until_s: int


@dataclass(frozen=True, slots=True)
class StatementStep:
    """`event` is the signed statement (kind 8858) as JSON."""

    bond: str
    until_s: int
    event: str


@dataclass(frozen=True, slots=True)
class UnbondRequest:
    bond: str
    at_s: int
    delay_s: int


@dataclass(frozen=True, slots=True)
class BondRelease:
    bond: str
    at_s: int


@dataclass(frozen=True, slots=True)
class VerdictStep:
    """A certified verdict, settled: `payouts` (payee to msat) come out of `bond`, `refused` says why they do not."""

    case: str
    digest: str
    request: str
    outcome: str
    customer: str
    task: str
    chunk: int
    price_msat: int
    """The task's, per chunk."""
    chunk_msat: int
    """All tasks', per chunk."""
    rate_ppm: int
    """Of chunks that are recomputed, by the plan."""
    drawn_at_ms: int
    """From then on (unix milliseconds) it can be known that this chunk is a sample."""
    agreed: list[str]
    culprit: str
    slashes: bool
    bond: str
    payouts: dict[str, int]
    refused: str
    at_s: int
    delay_s: int
    forfeit_msat: int = 0
    """Out of `bond` to the pool."""
    burnt: list[str] = field(default_factory=list)
    """Bonds of accomplices, slashed for the pool."""
    computed_units: int = 1
    """What each of `agreed` computed, as shares came for it."""


@dataclass(frozen=True, slots=True)
class ZapQuote:
    """An invoice for a lump that `sender` pays ahead.

    In earlier logs a zap was the share of one chunk: they have `request` and `chunk`, and the committee's fee of it.
    """

    payment_hash: str
    zap_request: str
    bolt11: str
    sender: str
    amount_msat: int
    expires_at_s: int
    request: str = ""
    chunk: int = 0
    fee_msat: int = 0


@dataclass(frozen=True, slots=True)
class ShareEntry:
    """A customer's statement of shares (JSON), of which `fee_ppm` is the committee's."""

    statement: str
    fee_ppm: int
    at_s: int


@dataclass(frozen=True, slots=True)
class DueCredit:
    """What a case, or FEES, gives `payee` is due to it from now on."""

    ref: str
    payee: str
    amount_msat: int


@dataclass(frozen=True, slots=True)
class PayoutClaim:
    """A part of what is due to `payee` will be paid by this invoice.

    In earlier logs it was for what `ref` (a case, or FEES and the payment hash) gave, which was credited with it.
    """

    payee: str
    payment_hash: str
    bolt11: str
    amount_msat: int
    ref: str = ""


@dataclass(frozen=True, slots=True)
class ClaimLapse:
    """The payout's invoice has expired or was cancelled unpaid."""

    payment_hash: str


@dataclass(frozen=True, slots=True)
class RequestClosure:
    """Nothing more came for a request; what its verifiers did not need goes to the pool."""

    request: str
    at_s: int


Step = (
    HolderSeat
    | BondLock
    | BondRaise
    | StatementStep
    | UnbondRequest
    | BondRelease
    | VerdictStep
    | ZapQuote
    | ShareEntry
    | DueCredit
    | PayoutClaim
    | ClaimLapse
    | RequestClosure
)
