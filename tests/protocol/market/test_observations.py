"""What others have found of a node: who may say so, for how long it counts, and what it changes."""

from __future__ import annotations

import pytest

from nodewire.core.slices import whole
from nodewire.errors import BadEvent, BadInput, NotAllowed
from nodewire.protocol.encoding import canonical
from nodewire.protocol.market import heartbeat, observation, snapshot
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.market.observation import (
    MAX_OBSERVED,
    SEEN_EPOCHS,
    NodeObservation,
    Observation,
    check_drawn,
    is_drawn,
)
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, rederived

COMMITTEE, _ = committee(1, bond_holders=(HOLDER.public,))
MODEL = digest("model")
HELD = {MODEL: ([("stage", 20, 1_000)], 4)}
UNIT, EPOCH = COMMITTEE.bond_unit_msat, 6
TARGET = Provider("target", COMMITTEE, HELD, coordinates=(40_000, 0, 1_000))
OBSERVERS = [Provider(f"o{i}", COMMITTEE, HELD, bond_msat=UNIT, coordinates=(0, 0, 1_000)) for i in range(4)]
STRANGERS = [Provider(f"s{i}", COMMITTEE, HELD, coordinates=(0, 0, 1_000)) for i in range(8)]
EVERYBODY = [TARGET, *OBSERVERS, *STRANGERS]
RTT_US = 42_000


def taken(said, epoch=EPOCH, previous=None, **changes):
    """The snapshot in which providers (by name) say `said` of the target: a round trip, or None."""
    beats = []
    for one in EVERYBODY:
        told = [Observation(node=TARGET.keys.public, rtt_us=said[one.name])] if one.name in said else []
        beats.append(one.beat(epoch, observed=tuple(told), **(changes if one is TARGET else {})))
    bonds = [one.bond for one in EVERYBODY if one.bond]
    return snapshot.derive(COMMITTEE, epoch, beats, [p.ad for p in EVERYBODY], bonds=bonds, previous=previous)


BEFORE = taken({}, EPOCH - 1)


def node(said, **changes):
    return taken(said, **{"previous": BEFORE, **changes}).node(TARGET.keys.public)


def test_a_node_that_most_drawn_observers_find_where_it_says_is_placed():
    found = node({f"o{i}": RTT_US + 1_000 * i for i in range(4)})
    assert (found.is_placed, found.held[0].free, len(found.seen)) == (True, 4, 4)
    assert not node({f"o{i}": RTT_US for i in range(2)}).is_placed  # two are too few
    assert not node({"o0": RTT_US, "o1": RTT_US, "o2": 5_000, "o3": 5_000}).is_placed


def test_a_node_that_claims_to_be_elsewhere_is_not_placed():
    said = {f"o{i}": RTT_US for i in range(4)}
    assert not node(said, coordinates=(0, 0, 1_000)).is_placed
    assert not node(said, coordinates=(200_000, 0, 1_000)).is_placed


def test_a_node_that_nobody_can_dial_has_nothing_free_until_it_is_found_again():
    lost = taken({f"o{i}": None for i in range(3)}, previous=BEFORE)
    assert lost.node(TARGET.keys.public).held[0].free == 0
    again = taken({f"o{i}": RTT_US for i in range(4)}, EPOCH + 1, lost).node(TARGET.keys.public)
    assert (again.held[0].free, again.is_placed) == (4, True)
    forgotten = taken({}, EPOCH + SEEN_EPOCHS + 1, lost).node(TARGET.keys.public)
    assert (forgotten.held[0].free, forgotten.seen) == (4, ())


def test_what_strangers_and_undrawn_nodes_say_is_refused_by_field():
    said = [Observation(node=TARGET.keys.public, rtt_us=RTT_US)]
    beats = [one.beat(EPOCH, observed=tuple(said) if one is not TARGET else ()) for one in EVERYBODY]
    bonds, refused = [one.bond for one in EVERYBODY if one.bond], []
    ads = [one.ad for one in EVERYBODY]
    whole(snapshot.derived(COMMITTEE, EPOCH, beats, [*ads, *bonds], previous=BEFORE, refuse=refused.append))
    assert len(refused) == len(STRANGERS)
    assert {error.field for error in refused} == {"observed"}
    with pytest.raises(NotAllowed, match="nobody drew"):
        check_drawn(digest("body"), digest("o"), digest("x"), 1, 2**60)
    with pytest.raises(NotAllowed, match="has no bond"):
        check_drawn(digest("body"), digest("o"), digest("x"), 0, 4)


def test_two_liars_or_any_number_of_strangers_move_nothing():
    assert node({"o0": None, "o1": None, "o2": RTT_US, "o3": RTT_US}).held[0].free == 4
    strangers = node({f"s{i}": None for i in range(8)})
    assert (strangers.held[0].free, strangers.seen) == (4, ())
    newly_bonded = taken({f"o{i}": None for i in range(4)}).node(TARGET.keys.public)  # not in the snapshot before
    assert newly_bonded.seen == ()


def test_a_snapshot_with_observations_proves_itself():
    found = taken({f"o{i}": RTT_US for i in range(4)}, previous=BEFORE)
    assert rederived(COMMITTEE, found, BEFORE) == found
    blob = found.pack()
    assert snapshot.unpack(blob, snapshot.sha256(blob)) == found
    assert blob == canonical.encode(found.document())


def test_draws_fall_on_a_node_about_four_times_an_epoch_in_proportion_to_bonds():
    units = {digest(f"n{i}"): 1 for i in range(60)} | {digest("large"): 20}
    total, bodies = sum(units.values()), [digest(f"body {i}") for i in range(300)]
    by = {one: sum(is_drawn(body, one, digest("x"), n, total) for body in bodies) for one, n in units.items()}
    assert 3.5 < sum(by.values()) / len(bodies) < 4.5
    assert by[digest("large")] == len(bodies)  # 20 of 80 units of 4 draws
    assert is_drawn(bodies[0], digest("x"), digest("x"), 1, 1) is False


def test_a_beat_about_its_own_node_is_refused_by_name():
    own = OBSERVERS[0]
    with pytest.raises(BadEvent, match="itself") as error:
        heartbeat.parse(own.beat(EPOCH, observed=(Observation(node=own.keys.public, rtt_us=5),)))
    assert error.value.field == "observed"


def test_a_beat_has_few_observations_each_of_another_node_and_none_leaves_it_as_it_was():
    some = sorted((Observation(node=digest(f"{i}"), rtt_us=10**7) for i in range(9)), key=lambda one: one.node)
    full = heartbeat.parse(OBSERVERS[0].beat(EPOCH, observed=tuple(some[:MAX_OBSERVED])))
    assert len(full.observed) == MAX_OBSERVED and Beat.parse(full.to_json()) == full
    plain = heartbeat.parse(OBSERVERS[0].beat(EPOCH)).document()
    assert "observed" not in plain
    for wrong in (some, [some[0], some[0]], some[1::-1]):
        with pytest.raises(BadInput):
            Beat.from_document({**plain, "observed": [one.document() for one in wrong]})
    with pytest.raises(BadInput):
        Observation.from_document({"node": digest("x"), "rtt_us": 0})


def test_of_an_observer_the_newest_counts_and_old_ones_go():
    def seen(name, epoch, rtt_us=1):
        return NodeObservation(observer=digest(name), epoch=epoch, rtt_us=rtt_us)

    found = observation.merged([seen("a", 4), seen("b", 5), seen("c", 1)], [seen("a", 6, None)], 6)
    assert found == (seen("a", 6, None), seen("b", 5))
