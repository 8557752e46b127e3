"""Observations: what a bonded node found when it dialled another one, said in its beat.

Whom a node observes is drawn anew by every certified body: node o is drawn for node n by the body with digest d, if

    lot / 2^64 < 4 * (units of o) / (units of all),   lot = the first 8 bytes of H("nodewire/observer/1", d || o || n)

with the bond units of the snapshot before. So a few draws fall on each node in each epoch, in proportion to bonds,
whatever the number of keys; nobody chooses its observers, nor whom it observes. A word that nobody asked for counts
for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from nodewire.errors import NotAllowed
from nodewire.protocol import tags
from nodewire.protocol.canonical import tagged_hash
from nodewire.protocol.coordinates import MOST_US, Coordinates, rtt_us
from nodewire.protocol.schema import Hex32, Schema

MAX_OBSERVED = 8
"""In one beat."""
MAX_SEEN = 8
"""Of one node in a snapshot."""
OBSERVERS = 4
"""Draws for a node in an epoch, on average."""
LEAST_OBSERVERS = 3
"""Fewer distinct ones certify nothing."""
SEEN_EPOCHS = 4
"""For so long an observation counts."""
SLACK_US = 5_000
"""A round trip may differ from what coordinates predict by so much, or by a quarter."""


class Observation(Schema):
    """`rtt_us` is the shortest round trip that was measured; null where nobody answered as the node."""

    node: Hex32
    rtt_us: int | None = Field(ge=1, le=MOST_US)


class Seen(Schema):
    """An observation of a node, as a snapshot has it."""

    observer: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    rtt_us: int | None = Field(ge=1, le=MOST_US)


def is_drawn(body: str, observer: str, node: str, units: int, total: int) -> bool:
    """Whether the certified body with this digest draws `observer`, which has `units` of `total`, for `node`."""
    lot = int.from_bytes(tagged_hash("nodewire/observer/1", bytes.fromhex(body + observer + node))[:8], "big")
    return observer != node and lot * total < OBSERVERS * units << 64


def check_drawn(body: str, observer: str, observed: Iterable[Observation], units: int, total: int) -> None:
    """Raises NotAllowed: one of these is by a stranger, about itself, or of a node that it was not drawn for."""
    for one in observed:
        if one.node == observer:
            raise NotAllowed("observed", "a node observes others, never itself")
        if not is_drawn(body, observer, one.node, units, total):
            raise NotAllowed("observed", f"nobody drew {observer[:8]} to observe {one.node[:8]}")


def merged(old: Iterable[Seen], new: Iterable[Seen], epoch: int) -> tuple[Seen, ...]:
    """The newest of each observer that counts in `epoch`, by descending epoch, then by observer; at most MAX_SEEN."""
    newest: dict[str, Seen] = {}
    for one in sorted((*old, *new), key=lambda seen: seen.epoch):
        if epoch - SEEN_EPOCHS <= one.epoch <= epoch:
            newest[one.observer] = one
    return tuple(sorted(newest.values(), key=lambda seen: (-seen.epoch, seen.observer))[:MAX_SEEN])


def is_unreachable(seen: Sequence[Seen]) -> bool:
    """Whether most observers, and enough of them, found nobody."""
    missed = sum(one.rtt_us is None for one in seen)
    return missed >= LEAST_OBSERVERS and 2 * missed > len(seen)


def is_placed(at: Coordinates, seen: Iterable[tuple[Coordinates, int | None]]) -> bool:
    """Whether most observers, and enough of them, found the node as far from them as `at` says; each with its own."""
    found = list(seen)
    agreed = sum(rtt is not None and _agrees(rtt_us(at, observer), rtt) for observer, rtt in found)
    return agreed >= LEAST_OBSERVERS and 2 * agreed > len(found)


def _agrees(predicted_us: int, measured_us: int) -> bool:
    return abs(predicted_us - measured_us) <= max(predicted_us // 4, SLACK_US)
