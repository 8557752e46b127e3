"""A training as its customer sees it: a pure state machine, no I/O, no clock.

`apply` takes note of what happened, `pending` says what is to be done now. Nothing else drives a training, so one that
died goes on where its journal ends: the events are applied again, and what is pending is begun.

A shard in a round:

    idle ──published──▶ asked ──begun──▶ working ──delivered──▶ delivered ──received──▶ received ──judged──▶ accepted
      ▲                   │                 │                       │                       │
      └───────────────────┴──────lost───────┴───────────────────────┴───────rejected────────┘

Results are judged beside each other, when all of a round are there; who is rejected or lost is replaced by another, and
judged beside those that were accepted. When all are accepted comes the outer step, and all shards are idle again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from nodewire.errors import NotAllowed
from nodewire.protocol.round import BALANCE, DEPOSIT

Status = Literal["idle", "asked", "working", "delivered", "received", "accepted"]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A ciphertext on the blob servers: its hash and size, its key, the plaintext's hash."""

    sha256: str
    bytes: int
    key: str
    plain_sha256: str


@dataclass(frozen=True, slots=True)
class Row:
    """One shard in a published request. `lnurl` is where its provider is paid."""

    index: int
    provider: str
    steps: int
    deposit_msat: int
    balance_msat: int
    lnurl: str
    ticket: str
    """RoundTicket as JSON."""


# What happens.


@dataclass(frozen=True, slots=True)
class Opened:
    """The data are split and sealed. `shards` in the order of their indices; `theta` is what round 0 begins with."""

    rounds: int
    shards: tuple[Sealed, ...]
    theta: Sealed
    start: Sealed | None = None
    """Frozen weights, where the recipe has an adapter."""


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


@dataclass(frozen=True, slots=True)
class Judged:
    """`audit`: what is accepted is paid only when a part of it was computed again."""

    request: str
    provider: str
    accepted: bool
    reason: str
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    request: str
    provider: str
    passed: bool
    reason: str


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
class Stepped:
    """The outer step of `round` is done: `theta` is for the next, `loss` is the held-out one in millionths."""

    round: int
    loss: int
    theta: Sealed


Event = Opened | Published | DepositAsked | Begun | Delivered | Received | Judged | Audited | Paid | Lost | Stepped


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
    """Wait for the result as long as makes sense."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get a result, open it, and see whether it is one."""

    request: str
    provider: str


@dataclass(frozen=True, slots=True)
class Judge:
    """All results of the round are there; those of `waiting` are to be judged beside the others."""

    round: int
    waiting: tuple[tuple[str, str], ...]
    """Request and provider."""


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


Action = Publish | Call | Await | Fetch | Judge | Audit | Pay | Step


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


@dataclass(frozen=True, slots=True)
class Debt:
    """What is paid, or will be. `owed`: it is to be paid now; `held`: when its audit has passed."""

    row: Row
    round: int
    deposit: Literal["none", "owed", "paid"] = "none"
    balance: Literal["none", "held", "owed", "paid"] = "none"
    result: str = ""
    """The accepted result event's JSON."""


@dataclass(frozen=True, slots=True)
class State:
    rounds: int = 0
    round: int = 0
    theta: Sealed | None = None
    start: Sealed | None = None
    shards: tuple[Sealed, ...] = ()
    works: tuple[Work, ...] = ()
    requests: dict[str, str] = field(default_factory=dict)
    """The events' JSON, by id."""
    debts: dict[tuple[str, str], Debt] = field(default_factory=dict)
    """By request and provider."""
    paid_last: dict[str, str] = field(default_factory=dict)
    """By provider, the newest request whose result it was accepted for: its payment stands for a deposit."""
    took_ms: tuple[int, ...] = ()
    losses: tuple[int, ...] = ()
    """After each round, on what is held out; in millionths."""
    failures: tuple[tuple[str, str], ...] = ()
    """Providers and why nothing came of a shard, oldest first."""

    @property
    def is_trained(self) -> bool:
        return self.rounds > 0 and self.round >= self.rounds

    @property
    def is_over(self) -> bool:
        return self.is_trained and not any(
            {"owed", "held"} & {debt.deposit, debt.balance} for debt in self.debts.values()
        )

    @property
    def committed_msat(self) -> int:
        """What was paid, is owed, or will be if what is under way turns out well."""
        open_ = {(work.request, work.provider) for work in self.works if work.status != "idle"}
        total = 0
        for key, debt in self.debts.items():
            total += debt.row.deposit_msat if debt.deposit != "none" or key in open_ else 0
            total += debt.row.balance_msat if debt.balance != "none" or key in open_ else 0
        return total

    def work(self, request: str, provider: str) -> Work | None:
        return next((w for w in self.works if (w.request, w.provider) == (request, provider)), None)


