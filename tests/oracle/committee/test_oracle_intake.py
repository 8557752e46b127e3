"""What an oracle takes in, each bound by itself: of a provider one commitment, of an oracle two of everything."""

from __future__ import annotations

import pytest

from nodewire.nostr.event import sign
from nodewire.oracle.committee import intake, rules
from nodewire.oracle.committee.state import BlobCame, FetchBlob, KeepEvent, PublishFault, Round, Tick, start
from nodewire.protocol.committee import commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.committee import KEPT_EPOCHS
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.committee.quorum_certificate import Certificate
from tests.oracle.fed import fed
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys, statement

HELD = {digest("model"): ([("driver", 10, 500)], 2)}
COMMITTEE, SEATS = committee(bond_holders=(HOLDER.public,))
EPOCH = 4
LEADER = next(seat for seat in SEATS if seat.keys.public == COMMITTEE.leader(EPOCH))
OTHER = next(seat for seat in SEATS if seat is not LEADER)
AT_S = COMMITTEE.close_ms(EPOCH) // 1000


def listening(epoch=EPOCH, **fields):
    """An oracle shortly after the close of an epoch, whose round is open."""
    at_ms = COMMITTEE.close_ms(epoch) + 1
    state = rules.replace(start(COMMITTEE, OTHER.keys.public, at_ms), **fields)
    return rules.apply(Tick(at_ms + 1), state)[0]


def committed(name, epoch=EPOCH + 1, jobs=1):
    chunks = (
        ChunkRoot(request=digest(f"{name}/{n}"), task="t", chunk=0, attempt=0, root=digest("r")) for n in range(jobs)
    )
    document = Commitment(
        committee=COMMITTEE.digest(), epoch=epoch, chunks=tuple(sorted(chunks, key=lambda one: one.key))
    )
    return commitment.build(keys(name), document, created_at=AT_S)


def body(**changes):
    fields = {"snapshot": digest("s"), "commitments": digest("c"), "inventories": (digest("i"),), "epoch": EPOCH}
    return Body(**{"committee": COMMITTEE.digest(), "previous": COMMITTEE.digest(), **fields, **changes})


def certified(epoch, voters=SEATS[:3], **changes):
    one = body(epoch=epoch, inventories=tuple(sorted(digest(f"i{n}") for n in range(3))), **changes)
    topic = f"epoch/{epoch}"
    votes = tuple(
        oracle_round.build_vote(seat.keys, COMMITTEE.digest(), topic, one.digest(), created_at=AT_S) for seat in voters
    )
    return Certificate(one, votes)


# ---- commitments --------------------------------------------------------------------------------------------------


def test_a_commitment_is_taken_for_the_epoch_under_way_and_those_beside_it():
    events = [committed(f"p{epoch}", epoch)[0] for epoch in range(EPOCH - 1, EPOCH + 4)]
    state, _ = fed(listening(), *events)
    assert sorted(state.commitments) == [EPOCH, EPOCH + 1, EPOCH + 2]


def test_of_a_provider_the_first_commitment_counts():
    first, second = committed("p")[0], committed("p", jobs=2)[0]
    assert fed(listening(), first, second)[0].commitments[EPOCH + 1] == {keys("p").public: first.id}


def test_beyond_strangers_places_those_with_a_bond_alone_are_taken(monkeypatch):
    monkeypatch.setattr(intake, "STRANGERS", 2)
    state, _ = fed(listening(), statement(keys("bonded").public, 10**8))
    names = ["a", "b", "c", "bonded"]
    state, _ = fed(state, *(committed(name)[0] for name in names))
    assert set(state.commitments[EPOCH + 1]) == {keys(name).public for name in ("a", "b", "bonded")}


def test_a_strangers_blob_is_fetched_up_to_less_than_a_bonded_nodes():
    state, _ = fed(listening(), statement(keys("bonded").public, 10**8))
    _, actions = fed(state, *(committed(name, jobs=99)[0] for name in ("stranger", "bonded")))
    asked = {one.sha256: one.max_bytes for one in actions if isinstance(one, FetchBlob)}
    at = [committed(name, jobs=99)[0].tag("blob") for name in ("stranger", "bonded")]
    assert [asked[sha256] for sha256 in at] == [intake.MAX_UNBONDED_BLOB_BYTES, Commitment.MAX_BYTES]


