"""A training as its customer sees it: a pure state machine, no I/O, no clock. Its events, actions and state.

`transitions.apply` takes note of what happened, `pending` says what is to be done now. Nothing else drives a
training, so one that died goes on where its journal ends: the events are applied again, and what is pending is begun.

A shard in a round:

    idle ──published──▶ asked ──begun──▶ working ──delivered──▶ delivered ──received──▶ received ──judged──▶ accepted
      ▲                   │                 │                       │                       │
      └───────────────────┴──────lost───────┴───────────────────────┴───────rejected────────┘

Results are judged beside each other, when all of a round are there; who is rejected or lost is replaced by another, and
judged beside those that were accepted. When all are accepted comes the outer step, and all shards are idle again.

A result that is not waited for any more, because its provider takes long, may still come as a late one: beside the
rounds, up to the request's deadline. Its shard is dealt to another, or the round is stepped without it (`missed`) if
enough others are there.

Audits run beside later rounds. A result that fails its own after a step was made of it has spoilt that round and all
after it: the training goes back to before that step (`undoing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["idle", "asked", "working", "delivered", "received", "accepted", "missed"]


@dataclass(frozen=True, slots=True)
class Sealed:
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


# What happens.


@dataclass(frozen=True, slots=True)
class Opened:
    """The data are split and sealed. `shards` in the order of their indices; `theta` is what round 0 begins with."""

    rounds: int
    shards: tuple[Sealed, ...]
    theta: Sealed
    needed: int = 0
    """Results that are enough for an outer step; 0: all."""
    late: bool = False
    """Whether a result counts in the step after its own round's."""
    start: Sealed | None = None
    """Frozen weights, where the recipe has an adapter."""
    kept: int = 2
    """Rounds for which the coordinator has what audits need."""


@dataclass(frozen=True, slots=True)
class Published:
    """A request is signed and goes out. `event` is its JSON."""

    round: int
    request: str
    event: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class DepositAsked:
    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Begun:
    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A provider's result event has come. `event` is its JSON, `took_ms` the time since the request."""

    request: str
    provider: str
    event: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class Received:
    """The result was opened, is what its provider has committed to, and has the model's names and shapes."""

    request: str
    provider: str
    carried: str = ""
    """The digest of what its provider carries on, where the recipe carries anything."""


@dataclass(frozen=True, slots=True)
class Judged:
    """`audit`: what is accepted is paid only when a part of it was computed again."""

    request: str
    provider: str
    accepted: bool
    reason: str
    audit: bool = False
    doubted: bool = False
    """More of it is drawn."""
    harms: bool = False
    """Nor is it a part of the next weights before."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A close is signed and goes out; `event` is its JSON. What is drawn of `results` (request, provider) is fixed."""

    round: int
    close: str
    event: str
    results: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Audited:
    """`ask` and `answer` are the events' JSON, as far as there are any."""

    request: str
    provider: str
    passed: bool
    reason: str
    ask: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Paid:
    """`part` is DEPOSIT or BALANCE."""

    request: str
    provider: str
    part: int
    amount_msat: int
    fee_msat: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Nothing will come of a shard at this provider: it refused, failed, or let its time pass."""

    request: str
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Missed:
    """A result is not waited for any more; it is paid, and may count as late, if it comes by its deadline."""

    request: str
    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sufficed:
    """Enough results are there, and the others were waited for long enough: the round is stepped without them."""

    round: int


@dataclass(frozen=True, slots=True)
class Counted:
    """A result that an outer step was made of; `round` is its own, which for a late one is the round before."""

    index: int
    round: int
    steps: int
    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """The outer step of `round` is done: `theta` is for the next, `loss` is the held-out one in millionths."""

    round: int
    loss: int
    theta: Sealed
    counted: tuple[Counted, ...] = ()
    """In the order in which they were added up."""
    request: str = ""
    """If another has made it, of its request; it was checked, and its balance is owed."""
    provider: str = ""
    momenta: Sealed | None = None
    """The outer optimizer's, as that provider has sealed them."""


@dataclass(frozen=True, slots=True)
class Undone:
    """The steps from `round` on are no part of the weights any more, because of these results (request, provider)."""

    round: int
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StepsBy:
    """Who makes outer steps from now on: a provider (`bought`), or this customer."""

    bought: bool


@dataclass(frozen=True, slots=True)
class StepPublished:
    """The request (8842) for a round's outer step is signed and goes out. `event` is its JSON."""

    round: int
    request: str
    event: str
    row: Row
    counted: tuple[Counted, ...]
    """What the step is to be made of."""
    momenta: Sealed | None


