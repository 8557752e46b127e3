"""Manifests, snapshots and certified epochs for planner tests, and the committed vectors of `assign/2`.

`python -m tests.plan.markets` writes tests/vectors/assign2.json anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from nodewire.errors import NodewireError
from nodewire.plan.assign import Busy, CertifiedEpoch, assign
from nodewire.protocol.committee import beacon, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import certified_root
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.committee.reputation import COUNTED_AFTER, ReputationVerdict
from nodewire.protocol.encoding import tags
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.market import snapshot
from nodewire.protocol.market.snapshot import Node, Snapshot
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys

VECTORS = Path(__file__).parent.parent / "vectors" / "assign2.json"
CUSTOMER_KEYS = keys("customer")


def _task(name: str, engine: str) -> Task:
    blob = BlobRef(sha256=digest(name), bytes=1_000)
    return Task(name=name, engine=engine, program=blob, weights=(), memory_bytes=10**8, slots=4, flops=10**6)


def _edge(name: str, source: str, target: str, *, nbytes: int, back: bool = False) -> Edge:
    tensor = Tensor(name="x", dtype="float32", shape=("n", 64))
    fields = {"tensors": (tensor,), "dims": {"n": 64}, "bytes_per_position": nbytes, "back": back}
    return Edge(name=name, source=source, target=target, **fields)


def ring(stages: int) -> Manifest:
    """A decoder: driver, stages, back to the driver."""
    names = ["driver", *(f"stage.{i}" for i in range(stages))]
    edges = [_edge("prompt", CUSTOMER, "driver", nbytes=4)]
    edges += [_edge(f"hidden.{i}", a, b, nbytes=256) for i, (a, b) in enumerate(pairwise(names))]
    if stages:
        edges.append(_edge("return", names[-1], "driver", nbytes=256, back=True))
    edges.append(_edge("tokens", "driver", CUSTOMER, nbytes=8))
    tasks = tuple(_task(name, "decoder.stage" if i else "decoder.driver") for i, name in enumerate(names))
    return Manifest(name=f"ring{stages}", mode="generate", context=256, tasks=tasks, edges=tuple(edges))


def diamond() -> Manifest:
    """One task feeding two that feed a fourth."""
    names = ["driver", "left", "right", "join"]
    links = [("driver", "left"), ("driver", "right"), ("left", "join"), ("right", "join")]
    edges = [_edge("texts", CUSTOMER, "driver", nbytes=100)]
    edges += [_edge(f"e{i}", a, b, nbytes=1_000_000 * i) for i, (a, b) in enumerate(links)]
    edges.append(_edge("out", "join", CUSTOMER, nbytes=1536))
    tasks = tuple(_task(name, "graph" if i else "encoder.driver") for i, name in enumerate(names))
    return Manifest(name="diamond", mode="embed", tasks=tasks, edges=tuple(edges))


def market(manifest: Manifest, nodes: int, seed: int, document: Committee, *, bonded: int = 50) -> list[Provider]:
    """Providers that each hold a random part of the manifest's tasks; about `bonded` percent of them have a bond."""
    random = Random(seed)
    providers = []
    for i in range(nodes):
        held = [task.name for task in manifest.tasks if random.random() < 0.6] or [manifest.tasks[0].name]
        tasks = [(name, random.randrange(5, 50), random.randrange(50, 5_000)) for name in held]
        coordinates = (random.randrange(-80_000, 80_000), random.randrange(-80_000, 80_000), random.randrange(5_000))
        providers.append(
            Provider(
                f"{seed}.{i}",
                document,
                {manifest.digest(): (tasks, random.randrange(1, 5))},
                region=random.choice(["eu", "us", "ap"]),
                coordinates=coordinates,
                load_ppm=random.randrange(1_000_001),
                bond_msat=random.randrange(1, 40) * 1_000_000 if random.randrange(100) < bonded else 0,
            )
        )
    return providers


def certified(document: Committee, seats, found: Snapshot) -> tuple[Certificate, list, bytes]:
    """A certificate, as its committee would sign it, over this snapshot; its beacon partials; its blob."""
    blob = found.pack()
    body = Body(
        committee=document.digest(),
        epoch=found.epoch,
        snapshot=snapshot.sha256(blob),
        commitments=certified_root([]),
        inventories=tuple(sorted(digest(f"inventory {i}") for i in range(document.quorum))),
        previous=document.digest(),
    )
    topic, at = tags.epoch_topic(body.epoch), document.close_ms(body.epoch) // 1000
    quorum = seats[: document.quorum]
    votes = [oracle_round.build_vote(s.keys, body.committee, topic, body.digest(), created_at=at) for s in quorum]
    partials = [beacon.build(s.keys, body, s.index, s.share, created_at=at) for s in seats]
    return Certificate(body, tuple(votes)), partials, blob


