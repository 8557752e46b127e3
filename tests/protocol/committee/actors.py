"""Keys, committees and providers for tests: everything follows from names, nothing from chance or the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from nodewire.nostr import event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.protocol import kinds
from nodewire.protocol.committee import dvrf
from nodewire.protocol.committee.committee import Committee, Oracle
from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.market import ad, bond
from nodewire.protocol.market import heartbeat as beat
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.market.snapshot import Snapshot, derive

GENESIS_S = 1_800_000_000


def keys(name: str) -> Keys:
    return Keys(tagged_hash("test/key", name.encode()))


def digest(name: str) -> str:
    return tagged_hash("test/digest", name.encode()).hex()


def stream(name: str):
    """A `random(count)` for `dvrf.deal` that always gives the same bytes."""
    counter = count()

    def random(size: int) -> bytes:
        blocks = (tagged_hash("test/stream", f"{name}/{next(counter)}".encode()) for _ in range(size // 32 + 1))
        return b"".join(blocks)[:size]

    return random


@dataclass
class Seat:
    """An oracle's secrets."""

    keys: Keys
    index: int
    share: bytes


def committee(f: int = 1, name: str = "test", **changes) -> tuple[Committee, list[Seat]]:
    n, t = 3 * f + 1, 2 * f + 1
    dealt = dvrf.deal(n, t, stream(name))
    seats = [Seat(keys(f"{name}/oracle/{i}"), i, dealt.secrets[i]) for i in range(1, n + 1)]
    oracles = tuple(
        Oracle(pubkey=s.keys.public, share_index=s.index, share_public=dealt.publics[s.index].hex()) for s in seats
    )
    fields = {
        "name": name,
        "oracles": oracles,
        "f": f,
        "genesis_s": GENESIS_S,
        "epoch_ms": 2_000,
        "skew_ms": 200,
        "beat_ms": 1_000,
        "vrf_public": dealt.group.hex(),
    }
    return Committee(**{**fields, **changes}), seats


@dataclass
class Provider:
    """A provider with one ad; `held` maps manifest digests to (task, price_msat, us_per_position) and slots."""

    name: str
    committee: Committee
    held: dict[str, tuple[list[tuple[str, int, int]], int]]
    region: str = ""
    coordinates: tuple[int, int, int] = (0, 0, 0)
    load_ppm: int = 0
    bond: Event | None = None
    bond_msat: int = 0
    keys: Keys = field(init=False)
    ad: Event = field(init=False)

    def __post_init__(self) -> None:
        self.keys = keys(f"provider/{self.name}")
        if self.bond_msat and self.bond is None and self.committee.bond_holders:
            self.bond = statement(self.keys.public, self.bond_msat)
        document = Ad(
            name=self.name,
            manifests=tuple(
                ManifestOffer(
                    manifest=m,
                    slots=slots,
                    tasks=tuple(TaskOffer(task=t, price_msat=p, us_per_position=us) for t, p, us in tasks),
                )
                for m, (tasks, slots) in self.held.items()
            ),
            region=self.region,
            committees=(self.committee.digest(),),
            bond_msat=self.bond_msat,
            bond=self.bond.id if self.bond else None,
        )
        self.ad = ad.build(self.keys, document, created_at=GENESIS_S)

    def beat(self, epoch: int, last: str | None = None, *, created_at: int | None = None, **changes) -> Event:
        document = Beat(
            **{
                "committee": self.committee.digest(),
                "last": last or self.committee.digest(),
                "epoch": epoch,
                "ad": self.ad.id,
                "load_ppm": self.load_ppm,
                "free": {m: slots for m, (_, slots) in self.held.items()},
                "coordinates": self.coordinates,
                **changes,
            }
        )
        created_at = created_at if created_at is not None else self.committee.close_ms(epoch - 1) // 1000
        expires_at_s = beat.expires_at_s(self.committee, epoch)
        return beat.build(self.keys, document, created_at=created_at, expires_at_s=expires_at_s)


HOLDER = keys("bond holder")


def statement(provider: str, amount_msat: int, expires_at_s: int = GENESIS_S + 10_000_000) -> Event:
    return bond.build(HOLDER, provider, amount_msat, expires_at_s=expires_at_s, created_at=GENESIS_S)


def rederived(committee_: Committee, one: Snapshot, previous: Snapshot | None = None) -> Snapshot:
    """What the events in a snapshot give. Raises BadSignature: one is forged."""
    events = [event.parse(text) for text in one.events]
    beats = [found for found in events if found.kind == kinds.BEAT]
    others = [found for found in events if found.kind != kinds.BEAT]
    return derive(committee_, one.epoch, beats, others, judged=one.judged, previous=previous)
