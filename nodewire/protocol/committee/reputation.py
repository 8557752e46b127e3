"""Accounts of behaviour: what certified verdicts say of a provider. Every snapshot has them, time makes them fade.

A pass is worth 4,096 points for each millisat of the task's price: reputation counts money and no chunks, so that
chunks at a millisat buy none. A chunk that was withheld is worth 4,096. Work in doubt (`Verdict.is_in_doubt`) leaves an
eighth of what passed: nobody is worth less for it than a new node, but a node that is in doubt again and again stays
there. With every epoch points p lose ceil(p / 4,096): one withheld chunk counts for 4,096 epochs, many fade by half in
2,839. What an account shows is ceil(p / 4,096). A fail needs none: its culprit leaves for good.

A verdict on a sample drawn in epoch d is counted in the snapshot of epoch d + 12, or in the first certified after it:
by then every oracle has the verdict's certificate, or there is none. What f+1 of the inventories that a body cites list
of it is counted, so what an oracle has missed, or made up, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Hex32, Msat, Schema

if TYPE_CHECKING:
    from collections.abc import Iterable

POINTS = 4_096
MAX_POINTS = 2**53 - 1
DOUBT_LEAVES_ONE_IN = 8
"""One sample in doubt leaves this part of what passed, whatever its own price. Honest work is in doubt once in 27,258
comparisons; what is sold in another precision than it is asked for is in doubt often."""
COUNTED_AFTER = 12
"""Epochs from a draw to the snapshot that counts what was found: a dispute and its votes are over by then."""
MAX_JUDGED = 1_024
"""Verdicts in one inventory, and in one snapshot."""


class ReputationVerdict(Schema):
    """What an account needs of a certified verdict; `epoch` is the draw's, `sample` the verdict's key."""

    NAME: ClassVar[str] = "judged"

    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    sample: Hex32
    provider: Hex32
    outcome: Literal["pass", "unsure", "withheld"]
    """`unsure`: it was compared, and is in doubt."""
    price_msat: Msat = 0
    """Of a pass: what the plan pays for the task's chunk."""

    @property
    def order(self) -> tuple[int, str, str, str, int]:
        return self.epoch, self.sample, self.provider, self.outcome, self.price_msat


class Account(Schema):
    """In points, of at most 2^53 - 1."""

    pubkey: Hex32
    passed: Count
    withheld: Count


def faded(points: int, epochs: int) -> int:
    """What is left of `points` so many epochs later."""
    for _ in range(epochs):
        points -= shown(points)
    return points


def shown(points: int) -> int:
    """What an account shows: of `passed` msat of work, of `withheld` chunks."""
    return -(-points // POINTS)


def agreed(lists: Iterable[Iterable[ReputationVerdict]], f: int) -> list[ReputationVerdict]:
    """In order, what more than `f` of the lists have. Each list has what it has once."""
    count = Counter(one for judged in lists for one in judged)
    return sorted((one for one, n in count.items() if n > f), key=lambda one: one.order)


def due(judged: Iterable[ReputationVerdict], epoch: int, last: int) -> tuple[ReputationVerdict, ...]:
    """In order, what the snapshot of `epoch` counts if the one certified before it was of epoch `last`.

    Of each sample the first, in all at most MAX_JUDGED, the latest.
    """
    found: dict[str, ReputationVerdict] = {}
    for one in sorted(judged, key=lambda one: one.order):
        if last - COUNTED_AFTER < one.epoch <= epoch - COUNTED_AFTER:
            found.setdefault(one.sample, one)
    return tuple(found.values())[-MAX_JUDGED:]
