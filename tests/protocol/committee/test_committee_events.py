"""Every event that the committee reads or writes parses back to what was built, and says which field is wrong."""

from __future__ import annotations

import pytest

from nodewire.errors import BadEvent, BadHash, BadInput, BadQuorum, BadSignature, BadTag, BadVersion, NoQuorum, TooLarge
from nodewire.nostr.event import Event, sign
from nodewire.nostr.event import parse as parse_event
from nodewire.protocol.committee import beacon, commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee import committee as committees
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory, InventoryEvent, Proposal, Supply, Vote
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.encoding import merkle, tags
from nodewire.protocol.market import ad, bond, heartbeat
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.market.observation import Observation
from tests.protocol.committee.actors import GENESIS_S, HOLDER, Provider, committee, digest, keys, statement

COMMITTEE, SEATS = committee(1)
C = COMMITTEE.digest()
AUTHOR = keys("author")
PROVIDER = Provider("p", COMMITTEE, {digest("model"): ([("driver", 10, 500)], 2)}, region="eu")
BODY = Body(
    committee=C,
    epoch=9,
    snapshot=digest("snapshot"),
    commitments=digest("commitments"),
    inventories=tuple(sorted(digest(f"inventory {i}") for i in range(3))),
    previous=C,
)


def resigned(event: Event, keys_=AUTHOR, *, content=None, drop=(), add=()) -> Event:
    kept = [tag for tag in event.tags if tag[0] not in drop]
    content = event.content if content is None else content
    return sign(keys_, event.kind, created_at=event.created_at, content=content, tags=[*kept, *add])


def votes(count=3, body=BODY, topic=None, x=None):
    topic = topic or tags.epoch_topic(body.epoch)
    return tuple(
        oracle_round.build_vote(s.keys, body.committee, topic, x or body.digest(), created_at=1) for s in SEATS[:count]
    )


# ---- committee


def test_a_committee_parses_back():
    event = committees.build(AUTHOR, COMMITTEE, created_at=1)
    assert committees.parse(parse_event(event.to_json())) == COMMITTEE
    assert event.values("p") == [s.keys.public for s in SEATS]
    with pytest.raises(BadHash):
        committees.parse(resigned(event, drop=("x",), add=[("x", digest("other"))]))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"f": 2}, "3f"),
        ({"skew_ms": 500}, "skew_ms"),
        ({"vrf_public": SEATS and COMMITTEE.oracles[0].share_public}, "vrf_public"),
        ({"oracles": [COMMITTEE.oracles[0].document()] * 4}, "twice"),
        ({"oracles": [o.document() for o in reversed(COMMITTEE.oracles)]}, "share indexes"),
        ({"epoch_ms": 2.0}, "whole number"),
    ],
)
def test_an_unsound_committee_is_refused(change, word):
    with pytest.raises(BadQuorum, match=word):
        type(COMMITTEE).from_document({**COMMITTEE.document(), **change})


def test_a_share_that_is_not_of_the_groups_key_is_refused():
    document = COMMITTEE.document()
    oracles = [dict(oracle) for oracle in document["oracles"]]
    oracles[3]["share_public"] = oracles[2]["share_public"]
    with pytest.raises(BadQuorum, match="vrf_public"):
        type(COMMITTEE).from_document({**document, "oracles": oracles})


def test_epochs_close_one_after_another():
    close = COMMITTEE.close_ms(0)
    assert close == GENESIS_S * 1000 + 2_000
    assert (COMMITTEE.epoch_at(close - 1), COMMITTEE.epoch_at(close), COMMITTEE.epoch_at(0) < 0) == (0, 1, True)
    assert [COMMITTEE.leader(e) for e in range(5)] == [s.keys.public for s in (*SEATS, SEATS[0])]
    assert COMMITTEE.live_epochs == 2


# ---- ads, beats, bonds


def test_an_ad_parses_back_and_its_tags_must_agree():
    document = ad.parse(PROVIDER.ad)
    assert (document.name, document.region, document.committees) == ("p", "eu", (C,))
    for name, other in (("d", "q"), ("k", "5"), ("x", digest("other"))):
        with pytest.raises(BadTag, match=name):
            ad.parse(resigned(PROVIDER.ad, drop=(name,), add=[(name, other)]))
    with pytest.raises(BadVersion):
        ad.parse(resigned(PROVIDER.ad, content=PROVIDER.ad.content.replace('"v":1', '"v":2')))
    with pytest.raises(BadEvent, match="kind"):
        ad.parse(PROVIDER.beat(1))


