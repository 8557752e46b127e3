"""Keys that cost nothing beat by the thousand: whoever has a bond is heard and listed all the same."""

from __future__ import annotations

import pytest

from nodewire.oracle.committee import node_places, rules
from nodewire.oracle.committee.state import FetchEvents, SayInventory, Tick, start
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.market import bond, snapshot
from nodewire.protocol.market import heartbeat as beats
from nodewire.protocol.market.heartbeat import Beat
from tests.oracle.fed import fed
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys

HELD = {digest("model"): ([("driver", 10, 500)], 2)}
BOND_MSAT = 100_000_000
COMMITTEE, SEATS = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)


def listening():
    """An oracle in the fourth epoch."""
    state = start(COMMITTEE, SEATS[0].keys.public, COMMITTEE.close_ms(3) + 100)
    return rules.apply(Tick(COMMITTEE.close_ms(3) + 200), state)[0]


def inventory_of(state, epoch):
    """What the oracle lists of an epoch."""
    _, actions = rules.apply(Tick(COMMITTEE.close_ms(epoch) + COMMITTEE.skew_ms), state)
    return next(one.inventory for one in actions if isinstance(one, SayInventory) and one.inventory.epoch == epoch)


def bare_beat(number, ad):
    """A beat of a key that has nothing else."""
    document = Beat(
        committee=COMMITTEE.digest(),
        last=COMMITTEE.digest(),
        epoch=4,
        ad=ad,
        load_ppm=0,
        free={},
        coordinates=(0, 0, 0),
    )
    return beats.build(
        keys(f"free/{number}"),
        document,
        created_at=COMMITTEE.close_ms(3) // 1000,
        expires_at_s=beats.expires_at_s(COMMITTEE, 4),
    )


def by_work(providers):
    return sorted(providers, key=lambda one: one.ad.id)


def test_8192_keys_that_only_beat_take_no_place_from_a_bonded_newcomer():
    state = listening()
    for number in range(8_192):
        state, _ = fed(state, bare_beat(number, digest(f"none/{number}")))
    assert not state.beats
    assert len(state.waiting) + len(state.waited) <= node_places.MAX_WAITING
    newcomer = Provider("newcomer", COMMITTEE, HELD, bond_msat=BOND_MSAT)
    state, actions = fed(state, newcomer.bond, newcomer.beat(4))
    assert FetchEvents((newcomer.ad.id,)) in actions
    state, _ = fed(state, newcomer.ad)
    assert inventory_of(state, 4).all_beats == (newcomer.beat(4).id,)


@pytest.fixture
def few_places(monkeypatch):
    monkeypatch.setattr(node_places, "MAX_PLACES", 32)
    monkeypatch.setattr(oracle_round, "MAX_BEATS", 16)
    monkeypatch.setattr(snapshot, "MAX_NODES", 8)


def test_bonded_nodes_come_first_and_then_strangers_by_the_work_in_their_ads(few_places):
    bonded = [Provider(f"bonded-{i}", COMMITTEE, HELD, bond_msat=BOND_MSAT) for i in range(4)]
    strangers = [Provider(f"stranger-{i}", COMMITTEE, HELD) for i in range(100)]
    state = listening()
    for one in strangers:
        state, _ = fed(state, one.beat(3), one.beat(4), one.ad)
    for one in bonded:
        state, _ = fed(state, one.bond, one.beat(3), one.beat(4), one.ad)
    assert [pubkey for _, _, pubkey in state.order] == [
        one.keys.public for one in (*by_work(bonded), *by_work(strangers)[:28])
    ]
    assert state.crowded_out > 0
    best = (*by_work(bonded), *by_work(strangers)[:4])
    assert set(inventory_of(state, 4).all_beats) == {one.beat(epoch).id for one in best for epoch in (3, 4)}


def test_a_bond_takes_a_strangers_place_at_once_whatever_the_strangers_work(few_places):
    strangers = [Provider(f"stranger-{i}", COMMITTEE, HELD) for i in range(40)]
    late = Provider("late", COMMITTEE, HELD, bond_msat=BOND_MSAT)
    state = listening()
    for one in strangers:
        state, _ = fed(state, one.beat(4), one.ad)
    last = state.order[-1][-1]
    state, _ = fed(state, late.bond, late.beat(4))
    assert late.keys.public in state.beats
    assert last not in state.beats
    assert len(state.beats) == len(state.order) == len(state.ranks) == 32


def test_a_stranger_that_has_too_little_work_costs_no_look_at_its_ad(few_places):
    state = listening()
    for i in range(64):
        one = Provider(f"stranger-{i}", COMMITTEE, HELD)
        state, _ = fed(state, one.beat(4), one.ad)
    worst = state.order[-1][1]
    lazy = next(one for i in range(999) if (one := Provider(f"lazy-{i}", COMMITTEE, HELD)).ad.id > worst)
    assert fed(state, lazy.beat(4))[1] == []


def test_a_name_that_is_nobodys_ad_buys_no_place(few_places):
    state = listening()
    for i in range(64):
        one = Provider(f"stranger-{i}", COMMITTEE, HELD)
        state, _ = fed(state, one.beat(4), one.ad)
    before = state.order
    state, actions = fed(state, bare_beat(1, "0" * 64))
    assert actions == [FetchEvents(("0" * 64,), is_urgent=False)]
    assert state.order == before


def test_a_statement_of_a_holder_that_the_committee_does_not_list_backs_nobody():
    state = listening()
    one = Provider("one", COMMITTEE, HELD, bond_msat=BOND_MSAT)
    forged = bond.build(keys("no holder"), one.keys.public, BOND_MSAT, expires_at_s=2**40, created_at=1)
    state, _ = fed(state, forged, one.beat(4))
    assert not state.backed
    assert one.keys.public in state.waiting


def test_every_oracle_lists_all_bonded_among_strangers_and_a_newcomer_within_three_epochs(few_places):
    document, seats = committee(bond_holders=(HOLDER.public,))
    bonded = [Provider(f"bonded-{i}", document, HELD, bond_msat=BOND_MSAT) for i in range(4)]
    strangers = [Provider(f"stranger-{i}", document, HELD) for i in range(80)]
    sky = Sky(document, seats, 1)
    listed: dict[str, set[str]] = {}

    def seen(sky, seat, action, outgoing):
        if isinstance(action, SayInventory):
            listed[seat.keys.public] = set(action.inventory.all_beats)
        return outgoing

    sky.faults = {seat.keys.public: seen for seat in seats}

    def beating(providers):
        def of(epoch):
            certified = [s.certified[-1] for s in sky.states.values() if s.certified]
            last = max(certified, key=lambda c: c.body.epoch).digest if certified else None
            for one in providers:
                sky.stored.setdefault(one.ad.id, one.ad)
                if one.bond is not None and one.bond.id not in sky.stored:
                    yield one.bond
                yield one.beat(epoch, last)

        return of

    sky.run_epochs(3, beating([*strangers, *bonded]))
    ours = {one.keys.public for one in bonded}
    assert ours <= {node.pubkey for node in sky.latest_snapshot().nodes}
    for pubkey, ids in listed.items():
        known = sky.states[pubkey].beats
        assert all(ids & {event.id for event, _ in known[node]} for node in ours)
    newcomer = Provider("newcomer", document, HELD, bond_msat=BOND_MSAT)
    sky.run_epochs(3, beating([*strangers, *bonded, newcomer]))
    assert sky.latest_snapshot().node(newcomer.keys.public) is not None
