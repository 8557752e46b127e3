"""A market where only names matter: a real relay with its store, a committee's certified epoch, and models that are
published, held or both. Nobody computes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodewire.config import ModelPin
from nodewire.customer.models.names import FOLLOW_LIST, ModelNames
from nodewire.market import Market
from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol.committee import committee, quorum_certificate
from nodewire.protocol.market import snapshot
from nodewire.protocol.market.snapshot import Node, Snapshot
from nodewire.protocol.model import manifest_event
from nodewire.protocol.model.manifest import BlobRef, Manifest
from nodewire.store.blobs import Blobs
from relay.limits import Config, Limits
from tests.plan.markets import certified, ring
from tests.protocol.committee.actors import HOLDER, Provider, digest
from tests.protocol.committee.actors import committee as founded

EPOCH_MS = 3_600_000
PRICE_MSAT = 7
ME, FRIEND, STRANGER = (Keys(bytes([i]) * 32) for i in (11, 12, 13))
FAST = Limits(
    messages_per_s=1e6,
    messages_burst=10**6,
    work_per_s=1e7,
    work_burst=10**7,
    unanswered_events=20_000,
    address_bytes_per_day=2**40,
    key_bytes_per_day=2**40,
)
"""For tests that publish thousands of events at once."""


def model(name: str, seed: str = "", *, bytes_: int = 1_000) -> Manifest:
    """A model to generate under a name; of another seed it has other weights."""
    made = ring(1)
    weights = (BlobRef(sha256=digest(f"weights {seed}"), bytes=bytes_),)
    tasks = tuple(task.model_copy(update={"weights": weights}) for task in made.tasks)
    return made.model_copy(update={"name": name, "tasks": tasks})


def publication(author: Keys, manifest: Manifest, *, ago_s: int = 0) -> Event:
    at = int(time.time()) - ago_s
    return manifest_event.build(author, manifest, created_at=at, blob_sha256="0" * 64, servers=())


def address(author: Keys, name: str) -> str:
    return f"38840:{author.public}:{name}"


def follow_list(keys: Sequence[str], *, author: Keys = ME) -> Event:
    return events.sign(author, FOLLOW_LIST, created_at=int(time.time()), tags=[("p", key) for key in keys])


@dataclass
class Epoch:
    """A committee whose epoch 0 has just closed, and what is certified in it."""

    held: Sequence[tuple[Manifest, int]] = ()
    """Manifests, each with the bond (msat) of the node that holds all of it."""
    nodes: tuple[Node, ...] | None = None
    """In place of what follows from `held`."""
    snapshot: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        genesis_s = int(time.time()) - EPOCH_MS // 1_000 - 60
        self.committee, self.seats = founded(
            1, "main", bond_holders=(HOLDER.public,), genesis_s=genesis_s, epoch_ms=EPOCH_MS, beat_ms=600_000
        )
        providers = []
        for number, (manifest, bond_msat) in enumerate(self.held):
            tasks = [(task.name, PRICE_MSAT, 100) for task in manifest.tasks]
            held = {manifest.digest(): (tasks, 4)}
            providers.append(Provider(f"node.{number}", self.committee, held, bond_msat=bond_msat))
        self.snapshot = snapshot.derive(
            self.committee,
            0,
            [one.beat(0) for one in providers],
            [one.ad for one in providers],
            bonds=[one.bond for one in providers if one.bond],
        )
        if self.nodes is not None:
            self.snapshot = self.snapshot.model_copy(update={"nodes": self.nodes})
        self.certificate, self.partials, self.blob = certified(self.committee, self.seats, self.snapshot)

    @property
    def events(self) -> list[Event]:
        founded_ = committee.build(STRANGER, self.committee, created_at=self.committee.genesis_s)
        cited = quorum_certificate.build(self.seats[0].keys, self.certificate, created_at=int(time.time()))
        return [founded_, cited, *self.partials]


def relay_at(folder: Path, limits: Limits | None = None) -> Config:
    return Config(
        db=folder / "events.sqlite", port=0, blobs=folder / "blobs", limits=limits or Limits(), synchronous="NORMAL"
    )


async def names(pool: Pool, blobs: Blobs, epoch: Epoch, **pins: ModelPin) -> ModelNames:
    """As ME has them: with these pins, in a market of this epoch."""
    market = Market(pool, blobs, epoch.committee)
    for event in epoch.events[1:]:
        await market.add_event(event)
    market.keep_snapshot(snapshot.sha256(epoch.blob), epoch.snapshot)
    return ModelNames(ME.public, pool, market, pins)