def apply(event: Event, state: State) -> State:
    """The state after `event`; the same state if it changes nothing any more.

    Raises:
        NotAllowed: it cannot have happened in this state.
    """
    match event:
        case Opened(rounds, shards, theta, start):
            if state.rounds:
                return state
            works = tuple(Work(i) for i in range(len(shards)))
            return replace(state, rounds=rounds, shards=shards, theta=theta, start=start, works=works)
        case Published():
            return _published(event, state)
        case Stepped(round_, loss, theta):
            if round_ != state.round:
                return state
            if any(work.status != "accepted" for work in state.works):
                raise NotAllowed("Stepped", "before every shard was accepted")
            return replace(
                state,
                round=round_ + 1,
                theta=theta,
                losses=(*state.losses, loss),
                works=tuple(Work(work.index, provider=work.provider) for work in state.works),
            )
        case Paid(request, provider, part, _, _):
            debt = state.debts[request, provider]
            debt = replace(debt, deposit="paid") if part == DEPOSIT else replace(debt, balance="paid")
            return replace(state, debts={**state.debts, (request, provider): debt})
        case Audited():
            return _audited(event, state)
    work = state.work(event.request, event.provider)
    return state if work is None else _worked(event, work, state)


def _published(event: Published, state: State) -> State:
    if event.round != state.round or event.request in state.requests:
        return state
    rows = {row.index: row for row in event.rows}
    if any(work.status != "idle" for work in state.works if work.index in rows):
        raise NotAllowed("Published", "a shard is under way")
    works = tuple(
        replace(work, status="asked", provider=rows[work.index].provider, request=event.request)
        if work.index in rows
        else work
        for work in state.works
    )
    debts = {(event.request, row.provider): Debt(row, event.round) for row in event.rows}
    return replace(
        state,
        works=works,
        requests={**state.requests, event.request: event.event},
        debts={**state.debts, **debts},
    )


def _audited(event: Audited, state: State) -> State:
    key, debt = (event.request, event.provider), state.debts[event.request, event.provider]
    if debt.balance != "held":
        return state
    if event.passed:
        debt = replace(debt, balance="owed" if debt.row.balance_msat else "none")
        return replace(state, debts={**state.debts, key: debt})
    # Nothing more of who did other work than it has committed to, and nothing that waits for an audit is paid.
    debts = {
        (request, provider): replace(one, balance="none")
        if one.balance == "held" and provider == event.provider
        else one
        for (request, provider), one in state.debts.items()
    }
    works = tuple(
        Work(work.index, excluded=work.excluded | {event.provider}) if work.provider == event.provider else work
        for work in state.works
    )
    kept = {known: request for known, request in state.paid_last.items() if known != event.provider}
    failures = (*state.failures, (event.provider, event.reason))
    return replace(state, debts=debts, works=works, paid_last=kept, failures=failures)


def _worked(event: DepositAsked | Begun | Delivered | Received | Judged | Lost, work: Work, state: State) -> State:
    """The state after something of a shard that is under way."""
    key = work.request, work.provider
    debt = state.debts[key]
    match event, work.status:
        case DepositAsked(), "asked":
            if debt.row.deposit_msat and debt.deposit == "none":
                debt = replace(debt, deposit="owed")
            work = replace(work, status="working")
        case Begun(), "asked":
            work = replace(work, status="working")
        case Delivered(_, _, result, took_ms), "asked" | "working":
            work = replace(work, status="delivered", result=result)
            state = replace(state, took_ms=(*state.took_ms, took_ms))
        case Received(), "delivered":
            work = replace(work, status="received")
        case Judged(_, provider, True, _, audit), "received":
            if audit:
                debt = replace(debt, balance="held", result=work.result)
            elif debt.row.balance_msat:
                debt = replace(debt, balance="owed")
            work = replace(work, status="accepted")
            state = replace(state, paid_last={**state.paid_last, provider: work.request})
        case (Judged(_, provider, False, reason, _), "received") | (
            Lost(_, provider, reason),
            "asked" | "working" | "delivered",
        ):
            work = Work(work.index, excluded=work.excluded | {provider})
            kept = {known: request for known, request in state.paid_last.items() if known != provider}
            state = replace(state, paid_last=kept, failures=(*state.failures, (provider, reason)))
        case _:
            return state
    works = tuple(work if old.index == work.index else old for old in state.works)
    return replace(state, works=works, debts={**state.debts, key: debt})


def pending(state: State) -> list[Action]:
    """All that is to be done now, the present round first; what has been begun is still among it until it is done."""
    actions: list[Action] = []
    if not state.is_trained:
        idle = tuple(work.index for work in state.works if work.status == "idle")
        # A coordinator keeps what audits need for two rounds: those of the round before the last come first.
        late = any(debt.balance == "held" and debt.round < state.round - 1 for debt in state.debts.values())
        if idle and not late:
            actions.append(Publish(state.round, idle))
        for work in state.works:
            match work.status:
                case "asked":
                    actions.append(Call(work.request, work.provider))
                case "working":
                    actions.append(Await(work.request, work.provider))
                case "delivered":
                    actions.append(Fetch(work.request, work.provider))
        if all(work.status in ("received", "accepted") for work in state.works):
            waiting = tuple((work.request, work.provider) for work in state.works if work.status == "received")
            if waiting:
                actions.append(Judge(state.round, waiting))
        if state.works and all(work.status == "accepted" for work in state.works):
            actions.append(Step(state.round))
    for (request, provider), debt in state.debts.items():
        if debt.deposit == "owed":
            actions.append(Pay(request, provider, DEPOSIT))
        if debt.balance == "held":
            actions.append(Audit(request, provider))
        if debt.balance == "owed":
            actions.append(Pay(request, provider, BALANCE))
    return actions