def _placed(node: Node) -> Node:
    """Of four nodes, three are where others have found them."""
    return node.model_copy(update={"is_placed": int(node.pubkey[:2], 16) % 4 > 0})


class World:
    """A manifest, its market, and one certified epoch."""

    def __init__(
        self,
        manifest: Manifest,
        nodes: int = 12,
        seed: int = 1,
        *,
        bonded: int = 50,
        epoch: int = 5,
        judged: Sequence[ReputationVerdict] = (),
    ) -> None:
        holders = (HOLDER.public,)
        verification = {"verify_rate_ppm": 120_000, "verify_share_ppm": 150_000}
        self.committee, self.seats = committee(1, "plan", bond_holders=holders, **verification)
        self.manifest, self.digest = manifest, manifest.digest()
        self.providers = market(manifest, nodes, seed, self.committee, bonded=bonded)
        self.snapshot = snapshot.derive(
            self.committee,
            epoch,
            [p.beat(epoch) for p in self.providers],
            [p.ad for p in self.providers],
            bonds=[p.bond for p in self.providers if p.bond],
            judged=judged,
        )
        self.snapshot = self.snapshot.model_copy(update={"nodes": tuple(map(_placed, self.snapshot.nodes))})
        self.certificate, self.partials, self.blob = certified(self.committee, self.seats, self.snapshot)
        parsed = [beacon.parse(event) for event in self.partials]
        self.beacon = beacon.combine(self.committee, self.certificate.digest, parsed)
        self.certificate_event = quorum_certificate.build(self.seats[0].keys, self.certificate, created_at=0)

    def inputs(
        self, terms: Terms | None = None, *, k: int = 0, busy: tuple[Busy, ...] = (), beacon: str | None = None
    ) -> dict:
        return {
            "epoch": CertifiedEpoch(self.committee, self.certificate.body, beacon or self.beacon),
            "terms": terms or generous(),
            "customer": CUSTOMER_KEYS.public,
            "k": k,
            "busy": busy,
        }

    def assign(self, terms: Terms | None = None, **changes):
        return assign(self.manifest, self.snapshot, **self.inputs(terms, **changes))


def generous(**changes) -> Terms:
    return Terms(**{"max_chunk_msat": 10**9, "max_total_msat": 10**9, **changes})


def strained(world: World, seed: int) -> World:
    """The same world, where many nodes have values at the bounds of assignment's rules, or beyond them."""
    random = Random(seed)

    def node(one: Node) -> Node:
        full = random.random() < 0.3
        return one.model_copy(
            update={
                "held": tuple(held.model_copy(update={"free": 0}) if full else held for held in one.held),
                "bond_msat": random.choice([0, 999_999, 1_000_000, 999_000_000, 3_000_000_000]),
                "epochs": random.choice([1, 4_094, 4_095, 4_096, 500_000]),
                "passed": random.choice([0, 1, 2**20, 2**53 - 1]),
                "withheld": random.choice([0, 0, 0, 1, 5 * 4_096]),
            }
        )

    world.snapshot = world.snapshot.model_copy(update={"nodes": tuple(map(node, world.snapshot.nodes))})
    return world


def verdicts(nodes: int, seed: int, epoch: int) -> list[ReputationVerdict]:
    """What `market`'s providers of this seed were found to have done, to be counted in `epoch`."""
    random, found = Random(seed), []
    for i in range(nodes):
        outcomes = ["pass"] * random.choice([0, 1, 2, 7, 40, 200]) + ["withheld"] * random.choice([0, 0, 0, 1, 2, 6])
        for n, outcome in enumerate(outcomes):
            provider, sample = keys(f"provider/{seed}.{i}").public, digest(f"sample {seed}.{i}.{n}")
            about = {"epoch": epoch - COUNTED_AFTER, "sample": sample, "provider": provider, "outcome": outcome}
            found.append(ReputationVerdict(**about, price_msat=20 if outcome == "pass" else 0))
    return found


