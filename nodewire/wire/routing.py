"""Which way a job's frames go: by its plan, its newest takeover, and who computes along."""

from __future__ import annotations

from nodewire.protocol.manifest import Edge, Manifest
from nodewire.protocol.plan import Plan
from nodewire.protocol.takeover import Takeover, ends_after, hedges
from nodewire.wire.edges import Route


def routes_of(manifest: Manifest, plan: Plan, takeover: Takeover | None, public: str) -> dict[str, Route]:
    """All edges by name, as the node `public` sees them: one that computes along produces, and nobody consumes."""
    along, ends = hedges(plan, takeover), ends_after(manifest, plan, takeover)

    def route(edge: Edge) -> Route:
        if along.get(edge.source) == public:
            return Route(public, ())
        producer, consumer = ends[edge.name]
        hedge = along.get(edge.target)
        return Route(producer, (consumer,), (hedge,) if hedge is not None else ())

    return {edge.name: route(edge) for edge in manifest.edges}