@pytest.mark.parametrize("depth", [10, 520, 1_000, 5_000])
def test_a_document_nested_deeply_is_refused_and_nothing_worse(depth):
    content = PROVIDER.ad.content.replace('"name":"p"', '"name":' + "[" * depth + "]" * depth)
    with pytest.raises(BadEvent):
        ad.parse(resigned(PROVIDER.ad, content=content))


@pytest.mark.parametrize("wire", ["host", "host:0", "host:99999", "ho st:1", "[::1:1"])
def test_an_address_that_cannot_be_dialled_is_refused(wire):
    with pytest.raises(BadEvent):
        Ad.from_document({**ad.parse(PROVIDER.ad).document(), "wire": [wire]})
    assert Ad.from_document({**ad.parse(PROVIDER.ad).document(), "wire": ["[::1]:80", "h.example:9000"]})


def test_a_beat_parses_back_and_needs_an_expiration():
    event = PROVIDER.beat(3, free={digest("model"): 1}, coordinates=(-5, 6, 7))
    document = heartbeat.parse(event)
    assert (document.epoch, document.coordinates, document.ad) == (3, (-5, 6, 7), PROVIDER.ad.id)
    assert int(event.tag("expiration")) * 1000 >= COMMITTEE.close_ms(3 + COMMITTEE.live_epochs)
    with pytest.raises(BadTag, match="expiration"):
        heartbeat.parse(resigned(event, drop=("expiration",)))
    with pytest.raises(BadTag, match="c"):
        heartbeat.parse(resigned(event, drop=("c",), add=[("c", digest("other"))]))
    with pytest.raises(BadEvent, match="coordinates"):
        heartbeat.parse(resigned(event, content=event.content.replace("[-5,6,7]", "[-5,6,-7]")))


def test_a_bond_statement_parses_back():
    parsed = bond.parse(statement(PROVIDER.keys.public, 5_000))
    assert (parsed.holder, parsed.provider, parsed.amount_msat) == (HOLDER.public, PROVIDER.keys.public, 5_000)
    for amount in ("", "-1", "1.0", "9" * 20, "٣"):
        with pytest.raises(BadTag, match="amount"):
            bond.parse(resigned(statement(digest("x"), 5), drop=("amount",), add=[("amount", amount)]))


def test_a_beat_with_all_that_it_may_say_is_taken_and_one_with_more_in_its_tags_is_not():
    observed = tuple(Observation(node=node, rtt_us=10**7) for node in sorted(digest(f"n/{i}") for i in range(8)))
    free = {digest(f"manifest/{i}"): 4_096 for i in range(16)}
    full = PROVIDER.beat(10**9, free=free, observed=observed, load_ppm=10**6, coordinates=(-(10**7), -(10**7), 10**7))
    assert heartbeat.parse(full).observed == observed
    with pytest.raises(TooLarge, match="beat"):
        heartbeat.parse(resigned(PROVIDER.beat(4), add=[("note", "é" * 1_900)]))


# ---- what oracles say


def test_an_inventory_parses_back_inline_and_as_a_blob():
    small = Inventory(committee=C, epoch=4, beats=(digest("b"),), commitments=())
    event, blob = oracle_round.build_inventory(AUTHOR, small, created_at=1)
    assert blob is None
    parsed = oracle_round.parse(event)
    assert isinstance(parsed, InventoryEvent)
    assert parsed.inventory == small
    large = Inventory(committee=C, epoch=4, beats=tuple(sorted(digest(str(i)) for i in range(900))), commitments=())
    event, blob = oracle_round.build_inventory(AUTHOR, large, created_at=1)
    assert blob is not None
    parsed = oracle_round.parse(event)
    assert parsed.inventory is None
    assert parsed.attach(blob).inventory == large
    with pytest.raises(BadHash):
        parsed.attach(blob[:-1])


def test_an_unsorted_inventory_and_a_wrong_digest_are_refused():
    with pytest.raises(BadEvent, match="sorted"):
        Inventory.from_document({"v": 1, "committee": C, "epoch": 1, "beats": ["f" * 64, "0" * 64], "commitments": []})
    event, _ = oracle_round.build_inventory(
        AUTHOR, Inventory(committee=C, epoch=4, beats=(), commitments=()), created_at=1
    )
    with pytest.raises(BadHash):
        oracle_round.parse(resigned(event, drop=("x",), add=[("x", digest("other"))]))
    with pytest.raises(BadTag, match="n"):
        oracle_round.parse(resigned(event, drop=("n",), add=[("n", "epoch/5")]))


