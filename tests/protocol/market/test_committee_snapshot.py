"""A snapshot follows from signed events alone, by the rules that its module states."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.core.slices import whole
from nodewire.errors import BadHash, BadSignature
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.encoding import canonical
from nodewire.protocol.market import ad, heartbeat, snapshot
from nodewire.protocol.market.snapshot import Snapshot, derive, listed, needed
from tests.protocol.committee.actors import (
    GENESIS_S,
    HOLDER,
    Provider,
    committee,
    digest,
    keys,
    rederived,
    statement,
)

COMMITTEE, _ = committee(1, bond_holders=(HOLDER.public,), min_us_per_position=400)
MODEL = digest("model")
HELD = {MODEL: ([("driver", 10, 500), ("stage", 20, 100)], 4)}
PROVIDERS = [Provider(f"p{i}", COMMITTEE, HELD, region="eu", bond_msat=i * 1_000) for i in range(4)]
EPOCH = 6


def taken(providers=PROVIDERS, beats=None, epoch=EPOCH, **changes) -> Snapshot:
    beats = [p.beat(EPOCH) for p in providers] if beats is None else beats
    bonds = [p.bond for p in providers if p.bond]
    return derive(COMMITTEE, epoch, beats, [p.ad for p in providers], bonds=bonds, **changes)


def test_a_node_is_its_newest_beat_its_ad_and_its_bond():
    one = PROVIDERS[2]
    beats = [one.beat(EPOCH - 1), one.beat(EPOCH, free={MODEL: 9}, load_ppm=7, coordinates=(1, -2, 3)), one.beat(4)]
    (node,) = taken([one], beats).nodes
    assert (node.pubkey, node.beat, node.ad) == (one.keys.public, beats[1].id, one.ad.id)
    assert (node.bond_msat, node.region, node.load_ppm, node.coordinates) == (2_000, "eu", 7, (1, -2, 3))
    (held,) = node.held
    assert (held.manifest, held.free) == (MODEL, 4)  # no more than the ad's slots
    assert [(t.task, t.price_msat, t.us_per_position) for t in held.tasks] == [("driver", 10, 500), ("stage", 20, 400)]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.permutations(range(4)))
def test_the_order_in_which_events_come_changes_nothing(first, second):
    beats, bonds = [p.beat(EPOCH) for p in PROVIDERS], [p.bond for p in PROVIDERS if p.bond]
    ids = {event.id: event for event in beats}  # signatures differ from run to run
    ads = [PROVIDERS[i].ad for i in second]
    one = derive(COMMITTEE, EPOCH, [beats[i] for i in first], ads, bonds=bonds)
    two = derive(COMMITTEE, EPOCH, list(ids.values()), ads[::-1], bonds=bonds[::-1])
    assert one.pack() == two.pack()


def test_old_early_foreign_and_adless_beats_do_not_count():
    one = PROVIDERS[0]
    for epoch in (EPOCH - 3, EPOCH + 1):
        assert taken([one], [one.beat(epoch)]).nodes == ()
    assert taken([one], [one.beat(EPOCH, committee=digest("other"))]).nodes == ()
    assert derive(COMMITTEE, EPOCH, [one.beat(EPOCH)], []).nodes == ()
    thief = Provider("thief", COMMITTEE, HELD)
    assert taken([one, thief], [thief.beat(EPOCH, ad=one.ad.id)]).nodes == ()
    other, _ = committee(1, "another")
    elsewhere = Provider("elsewhere", other, HELD)
    assert taken([elsewhere], [elsewhere.beat(EPOCH, committee=COMMITTEE.digest())]).nodes == ()


def test_a_bond_counts_only_from_a_listed_holder_for_this_node_and_long_enough():
    def bond_of(event, bond_msat=9_000):
        one = Provider("bonded", COMMITTEE, HELD, bond=event, bond_msat=bond_msat)
        return taken([one], [one.beat(EPOCH)]).nodes[0].bond_msat

    public = keys("provider/bonded").public
    assert bond_of(statement(public, 5_000)) == 5_000
    assert bond_of(statement(public, 5_000), bond_msat=3_000) == 3_000
    assert bond_of(statement(digest("someone else"), 5_000)) == 0
    assert bond_of(statement(public, 5_000, expires_at_s=GENESIS_S + 16)) == 0
    from nodewire.protocol.market import bond

    own = bond.build(keys("a friend"), public, 5_000, expires_at_s=2**40, created_at=0)
    assert bond_of(own) == 0


def test_a_bond_counts_for_as_many_slots_as_it_is_worth_once_over_all_manifests():
    """A slot of HELD costs 30 msat, so one that counts needs 3,000 of bond, or 6,000 with two such manifests."""
    unit, _ = committee(1, bond_holders=(HOLDER.public,), bond_unit_msat=1_000)
    other = digest("another model")
    two = {**HELD, other: HELD[MODEL]}

    def found(held, bond_msat):
        one = Provider("staked", unit, held, bond_msat=bond_msat)
        (node,) = derive(unit, EPOCH, [one.beat(EPOCH)], [one.ad], bonds=[one.bond]).nodes
        return node.bond_msat, [h.free for h in node.held]

    assert found(HELD, 9_000) == (9_000, [3])
    assert found(HELD, 10**6) == (10**6, [4])
    assert found(two, 9_000) == (9_000, [1, 1])
    assert found(HELD, 2_999) == (0, [4])  # not enough for one: as without a bond


def test_a_statement_that_two_keys_cite_counts_for_the_one_that_it_names():
    one = Provider("first", COMMITTEE, HELD, bond_msat=9_000)
    two = Provider("second", COMMITTEE, HELD, bond=one.bond, bond_msat=9_000)
    nodes = derive(COMMITTEE, EPOCH, [one.beat(EPOCH), two.beat(EPOCH)], [one.ad, two.ad], bonds=[one.bond]).nodes
    assert {node.pubkey: node.bond_msat for node in nodes} == {one.keys.public: 9_000, two.keys.public: 0}


def test_a_claim_is_bounded_by_what_half_of_the_bonds_claim():
    def us(*claims):
        """Of each: what it claims, and its bond units."""
        made = [
            Provider(f"c{i}", COMMITTEE, {MODEL: ([("stage", 1, says)], 1)}, bond_msat=units * 1_000_000)
            for i, (says, units) in enumerate(claims)
        ]
        bonds = [p.bond for p in made if p.bond]
        found = derive(COMMITTEE, EPOCH, [p.beat(EPOCH) for p in made], [p.ad for p in made], bonds=bonds)
        return [found.node(p.keys.public).held[0].tasks[0].us_per_position for p in made]

    assert us((500, 1), (3_000, 1), (3_000, 1)) == [3_000] * 3
    assert us((500, 1), (3_000, 1), (9_000, 1)) == [3_000, 3_000, 9_000]  # who is slow says so
    assert us((500, 3), (3_000, 1), (3_000, 1)) == [500, 3_000, 3_000]  # half of the bonds
    assert us((1, 0), (1, 0), (1, 0), (3_000, 1)) == [3_000] * 4  # keys that cost nothing say nothing
    assert us((1, 0), (700, 0), (3_000, 0)) == [700, 700, 3_000]
    assert us((1, 1)) == [400]  # the committee's least


def test_epochs_are_counted_on_from_the_previous_snapshot_unless_it_is_too_old():
    first = taken()
    assert {n.epochs for n in first.nodes} == {1}
    beats = [p.beat(EPOCH + 1) for p in PROVIDERS]
    assert {n.epochs for n in taken(beats=beats, epoch=EPOCH + 1, previous=first).nodes} == {2}
    late = EPOCH + 17
    beats = [p.beat(late) for p in PROVIDERS]
    assert {n.epochs for n in taken(beats=beats, epoch=late, previous=first).nodes} == {1}


def test_a_snapshot_travels_as_a_blob_and_proves_itself():
    one = taken()
    blob = one.pack()
    again = snapshot.unpack(blob, snapshot.sha256(blob))
    assert again == one
    assert rederived(COMMITTEE, again) == one
    assert set(again.ads({PROVIDERS[1].keys.public})) == {PROVIDERS[1].keys.public}
    assert again.ads({PROVIDERS[1].keys.public})[PROVIDERS[1].keys.public] == ad.parse(PROVIDERS[1].ad)
    with pytest.raises(BadHash):
        snapshot.unpack(blob + b"\x00", snapshot.sha256(blob))


def test_an_event_that_was_altered_in_a_snapshot_has_no_signature():
    one = taken()
    tampered = one.events[0].replace('\\"load_ppm\\":0', '\\"load_ppm\\":1')
    assert tampered != one.events[0]
    with pytest.raises(BadSignature):
        rederived(COMMITTEE, one.model_copy(update={"events": (tampered, *one.events[1:])}))


def test_the_ad_or_bond_statement_that_a_beat_lacks_is_named():
    one, two = PROVIDERS[:2]
    beats = [one.beat(EPOCH), two.beat(EPOCH)]
    assert whole(needed(COMMITTEE, EPOCH, beats, {one.ad.id: one.ad})) == {two.ad.id}
    bare = {event.id: event for event in (one.ad, two.ad)}
    assert whole(needed(COMMITTEE, EPOCH, beats, bare)) == {two.bond.id}


def test_a_snapshot_is_packed_in_pieces_to_the_canonical_bytes():
    for one in (taken(), taken(providers=[])):
        assert one.pack() == canonical.encode(one.document())


def test_what_was_read_of_events_before_changes_nothing():
    parsed = {p.ad.id: ad.parse(p.ad) for p in PROVIDERS}
    parsed |= {one.id: heartbeat.parse(one) for one in (p.beat(EPOCH) for p in PROVIDERS)}
    assert taken(parsed=parsed) == taken()


def test_what_f_plus_one_inventories_list_is_in():
    ids = sorted(digest(str(i)) for i in range(4))

    def lists(*beats):
        return Inventory(committee=COMMITTEE.digest(), epoch=1, beats=tuple(sorted(beats)), commitments=(ids[0],))

    beats, commitments = listed(COMMITTEE, [lists(*ids[:2]), lists(ids[1], ids[2]), lists(ids[3])])
    assert (beats, commitments) == ([ids[1]], [ids[0]])


def test_a_crowded_body_counts_strangers_that_its_leader_lists_and_bonded_nodes_all_the_same():
    both, others, bonded, theirs = sorted(digest(str(i)) for i in range(4))

    def lists(beats, bonded=()):
        return Inventory(
            committee=COMMITTEE.digest(),
            epoch=1,
            beats=tuple(sorted(beats)),
            bonded=tuple(sorted(bonded)),
            commitments=(),
        )

    leaders = lists([both, theirs])
    said = [leaders, lists([both, others], [bonded]), lists([others], [bonded])]
    assert listed(COMMITTEE, said)[0] == sorted([both, others, bonded])
    assert listed(COMMITTEE, said, leaders)[0] == sorted([both, bonded])


def test_a_bond_that_f_oracles_alone_know_makes_nobody_count():
    stranger = digest("stranger")
    said = [
        Inventory(committee=COMMITTEE.digest(), epoch=1, beats=(), commitments=()),
        Inventory(committee=COMMITTEE.digest(), epoch=1, beats=(stranger,), commitments=()),
        Inventory(committee=COMMITTEE.digest(), epoch=1, beats=(), bonded=(stranger,), commitments=()),
    ]
    assert listed(COMMITTEE, said)[0] == [stranger]
    assert listed(COMMITTEE, said, said[0])[0] == []
