"""Nodes that claim to be quick, near, idle or cheap, and keys that cost nothing: what that buys in a plan."""

from __future__ import annotations

from random import Random

import pytest

from nodewire.plan.assign import assign
from nodewire.protocol.market import snapshot as snapshots
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot
from tests.plan.markets import World, generous, ring
from tests.protocol.committee.actors import Provider, digest

WORLD = World(ring(3), nodes=1)
TASKS = [task.name for task in WORLD.manifest.tasks]
UNIT = WORLD.committee.bond_unit_msat
HONEST_US = 3_000


def _node(name, tasks, *, bond_msat=0, price_msat=21_000, us=HONEST_US, free=4):
    offers = tuple(TaskOffer(task=task, price_msat=price_msat, us_per_position=us) for task in tasks)
    held = (HeldTasks(manifest=WORLD.digest, free=free, tasks=offers),)
    beats = {"beat": digest("beat"), "ad": digest("ad"), "load_ppm": 0, "coordinates": (0, 0, 0), "epochs": 4_000}
    return Node(pubkey=digest(name), held=held, bond_msat=bond_msat, region="", **beats)


def _snapshot(nodes):
    return Snapshot.model_construct(
        v=1,
        committee=WORLD.committee.digest(),
        epoch=WORLD.certificate.body.epoch,
        nodes=tuple(sorted(nodes, key=lambda one: one.pubkey)),
        events=(),
        judged=(),
        absent=(),
    )


def _plans(snapshot, count, **terms):
    for i in range(count):
        inputs = WORLD.inputs(generous(**terms), beacon=digest(f"beacon {i}"))
        yield assign(WORLD.manifest, snapshot, manifest_digest=WORLD.digest, **inputs)


def _members(plan):
    return set(plan.providers())


@pytest.mark.parametrize(("holders", "keys", "plans"), [(2, 1_000, 60), (5, 50, 500), (12, 200, 200), (30, 50, 400)])
def test_free_keys_quick_and_cheap_hold_a_place_in_a_twentieth_of_the_plans(holders, keys, plans):
    """Each honest node holds one task, each free key all of them, at a price of 1 and the highest speed."""
    bonded = [_node(f"{task}/{i}", [task], bond_msat=2 * UNIT) for task in TASKS for i in range(holders)]
    free = [_node(f"free/{i}", TASKS, price_msat=1, us=100, free=4_096) for i in range(keys)]
    strangers = {one.pubkey for one in free}
    held = [len(_members(plan) & strangers) for plan in _plans(_snapshot(bonded + free), plans)]
    assert sum(map(bool, held)) <= plans * 0.05 + 3 * (plans * 0.05 * 0.95) ** 0.5
    assert max(held) <= 1
    if plans >= 200:
        assert any(held)  # a newcomer has its chance


def test_free_keys_of_two_thousand_plans_hold_a_twentieth():
    bonded = [_node(f"{task}/{i}", [task], bond_msat=UNIT) for task in TASKS for i in range(3)]
    free = [_node(f"free/{i}", TASKS, price_msat=1, us=100) for i in range(20)]
    strangers = {one.pubkey for one in free}
    held = sum(bool(_members(plan) & strangers) for plan in _plans(_snapshot(bonded + free), 2_000))
    assert 60 <= held <= 130


def test_a_single_bonded_holder_of_a_task_is_placed_in_nearly_all_plans():
    bonded = [_node(task, [task], bond_msat=UNIT) for task in TASKS]
    free = [_node(f"free/{i}", TASKS, price_msat=1, us=100) for i in range(20)]
    known = {one.pubkey for one in bonded}
    plans = list(_plans(_snapshot(bonded + free), 200))
    assert sum(not {task.provider for task in plan.tasks} <= known for plan in plans) <= 200 * 0.05 + 10


def _market(nodes, lie):
    """`nodes` equally bonded providers all over the world; the first one says of itself what `lie` says."""
    random, providers = Random(1), []
    for i in range(nodes):
        says = {"us": HONEST_US, "load_ppm": 500_000, "price_msat": 1_000}
        at = (random.randint(-60_000, 60_000), random.randint(-60_000, 60_000), 1_000)
        says |= {"coordinates": at, **(lie if i == 0 else {})}
        held = {WORLD.digest: ([(task, says["price_msat"], says["us"]) for task in TASKS], 4)}
        told = {key: says[key] for key in ("coordinates", "load_ppm")}
        providers.append(Provider(f"claims.{i}", WORLD.committee, held, bond_msat=10 * UNIT, **told))
    epoch = WORLD.certificate.body.epoch
    ads = [event for one in providers for event in (one.ad, one.bond)]
    found = snapshots.derive(
        WORLD.committee, epoch, [one.beat(epoch) for one in providers], ads, bonds=[one.bond for one in providers]
    )
    return providers[0].keys.public, found


LIES = {
    "quick": {"us": 100},
    "near": {"coordinates": (0, 0, 0)},
    "idle": {"load_ppm": 0},
    "cheap": {"price_msat": 1},
    "all of it": {"us": 100, "coordinates": (0, 0, 0), "load_ppm": 0, "price_msat": 1},
}


@pytest.mark.parametrize("nodes", [4, 30])
@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_about_itself_gets_at_most_twice_its_share(nodes, lie):
    liar, snapshot = _market(nodes, LIES[lie])
    places = [task.provider == liar for plan in _plans(snapshot, 400) for task in plan.tasks]
    assert 0.3 / nodes < sum(places) / len(places) <= 2 / nodes


def test_a_slow_node_that_claims_what_others_do_gets_their_share_and_no_more():
    """Nobody measures how fast a node computes. A tenth of the others' speed, told, costs it nine places of ten."""
    nodes = 30
    share = {}
    for us in (HONEST_US, 10 * HONEST_US):
        liar, snapshot = _market(nodes, {"us": us})
        places = [task.provider == liar for plan in _plans(snapshot, 400) for task in plan.tasks]
        share[us] = sum(places) / len(places) * nodes
    assert 0.5 < share[HONEST_US] <= 1.5
    assert share[10 * HONEST_US] < 0.3
