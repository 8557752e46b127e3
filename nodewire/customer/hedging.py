"""Which stages of a generation are computed by two, where a customer asks for so many."""

from __future__ import annotations

from nodewire.protocol.hedging import MAX_HEDGED
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.plan import Terms


def hedged(manifest: Manifest, terms: Terms, most: int) -> tuple[str, ...]:
    """At most so many of a manifest's stages, in its order: those with the most weights, which would take longest to
    compute again in the place of who died."""
    own = {manifest.driver.name, *terms.local(manifest)}
    own |= {end for e in manifest.edges if CUSTOMER in (e.source, e.target) for end in (e.source, e.target)}
    stages = [task for task in manifest.tasks if task.name not in own]
    heaviest = sorted(stages, key=lambda task: -sum(blob.bytes for blob in task.weights))
    chosen = {task.name for task in heaviest[: min(most, MAX_HEDGED)]}
    return tuple(task.name for task in stages if task.name in chosen)
