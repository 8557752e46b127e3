"""What is to be done in a training.

The actions follow from its state (`pending_actions.py`), and `driver.py` begins them.

Two actions that are equal are one: what is under way is not begun again. So each says what it is of, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """Pay one part of a price: `part` is DEPOSIT or BALANCE (`training.protocol.round`)."""

    request: str
    provider: str
    part: int


@dataclass(frozen=True, slots=True)
class Step:
    """Make the outer step of `round` here."""

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
