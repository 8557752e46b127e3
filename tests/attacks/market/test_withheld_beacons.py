"""f oracles vote for every body and publish no partial of its beacon."""

import pytest

from nodewire.errors import NoQuorum
from nodewire.oracle.committee.state import PublishPartial
from nodewire.protocol.committee import beacon
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import Provider, committee, digest

COMMITTEE, SEATS = committee(f=1)
EPOCHS = 9


def _withholds(sky, seat, action, outgoing):
    return [] if isinstance(action, PublishPartial) else outgoing


def _without_beacon(down_epochs):
    """The certified epochs that nobody can draw from, if an honest oracle is away for the first `down_epochs`."""
    sky = Sky(COMMITTEE, SEATS, 1, {SEATS[0].keys.public: _withholds})
    provider = Provider("p", COMMITTEE, {digest("m"): ([("driver", 10, 500)], 2)})

    def beats(epoch):
        certified = [state.certified[-1] for state in sky.states.values() if state.certified]
        last = max(certified, key=lambda one: one.body.epoch).digest if certified else None
        sky.stored.setdefault(provider.ad.id, provider.ad)
        yield provider.beat(epoch, last)

    if down_epochs:
        sky.down.add(SEATS[3].keys.public)
        sky.run_epochs(down_epochs, beats)
        sky.down.clear()
    sky.run_epochs(EPOCHS - down_epochs, beats)
    partials = [beacon.parse(event) for event in sky.stored.values() if event.kind == beacon.KIND]
    certificates = sky.certificates()
    assert len(certificates) >= EPOCHS - 2
    found = set()
    for epoch, digests in certificates.items():
        for body in digests:
            try:
                beacon.combine(COMMITTEE, body, partials)
            except NoQuorum:
                found.add(epoch)
    return found


@pytest.mark.parametrize("down_epochs", [0, 1, 3])
def test_every_certified_epoch_has_its_beacon_though_an_honest_oracle_restarts(down_epochs):
    """It says late what it missed, and draws are read late."""
    assert not _without_beacon(down_epochs)


def test_an_oracle_that_stays_away_for_longer_is_one_fault_too_many():
    assert _without_beacon(6)