@dataclass(frozen=True, slots=True)
class StepHere:
    """Nobody is found for the outer step of this round: it is made here."""

    round: int
    reason: str


Event = (
    Opened
    | Published
    | DepositAsked
    | Begun
    | Delivered
    | Received
    | Judged
    | Closed
    | Audited
    | Paid
    | Lost
    | Missed
    | Sufficed
    | Stepped
    | Undone
    | StepsBy
    | StepPublished
    | StepHere
)


# What is to be done.


@dataclass(frozen=True, slots=True)
class Publish:
    """Find providers for these shards and ask them."""

    round: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Send the ticket until the provider says something; give it up after a while."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the result as long as makes sense; for a late one up to its deadline."""

    request: str
    provider: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class Linger:
    """Enough results of the round are there: wait a little for the others."""

    round: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get a result, open it, and see whether it is one."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Judge:
    """All results of the round are there; those of `waiting` are to be judged beside the others. Or a late one's."""

    round: int
    waiting: tuple[tuple[str, str], ...]
    """Request and provider."""


@dataclass(frozen=True, slots=True)
class Close:
    """Say which results of the round count, so that segments can be drawn of them."""

    round: int
    undone: bool = False
    """Of those that a step was undone under."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Have the provider show some of its work, and compute it again."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Pay:
    request: str
    provider: str
    part: int


@dataclass(frozen=True, slots=True)
class Step:
    round: int


@dataclass(frozen=True, slots=True)
class Undo:
    """Go back to before the step of `round`, once nothing of the present round is being done any more."""

    round: int


@dataclass(frozen=True, slots=True)
class BuyStep:
    """Find a provider for the outer step and ask it."""

    round: int


@dataclass(frozen=True, slots=True)
class AwaitStep:
    """Wait for an outer step as long as makes sense."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class CheckStep:
    """Get an outer step, compute a part of it again, and take it over."""

    request: str
    provider: str


Action = (
    Publish
    | Call
    | Await
    | Linger
    | Fetch
    | Judge
    | Close
    | Audit
    | Pay
    | Step
    | Undo
    | BuyStep
    | AwaitStep
    | CheckStep
)


@dataclass(frozen=True, slots=True)
class Work:
    """One shard in the present round. `excluded` are providers that have failed it in this round."""

    index: int
    status: Status = "idle"
    provider: str = ""
    request: str = ""
    result: str = ""
    """The result event's JSON."""
    excluded: frozenset[str] = frozenset()
    afresh: bool = False
    """Its provider has lost what it carried, and is asked to begin this round with nothing."""


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer step of the present round, where such steps are `bought`."""

    bought: bool = False
    status: Literal["idle", "asked", "working", "delivered"] = "idle"
    provider: str = ""
    """Who makes it, or made the last one."""
    request: str = ""
    result: str = ""
    """The result event's JSON."""
    counted: tuple[Counted, ...] = ()
    """What it is made of."""
    momenta: Sealed | None = None
    """Before this round's step; None before the first one, and where they stand on no server."""
    lost_by: frozenset[str] = frozenset()
    """Who has failed it in this round."""
    here: bool = False
    """This round's is made by the customer."""
    took_ms: tuple[int, ...] = ()

    def is_of(self, request: str, provider: str) -> bool:
        return self.status != "idle" and (self.request, self.provider) == (request, provider)


@dataclass(frozen=True, slots=True)
class Debt:
    """What is paid, or will be. `owed`: it is to be paid now; `held`: when its audit has passed."""

    row: Row
    round: int
    deposit: Literal["none", "owed", "paid"] = "none"
    balance: Literal["none", "held", "owed", "paid"] = "none"
    result: str = ""
    """The result event's JSON, until it is paid for or audited."""
    took_ms: int = 0
    """As it was delivered; 0 if it was not."""
    doubted: bool = False
    harms: bool = False
    """As it was judged."""
    close: str = ""
    """The id of the close that names it."""
    carried: str = ""
    """The digest of what its provider carries on from it."""
    theta: Sealed | None = None
    """What its round began with."""
    failed: bool = False
    """Its audit, or another's of the same provider while this one waited."""
    undone: bool = False
    """It began with weights that are none any more: it is owed as any other, and never counts."""


@dataclass(frozen=True, slots=True)
class Before:
    """How a round stood when its step was made: what going back to it needs."""

    works: tuple[Work, ...]
    late: tuple[Work, ...]
    """That counted in it."""
    is_enough: bool
    counted: tuple[Counted, ...]
    """What it was made of."""
    earlier: tuple[Counted, ...]
    """What the step before it was made of."""
    momenta: Sealed | None
    """As `Outer.momenta`."""


