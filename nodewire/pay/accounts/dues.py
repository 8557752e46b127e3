"""What a provider is owed for one chunk, and how payments settle it: pure rules, no I/O, no clock.

A payment counts when the provider's own wallet reports it as settled, with its preimage. It settles the due that its
zap request names, then others of the same job, then the customer's other ones, the oldest first, each as a whole. What
is left is the customer's balance, which settles what falls due next. Parts of trainings are settled by name alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.pay.accounts.debts import Key

State = Literal["due", "settled"]

MAX_BROKEN = 3
"""Of a customer's jobs that broke off within `BROKEN_S` so many may stand unpaid."""
BROKEN_S = 24 * 60 * 60
CREDIT_PARTS = 10
"""A key may owe one part in so many of what it has paid: who leaves with a debt has bought a tenth cheaper, once."""
NEVER_S = 2**53 - 1
"""When a deposit is due that nobody need pay: nothing was done for it."""


@dataclass(frozen=True, slots=True)
class Due:
    """`customer` (pubkey) owes `amount_msat`; from `due_by_s` (unix seconds) on it is in debt."""

    key: Key
    customer: str
    amount_msat: int
    due_by_s: int
    state: State = "due"
    payment_hash: str | None = None
    """The payment that settled the last of it."""
    settled_at_s: int = 0


@dataclass(frozen=True, slots=True)
class CreditTerms:
    """How much a customer may owe.

    `first_msat` before it has paid anything, else a tenth of what it has paid, at most `most_msat`.
    """

    first_msat: int = 0
    most_msat: int = 0
    unit_msat: int = 1
    """A payment is of so much, or whole multiples."""

    def earned_msat(self, paid_msat: int) -> int:
        """What a key may owe for any time, having paid `paid_msat`."""
        return min(self.most_msat, paid_msat // CREDIT_PARTS)

    def allowed_msat(self, paid_msat: int) -> int:
        """What a key may owe while its job runs."""
        return max(self.first_msat, self.earned_msat(paid_msat))


NO_CREDIT = CreditTerms()


def settle(balance_msat: int, unpaid: Iterable[Due], named: Key | None) -> tuple[list[Due], int]:
    """The dues of `unpaid` (one customer's, oldest first) that a balance settles, and the balance that is left.

    `named` is the due that a zap request names; None for a balance that was there before.
    """
    wanted = list(unpaid)
    if named is not None:
        wanted.sort(key=lambda due: (due.key != named, due.key.job != named.job))  # stable: the oldest first
    settled = []
    for due in wanted:
        if due.amount_msat > balance_msat:
            break
        balance_msat -= due.amount_msat
        settled.append(due)
    return settled, balance_msat


def is_too_much(broken_at_s: Sequence[int]) -> bool:
    """Whether a customer is in debt for jobs that broke off: when those that it has not paid did, the oldest first.

    `MAX_BROKEN` within `BROKEN_S` are none: a neighbour may have lied, and the customer got nothing of what its
    neighbours computed. One that as many younger ones follow within that time counts until it is paid.
    """
    return any(later - at < BROKEN_S for at, later in zip(broken_at_s, broken_at_s[MAX_BROKEN:], strict=False))
