"""What proposes tokens that may follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may be next.

    `sort` is the drafter's own class of guesses (how sure it is, which rank): of each its rate of right ones is
    measured; `prior` is what it is taken for before.
    """

    token: int
    sort: int
    prior: float


class Drafter(Protocol, Generic[Place]):
    """Proposes what follows the accepted tokens and a path of guesses after them.

    A `Place` is where a path stands, as the drafter likes to remember it. Places stay usable when a token is accepted
    that their paths began with. Sorts are small numbers: whoever measures keeps a row for each.
    """

    def accept(self, token: int) -> None:
        """`token` is the next one, for good."""

    def root(self) -> Place:
        """The place after all that is accepted."""

    def after(self, place: Place, token: int) -> Place:
        """The place that a guess leads to."""

    def candidates(self, place: Place) -> Sequence[Candidate]:
        """A few different tokens, the likeliest first; none if it has no idea."""
