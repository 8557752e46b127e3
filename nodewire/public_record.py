"""What jobs stand on, as who buys and who serves reads it.

Of a market it is what its committee certified, of a swarm the file that its people wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.snapshot import Node
    from nodewire.protocol.model.manifest import Manifest


class PublicRecord(Protocol):
    @property
    def committee_digest(self) -> str:
        """What plans cite as their committee."""

    async def manifest(self, address: str, digest: str | None = None) -> Manifest:
        """The manifest at an address, or that version of it whose digest is given. Raises NotFound, BadManifest ..."""

    async def fetch_blob(self, sha256: str, max_bytes: int) -> Path:
        """A blob's file on this machine. Raises NotFound, BadHash, TooLarge."""

    async def ads(self, plan: Plan) -> dict[str, Ad]:
        """Where a plan's members are reached, and what they ask for. Raises NotFound, BadHash, BadInput."""

    async def nodes(self, plan: Plan) -> dict[str, Node]:
        """What is certified of a plan's members, as far as anything is. Raises as `ads`."""