def test_bytes_with_another_hash_are_no_commitments_blob():
    """They say the same, and are not what the event names: whoever asks for that finds it nowhere."""
    event, blob = committed("p", jobs=99)
    tags = [[name, digest("elsewhere") if name == "blob" else value] for name, value in event.tags]
    event = sign(keys("p"), event.kind, created_at=event.created_at, content="", tags=tags)
    state, _ = fed(listening(), event)
    state, actions = rules.apply(BlobCame(digest("elsewhere"), blob), state)
    assert not state.commitments.get(EPOCH + 1)
    assert actions == ()


# ---- what oracles say ---------------------------------------------------------------------------------------------


def round_after(*events):
    state, actions = fed(listening(), *events)
    return state.rounds.get(EPOCH, Round()), actions


def test_of_an_oracle_two_inventories_are_kept_and_its_contradiction_is_told_once():
    said = [
        oracle_round.build_inventory(
            OTHER.keys,
            Inventory(committee=COMMITTEE.digest(), epoch=EPOCH, beats=(digest(f"b{n}"),), commitments=()),
            created_at=AT_S,
        )[0]
        for n in range(4)
    ]
    round_, actions = round_after(*said)
    assert set(round_.inventories) == {one.id for one in said[:2]}
    assert len([one for one in actions if isinstance(one, PublishFault)]) == 1


def test_of_an_oracle_two_votes_are_kept():
    votes = [
        oracle_round.build_vote(OTHER.keys, COMMITTEE.digest(), f"epoch/{EPOCH}", digest(f"x{n}"), created_at=AT_S)
        for n in range(4)
    ]
    assert len(round_after(*votes)[0].votes) == 2


def test_two_proposals_of_the_leader_are_kept_and_nobody_elses():
    bodies = [body(commitments=digest(f"c{n}")) for n in range(3)]
    said = [oracle_round.build_proposal(LEADER.keys, one, created_at=AT_S) for one in bodies]
    strangers = oracle_round.build_proposal(OTHER.keys, body(commitments=digest("mine")), created_at=AT_S)
    assert set(round_after(strangers, *said)[0].proposals) == {one.digest() for one in bodies[:2]}


def test_so_many_supplies_of_an_oracle_count():
    events = [Provider(f"n{n}", COMMITTEE, HELD).beat(EPOCH) for n in range(oracle_round.MAX_SUPPLIES + 2)]
    said = [
        one
        for event in events
        for one in oracle_round.build_supply(OTHER.keys, COMMITTEE.digest(), EPOCH, (event,), created_at=AT_S)
    ]
    assert len(round_after(*said)[0].extra) == oracle_round.MAX_SUPPLIES


def test_a_proposed_snapshot_is_what_its_hash_says():
    proposal = oracle_round.build_proposal(LEADER.keys, body(snapshot=digest("s")), created_at=AT_S)
    state, _ = fed(listening(), proposal)
    state, _ = rules.apply(BlobCame(digest("s"), b"something else"), state)
    assert not state.rounds[EPOCH].offered


# ---- certificates -------------------------------------------------------------------------------------------------


def came(state, one):
    event = quorum_certificate.build(OTHER.keys, one, created_at=AT_S)
    return fed(state, event)


@pytest.mark.parametrize("voters", [SEATS[:2], (SEATS[0],) * 3])
def test_a_certificate_without_a_quorum_is_none(voters):
    state, actions = came(listening(), certified(EPOCH, voters))
    assert (state.certified, actions) == ((), [])


def test_a_certificate_is_taken_up_to_its_age():
    far = KEPT_EPOCHS + 10
    state = listening(far)
    for epoch, is_taken in ((state.epoch - KEPT_EPOCHS - 1, False), (state.epoch - KEPT_EPOCHS, True)):
        assert bool(came(state, certified(epoch))[0].certified) == is_taken
    assert not came(listening(), certified(EPOCH + 2))[0].certified


def test_a_certificate_older_than_all_that_are_kept_is_not_stored_either():
    kept = tuple(certified(epoch) for epoch in range(10, 10 + intake.KEPT_CERTIFICATES))
    state = listening(40, certified=kept)
    after, actions = came(state, certified(9))
    assert after.certified == kept
    assert not [one for one in actions if isinstance(one, KeepEvent)]
