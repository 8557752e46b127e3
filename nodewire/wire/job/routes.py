"""Which way a job's frames go, by its plan."""

from __future__ import annotations

from nodewire.protocol.job.plan import Plan, ends
from nodewire.protocol.model.manifest import Manifest
from nodewire.wire.job.edge_window import Route


def routes_of(manifest: Manifest, plan: Plan) -> dict[str, Route]:
    """All edges by name, with the public keys of their producer and their consumer."""
    return {edge: Route(producer, consumer) for edge, (producer, consumer) in ends(manifest, plan).items()}
