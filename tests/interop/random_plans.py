"""Random manifests, snapshots, committees and terms with the plan that nodewire makes of each, for other planners.

`python -m tests.interop.random_plans FILE [NUMBER] [SEED]` writes them as one JSON document a line. Values lie at the
bounds of `assign/2`'s rules more often than a market's do, and where a plan cannot be, its error stands instead.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from nodewire.errors import NodewireError
from nodewire.plan.assign import UNBONDED_ONE_IN, Busy, CertifiedEpoch, assign
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.market.snapshot import Node, Snapshot
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from tests.protocol.committee.actors import committee

NUMBER = 600
SEED = 2_026
_MSAT = 2_100_000_000_000_000_000
_REGIONS = ("", "ap", "eu", "us", "Zürich \N{GLOBE WITH MERIDIANS}")


def write(file: Path, number: int = NUMBER, seed: int = SEED) -> None:
    base, _ = committee()
    with file.open("w") as out:
        for case in range(number):
            out.write(json.dumps(_case(Random(seed * 1_000_000 + case), base)) + "\n")


def _case(random: Random, base: Committee) -> dict[str, Any]:
    manifest = _manifest(random)
    document = base.model_copy(
        update={
            "bond_unit_msat": random.choice([1, 1_000_000, 1_000_000, _MSAT]),
            "verify_rate_ppm": random.choice([0, 120_000, 1_000_000]),
            "verify_share_ppm": random.choice([0, 150_000, 1_000_000]),
            "stake": random.choice([0, 100, 7]),
        }
    )
    nodes = [_node(random, manifest, document.bond_unit_msat) for _ in range(random.choice([1, 6, 12, 20, 40]))]
    epoch = random.choice([0, 5, 2**40])
    found = Snapshot(
        committee=document.digest(), epoch=epoch, nodes=tuple(sorted(nodes, key=lambda node: node.pubkey)), events=()
    )
    blob = found.pack()
    body = Body(
        committee=document.digest(),
        epoch=epoch,
        snapshot=sha256(blob).hexdigest(),
        commitments=_hex(random),
        inventories=tuple(sorted(_hex(random) for _ in range(3))),
        previous=_hex(random),
        is_crowded=random.random() < 0.3,
    )
    pubkeys = [node.pubkey for node in nodes]
    terms = _terms(random, manifest, pubkeys)
    refusers = random.sample(pubkeys, min(len(pubkeys), random.choice([0, 0, 0, 0, 1, 2])))
    busy = tuple(Busy(_hex(random), provider) for provider in refusers)
    customer, k = _hex(random), random.randrange(8)
    beacon = _beacon(random, manifest.digest(), customer, k)
    case: dict[str, Any] = {
        "manifest": manifest.document(),
        "snapshot": found.document(),
        "body": body.document(),
        "committee": document.document(),
        "terms": terms.document(),
        "beacon": beacon,
        "customer": customer,
        "k": k,
        "busy": [{"id": one.id, "provider": one.provider} for one in busy],
    }
    try:
        plan = assign(
            manifest,
            found,
            epoch=CertifiedEpoch(document, body, beacon),
            terms=terms,
            customer=customer,
            k=k,
            busy=busy,
        )
    except NodewireError as error:
        return {**case, "error": {"code": error.code, "field": error.field}}
    chunks = (0, 1, 63, 10**6)
    return {
        **case,
        "packed": plan.pack().hex(),
        "digest": plan.digest(),
        "deadlines": [[chunk, plan.deadline_epoch(chunk, document.epoch_ms)] for chunk in chunks],
    }


def _beacon(random: Random, manifest: str, customer: str, k: int) -> str:
    """Of three, one under which a task may be open to an unbonded node."""
    is_open = random.random() < 1 / 3
    while True:
        beacon = _hex(random)
        seed = tagged_hash("nodewire/assign/2", bytes.fromhex(beacon + manifest + customer) + bytes([k]))
        if not is_open or int.from_bytes(tagged_hash("nodewire/quota/2", seed), "big") % UNBONDED_ONE_IN == 0:
            return beacon


def _manifest(random: Random) -> Manifest:
    names = [f"task.{n}" for n in range(random.choice([1, 2, 3, 5, 9]))]
    mode = random.choice(["generate", "generate", "embed", "run"])
    edges = [_edge(random, "in", CUSTOMER, random.choice([names[0], *names]))]
    edges += [_edge(random, f"e{n}", names[n], names[n + 1]) for n in range(len(names) - 1) if random.random() < 0.9]
    for n in range(random.choice([0, 0, 1, 4]) if len(names) > 1 else 0):
        a, b = sorted(random.sample(range(len(names)), 2))
        edges.append(_edge(random, f"skip{n}", names[a], names[b]))
    if mode == "generate" and random.random() < 0.8:
        edges.append(_edge(random, "return", names[-1], names[0], back=True))
    edges.append(_edge(random, "out", random.choice(names), CUSTOMER))
    tasks = tuple(_task(random, name, first=n == 0) for n, name in enumerate(names))
    return Manifest(
        name=f"model{random.randrange(100)}",
        mode=mode,
        context=random.choice([0, 1, 256, 1_000_000]),
        chunk=random.choice([1, 64, 4_096]),
        tasks=tasks,
        edges=tuple(edges),
        chat=_blob(random) if mode == "generate" and random.random() < 0.3 else None,
    )


def _blob(random: Random) -> BlobRef:
    return BlobRef(sha256=_hex(random), bytes=random.randrange(1, 100_000))


def _task(random: Random, name: str, *, first: bool) -> Task:
    return Task(
        name=name,
        engine="decoder.driver" if first else "decoder.stage",
        program=_blob(random),
        weights=tuple(_blob(random) for _ in range(random.randrange(3))),
        memory_bytes=random.randrange(2**53),
        slots=random.randrange(1, 4_097),
        flops=random.randrange(2**40),
        limit=random.choice(["", "memory"]),
        page_bytes=random.choice([0, 4_096]),
    )


def _edge(random: Random, name: str, source: str, target: str, *, back: bool = False) -> Edge:
    dtype = random.choice(["float32", "float32", "bfloat16", "int64", "bool"])
    return Edge(
        name=name,
        source=source,
        target=target,
        tensors=(Tensor(name="x", dtype=dtype, shape=("n", random.randrange(1, 100))),),
        dims={"n": 64} if random.random() < 0.8 else {},
        bytes_per_position=random.choice([0, 4, 255, 8_192, 2**53 - 1 if random.random() < 0.05 else 1_000_000]),
        back=back,
        exact=random.random() < 0.1,
    )


def _node(random: Random, manifest: Manifest, unit_msat: int) -> Node:
    names = [task.name for task in manifest.tasks]
    held = [name for name in names if random.random() < 0.75] or names[:1]
    random.shuffle(held)
    offers = [
        {
            "task": name,
            "price_msat": random.choice([0, 1, random.randrange(60), random.randrange(60)]),
            "us_per_position": random.choice([1, 100, random.randrange(50, 5_000), 999_999, 1_000_001, 2**40]),
        }
        for name in held
    ]
    others = [{"manifest": _hex(random), "free": 3, "tasks": []}]
    free = random.choice([0, 1, 1, 2, 3, 4, 5, 4_096])
    at = [random.choice([-(10**7), 0, random.randrange(-80_000, 80_000), 10**7]) for _ in range(2)]
    bond_msat = random.choice([0, unit_msat - 1, unit_msat, 7 * unit_msat, 999 * unit_msat, 3_000 * unit_msat])
    document = {
        "pubkey": _hex(random),
        "beat": _hex(random),
        "ad": _hex(random),
        "held": [*others[: random.randrange(2)], {"manifest": manifest.digest(), "free": free, "tasks": offers}],
        "bond_msat": min(bond_msat, _MSAT),
        "region": random.choice(_REGIONS),
        "load_ppm": random.choice([0, 124_999, 125_000, random.randrange(1_000_001), 1_000_000]),
        "coordinates": [*at, random.choice([0, random.randrange(5_000), 10**7])],
        "epochs": random.choice([0, 1, 15, 16, 4_094, 4_095, 4_096, 2**53 - 1]),
        "passed": random.choice([0, 0, 1, 4_096, 4_097, random.randrange(2**40), 2**53 - 1]),
        "withheld": random.choice([0, 0, 0, 1, 4_096, 4_097, 5 * 4_096, 2**53 - 1]),
        "seen": [{"observer": _hex(random), "epoch": 3, "rtt_us": random.choice([None, 1, 10**7])}],
        "is_placed": random.random() < 0.7,
    }
    return Node.from_document(document)


def _terms(random: Random, manifest: Manifest, pubkeys: list[str]) -> Terms:
    few = random.sample(pubkeys, random.randrange(len(pubkeys) + 1))[:64]
    most = random.choice([_MSAT, 10**9, 10**9, 300, 100, 40])
    inner = [edge.name for edge in manifest.edges if CUSTOMER not in (edge.source, edge.target) and not edge.exact]
    return Terms(
        max_chunk_msat=most,
        max_total_msat=random.choice([most, 10**6, 60]),
        trusted=tuple(few) if random.random() < 0.1 else (),
        excluded=tuple(random.sample(pubkeys, random.choice([0, 0, 0, 1]))),
        regions=tuple(random.sample(_REGIONS, 4)) if random.random() < 0.2 else (),
        driver=random.choice(["provider", "provider", "provider", "local", "ends"]),
        ends=tuple(few) if random.random() < 0.15 else (),
        verify=random.choice(["none", "none", "none", "sampled"]),
        codecs={name: random.choice(["bf16", "int8"]) for name in inner if random.random() < 0.1},
        lookahead=random.choice([1, 1, 8, 256]),
    )


def _hex(random: Random) -> str:
    return random.randbytes(32).hex()


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
