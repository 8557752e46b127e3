"""Writes tests/vectors/documents1.json anew: `python -m tests.protocol.make_vectors`.

Everything follows from names and fixed times, signatures too (Keys.sign gives one digest one signature): the same bytes
come out on every run, so a change of a document shows.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from nodewire.nostr import event as events
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip13
from nodewire.protocol import kinds
from nodewire.protocol.committee import committee, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment, certified_root
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.encoding import canonical, merkle
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening, claim, leaf_of
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import tensor_key
from nodewire.protocol.job.receipt import Closing, FinalChunk, PaidChunk, Receipt
from nodewire.protocol.market import heartbeat
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.model import manifest_event as publish
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.protocol.verification.verdict import Verdict, sample_key
from tests.plan.markets import CUSTOMER_KEYS, World, generous, ring
from tests.protocol import documents
from tests.protocol.committee.actors import digest, keys

VECTORS = Path(__file__).parent.parent / "vectors" / "documents1.json"
REQUEST = digest("request")
DRIVER = documents.PROVIDERS[0]
SECRET = bytes(range(32))
TAG = "nodewire/plan/1"
RELAYS = ("wss://relay.example",)


def text() -> str:
    """The whole file."""
    return json.dumps(vectors(), indent=1, sort_keys=True) + "\n"


def vectors() -> dict[str, Any]:
    world = World(ring(1), 5, 2)
    roots = [
        ChunkRoot(request=REQUEST, task="driver", chunk=2, attempt=0, root=digest("root driver")),
        ChunkRoot(request=REQUEST, task="stage.0", chunk=2, attempt=0, root=digest("root stage")),
    ]
    return {
        "canonical": [{"document": d, "packed": canonical.encode(d).hex()} for d in _documents()],
        "tagged_hash": [
            {"tag": "nodewire/plan/1", "data": "", "hash": canonical.tagged_hash("nodewire/plan/1", b"").hex()}
        ],
        "documents": [_document(name, one) for name, one in _models(world, roots)],
        "close": _close(),
        "sent": _sent(),
        "tensor_key": [_key(*at) for at in _KEYS],
        "chunk_root": _chunk_root(),
        "claim": {
            "roots": [root.document() for root in roots],
            "leaves": [root.leaf().hex() for root in roots],
            "root": claim(roots),
        },
        "commitment": _commitment(world, roots),
        "certified_root": [
            {"ids": ids, "root": certified_root(ids)}
            for ids in ([], [digest("a")], [digest("a"), digest("b"), digest("c")])
        ],
        "sample_key": {
            "of": {"provider": DRIVER.public, "request": REQUEST, "task": "driver", "chunk": 2, "attempt": 0},
            "key": sample_key(DRIVER.public, REQUEST, "driver", 2, 0),
        },
        "snapshot": {"packed": world.blob.hex(), "sha256": world.certificate.body.snapshot},
        "events": {name: event.as_dict() for name, event in _events(world).items()},
    }


def _documents() -> list[Any]:
    return [
        {"": -33, "a": [True, None, "é"], "aa": -1, "b": 1},
        [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1],
        [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)],
        ["x" * n for n in (31, 32, 255, 256)],
        {f"key{i:02}": i for i in range(17)},
    ]


def _models(world: World, roots: list[ChunkRoot]) -> list[tuple[str, Any]]:
    paid = PaidChunk(
        chunk=0,
        attempt=0,
        units=2,
        root=claim(roots),
        feedback=digest("feedback"),
        amount_msat=2000,
        fee_msat=3,
        payment_hash=digest("payment"),
        zap_receipt=None,
    )
    plan = documents.plan()
    beats = tuple(sorted(digest(f"beat {i}") for i in range(5)))
    inventory = Inventory(committee=world.committee.digest(), epoch=5, beats=beats, commitments=())
    body = Body(
        committee=world.committee.digest(),
        epoch=5,
        snapshot=digest("snapshot"),
        commitments=certified_root([]),
        inventories=tuple(sorted(digest(f"inventory {i}") for i in range(3))),
        previous=world.committee.digest(),
    )
    provider = world.providers[0]
    verdict = Verdict(
        committee=world.committee.digest(),
        epoch=5,
        request=REQUEST,
        task="driver",
        chunk=2,
        attempt=0,
        provider=DRIVER.public,
        root=digest("root driver"),
        outcome="fail",
        culprit=DRIVER.public,
        verifiers=((documents.PROVIDERS[2].public, True),),
    )
    return [
        ("manifest", documents.manifest()),
        ("plan", plan),
        ("receipt", Receipt(request=REQUEST, plan=plan.digest(), provider=DRIVER.public, chunks=(paid,))),
        (
            "closing",
            Closing(
                receipt=REQUEST,
                request=REQUEST,
                plan=plan.digest(),
                provider=DRIVER.public,
                final=(FinalChunk(chunk=0, attempt=0, commitment=REQUEST, epoch=7, certificate=REQUEST),),
                uncertified=((1, 0),),
            ),
        ),
        ("committee", world.committee),
        ("body", body),
        ("inventory", inventory),
        ("ad", Ad.parse(provider.ad.content)),
        ("beat", heartbeat.parse(provider.beat(5))),
        ("verdict", verdict),
    ]


def _document(name: str, one: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": type(one).__name__,
        "tag": one.TAG,
        "document": one.document(),
        "packed": one.pack().hex(),
        "digest": one.digest(),
    }


def _close() -> dict[str, Any]:
    close = Close.sign(DRIVER, request=REQUEST, attempt=0, chunk=0, units=2, end=False)
    said = {name: value for name, value in close.document().items() if name != "sig"}
    packed = canonical.encode(said)
    return {
        "document": close.document(),
        "driver": DRIVER.public,
        "packed_without_sig": packed.hex(),
        "signed_hash": canonical.tagged_hash(Close.TAG, packed).hex(),
    }


def _sent() -> dict[str, Any]:
    frames = [
        Frame("hidden.0", 1, (Array("float32", (1, 2), bytes.fromhex("0000803f00000040")),), {"pos": 7, "chunk": 1}),
        Frame("hidden.0", 2, (Array("int64", (1,), (7).to_bytes(8, "little")), Array("uint8", (3,), b"abc"))),
    ]
    sent = FrameStatement.sign(
        DRIVER,
        request=REQUEST,
        task="driver",
        edge="hidden.0",
        chunk=1,
        attempt=0,
        frames=digest_of(hashed(frame) for frame in frames),
    )
    said = {name: value for name, value in sent.document().items() if name != "sig"}
    packed = canonical.encode(said)
    return {
        "frames": [
            {
                "seq": f.seq,
                "tensors": [[a.dtype, list(a.shape), bytes(a.data).hex()] for a in f.tensors],
                "meta": f.meta,
            }
            for f in frames
        ],
        "document": sent.document(),
        "packed_without_sig": packed.hex(),
        "signed_hash": canonical.tagged_hash(FrameStatement.TAG, packed).hex(),
    }


_KEYS = [
    (REQUEST, "prompt", 0, 0),
    (REQUEST, "hidden.0", 0, 0),
    (REQUEST, "hidden.0", 0, 1),
    (REQUEST, "hidden.0", 1, 1),
    (REQUEST, "hidden.0", 0, 70_000),
    (digest("another"), "return", 0, 3),
]


def _key(request: str, edge: str, attempt: int, seq: int) -> dict[str, Any]:
    key = tensor_key(request, edge, attempt, seq).hex()
    return {"request": request, "edge": edge, "attempt": attempt, "seq": seq, "key": key}


def _chunk_root() -> dict[str, Any]:
    manifest = documents.manifest().digest()
    floats = Array("float32", (1, 2), bytes.fromhex("0000803f00000040"))
    frames = [
        Frame("hidden.0", 0, (floats,)),
        Frame("hidden.0", 1, (Array("int64", (1,), (7).to_bytes(8, "little")), Array("uint8", (3,), b"abc"))),
        Frame("hidden.0", 2, ()),
    ]
    leaves = tuple(leaf_of(manifest, frame) for frame in frames)
    author = keys("author").public
    opening = Opening(author=author, request=REQUEST, task="driver", chunk=3, attempt=0, secret=SECRET, leaves=leaves)
    said = []
    for i, (frame, leaf) in enumerate(zip(frames, leaves, strict=True)):
        data, salt = leaf.data(REQUEST), merkle.salt(SECRET, i)
        said.append(
            {
                "edge": frame.edge,
                "seq": frame.seq,
                "tensors": [[a.dtype, list(a.shape), bytes(a.data).hex()] for a in frame.tensors],
                "sketches": [tensor.sketch.hex() for tensor in leaf.tensors],
                "leaf_data": data.hex(),
                "salt": salt.hex(),
                "leaf": merkle.leaf(data, salt).hex(),
            }
        )
    return {
        "manifest": manifest,
        "author": author,
        "request": REQUEST,
        "task": "driver",
        "chunk": 3,
        "attempt": 0,
        "secret": SECRET.hex(),
        "frames": said,
        "root": opening.root(),
    }


def _commitment(world: World, roots: list[ChunkRoot]) -> dict[str, Any]:
    third = ChunkRoot(request=REQUEST, task="driver", chunk=3, attempt=0, root=digest("root three"))
    chunks = tuple(sorted((*roots, third), key=lambda root: root.key))
    commitment = Commitment(committee=world.committee.digest(), epoch=5, chunks=chunks)
    return {
        "document": commitment.document(),
        "packed": commitment.pack().hex(),
        "root": commitment.root(),
        "proofs": [[sibling.hex() for sibling in commitment.proof(i)] for i in range(len(chunks))],
    }


def _events(world: World) -> dict[str, Event]:
    author = keys("author")
    manifest_event = publish.build(
        author,
        world.manifest,
        created_at=1_799_999_913,
        blob_sha256=hashlib.sha256(world.manifest.pack()).hexdigest(),
        servers=("https://blobs.example",),
    )
    closed_s = world.committee.close_ms(world.certificate.body.epoch) // 1000
    certified = quorum_certificate.build(world.seats[0].keys, world.certificate, created_at=closed_s)
    terms = generous(max_chunk_msat=200, max_total_msat=100_000)
    plan = world.assign(terms)
    ticket = job.Ticket(request="00" * 32, params={"max_tokens": 5}, salt=digest("salt"), inputs=())
    tags, content = job.tags_and_content(
        plan,
        manifest_address=f"{kinds.MANIFEST}:{author.public}:{world.manifest.name}",
        certificate_event=certified.id,
        partials=world.partials[:3],
        relays=RELAYS,
        ticket=ticket.seal(),
    )
    at_s = 1_800_000_013
    mined = nip13.mine(CUSTOMER_KEYS.public, kinds.INFERENCE, 8, created_at=at_s, content=content, tags=tags)
    provider = world.providers[0]
    return {
        "committee": committee.build(world.seats[0].keys, world.committee, created_at=1_799_999_913),
        "manifest": manifest_event,
        "ad": provider.ad,
        "beat": provider.beat(5),
        "certificate": certified,
        **{f"partial.{i}": partial for i, partial in enumerate(world.partials[:3], 1)},
        "request": events.sign(CUSTOMER_KEYS, kinds.INFERENCE, created_at=at_s, content=content, tags=mined),
    }


if __name__ == "__main__":
    VECTORS.write_text(text())
