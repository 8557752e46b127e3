"""What a swarm's file says of its jobs (nodewire.public_record)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import NotFound
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.snapshot import Node
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.swarm.file import SwarmFile

_UNKNOWN_US = 1_000_000
"""A speed that nobody claims."""


class FileRecord:
    """With the cut model and the blobs of it that are here, by hash."""

    def __init__(self, file: SwarmFile, manifest: Manifest, blobs: Mapping[str, Path]) -> None:
        self.swarm = file.swarm
        self.cut = manifest
        self._file, self._blobs = file, blobs

    @property
    def committee_digest(self) -> str:
        return self.swarm.digest()

    async def manifest(self, address: str, digest: str | None = None) -> Manifest:
        if address != self.swarm.address or digest not in (None, self.cut.digest()):
            raise NotFound("manifest", "another one than the swarm's")
        return self.cut

    async def fetch_blob(self, sha256: str, max_bytes: int) -> Path:
        path = self._blobs.get(sha256)
        if path is None:
            raise NotFound("blob", f"{sha256[:16]} is not of this node's part")
        return path

    async def ads(self, plan: Plan) -> dict[str, Ad]:
        return ads(self._file, plan)

    async def nodes(self, plan: Plan) -> dict[str, Node]:
        return {}


def ads(file: SwarmFile, plan: Plan) -> dict[str, Ad]:
    """The file as if its nodes had announced it; nobody claims a speed."""
    found = {}
    for node in file.nodes:
        tasks = (one.task for one in plan.tasks if one.provider == node.npub)
        offers = tuple(TaskOffer(task=task, price_msat=0, us_per_position=_UNKNOWN_US) for task in tasks)
        offer = ManifestOffer(manifest=plan.manifest, tasks=offers, slots=file.slots)
        name = node.name or f"node-{node.npub[:8]}"
        found[node.npub] = Ad(name=name, manifests=(offer,), wire=(node.address,), lookahead=file.lookahead)
    return found