def test_what_an_inventory_and_a_body_do_not_say_is_left_out_of_them():
    empty = Inventory(committee=C, epoch=4, beats=(), commitments=())
    assert "bonded" not in empty.document()
    assert "is_crowded" not in BODY.document()
    crowded = BODY.model_copy(update={"is_crowded": True})
    assert Body.parse(crowded.to_json()) == crowded
    assert crowded.digest() != BODY.digest()
    bonded = empty.model_copy(update={"bonded": (digest("b"),)})
    assert Inventory.unpack(bonded.pack()) == bonded


def test_a_beat_stands_in_an_inventory_once_and_no_inventory_has_more_than_fit(monkeypatch):
    ids = tuple(sorted(digest(str(i)) for i in range(3)))
    with pytest.raises(BadEvent, match="in both"):
        Inventory.from_document(
            {"v": 1, "committee": C, "epoch": 1, "beats": ids, "commitments": [], "bonded": ids[:1]}
        )
    monkeypatch.setattr(oracle_round, "MAX_BEATS", 2)
    with pytest.raises(BadEvent, match="more than 2"):
        Inventory.from_document(
            {"v": 1, "committee": C, "epoch": 1, "beats": ids[:2], "commitments": [], "bonded": ids[2:]}
        )
    with pytest.raises(BadEvent, match="sorted"):
        Inventory.from_document(
            {"v": 1, "committee": C, "epoch": 1, "beats": [], "commitments": [], "bonded": ids[1::-1]}
        )


def test_a_proposal_and_a_vote_parse_back():
    proposal = oracle_round.parse(oracle_round.build_proposal(AUTHOR, BODY, created_at=1))
    assert isinstance(proposal, Proposal)
    assert proposal.body == BODY
    vote = oracle_round.parse(votes(1)[0])
    assert isinstance(vote, Vote)
    assert (vote.oracle, vote.topic, vote.x) == (SEATS[0].keys.public, "epoch/9", BODY.digest())


def test_a_supply_carries_verified_events_only():
    events = [PROVIDER.beat(i) for i in range(70)]
    built = oracle_round.build_supply(AUTHOR, C, 4, events, created_at=1)
    parsed = [oracle_round.parse(event) for event in built]
    assert all(isinstance(one, Supply) for one in parsed)
    assert [event for one in parsed for event in one.events] == events
    with pytest.raises(BadSignature):
        oracle_round.parse(resigned(built[0], content=built[0].content.replace('"created_at":1', '"created_at":2', 1)))


@pytest.mark.parametrize("topic", ["epoch/", "epoch/-1", "epoch/01", "epoch/1e3", "9", "epoch/99999999999999"])
def test_a_topic_that_names_no_epoch_is_refused(topic):
    event, _ = oracle_round.build_inventory(
        AUTHOR, Inventory(committee=C, epoch=4, beats=(), commitments=()), created_at=1
    )
    with pytest.raises(BadTag, match="n"):
        oracle_round.parse(resigned(event, drop=("n",), add=[("n", topic)]))


# ---- certificates and faults


def test_a_certificate_with_a_quorum_passes_and_parses_back():
    event = quorum_certificate.build(AUTHOR, Certificate(BODY, votes()), created_at=2)
    parsed = quorum_certificate.parse(parse_event(event.to_json()))
    parsed.check(COMMITTEE)
    assert (parsed.body, parsed.digest) == (BODY, BODY.digest())
    assert len(event.to_json()) < 65_536


def test_a_certificate_without_a_quorum_of_its_committee_is_refused():
    outsider = oracle_round.build_vote(AUTHOR, C, "epoch/9", BODY.digest(), created_at=1)
    one, two, three = votes()
    bad = {
        "of 2 oracles": (one, two),
        "of 2 oracles,": (one, two, two),
        "outsider": (one, two, outsider),
        "something else": (one, two, *votes(3, x=digest("other"))[2:]),
        "something": (one, two, *votes(3, topic="epoch/8")[2:]),
        "malformed": (one, two, Event(**{**_fields(three), "sig": one.sig})),
        "signed": (one, two, PROVIDER.ad),
    }
    for words, chosen in bad.items():
        with pytest.raises(BadQuorum, match=words):
            Certificate(BODY, chosen).check(COMMITTEE)
    other, _ = committee(1, "another")
    with pytest.raises(BadQuorum, match="committee"):
        Certificate(BODY, votes()).check(other)
    few = BODY.model_copy(update={"inventories": BODY.inventories[:2]})
    with pytest.raises(BadQuorum, match="inventories"):
        Certificate(few, votes(3, few)).check(COMMITTEE)


