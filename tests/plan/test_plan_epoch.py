"""The newest epoch that is certified, has a beacon and is still valid is the one to plan with."""

from __future__ import annotations

import pytest

from nodewire.errors import NoQuorum
from nodewire.plan.epoch import is_valid, latest, newest
from tests.plan.markets import World, ring


@pytest.fixture(scope="module")
def worlds():
    return [World(ring(1), 2, epoch=epoch) for epoch in (5, 6, 7)]


def events(*worlds):
    return [event for world in worlds for event in (world.certificate_event, *world.partials)]


def test_the_newest_usable_epoch_is_picked(worlds):
    committee = worlds[0].committee
    usable = latest(committee, events(*worlds), committee.close_ms(7) + 500)
    assert (usable.body.epoch, usable.beacon) == (7, worlds[2].beacon)
    assert usable.snapshot == worlds[2].certificate.body.snapshot
    assert len(usable.partials) == 4


def test_without_enough_partials_the_one_before_is_picked(worlds):
    committee = worlds[0].committee
    known = [*events(*worlds[:2]), worlds[2].certificate_event, *worlds[2].partials[:2]]
    assert latest(committee, known, committee.close_ms(7) + 500).body.epoch == 6


def test_a_snapshot_is_valid_for_three_epochs(worlds):
    committee = worlds[0].committee
    known = events(worlds[0])
    assert latest(committee, known, committee.close_ms(8) - 1).body.epoch == 5
    with pytest.raises(NoQuorum):
        latest(committee, known, committee.close_ms(8))
    assert not is_valid(committee, 5, committee.close_ms(5) - committee.skew_ms - 1)


def test_foreign_and_malformed_events_are_passed_over(worlds):
    committee = worlds[0].committee
    noise = [p.ad for p in worlds[0].providers] + [p.beat(5) for p in worlds[0].providers]
    assert latest(committee, [*noise, *events(worlds[0])], committee.close_ms(6)).body.epoch == 5


def test_the_newest_certificate_is_what_beats_cite_even_without_a_beacon_or_long_after(worlds):
    committee = worlds[0].committee
    known = [*events(*worlds[:2]), worlds[2].certificate_event]
    assert newest(committee, known, committee.close_ms(7)) == worlds[2].certificate
    assert newest(committee, known, committee.close_ms(700)) == worlds[2].certificate
    assert newest(committee, events(worlds[0])[1:], committee.close_ms(7)) is None
    assert newest(committee, known, committee.close_ms(6)) == worlds[1].certificate
