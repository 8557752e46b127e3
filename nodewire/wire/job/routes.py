"""Which way a job's frames go, by its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.protocol.job.plan import Plan, ends
from nodewire.wire.job.edge_window import Route

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import Manifest


def routes_of(manifest: Manifest, plan: Plan) -> dict[str, Route]:
    """All edges by name, with the public keys of their producer and their consumer."""
    return {edge: Route(producer, consumer) for edge, (producer, consumer) in ends(manifest, plan).items()}