def vectors() -> list[dict]:
    """Inputs and what must come out, each case for one rule or more."""
    world = World(ring(4))
    pubkeys = [p.keys.public for p in world.providers]
    refused = "two are busy, one excluded"
    drawn = _providers(refused, world)
    opened, stranger = _opened(world)
    cases = [
        ("a ring", world, generous(), 0, ()),
        ("a redraw", world, generous(), 7, ()),
        ("a local driver, sampled", world, generous(driver="local", verify="sampled"), 0, ()),
        ("two regions", world, generous(regions=("eu", "us")), 1, ()),
        (refused, world, generous(excluded=drawn[:1]), 0, drawn[1:3]),
        ("only trusted ones", world, generous(trusted=tuple(pubkeys[:9])), 0, ()),
        ("a tight budget", world, generous(max_chunk_msat=90), 0, ()),
        ("too tight a budget", world, generous(max_chunk_msat=30), 0, ()),
        ("nobody in the region", world, generous(regions=("moon",)), 0, ()),
        ("a DAG of many nodes", World(diamond(), 60, 2), generous(), 0, ()),
        ("all bonded", World(diamond(), 20, 3, bonded=100), generous(), 0, ()),
        ("none bonded", World(diamond(), 20, 4, bonded=0), generous(), 0, ()),
        ("one node for everything", World(ring(0), 1, 5), generous(), 0, ()),
        ("accounts", World(ring(4), 16, 6, epoch=20, judged=verdicts(16, 6, 20)), generous(), 0, ()),
        ("accounts, a DAG", World(diamond(), 16, 7, epoch=20, judged=verdicts(16, 7, 20)), generous(), 3, ()),
        ("narrowed edges", World(ring(2), 6, 8), generous(codecs={"hidden.1": "int8", "return": "bf16"}), 0, ()),
        ("values at their bounds", strained(World(ring(3), 24, 22), 22), generous(), 0, ()),
        ("prices above the cap", World(ring(1), 14, 21), generous(max_chunk_msat=40), 0, ()),
        ("one bonded of many", World(ring(2), 20, 25, bonded=5), generous(), 0, ()),
        (opened, world, generous(), 0, ()),
        (f"{opened}, which has failed", world, generous(excluded=(stranger,)), 0, ()),
        (f"{opened}, which is busy", world, generous(), 0, (stranger,)),
        ("guesses", world, generous(lookahead=8), 0, ()),
    ]
    return [vector(*case) for case in cases]


def _beacon(name: str) -> str:
    """Cases that differ by what follows a comma have one beacon."""
    return digest(f"beacon of {name.split(', which')[0]}")


def _opened(world: World) -> tuple[str, str]:
    """The name of a case whose plan is open to an unbonded node, and that node."""
    bonded = {one.pubkey for one in world.snapshot.nodes if one.bond_msat >= world.committee.bond_unit_msat}
    for i in range(1_000):
        name = f"open to an unbonded node ({i})"
        plan = world.assign(beacon=_beacon(name))
        if placed := {one.provider for one in plan.tasks} - bonded:
            return name, placed.pop()
    raise AssertionError("no plan of 1,000 is open")


def _providers(name: str, world: World) -> tuple[str, ...]:
    """The providers of the plan that this case has where nothing is excluded and nobody is busy."""
    return world.assign(beacon=_beacon(name)).providers()


def vector(name: str, world: World, terms: Terms, k: int, busy: tuple[str, ...]) -> dict:
    exclusions = tuple(Busy(digest(f"busy {pubkey}"), pubkey) for pubkey in busy)
    inputs = world.inputs(terms, k=k, busy=exclusions)
    # signatures differ from run to run, and with them the blob that holds them
    body = world.certificate.body.model_copy(update={"snapshot": digest(f"snapshot of {name}")})
    epoch = inputs["epoch"] = CertifiedEpoch(world.committee, body, _beacon(name))
    case = {
        "name": name,
        "manifest": world.manifest.document(),
        "nodes": [node.document() for node in world.snapshot.nodes],
        "body": body.document(),
        "committee": epoch.committee.document(),
        "terms": terms.document(),
        "beacon": epoch.beacon,
        "customer": inputs["customer"],
        "k": k,
        "busy": [{"id": b.id, "provider": b.provider} for b in exclusions],
    }
    try:
        plan = assign(world.manifest, world.snapshot, **inputs)
    except NodewireError as error:
        return {**case, "error": {"code": error.code, "field": error.field}}
    return {**case, "plan": plan.document(), "packed": plan.pack().hex(), "digest": plan.digest()}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, sort_keys=True) + "\n")
