"""Documents of strangers with more items than they may have: refused by field and bound, before they take memory.

A manifest of 1 MiB, a million empty maps, once took 437 s and 16 GB on its way to a refusal.
"""

from __future__ import annotations

import hashlib
import tracemalloc

import msgpack
import orjson
import pytest

from nodewire.core.slices import whole
from nodewire.errors import BadEvent, BadInput, BadQuorum, NodewireError, TooLarge
from nodewire.nostr.event import sign
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.state import BlobCame, FetchBlob, Tick, VerifiedEvent, start
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import Commitment
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.job.chunk import Opening
from nodewire.protocol.market import ad, heartbeat, snapshot
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.market.observation import Observation
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.protocol.model import manifest_event
from nodewire.protocol.model.manifest import Manifest
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys

MILLION = 1_000_000
MOST_TIMES = 16
"""Of the document's own bytes, that refusing it may take."""
COMMITTEE, SEATS = committee(bond_holders=(HOLDER.public,))
HELD = {digest("model"): ([("stage", 20, 1_000)], 4)}


def packed(**fields) -> bytes:
    return msgpack.packb(dict(sorted({"v": 1, **fields}.items())))


def refused(read, document, times=MOST_TIMES) -> NodewireError:
    """The error; and it took little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(NodewireError) as error:
            read(document)
        assert tracemalloc.get_traced_memory()[1] <= times * len(document) + 2**20
    finally:
        tracemalloc.stop()
    return error.value


LISTS = {
    "tasks": (Manifest, [{}] * MILLION, 1_024),
    "edges": (Manifest, [None] * MILLION, 8_192),
    "beats": (Inventory, [None] * MILLION, 8_192),
    "bonded": (Inventory, [{}] * MILLION, 8_192),
    "chunks": (Commitment, [{}] * MILLION, 16_384),
    "leaves": (Opening, [{}] * MILLION, 65_536),
    "nodes": (Snapshot, [{}] * MILLION, 4_096),
    "events": (Snapshot, [""] * MILLION, 32_768),
}


@pytest.mark.parametrize(("field", "said"), LISTS.items(), ids=LISTS)
def test_a_list_of_a_million_is_refused_by_field_and_bound(field, said):
    kind, items, most = said
    error = refused(kind.unpack, packed(**{field: items}))
    assert isinstance(error, TooLarge) and error.field == field
    assert error.reason == f"1000000 items, at most {most}"


NESTED = {
    "within an item": (Manifest, {"edges": [{"tensors": [{}] * MILLION}]}, "edges"),
    "a map within an item": (Manifest, {"edges": [{"dims": {f"{n:06d}": 0 for n in range(MILLION // 8)}}]}, "edges"),
    "in a field that no manifest has": (Manifest, {"zzz": [{}] * MILLION}, "zzz"),
    "weights of a task": (Manifest, {"tasks": [{"weights": [{}] * 65}]}, "tasks"),
}


@pytest.mark.parametrize("said", NESTED.values(), ids=NESTED)
def test_what_is_nested_is_counted_too(said):
    kind, fields, field = said
    error = refused(kind.unpack, packed(**fields))
    assert isinstance(error, TooLarge) and error.field.startswith(field)


def test_as_many_wrong_items_as_a_manifest_may_have_are_told_of_once():
    edges = [{"tensors": [{}] * 16} for _ in range(8_192)]
    error = refused(Manifest.unpack, packed(edges=edges), times=160)  # an empty map is a byte, and in memory 64
    assert isinstance(error, BadInput) and "\n" not in str(error)


def test_more_fields_than_a_document_has_are_refused_by_name():
    text = orjson.dumps({"v": 1, **{f"x{n}": 0 for n in range(2_000)}}).decode()
    error = refused(Ad.parse, text)
    assert isinstance(error, BadEvent) and (error.field, error.reason) == ("x0", "unknown field")


def test_an_ad_of_more_offers_than_it_may_have_is_refused_where_an_oracle_reads_it():
    offer = {"task": "a", "price_msat": 0, "us_per_position": 1}
    for field, manifests in {
        "manifests": [{}] * 20_000,
        "manifests.0.tasks": [{"manifest": digest("model"), "slots": 1, "tasks": [offer] * 1_025}],
    }.items():
        content = orjson.dumps({"v": 1, "name": "n", "manifests": manifests}).decode()
        event = sign(keys("s"), ad.KIND, created_at=1, content=content, tags=[("d", "n"), ("k", "8843")])
        with pytest.raises(TooLarge) as error:
            ad.parse(event)
        assert error.value.field in (field, "ad")  # its bytes are bounded, too


def test_a_manifest_of_a_million_tasks_is_refused_where_a_market_reads_it():
    blob = packed(tasks=[{}] * MILLION)
    tags = [["d", "m"], ["x", "0" * 64], ["blob", hashlib.sha256(blob).hexdigest()]]
    event = sign(keys("s"), kinds.MANIFEST, created_at=1, content="", tags=tags)
    error = refused(lambda data: manifest_event.parse(event, data), blob)
    assert isinstance(error, TooLarge) and error.field == "tasks"


def test_an_oracles_inventory_and_a_snapshot_with_too_much_are_as_good_as_none():
    ours = SEATS[0].keys.public
    state = rules.apply(Tick(COMMITTEE.close_ms(3) + 1), start(COMMITTEE, ours))[0]
    blob = packed(beats=[{}] * MILLION)
    said = [("t", "inventory"), ("c", COMMITTEE.digest()), ("n", "epoch/3"), ("x", digest("x"))]
    cited = [*said, ("blob", hashlib.sha256(blob).hexdigest())]
    event = sign(SEATS[1].keys, oracle_round.KIND, created_at=1, tags=cited)
    state, actions = rules.apply(VerifiedEvent(event), state)
    assert any(isinstance(action, FetchBlob) for action in actions)
    state, _ = rules.apply(BlobCame(hashlib.sha256(blob).hexdigest(), blob), state)
    assert all(listed.inventory is None for listed in state.rounds[3].inventories.values())
    wrong = packed(nodes=[{}] * MILLION)
    error = refused(lambda data: snapshot.unpack(data, snapshot.sha256(data)), wrong)
    assert (error.field, type(error)) == ("nodes", TooLarge)


def test_an_observation_about_oneself_and_one_too_many_are_refused_by_field():
    one = Provider("one", COMMITTEE, HELD)
    about_itself = one.beat(3, observed=(Observation(node=one.keys.public, rtt_us=5),))
    with pytest.raises(BadEvent, match="itself") as error:
        heartbeat.parse(about_itself)
    assert error.value.field == "observed"
    state = rules.apply(Tick(COMMITTEE.close_ms(3) + 1), start(COMMITTEE, SEATS[0].keys.public))[0]
    assert rules.apply(VerifiedEvent(about_itself), state) == (state, ())
    many = [Observation(node=f"{n:064x}", rtt_us=5).document() for n in range(9)]
    with pytest.raises(TooLarge, match="9 items, at most 8") as error:
        Beat.from_document({**heartbeat.parse(one.beat(3)).document(), "observed": many})
    assert error.value.field == "observed"


def test_a_checkpoint_without_quorum_is_refused_by_field_and_kept_by_no_oracle():
    state = rules.apply(Tick(COMMITTEE.close_ms(3) + 1), start(COMMITTEE, SEATS[0].keys.public))[0]
    body = Body(
        committee=COMMITTEE.digest(),
        epoch=3,
        snapshot=digest("snapshot"),
        commitments=digest("commitments"),
        inventories=tuple(sorted(digest(f"i{n}") for n in range(COMMITTEE.quorum))),
        previous=COMMITTEE.digest(),
    )
    votes = [
        oracle_round.build_vote(seat.keys, COMMITTEE.digest(), "epoch/3", body.digest(), created_at=1)
        for seat in SEATS[: COMMITTEE.quorum - 1]
    ]
    for made in (votes, [*votes, votes[0]]):
        one = Certificate(body, tuple(made))
        with pytest.raises(BadQuorum) as error:
            one.check(COMMITTEE)
        assert error.value.field == "votes" and str(COMMITTEE.quorum) in error.value.reason
        event = quorum_certificate.build(keys("anybody"), one, created_at=1)
        assert rules.apply(VerifiedEvent(event), state) == (state, ())


def test_one_bond_counts_for_the_one_node_that_it_names():
    mine = Provider("mine", COMMITTEE, HELD, bond_msat=10**8)
    stolen = Provider("thief", COMMITTEE, HELD, bond_msat=10**8)
    stolen.ad = ad.build(
        stolen.keys,
        ad.parse(stolen.ad).model_copy(update={"bond": mine.bond.id}),
        created_at=1,
    )
    beats = [mine.beat(3), stolen.beat(3)]
    found = snapshot.derive(COMMITTEE, 3, beats, [mine.ad, stolen.ad], bonds=[mine.bond])
    assert {node.pubkey: node.bond_msat for node in found.nodes} == {mine.keys.public: 10**8, stolen.keys.public: 0}


def test_what_a_schema_may_hold_at_most_passes():
    class Row(Schema):
        name: str

    class Table(Schema):
        rows: tuple[Row, ...]
        by_name: dict[str, int]

    one = Table(rows=tuple(Row(name=str(n)) for n in range(50)), by_name={str(n): n for n in range(50)})
    assert Table.unpack(one.pack()) == one == Table.parse(one.to_json())
    assert whole(Table.read(one.pack())) == orjson.loads(one.to_json())
    full = heartbeat.parse(Provider("full", COMMITTEE, HELD).beat(3, free={digest(f"{n}"): 1 for n in range(16)}))
    assert Beat.unpack(full.pack()) == full
