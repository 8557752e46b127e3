"""A training as its customer sees it: the state of a pure machine, no I/O, no clock.

`transitions.apply` takes note of what happened (`events.py`). `next_actions` says what to do now (`actions.py`).
Nothing else drives a training, so one that died goes on where its journal ends: the events are applied again, and what
is pending is begun.

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
after it: the training goes back to before that step (`rollback`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nodewire.training.customer.machine.events import CiphertextRef, Contribution, Row

Status = Literal["idle", "asked", "working", "delivered", "received", "accepted", "missed"]


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
    counted: tuple[Contribution, ...] = ()
    """What it is made of."""
    momenta: CiphertextRef | None = None
    """Before this round's step; None before the first one, and where they stand on no server."""
    lost_by: frozenset[str] = frozenset()
    """Who has failed it in this round."""
    here: bool = False
    """This round's is made by the customer."""
    took_ms: tuple[int, ...] = ()

    def is_of(self, request: str, provider: str) -> bool:
        """Whether it is this provider that the step is asked of, under this request."""
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
    theta: CiphertextRef | None = None
    """What its round began with."""
    failed: bool = False
    """Its audit, or another's of the same provider while this one waited."""
    undone: bool = False
    """It began with weights that are none any more: it is owed as any other, and never counts."""


@dataclass(frozen=True, slots=True)
class Silence:
    """That a provider has not answered, or said no more (`unresponsive`)."""

    round: int
    """Whose shard it was asked for."""
    times: int
    """In a row, by rounds."""
    until: int
    """The round from which on it is asked again as any other."""


@dataclass(frozen=True, slots=True)
class Before:
    """How a round stood when its step was made: what going back to it needs."""

    works: tuple[Work, ...]
    late: tuple[Work, ...]
    """That counted in it."""
    is_enough: bool
    counted: tuple[Contribution, ...]
    """What it was made of."""
    earlier: tuple[Contribution, ...]
    """What the step before it was made of."""
    momenta: CiphertextRef | None
    """As `Outer.momenta`."""


@dataclass(frozen=True, slots=True)
class State:
    """All that is known of a training. Requests and closes are ids of Nostr events, providers public keys."""

    rounds: int = 0
    round: int = 0
    theta: CiphertextRef | None = None
    thetas: tuple[CiphertextRef, ...] = ()
    """What each round so far began with, and the present one."""
    start: CiphertextRef | None = None
    shards: tuple[CiphertextRef, ...] = ()
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
    """Milliseconds from request to result, the newest ones (`throughput`)."""
    losses: tuple[int, ...] = ()
    """After each round, on what is held out; in millionths."""
    failures: tuple[tuple[str, str], ...] = ()
    """Providers and why nothing came of a shard, oldest first."""
    silent: dict[str, Silence] = field(default_factory=dict)
    """By provider, of those who have delivered nothing since."""
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
    counted: tuple[Contribution, ...] = ()
    """In the newest outer step."""
    step_us: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By provider, microseconds a step that its newest results took, request and delivery included."""

    outer: Outer = Outer()
    past: dict[int, Before] = field(default_factory=dict)
    """By round, as far back as a step may have to be undone."""
    spoilt: int | None = None
    """The first round whose step was made of what has failed its audit since, until it is undone."""

    @property
    def is_trained(self) -> bool:
        """Whether all rounds have had their steps; an audit that fails may still undo the last ones."""
        return self.rounds > 0 and self.round >= self.rounds

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: it is trained, and everything is audited and paid."""
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
        """Whether this shard is not waited for any more, and goes on beside the rounds."""
        return any((w.request, w.provider) == (request, provider) for w in self.late)
