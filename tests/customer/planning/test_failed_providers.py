"""Who was gone a moment ago is planned around, until a certified beat of a later epoch says that it is back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from nodewire.customer.planning.failed_providers import KEPT_EPOCHS, FailedProviders
from nodewire.customer.planning.planner import MarketPlanner
from nodewire.errors import NoProvider
from nodewire.protocol.job.plan import MAX_EXCLUDED
from nodewire.protocol.market import snapshot as snapshots
from tests.plan.markets import CUSTOMER_KEYS, World, diamond, generous, ring
from tests.protocol.committee.actors import Provider, committee, digest, keys

HELD = {digest("model"): ([("driver", 10, 500)], 2)}
COMMITTEE, _ = committee(1)
DEAD, WELL = (Provider(name, COMMITTEE, HELD) for name in ("dead", "well"))


class At:
    """A clock that stands in the middle of an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def __call__(self):
        return COMMITTEE.close_ms(self.epoch) / 1000 - COMMITTEE.epoch_ms / 2000


def certified(epoch, **beats):
    """A snapshot of `epoch` in which providers stand with their last beats, by name and epoch."""
    by_name = {"dead": DEAD, "well": WELL}
    events = [by_name[name].beat(at) for name, at in beats.items()]
    return snapshots.derive(COMMITTEE, epoch, events, [one.ad for one in by_name.values()])


@pytest.fixture
def clock():
    return At(10)


@pytest.fixture
def gone(clock):
    return FailedProviders(COMMITTEE, clock)


def test_who_failed_is_passed_over_on_the_strength_of_older_beats_and_nobody_else_is(gone):
    gone.note({DEAD.keys.public})
    assert gone.now(certified(10, dead=10, well=10)) == (DEAD.keys.public,)
    assert gone.now(certified(10, well=10)) == ()


def test_a_beat_of_a_later_epoch_brings_it_back_for_good(gone):
    gone.note({DEAD.keys.public})
    assert gone.now(certified(11, dead=11)) == ()
    assert gone.now(certified(10, dead=10)) == ()  # an older snapshot, which another plan stands on


def test_who_fails_again_after_it_was_back_is_passed_over_for_longer(gone, clock):
    for clock.epoch, epochs in ((10, 1), (20, 2), (30, 4)):
        gone.note({DEAD.keys.public})
        gone.note({DEAD.keys.public})  # another job that broke off by it
        for later in range(epochs):
            assert gone.now(certified(clock.epoch + later, dead=clock.epoch + later)) == (DEAD.keys.public,)
        assert gone.now(certified(clock.epoch + epochs, dead=clock.epoch + epochs)) == ()
    clock.epoch = 34 + KEPT_EPOCHS + 1
    assert gone.now(certified(clock.epoch, dead=clock.epoch)) == ()
    gone.note({DEAD.keys.public})
    assert gone.now(certified(clock.epoch + 1, dead=clock.epoch + 1)) == ()


def test_no_more_are_kept_than_a_plan_may_leave_out(gone):
    gone.note({DEAD.keys.public})
    gone.note(keys(f"other {n}").public for n in range(MAX_EXCLUDED))
    assert gone.now(certified(10, dead=10)) == ()


class OneEpoch:
    """A market that has certified one epoch and will certify no other."""

    def __init__(self, world):
        self.committee, self._world = world.committee, world

    async def epoch(self, *, timeout_s, after=-1):
        if after >= self._world.snapshot.epoch:
            raise NoProvider("epoch", "no later one")
        one = self._world
        proof = SimpleNamespace(id="00" * 32)
        return SimpleNamespace(body=one.certificate.body, beacon=one.beacon, certificate=proof, partials=())

    async def snapshot(self, sha256):
        return self._world.snapshot


@pytest.mark.parametrize("made", [diamond(), ring(4)], ids=lambda one: one.name)
async def test_a_plan_is_made_without_them_and_with_them_if_there_is_no_other(made):
    world = World(made)
    market, terms = OneEpoch(world), generous()

    async def planned(*whom):
        planner = MarketPlanner(market, CUSTOMER_KEYS.public, {})
        planner._gone.now = lambda _: whom
        found = await planner.draw(world.manifest, terms, busy=(), wish=None, patience=0)
        return found.plan

    before = await planned()
    lost = before.tasks[1].provider
    after = await planned(lost)
    assert lost in before.providers() and lost not in after.providers()
    assert json.loads(after.to_json())["terms"]["excluded"] == [lost]
    everybody = [node.pubkey for node in world.snapshot.nodes]
    assert await planned(*everybody) == before
