"""Which stages of a generation are computed by two, where a customer asks for so many."""

from __future__ import annotations

from nodewire.protocol.hedging import MAX_HEDGED
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Terms


def hedged(manifest: Manifest, terms: Terms, most: int) -> tuple[str, ...]:
    """At most so many of a manifest's stages, in its order: those with the most weights, which would take longest to
    compute again in the place of who died."""
    stages = terms.may_be_hedged(manifest)
    heaviest = sorted(stages, key=lambda name: -sum(blob.bytes for blob in manifest.task(name).weights))
    chosen = {*heaviest[: min(most, MAX_HEDGED)]}
    return tuple(name for name in stages if name in chosen)
