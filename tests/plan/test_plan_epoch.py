"""The newest epoch that is certified, has a beacon and is still valid is the one to plan with."""

from __future__ import annotations

import pytest

from nodewire.errors import NoQuorum
from nodewire.plan.epoch import KEPT, Epochs, is_valid
from nodewire.protocol.committee import beacon
from tests.plan.markets import World, ring
from tests.protocol.committee.actors import digest


@pytest.fixture(scope="module")
def worlds():
    return [World(ring(1), 2, epoch=epoch) for epoch in (5, 6, 7)]


def events(*worlds):
    return [event for world in worlds for event in (world.certificate_event, *world.partials)]


def known(committee, events):
    epochs = Epochs(committee)
    for event in events:
        epochs.add_event(event)
    return epochs


def test_the_newest_usable_epoch_is_picked(worlds):
    committee = worlds[0].committee
    usable = known(committee, events(*worlds)).latest(committee.close_ms(7) + 500)
    assert (usable.body.epoch, usable.beacon) == (7, worlds[2].beacon)
    assert usable.snapshot == worlds[2].certificate.body.snapshot
    assert len(usable.partials) == committee.quorum


def test_without_enough_partials_the_one_before_is_picked(worlds):
    committee = worlds[0].committee
    epochs = known(committee, [*events(*worlds[:2]), worlds[2].certificate_event, *worlds[2].partials[:2]])
    assert epochs.latest(committee.close_ms(7) + 500).body.epoch == 6


def test_a_snapshot_is_valid_for_three_epochs(worlds):
    committee = worlds[0].committee
    epochs = known(committee, events(worlds[0]))
    assert epochs.latest(committee.close_ms(8) - 1).body.epoch == 5
    with pytest.raises(NoQuorum):
        epochs.latest(committee.close_ms(8))
    assert not is_valid(committee, 5, committee.close_ms(5) - committee.skew_ms - 1)


def test_foreign_and_malformed_events_are_passed_over(worlds):
    committee = worlds[0].committee
    noise = [p.ad for p in worlds[0].providers] + [p.beat(5) for p in worlds[0].providers]
    assert known(committee, [*noise, *events(worlds[0])]).latest(committee.close_ms(6)).body.epoch == 5


def test_the_newest_certificate_is_what_beats_cite_even_without_a_beacon_or_long_after(worlds):
    committee = worlds[0].committee
    epochs = known(committee, [*events(*worlds[:2]), worlds[2].certificate_event])
    assert epochs.newest(committee.close_ms(7)) == worlds[2].certificate
    assert epochs.newest(committee.close_ms(700)) == worlds[2].certificate
    assert epochs.last(committee.close_ms(700)) == worlds[2].certificate.digest
    assert epochs.newest(committee.close_ms(6)) == worlds[1].certificate
    without = known(committee, events(worlds[0])[1:])
    assert without.newest(committee.close_ms(7)) is None
    assert without.last(committee.close_ms(7)) == committee.digest()


def test_a_request_has_a_grace_to_reach_who_checks_it(worlds):
    committee = worlds[0].committee
    late_ms = committee.close_ms(8) + 500
    assert not is_valid(committee, 5, late_ms)
    assert is_valid(committee, 5, late_ms, grace_ms=501)
    assert not is_valid(committee, 5, late_ms, grace_ms=500)


def test_an_oracle_that_speaks_of_bodies_nobody_certified_displaces_no_others_partials(worlds):
    world, committee = worlds[0], worlds[0].committee
    faulty = world.seats[0]
    epochs = known(committee, world.partials)
    for number in range(KEPT):
        body = world.certificate.body.model_copy(update={"snapshot": digest(str(number))})
        epochs.add_event(beacon.build(faulty.keys, body, faulty.index, faulty.share, created_at=1))
    epochs.add_event(world.certificate_event)
    assert epochs.latest(committee.close_ms(5)).beacon == world.beacon
