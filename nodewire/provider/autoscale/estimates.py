"""What tasks that are not held here would take, and what others ask for them, by a certified snapshot.

A first estimate, to choose by: the speed that is claimed later is the one that was measured.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodewire.protocol.market.ad import TaskOffer
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest

_US_PER_MFLOP = 1_000.0
"""Where nothing is known of a manifest: a gigaflop a second."""


def offers(snapshot: Snapshot, digest: str, own: str) -> dict[str, list[TaskOffer]]:
    """What nodes but `own` offer of a manifest, by task."""
    found: dict[str, list[TaskOffer]] = {}
    for node in snapshot.nodes:
        for held in node.held if node.pubkey != own else ():
            for offer in held.tasks if held.manifest == digest else ():
                found.setdefault(offer.task, []).append(offer)
    return found


def speeds(
    manifest: Manifest, known_us: Mapping[str, int], others: Mapping[str, Iterable[TaskOffer]]
) -> dict[str, int]:
    """Microseconds for a position of every task: as it was measured here, or certified of others, or by its flops."""
    seen = {name: round(median(one.us_per_position for one in found)) for name, found in others.items() if found}
    flops = {task.name: max(1, task.flops) for task in manifest.tasks}
    rates = [us / flops[name] for name, us in {**seen, **known_us}.items() if name in flops]
    rate = median(rates) if rates else _US_PER_MFLOP / 1e6
    return {name: max(1, known_us.get(name) or seen.get(name) or round(rate * count)) for name, count in flops.items()}


def prices(
    tasks: Iterable[str], others: Mapping[str, Iterable[TaskOffer]], *, least_msat: int, ppm: int
) -> dict[str, int]:
    """A price for each task: `ppm` of what others ask for it in the middle, or for the manifest's others.

    It is at least `least_msat`.
    """
    asked = {name: [one.price_msat for one in found] for name, found in others.items()}
    every = [price for found in asked.values() for price in found]
    made = {}
    for task in tasks:
        known = asked.get(task) or every
        made[task] = max(least_msat, int(median(known)) * ppm // 1_000_000) if known else least_msat
    return made
