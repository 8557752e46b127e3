"""Thousands of new keys beat in one moment: every epoch is certified, and whoever has a bond is in it."""

from __future__ import annotations

import pytest

from nodewire.nostr.event import sign
from nodewire.oracle.committee import node_places, rules
from nodewire.oracle.committee.state import SayInventory, VerifiedEvent
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.market import bond, snapshot
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys

HELD = {digest("model"): ([("driver", 10, 500)], 2)}
BOND_MSAT = 100_000_000
FREE, BONDED = 600, 6


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    """As 8,192 keys are to an oracle, so are these."""
    monkeypatch.setattr(node_places, "MAX_WAITING", FREE // 2)
    monkeypatch.setattr(rules, "MAX_ASKED_IDS", 20)
    monkeypatch.setattr(oracle_round, "MAX_SUPPLIES", 1)


class Burst:
    """A committee, some nodes with bonds, and a crowd of keys that beat in the moment in which an epoch begins.

    lost_percent: of beats, at each oracle for itself.
    """

    def __init__(self, lost_percent=0):
        self.committee, seats = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)
        self.sky = Sky(self.committee, seats, 1, {seat.keys.public: self._seen for seat in seats})
        self.bonded = [self.provider(f"bonded-{i}", bond_msat=BOND_MSAT) for i in range(BONDED)]
        self.free = [self.provider(f"free-{i}") for i in range(FREE)]
        self.lost_percent = lost_percent
        self.said: dict[int, dict[str, Inventory]] = {}

    def provider(self, name, **fields):
        return Provider(name, self.committee, HELD, **fields)

    def run(self, epochs):
        for _ in range(epochs):
            epoch, last = self.committee.epoch_at(self.sky.now_ms), self.last()
            for one in (*self.free, *self.bonded):
                self.sky.stored.setdefault(one.ad.id, one.ad)
                if one.bond is not None and one.bond.id not in self.sky.stored:
                    self.sky.publish(one.bond)
                self.sky.publish(one.beat(epoch, last), self.hearing())
            self.sky.run_to(self.committee.close_ms(epoch), step_ms=100)

    def hearing(self):
        return [pubkey for pubkey in self.sky.states if self.sky.random.randrange(100) >= self.lost_percent]

    def last(self):
        certified = [state.certified[-1] for state in self.sky.states.values() if state.certified]
        return max(certified, key=lambda one: one.body.epoch).digest if certified else None

    def certified(self):
        return sorted(self.sky.certificates())

    def has_listed_all_bonded(self, epoch):
        """Whether every oracle has listed every bonded node, as such."""
        of = {event.id: event.pubkey for event in self.sky.stored.values()}
        everybody = {one.keys.public for one in self.bonded}
        return all({of[id_] for id_ in one.bonded} == everybody for one in self.said[epoch].values())

    def _seen(self, sky, seat, action, outgoing):
        if isinstance(action, SayInventory):
            self.said.setdefault(action.inventory.epoch, {})[seat.keys.public] = action.inventory
        return outgoing


def test_every_epoch_of_a_burst_is_certified_and_lists_all_bonded_nodes_and_a_new_one():
    burst = Burst()
    burst.run(3)
    burst.bonded.append(burst.provider("newcomer", bond_msat=BOND_MSAT))
    burst.run(3)
    assert burst.certified() == [0, 1, 2, 3, 4]
    assert all(burst.has_listed_all_bonded(epoch) for epoch in (3, 4))
    nodes = {node.pubkey for node in burst.sky.latest_snapshot().nodes}
    assert {one.keys.public for one in burst.bonded} < nodes  # and strangers


def test_a_burst_of_which_every_oracle_loses_other_beats_costs_no_epoch_and_no_bonded_node():
    burst = Burst(lost_percent=30)
    for _ in range(6):
        burst.run(1)
        burst.sky.random.shuffle(burst.free)
    assert burst.certified() == [0, 1, 2, 3, 4]
    assert {one.keys.public for one in burst.bonded} < {node.pubkey for node in burst.sky.latest_snapshot().nodes}


def test_strangers_whose_events_the_leader_cannot_have_cost_no_epoch():
    """Their beats and ads reach two oracles, which do not lead, and are on no relay any more."""
    burst = Burst()
    hidden, burst.free = burst.free[:60], burst.free[60:70]
    for epoch in range(4):
        others = [one.pubkey for one in burst.committee.oracles if one.pubkey != burst.committee.leader(epoch)]
        for one in hidden:
            for event in (one.beat(epoch, burst.last()), one.ad):
                burst.sky.publish(event, others[:2])
                del burst.sky.stored[event.id]
        burst.run(1)
    assert burst.certified() == [0, 1, 2]
    everybody = {one.keys.public for one in (*burst.bonded, *burst.free)}
    assert everybody <= {node.pubkey for node in burst.sky.latest_snapshot().nodes}


@pytest.mark.parametrize("limit", ["MAX_NODES", "MAX_EVENT_BYTES"])
def test_ads_that_find_no_room_in_the_snapshot_and_reach_few_oracles_cost_no_epoch(monkeypatch, limit):
    """All hear the beats. Two oracles lack ads that the snapshot does not have either, for it is full."""
    monkeypatch.setattr(snapshot, limit, {"MAX_NODES": 16, "MAX_EVENT_BYTES": 30_000}[limit])
    burst = Burst()
    burst.free = []
    long = ["x" * 100, ""]
    strangers = [Provider(f"free-{i}", burst.committee, HELD, region=long[i % 2]) for i in range(150)]
    for epoch in range(4):
        at = burst.committee.oracles.index(burst.committee.oracle(burst.committee.leader(epoch)))
        two = [burst.committee.oracles[(at + i) % 4].pubkey for i in range(2)]
        for number, one in enumerate(strangers):
            burst.sky.publish(one.beat(epoch, burst.last()))
            burst.sky.publish(one.ad, two if number % 3 else None)
            del burst.sky.stored[one.ad.id]
        burst.run(1)
    assert burst.certified() == [0, 1, 2]
    found = burst.sky.latest_snapshot()
    assert BONDED < len(found.nodes) < len(strangers)
    assert {one.keys.public for one in burst.bonded} <= {node.pubkey for node in found.nodes}


def test_ads_and_statements_that_nobody_asked_for_take_no_room_and_cost_no_epoch():
    burst = Burst()
    burst.free, crowd = burst.free[:20], burst.free[20:]
    forger = keys("no holder")
    for epoch in range(3):
        for one in crowd:
            burst.sky.publish(one.ad)
            burst.sky.publish(bond.build(forger, one.keys.public, BOND_MSAT, expires_at_s=2**40, created_at=epoch))
        burst.run(1)
    assert burst.certified() == [0, 1]
    everybody = {one.keys.public for one in (*burst.bonded, *burst.free)}
    for state in burst.sky.states.values():
        assert set(state.beats) == everybody
        assert {event.pubkey for event, _ in state.ads.values()} == everybody
        assert {statement.provider for _, statement in state.bonds.values()} == {
            one.keys.public for one in burst.bonded
        }


def test_a_beat_that_is_padded_takes_no_room():
    burst = Burst()
    burst.run(1)
    state = next(iter(burst.sky.states.values()))
    for one in burst.free[:50]:
        plain = one.beat(1)
        padded = sign(
            one.keys, plain.kind, created_at=1, content=plain.content, tags=[*plain.tags, ("pad", "x" * 5_000)]
        )
        state, actions = rules.apply(VerifiedEvent(padded), state)
        assert actions == ()
        assert all(known.id != padded.id for known, _ in state.beats.get(one.keys.public, ()))
