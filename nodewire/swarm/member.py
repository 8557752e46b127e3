"""A machine's own part of a swarm: its key, its state, and what it lends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.config import WorkerConfig
    from nodewire.swarm.file import SwarmFile


@dataclass(frozen=True, slots=True)
class SwarmCustomer:
    """Who asks, as the configuration of a `nodewire.Customer`. `path` is the file's."""

    path: Path
    file: SwarmFile
    key: Path
    state: Path
    lookahead: int
    congestion: str = "cubic"
    relays: tuple[str, ...] = ()
    max_chunk_msat: int = 0
    max_total_msat: int = 0
    resplit_msat: int = 0
    """A swarm's file has one node for each stage."""

    @property
    def blobs(self) -> Path:
        return self.state / "blobs"


@dataclass(frozen=True, slots=True)
class SwarmProvider:
    """Who computes. `listen` is host:port."""

    path: Path
    file: SwarmFile
    key: Path
    state: Path
    listen: str
    worker: WorkerConfig
    congestion: str = "cubic"
    spool_bytes: int = 2 * 10**9


def addresses(file: SwarmFile) -> Mapping[str, tuple[str, ...]]:
    """Of all nodes, by public key."""
    return {node.npub: (node.address,) for node in file.nodes}
