"""Observations: what a bonded node found when it dialled another one, said in its beat.

Every certified body draws anew which nodes a node observes. The body with digest d draws node o for node n if

    lot / 2^64 < 4 * (units of o) / (units of all),   lot = the first 8 bytes of H("nodewire/observer/1", d || o || n)

by the bond units of a snapshot. So a few draws fall on each node in each epoch, in proportion to bonds, whatever the
number of keys. A node chooses neither its observers nor the nodes that it observes. An observation that no body has
drawn counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nodewire.errors import NotAllowed
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.protocol.market.coordinates import MOST_US, Coordinates, rtt_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_OBSERVED = 8
"""In one beat."""
MAX_SEEN = 8
"""Of one node in a snapshot."""
OBSERVERS = 4
"""Draws for a node in an epoch, on average."""
LEAST_OBSERVERS = 3
"""Fewer observers of a node certify nothing about it."""
SEEN_EPOCHS = 4
"""An observation counts for so many epochs after its own."""
SLACK_US = 5_000
"""A round trip may differ from what coordinates predict by so much, or by a quarter."""


class Observation(Schema):
    """`rtt_us` is the shortest round trip that was measured; null where no address answered as the node."""

    node: Hex32
    rtt_us: int | None = Field(ge=1, le=MOST_US)


class NodeObservation(Schema):
    """An observation of a node, as a snapshot has it."""

    observer: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    rtt_us: int | None = Field(ge=1, le=MOST_US)


def is_drawn(body: str, observer: str, node: str, units: int, total: int) -> bool:
    """Whether the certified body with this digest draws `observer`, which has `units` of `total`, for `node`."""
    lot = int.from_bytes(tagged_hash("nodewire/observer/1", bytes.fromhex(body + observer + node))[:8], "big")
    return observer != node and lot * total < OBSERVERS * units << 64


def check_drawn(body: str, observer: str, node: str, units: int, total: int) -> None:
    """Raises NotAllowed: an observation by a node without a bond, or of a node that the observer was not drawn for."""
    if not units:
        raise NotAllowed("observed", f"{observer[:8]} has no bond in the snapshot before")
    if not is_drawn(body, observer, node, units, total):
        raise NotAllowed("observed", f"nobody drew {observer[:8]} to observe {node[:8]}")


def merged(old: Iterable[NodeObservation], new: Iterable[NodeObservation], epoch: int) -> tuple[NodeObservation, ...]:
    """The newest of each observer that counts in `epoch`, by descending epoch, then by observer; at most MAX_SEEN."""
    newest: dict[str, NodeObservation] = {}
    for one in sorted((*old, *new), key=lambda seen: seen.epoch):
        if epoch - SEEN_EPOCHS <= one.epoch <= epoch:
            newest[one.observer] = one
    return tuple(sorted(newest.values(), key=lambda seen: (-seen.epoch, seen.observer))[:MAX_SEEN])


def is_unreachable(seen: Sequence[NodeObservation]) -> bool:
    """Whether most of its observers, and enough of them, found no node at its addresses."""
    missed = sum(one.rtt_us is None for one in seen)
    return missed >= LEAST_OBSERVERS and 2 * missed > len(seen)


def is_placed(at: Coordinates, seen: Iterable[tuple[Coordinates, int | None]]) -> bool:
    """Whether most of a node's observers, and enough of them, found it where it says it is.

    Args:
        at: the node's own coordinates.
        seen: of each observer its coordinates, and the round trip that it measured.

    """
    found = list(seen)
    agreed = sum(rtt is not None and _agrees(rtt_us(at, observer), rtt) for observer, rtt in found)
    return agreed >= LEAST_OBSERVERS and 2 * agreed > len(found)


def _agrees(predicted_us: int, measured_us: int) -> bool:
    return abs(predicted_us - measured_us) <= max(predicted_us // 4, SLACK_US)
