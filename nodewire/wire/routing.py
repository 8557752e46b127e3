"""Which way a job's frames go: by its plan, its newest takeover, and who computes along."""

from __future__ import annotations

from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import Plan
from nodewire.protocol.takeover import Takeover, ends_after, hedges
from nodewire.wire.edges import Route


def routes_of(manifest: Manifest, plan: Plan, takeover: Takeover | None, public: str) -> dict[str, Route]:
    """All edges by name, as the node `public` sees them: one that computes along produces, and nobody consumes."""
    along = hedges(plan, takeover)
    routes = {}
    for edge, (producer, consumer) in ends_after(manifest, plan, takeover).items():
        ends = next(one for one in manifest.edges if one.name == edge)
        hedge = along.get(ends.target)
        routes[edge] = Route(producer, (consumer,), (hedge,) if hedge is not None else ())
        if along.get(ends.source) == public:
            routes[edge] = Route(public, ())
    return routes
