"""What happens in a training: the events that its journal keeps, in order, and the values that stand in them.

Its fields are written there by their names (`journal.py`), so a field keeps its name, and a new one has a default: what
was written before must still be read. `request` and `close` are ids of Nostr events, in hex; providers are public keys.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CiphertextRef:
    """A ciphertext on the blob servers: its hash and size, its key, the plaintext's hash."""

    sha256: str
    bytes: int
    key: str
    plain_sha256: str


@dataclass(frozen=True, slots=True)
class Row:
    """One shard in a published request, or its outer step (index -1). `lnurl` is where its provider is paid."""

    index: int
    provider: str
    steps: int
    deposit_msat: int
    balance_msat: int
    lnurl: str
    ticket: str
    """RoundTicket (OuterTicket) as JSON."""
    credit_msat: int = 0
    """What its provider lets be open besides the round before."""
    unit_msat: int = 1
    """Payments to its provider are whole multiples of this."""


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """The data are split and sealed. `shards` in the order of their indices; `theta` is what round 0 begins with."""

    rounds: int
    shards: tuple[CiphertextRef, ...]
    theta: CiphertextRef
    needed: int = 0
    """Results that are enough for an outer step; 0: all."""
    late: bool = False
    """Whether a result counts in the step after its own round's."""
    start: CiphertextRef | None = None
    """Frozen weights, where the recipe has an adapter."""
    kept: int = 2
    """Rounds for which the coordinator has what audits need."""


@dataclass(frozen=True, slots=True)
class RequestPublication:
    """A request is signed and goes out. `event` is its JSON."""

    round: int
    request: str
    event: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class DepositRequest:
    """The provider has the request and its ticket, and begins when its deposit is paid."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class WorkStart:
    """The provider says that it works, without a deposit or after it."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class ResultArrival:
    """A provider's result event has come. `event` is its JSON, `took_ms` milliseconds since the request."""

    request: str
    provider: str
    event: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class ResultReceipt:
    """The result was opened, is what its provider has committed to, and has the model's names and shapes."""

    request: str
    provider: str
    carried: str = ""
    """The digest of what its provider carries on, where the recipe carries anything."""


@dataclass(frozen=True, slots=True)
class ResultJudgement:
    """A result was held against the others of its round, or an outer step was checked; `reason` of a rejection."""

    request: str
    provider: str
    accepted: bool
    reason: str
    audit: bool = False
    """What is accepted is paid only when a part of it was computed again."""
    doubted: bool = False
    """More of it is drawn."""
    harms: bool = False
    """It is no part of the next weights before its audit."""


@dataclass(frozen=True, slots=True)
class ClosePublication:
    """A close is signed and goes out; `event` is its JSON. What is drawn of `results` (request, provider) is fixed."""

    round: int
    close: str
    event: str
    results: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """Drawn segments were computed again, or not shown in time. `ask` and `answer` are the events' JSON, if any."""

    request: str
    provider: str
    passed: bool
    reason: str
    ask: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ResultPayment:
    """`part` is DEPOSIT or BALANCE (`training.protocol.round`); what is owed is never paid in part."""

    request: str
    provider: str
    part: int
    amount_msat: int
    fee_msat: int


@dataclass(frozen=True, slots=True)
class ShardLoss:
    """Nothing will come of a shard at this provider: it refused, failed, or let its time pass."""

    request: str
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResultTimeout:
    """A result is not waited for any more; it is paid, and may count as late, if it comes by its deadline."""

    request: str
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoundQuorum:
    """Enough results are there, and the others were waited for long enough: the round is stepped without them."""

    round: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """A result that an outer step was made of; `round` is its own, which for a late one is the round before."""

    index: int
    round: int
    steps: int
    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class StepCompletion:
    """The outer step of `round` is done: `theta` is for the next, `loss` is the held-out one in millionths."""

    round: int
    loss: int
    theta: CiphertextRef
    counted: tuple[Contribution, ...] = ()
    """In the order in which they were added up."""
    request: str = ""
    """If another has made it, of its request; it was checked, and its balance is owed."""
    provider: str = ""
    momenta: CiphertextRef | None = None
    """The outer optimizer's, as that provider has sealed them."""


@dataclass(frozen=True, slots=True)
class StepRollback:
    """The steps from `round` on are no part of the weights any more, because of these results (request, provider)."""

    round: int
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StepOwnerChange:
    """Who makes outer steps from now on: a provider (`bought`), or this customer."""

    bought: bool


@dataclass(frozen=True, slots=True)
class StepPublication:
    """The request (8842) for a round's outer step is signed and goes out. `event` is its JSON."""

    round: int
    request: str
    event: str
    row: Row
    counted: tuple[Contribution, ...]
    """What the step is to be made of."""
    momenta: CiphertextRef | None


@dataclass(frozen=True, slots=True)
class LocalStepChoice:
    """Nobody is found for the outer step of this round: it is made here."""

    round: int
    reason: str


Event = (
    TrainingStart
    | RequestPublication
    | DepositRequest
    | WorkStart
    | ResultArrival
    | ResultReceipt
    | ResultJudgement
    | ClosePublication
    | AuditOutcome
    | ResultPayment
    | ShardLoss
    | ResultTimeout
    | RoundQuorum
    | StepCompletion
    | StepRollback
    | StepOwnerChange
    | StepPublication
    | LocalStepChoice
)

Worked = DepositRequest | WorkStart | ResultArrival | ResultReceipt | ResultJudgement | ShardLoss | ResultTimeout
"""Of one shard, or of an outer step that was bought, at its provider."""