@dataclass(frozen=True, slots=True)
class State:
    rounds: int = 0
    round: int = 0
    theta: Sealed | None = None
    thetas: tuple[Sealed, ...] = ()
    """What each round so far began with, and the present one."""
    start: Sealed | None = None
    shards: tuple[Sealed, ...] = ()
    works: tuple[Work, ...] = ()
    requests: dict[str, str] = field(default_factory=dict)
    """The events' JSON, by id."""
    debts: dict[tuple[str, str], Debt] = field(default_factory=dict)
    """By request and provider."""
    closes: dict[str, str] = field(default_factory=dict)
    """The closes' JSON, by id, that audits still wait for."""
    paid_last: dict[str, str] = field(default_factory=dict)
    """By provider, the newest request whose result it was accepted for: its payment stands for a deposit."""
    took_ms: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    """After each round, on what is held out; in millionths."""
    failures: tuple[tuple[str, str], ...] = ()
    """Providers and why nothing came of a shard, oldest first."""
    banned: frozenset[str] = frozenset()
    """Who has failed an audit: it gets no further shard."""
    needed: int = 0
    """Results that are enough for an outer step."""
    late_counts: bool = False
    kept: int = 2
    """Rounds for which the coordinator has what audits need."""
    is_enough: bool = False
    """Nothing is waited for in this round any more, as long as so many results as are needed stand."""
    late: tuple[Work, ...] = ()
    """Shards that are not waited for any more, and still may come; also those that will count in this round's step."""
    counted: tuple[Counted, ...] = ()
    """In the newest outer step."""
    step_us: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By provider, microseconds a step that its newest results took, request and delivery included."""

    outer: Outer = Outer()
    past: dict[int, Before] = field(default_factory=dict)
    """By round, as far back as a step may have to be undone."""
    spoilt: int | None = None
    """The first round whose step was made of what has failed its audit since, until it is undone."""
    again: int = -1
    """The round that was gone back to last."""

    @property
    def is_trained(self) -> bool:
        return self.rounds > 0 and self.round >= self.rounds

    @property
    def is_over(self) -> bool:
        return (
            self.is_trained
            and self.spoilt is None
            and not self.late
            and not any({"owed", "held"} & {debt.deposit, debt.balance} for debt in self.debts.values())
        )

    @property
    def is_paid_for(self) -> bool:
        """Whether nothing is left to do but payments that do not get through."""
        return self.is_trained and not self.late and not any(debt.balance == "held" for debt in self.debts.values())

    @property
    def owed(self) -> dict[tuple[str, str], int]:
        """What is owed now and not paid, in msat, by request and provider."""
        found: dict[tuple[str, str], int] = {}
        for key, debt in self.debts.items():
            owed = (debt.deposit == "owed") * debt.row.deposit_msat + (debt.balance == "owed") * debt.row.balance_msat
            if owed:
                found[key] = owed
        return found

    @property
    def committed_msat(self) -> int:
        """What was paid, is owed, or will be if what is under way turns out well."""
        open_ = {(work.request, work.provider) for work in (*self.works, *self.late) if work.request}
        if self.outer.status != "idle":
            open_.add((self.outer.request, self.outer.provider))
        total = 0
        for key, debt in self.debts.items():
            total += debt.row.deposit_msat if debt.deposit != "none" or key in open_ else 0
            total += debt.row.balance_msat if debt.balance != "none" or key in open_ else 0
        return total

    def unclosed(self, round_: int, undone: bool = False) -> tuple[tuple[str, str], ...]:
        """The results of a round that wait for their audit, and that no close names yet; by shard."""
        keys = [
            key
            for key, debt in self.debts.items()
            if (debt.round, debt.undone) == (round_, undone) and debt.balance == "held" and not debt.close
        ]
        return tuple(sorted(keys, key=lambda key: (self.debts[key].row.index, key)))

    @property
    def is_quorate(self) -> bool:
        """Whether as many results of this round are there as its outer step needs."""
        return 0 < self.needed <= sum(work.status in ("received", "accepted") for work in self.works)

    def work(self, request: str, provider: str) -> Work | None:
        """A shard of this round, or a late one."""
        works = (*self.works, *self.late)
        return next((w for w in works if (w.request, w.provider) == (request, provider)), None)

    def is_late(self, request: str, provider: str) -> bool:
        return any((w.request, w.provider) == (request, provider) for w in self.late)