def _fields(event):
    return {name: getattr(event, name) for name in Event.__slots__}


def test_a_fault_is_two_contradicting_votes_by_one_oracle():
    (one,), (two,) = votes(1), votes(1, x=digest("other"))
    fault = quorum_certificate.contradiction(two, one)
    event = quorum_certificate.build_fault(AUTHOR, fault, created_at=3)
    assert quorum_certificate.parse_fault(event, COMMITTEE) == fault
    assert fault.oracle == SEATS[0].keys.public


def test_what_contradicts_nothing_is_no_fault():
    one, two, _ = votes()
    (elsewhere,) = votes(1, topic="epoch/8", x=digest("other"))
    proposal = oracle_round.build_proposal(SEATS[0].keys, BODY, created_at=1)
    for first, second in ((one, two), (one, one), (one, elsewhere), (one, proposal)):
        with pytest.raises(BadInput):
            quorum_certificate.contradiction(first, second)
    strangers = [oracle_round.build_vote(AUTHOR, C, "epoch/1", digest(x), created_at=1) for x in "ab"]
    event = quorum_certificate.build_fault(AUTHOR, quorum_certificate.contradiction(*strangers), created_at=3)
    with pytest.raises(BadQuorum):
        quorum_certificate.parse_fault(event, COMMITTEE)


# ---- beacons


def partials(body=BODY):
    return [beacon.build(s.keys, body, s.index, s.share, created_at=1) for s in SEATS]


def test_any_quorum_of_partials_gives_the_same_beacon():
    parsed = [beacon.parse(event) for event in partials()]
    values = {beacon.combine(COMMITTEE, BODY.digest(), parsed[i:] + parsed[:i]) for i in range(4)}
    assert len(values) == 1
    with pytest.raises(NoQuorum):
        beacon.combine(COMMITTEE, BODY.digest(), parsed[:2])


def test_partials_by_others_for_others_or_forged_do_not_count():
    parsed = [beacon.parse(event) for event in partials()]
    stolen = beacon.parse(resigned(partials()[2], SEATS[3].keys))
    with pytest.raises(BadQuorum):
        stolen.check(COMMITTEE)
    wrong = beacon.parse(beacon.build(SEATS[2].keys, BODY, 3, SEATS[3].share, created_at=1))
    with pytest.raises(BadSignature):
        wrong.check(COMMITTEE)
    elsewhere = beacon.parse(partials(BODY.model_copy(update={"epoch": 10}))[2])
    with pytest.raises(NoQuorum):
        beacon.combine(COMMITTEE, BODY.digest(), [*parsed[:2], stolen, wrong, elsewhere])
    assert beacon.combine(COMMITTEE, BODY.digest(), [stolen, wrong, *parsed[1:]])


# ---- commitments


def chunks(count):
    keys_ = sorted((digest(f"job {i % 7}"), "driver", i, 0) for i in range(count))
    return tuple(ChunkRoot(request=r, task=t, chunk=c, attempt=a, root=digest(f"root {c}")) for r, t, c, a in keys_)


@pytest.mark.parametrize("count", [1, 5, 400])
def test_a_commitment_parses_back_inline_or_as_a_blob(count):
    document = Commitment(committee=C, epoch=3, chunks=chunks(count))
    event, blob = commitment.build(AUTHOR, document, created_at=1)
    parsed = commitment.parse(parse_event(event.to_json()))
    if blob is not None:
        assert parsed.commitment is None
        parsed = parsed.attach(blob)
    assert (blob is not None) == (count == 400)
    assert parsed.commitment == document
    assert parsed.root == document.root()


def test_a_chunk_is_proven_under_the_commitments_root():
    document = Commitment(committee=C, epoch=3, chunks=chunks(5))
    root = bytes.fromhex(document.root())
    merkle.verify(root, document.chunks[3].leaf(), 3, 5, document.proof(3))
    with pytest.raises(BadHash):
        merkle.verify(root, document.chunks[2].leaf(), 3, 5, document.proof(3))


def test_a_root_that_is_not_over_the_chunks_is_refused():
    event, _ = commitment.build(AUTHOR, Commitment(committee=C, epoch=3, chunks=chunks(2)), created_at=1)
    with pytest.raises(BadHash):
        commitment.parse(resigned(event, drop=("x",), add=[("x", digest("other"))]))
    document = {"v": 1, "committee": C, "epoch": 1, "chunks": [c.document() for c in chunks(2)[::-1]]}
    with pytest.raises(BadEvent, match="sorted"):
        Commitment.from_document(document)
