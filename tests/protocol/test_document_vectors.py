"""The committed vectors of documents, closes, tensor keys and roots: what a second implementation must reproduce."""

import json

import pytest

from nodewire.errors import BadSignature
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip13
from nodewire.plan.audit import EpochEvidence, audit
from nodewire.protocol.committee import beacon, committee, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment, certified_root
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.encoding import canonical, merkle
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening, claim, leaf_of
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Plan, tensor_key
from nodewire.protocol.job.receipt import Closing, Receipt
from nodewire.protocol.market import ad, heartbeat
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.model import manifest_event
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.protocol.verification.verdict import Verdict, sample_key
from tests.protocol import make_vectors

VECTORS = json.loads(make_vectors.VECTORS.read_text())
TYPES = {cls.__name__: cls for cls in (Ad, Beat, Body, Closing, Committee, Inventory, Manifest, Plan, Receipt, Verdict)}


def test_the_committed_file_comes_out_the_same():
    assert make_vectors.text() == make_vectors.VECTORS.read_text()


@pytest.mark.parametrize("vector", VECTORS["canonical"], ids=lambda vector: vector["packed"][:16])
def test_canonical_msgpack(vector):
    assert canonical.encode(vector["document"]).hex() == vector["packed"]


@pytest.mark.parametrize("vector", VECTORS["tagged_hash"])
def test_tagged_hash(vector):
    assert canonical.tagged_hash(vector["tag"], bytes.fromhex(vector["data"])).hex() == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["documents"], ids=lambda vector: vector["name"])
def test_a_document_has_these_bytes_and_this_digest(vector):
    cls = TYPES[vector["type"]]
    parsed = cls.parse(json.dumps(vector["document"]))
    assert vector["tag"] == cls.TAG
    assert parsed.pack().hex() == vector["packed"]
    assert parsed.digest() == vector["digest"]
    assert cls.unpack(bytes.fromhex(vector["packed"])) == parsed


def test_a_close_is_signed_over_these_bytes():
    vector = VECTORS["close"]
    said = {name: value for name, value in vector["document"].items() if name != "sig"}
    assert canonical.encode(said).hex() == vector["packed_without_sig"]
    assert canonical.tagged_hash(Close.TAG, canonical.encode(said)).hex() == vector["signed_hash"]
    close = Close.from_document(vector["document"])
    close.check(vector["driver"])
    with pytest.raises(BadSignature):
        close.model_copy(update={"units": close.units + 1}).check(vector["driver"])


def test_what_was_sent_is_signed_over_these_bytes():
    vector = VECTORS["sent"]
    frames = [
        Frame(
            "hidden.0",
            said["seq"],
            tuple(Array(dtype, tuple(shape), bytes.fromhex(data)) for dtype, shape, data in said["tensors"]),
            said["meta"],
        )
        for said in vector["frames"]
    ]
    sent = FrameStatement.from_document(vector["document"])
    assert digest_of(hashed(frame) for frame in frames) == sent.frames
    said = {name: value for name, value in vector["document"].items() if name != "sig"}
    assert canonical.encode(said).hex() == vector["packed_without_sig"]
    assert canonical.tagged_hash(FrameStatement.TAG, canonical.encode(said)).hex() == vector["signed_hash"]
    sent.check()


@pytest.mark.parametrize("vector", VECTORS["tensor_key"], ids=lambda vector: vector["key"][:8])
def test_tensor_key(vector):
    assert tensor_key(vector["request"], vector["edge"], vector["attempt"], vector["seq"]).hex() == vector["key"]


def test_a_chunks_root():
    vector = VECTORS["chunk_root"]
    secret, leaves = bytes.fromhex(vector["secret"]), []
    for index, said in enumerate(vector["frames"]):
        arrays = tuple(Array(dtype, tuple(shape), bytes.fromhex(data)) for dtype, shape, data in said["tensors"])
        leaf = leaf_of(vector["manifest"], Frame(said["edge"], said["seq"], arrays))
        assert [tensor.sketch.hex() for tensor in leaf.tensors] == said["sketches"]
        data, salt = leaf.data(vector["request"]), merkle.salt(secret, index)
        assert (data.hex(), salt.hex()) == (said["leaf_data"], said["salt"])
        assert merkle.leaf(data, salt).hex() == said["leaf"]
        leaves.append(leaf)
    at = {name: vector[name] for name in ("author", "request", "task", "chunk", "attempt")}
    assert Opening(**at, secret=secret, leaves=tuple(leaves)).root() == vector["root"]


def test_a_samples_name():
    vector = VECTORS["sample_key"]
    assert sample_key(**vector["of"]) == vector["key"]


def test_a_claim_is_over_the_tasks_roots():
    vector = VECTORS["claim"]
    roots = [ChunkRoot.from_document(root) for root in vector["roots"]]
    assert [root.leaf().hex() for root in roots] == vector["leaves"]
    assert claim(roots) == vector["root"]


def test_a_commitments_root_and_proofs():
    vector = VECTORS["commitment"]
    commitment = Commitment.from_document(vector["document"])
    assert commitment.pack().hex() == vector["packed"]
    assert commitment.root() == vector["root"]
    for index, (chunk, proof) in enumerate(zip(commitment.chunks, vector["proofs"], strict=True)):
        path = [bytes.fromhex(sibling) for sibling in proof]
        merkle.verify(bytes.fromhex(vector["root"]), chunk.leaf(), index, len(commitment.chunks), path)


@pytest.mark.parametrize("vector", VECTORS["certified_root"], ids=lambda vector: str(len(vector["ids"])))
def test_the_root_over_an_epochs_commitments(vector):
    assert certified_root(vector["ids"]) == vector["root"]


@pytest.fixture
def signed():
    return {name: events.parse(json.dumps(event)) for name, event in VECTORS["events"].items()}


def test_signed_events_are_read(signed):
    nip13.check(signed["request"], 8)
    assert ad.parse(signed["ad"]).committees == (committee.parse(signed["committee"]).digest(),)
    assert heartbeat.parse(signed["beat"]).ad == signed["ad"].id


def test_the_requests_plan_follows_from_what_it_cites(signed):
    request = job.parse(signed["request"])
    assert [partial.id for partial in request.partials] == [signed[f"partial.{i}"].id for i in (1, 2, 3)]
    assert len(request.plan.providers()) == 2
    assert sorted(signed["request"].values("p")) == sorted(request.plan.providers())
    assert request.certificate_event == signed["certificate"].id
    assert request.plan.snapshot == VECTORS["snapshot"]["sha256"]
    findings = audit(
        request.plan,
        customer=request.customer,
        manifest=manifest_event.parse(signed["manifest"]),
        committee=committee.parse(signed["committee"]),
        evidence=EpochEvidence(
            quorum_certificate.parse(signed["certificate"]),
            [beacon.parse(partial) for partial in request.partials],
            bytes.fromhex(VECTORS["snapshot"]["packed"]),
        ),
    )
    assert findings == []
