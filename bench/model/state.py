"""What a run of the model is at one moment, and the rules that it goes by. All of it is hashable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nodewire.pay.accounts.debts import State as DebtState

DRIVER, FIRST, SECOND, CUSTOMER = range(4)
"""The roles: the ring is DRIVER -> FIRST -> SECOND -> DRIVER."""
ENDS = ((DRIVER, FIRST), (FIRST, SECOND), (SECOND, DRIVER), (DRIVER, CUSTOMER))
"""Producer and consumer of each edge. An edge has a link of its own."""

Status = Literal["open", "done", "broken", "dead"]
"""Of a role in its job. A process that is started anew stays dead in the job that it had."""
Claim = tuple[int, int, int]
"""Job, node and chunk."""


class Message(NamedTuple):
    """`frame`: `number` is its seq. `close`: a chunk. `resume`: the seq that is lacking first."""

    kind: Literal["frame", "close", "resume"]
    number: int
    turn: int = 0
    is_true: bool = True
    """Of a frame: whether it is what one process would have computed. No rule of the protocol reads it."""


class Edge(NamedTuple):
    """One edge and its link."""

    is_up: bool = True
    ahead: tuple[Message, ...] = ()
    """In flight to the consumer."""
    back: tuple[Message, ...] = ()
    """In flight to the producer."""
    kept: tuple[tuple[int, bool], ...] = ()
    """By seq, what the producer put: turn, and whether it is true."""
    sends: int | None = 0
    """The window's next seq."""
    lacks: int = 0
    """The consumer's next seq."""
    is_anew: bool = False


class Budget(NamedTuple):
    """How often each fault may still strike."""

    deaths: int = 0
    losses: int = 0
    wrong_guesses: int = 0
    failed_zaps: int = 0
    crashes: int = 0


class Run(NamedTuple):
    """`debts` are in the customer's ledger, `zaps` are all payments that its wallet made, `claims` are on relays."""

    budget: Budget
    alive: tuple[bool, ...]
    job: int
    plan: tuple[int, ...]
    roles: tuple[Status, ...]
    edges: tuple[Edge, ...]
    rows: tuple[tuple[bool, ...], tuple[bool, ...]]
    """By turn, what each stage's KV cache has."""
    accepted: int
    """Turns whose output the driver took."""
    closed: tuple[int, int, int, int]
    """How many chunks each role knows to be closed."""
    first: int
    """How many tokens the customer had when the job began."""
    tokens: tuple[bool, ...]
    heard: tuple[tuple[int, int], ...]
    """Of jobs that ended at the customer: how many chunks it knew to be closed."""
    claims: frozenset[Claim]
    unsigned: frozenset[Claim]
    """Claims without a close."""
    debts: tuple[tuple[Claim, DebtState], ...]
    zaps: tuple[Claim, ...]
    missed: frozenset[int]
    has_quit: bool = False
    """The customer's process died amid a payment. It settles its ledger, and buys no more."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the protocol demands. A mutant lacks one."""

    pauses: bool = True
    """A producer sends nothing before it has the consumer's `resume`."""
    names_first_lacking: bool = True
    repeats_closes: bool = True
    checks_guesses: bool = True
    overwrites_rows: bool = True
    asks_presence: bool = True
    denies_lost_memory: bool = True
    """A process that was started anew answers `held: false`."""
    spares_restarted: bool = True
    """`held: false` does not count as gone."""
    tells_neighbours: bool = True
    pays_closed_alone: bool = True
    asks_wallet: bool = True
    goes_on_from_tokens: bool = True
    waits_for_credit: bool = True
    claims_closed: bool = True
    claims_carry_closes: bool = True
    """A claim shows the driver's close, which may not have come to the customer."""


class Broken(Exception):
    """A run came to what the protocol rules out."""
