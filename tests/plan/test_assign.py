"""assign/2: the same plan for everybody, from what is certified and nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadPlan, NoProvider, OverBudget
from nodewire.plan.assign import FAR_US, Busy, Offer, assign, draw, link_us, open_task, repute
from nodewire.plan.policy import SHARE_PPM
from nodewire.protocol.committee.reputation import POINTS
from nodewire.protocol.job import feedback
from nodewire.protocol.job.plan import LOCAL
from nodewire.protocol.market.snapshot import Node
from nodewire.protocol.model.manifest import Manifest
from tests.plan import second_assign
from tests.plan.markets import VECTORS, World, diamond, generous, ring, strained, vector, vectors
from tests.protocol.committee.actors import digest, keys


@pytest.fixture(scope="module")
def world():
    return World(ring(4))


def test_the_committed_vectors_come_out_the_same():
    assert json.loads(json.dumps(vectors())) == json.loads(VECTORS.read_text())


def _as_the_page_has_it(case: dict) -> dict:
    try:
        return second_assign.plan(case, Manifest.model_validate_json(json.dumps(case["manifest"])).digest())
    except second_assign.Refused as error:
        return {"code": str(error)}


def test_the_page_alone_gives_the_committed_plans():
    """A plan that is malformed by its terms alone is section 5's affair."""
    for case in json.loads(VECTORS.read_text()):
        expected = case.get("plan") or case["error"]
        if expected.get("code") != "bad-plan":
            found = _as_the_page_has_it(case)
            assert found == {name: expected[name] for name in found}, case["name"]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([ring(3), diamond()]),
    st.integers(1, 20),
    st.sampled_from([0, 10, 50]),
    st.integers(60, 400),
    st.integers(0, 2),
)
def test_the_page_alone_gives_the_same_plans(seed, manifest, nodes, bonded, budget, left_out):
    world = strained(World(manifest, nodes, seed, bonded=bonded), seed)
    excluded = tuple(one.pubkey for one in world.snapshot.nodes[:left_out])
    terms = generous(max_chunk_msat=budget, excluded=excluded)
    case = json.loads(json.dumps(vector(f"random {seed}", world, terms, seed % 8, ())))
    expected = case.get("plan") or case["error"]
    found = _as_the_page_has_it(case)
    assert found == {name: expected[name] for name in found}


def test_every_task_has_a_provider_that_holds_it_at_its_price(world):
    plan = world.assign()
    assert [assignment.task for assignment in plan.tasks] == [task.name for task in world.manifest.tasks]
    for assignment in plan.tasks:
        held = next(h for h in world.snapshot.node(assignment.provider).held if h.manifest == world.digest)
        assert held.free > 0
        offer = next(t for t in held.tasks if t.task == assignment.task)
        assert offer.price_msat == assignment.price_msat
    assert plan.chunk_msat == sum(a.price_msat for a in plan.tasks)
    assert (plan.epoch, plan.beacon, plan.manifest) == (5, world.beacon, world.digest)


def test_guesses_change_nothing_about_who_is_placed(world):
    assert world.assign(generous(lookahead=8)).tasks == world.assign().tasks


def test_equal_nodes_share_the_work(world):
    """Of eight nodes with one price, speed and place, every one is somebody's first choice under some beacon."""

    def alike(node):
        held = tuple(
            h.model_copy(
                update={"tasks": tuple(t.model_copy(update={"price_msat": 5, "us_per_position": 9}) for t in h.tasks)}
            )
            for h in node.held
        )
        same = {"held": held, "coordinates": (0, 0, 0), "bond_msat": 0, "load_ppm": 0, "epochs": 1, "is_placed": True}
        return node.model_copy(update=same)

    equal = world.snapshot.model_copy(update={"nodes": tuple(alike(n) for n in world.snapshot.nodes[:8])})
    drivers = Counter(
        assign(world.manifest, equal, **world.inputs(beacon=digest(f"beacon {i}"))).tasks[0].provider
        for i in range(200)
    )
    holders = {n.pubkey for n in equal.nodes for h in n.held for t in h.tasks if t.task == world.manifest.driver.name}
    assert set(drivers) == holders


def test_an_excluded_a_busy_and_a_full_node_get_nothing(world):
    first = world.assign().providers()
    plan = world.assign(generous(excluded=(first[0],)), busy=(Busy(digest("busy"), first[1]),))
    assert not {*plan.providers()} & {*first[:2]}
    assert plan.busy == (digest("busy"),)
    full = world.snapshot.model_copy(
        update={
            "nodes": tuple(
                n.model_copy(update={"held": tuple(h.model_copy(update={"free": 0}) for h in n.held)})
                if n.pubkey == first[0]
                else n
                for n in world.snapshot.nodes
            )
        }
    )
    plan = assign(world.manifest, full, **world.inputs())
    assert first[0] not in plan.providers()


def test_trust_and_region_are_kept_to(world):
    trusted = tuple(p.keys.public for p in world.providers[:9])
    assert set(world.assign(generous(trusted=trusted)).providers()) <= set(trusted)
    for pubkey in world.assign(generous(regions=("eu", "us"))).providers():
        assert world.snapshot.node(pubkey).region in ("eu", "us")


def test_a_task_that_nobody_serves_is_named(world):
    with pytest.raises(NoProvider) as error:
        world.assign(generous(regions=("moon",)))
    assert error.value.field == "driver"


def test_the_budget_holds_for_the_whole_chunk(world):
    for most in range(40, 200, 10):
        try:
            plan = world.assign(generous(max_chunk_msat=most))
        except (OverBudget, NoProvider):
            continue
        assert plan.chunk_msat <= most
    with pytest.raises(OverBudget):
        world.assign(generous(max_total_msat=1))


def test_a_ring_that_answers_tokens_is_not_sampled_and_an_edge_that_is_not_there_not_narrowed(world):
    edges = tuple(
        edge.model_copy(update={"tensors": tuple(one.model_copy(update={"dtype": "int64"}) for one in edge.tensors)})
        if edge.back
        else edge
        for edge in world.manifest.edges
    )
    lent = world.manifest.model_copy(update={"edges": edges})
    inputs = {**world.inputs(), "manifest_digest": world.manifest.digest()}
    assign(lent, world.snapshot, **{**inputs, "terms": generous(verify="none")})
    with pytest.raises(BadPlan, match="answers tokens"):
        assign(lent, world.snapshot, **{**inputs, "terms": generous(verify="sampled")})
    with pytest.raises(BadInput, match="nowhere"):
        world.assign(generous(codecs={"nowhere": "int8"}))


def test_a_refusal_is_cited_by_the_customer_that_was_refused():
    customer, provider = keys("customer").public, keys("provider")

    def said(status, whose=customer):
        return feedback.build(provider, digest("request"), whose, status, created_at=0)

    assert Busy.cited(said("busy"), customer).provider == provider.public
    for other in (said("success"), said("busy", keys("another").public)):
        with pytest.raises(BadPlan, match="no refusal"):
            Busy.cited(other, customer)


def test_a_local_driver_is_the_customers_own_and_free(world):
    driver, *stages = world.assign(generous(driver="local")).tasks
    assert (driver.provider, driver.price_msat) == (LOCAL, 0)
    assert LOCAL not in {stage.provider for stage in stages}


def test_the_ends_are_the_customers_own_and_free(world):
    plan = world.assign(generous(driver="ends"))
    names = [task.name for task in world.manifest.tasks]
    ends = {names[0], names[1], names[-1]}
    assert world.manifest.ends == ends
    own = [one for one in plan.tasks if one.task in ends]
    assert {(one.provider, one.price_msat) for one in own} == {(LOCAL, 0)}
    assert LOCAL not in {one.provider for one in plan.tasks if one.task not in ends}
    assert plan.chunk_msat == sum(one.price_msat for one in plan.tasks)


def test_the_ends_are_those_that_the_customer_names(world):
    def at_the_ends(plan):
        return {one.provider for one in plan.tasks if one.task in world.manifest.ends}

    free = world.assign()
    named = {p.keys.public for p in world.providers} - at_the_ends(free)
    plan = world.assign(generous(ends=tuple(sorted(named))))
    assert at_the_ends(plan) <= named
    others = world.assign(generous(ends=tuple(sorted(at_the_ends(free)))))
    assert at_the_ends(others) <= at_the_ends(free)
    with pytest.raises(NoProvider) as error:
        world.assign(generous(ends=("ab" * 32,)))
    assert error.value.field == "driver"
    assert at_the_ends(world.assign(generous(driver="local", ends=tuple(sorted(named))))) <= named | {LOCAL}


def test_a_model_of_ends_alone_leaves_nothing_to_buy():
    world = World(ring(2), nodes=6, seed=3)
    with pytest.raises(NoProvider, match="nothing is left"):
        world.assign(generous(driver="ends"))


def test_neighbours_that_share_a_drawn_node_merge_on_it():
    world = World(ring(4), nodes=2, seed=9)
    nodes = tuple(
        node.model_copy(
            update={
                "coordinates": (i * 100_000, 0, 1_000),
                "held": (
                    node.held[0].model_copy(
                        update={
                            "tasks": tuple(
                                node.held[0].tasks[0].model_copy(update={"task": t.name, "us_per_position": 100})
                                for t in world.manifest.tasks
                            )
                        }
                    ),
                ),
            }
        )
        for i, node in enumerate(world.snapshot.nodes)
    )
    plan = assign(world.manifest, world.snapshot.model_copy(update={"nodes": nodes}), **world.inputs())
    assert len(plan.providers()) == 1


def test_a_redraw_may_change_the_plan_and_out_of_range_it_is_refused(world):
    plans = {tuple(a.provider for a in world.assign(k=k).tasks) for k in range(8)}
    assert len(plans) > 1
    with pytest.raises(BadInput, match="k"):
        world.assign(k=8)


def test_a_snapshot_of_another_epoch_is_refused(world):
    with pytest.raises(BadInput, match="snapshot"):
        assign(world.manifest, world.snapshot.model_copy(update={"epoch": 6}), **world.inputs())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 7), st.sampled_from(["ring", "diamond"]), st.integers(1, 40))
def test_the_same_inputs_give_the_same_plan_and_its_codecs_keep_it(k, shape, nodes):
    world = World({"ring": ring(2), "diamond": diamond()}[shape], nodes, seed=7)
    try:
        plan = world.assign(k=k)
    except NoProvider:
        return
    assert world.assign(k=k) == plan
    assert plan.parse(plan.to_json()) == plan
    assert type(plan).unpack(plan.pack()) == plan


def _offer(name: str, weight: int, bonded: bool) -> Offer:
    node = Node(
        pubkey=digest(name),
        beat=digest("b"),
        ad=digest("a"),
        held=(),
        bond_msat=0,
        region="",
        load_ppm=0,
        coordinates=(0, 0, 0),
        epochs=0,
    )
    return Offer(node, 1, 1, weight, bonded)


def test_draws_follow_the_weights_among_the_bonded():
    offers = sorted(
        [_offer(f"b{i}", 1 + 2 * i, True) for i in range(2)] + [_offer(f"u{i}", 10**6, False) for i in range(50)],
        key=lambda o: o.node.pubkey,
    )
    first = Counter()
    for i in range(4_000):
        drawn = draw(i.to_bytes(32, "big"), 0, offers)
        assert len(drawn) == 2
        first[drawn[0].weight] += 1
    assert set(first) == {1, 3} and 2.6 < first[3] / first[1] < 3.4


def test_one_plan_of_twenty_is_open_to_one_unbonded_node_for_one_task():
    mixed = [_offer("b", 1, True), _offer("u", 1, False)]
    offers = {"x": mixed, "bonded": mixed[:1], "y": mixed, "unbonded": mixed[1:], "z": mixed}
    opened = Counter(open_task(i.to_bytes(32, "big"), offers) for i in range(6_000))
    assert set(opened) == {None, "x", "y", "z"}
    assert 0.04 < 1 - opened[None] / 6_000 < 0.06
    assert max(opened[task] for task in "xyz") < 1.5 * min(opened[task] for task in "xyz")
    assert {open_task(i.to_bytes(32, "big"), {"bonded": mixed[:1]}) for i in range(100)} == {None}


def test_who_an_unbonded_node_has_failed_is_not_given_the_next_one_by_the_same_seed():
    world, opened, still = World(ring(2), 60, 3), 0, 0
    bonded = {one.pubkey for one in world.snapshot.nodes if one.bond_msat >= world.committee.bond_unit_msat}

    def strangers(i, *excluded, busy=()):
        plan = world.assign(generous(excluded=excluded), busy=busy, beacon=f"{i:064x}")
        return {task.provider for task in plan.tasks} - bonded

    for i in range(400):
        for failed in strangers(i):
            opened += 1
            assert not strangers(i, failed) and not strangers(i, busy=(Busy(digest("busy"), failed),))
            still += bool(strangers(i, min(bonded)))  # a bonded one that failed closes nothing
    assert opened > 3 and still > 3


@given(st.integers(1, 20), st.sampled_from([0, 1, 3, 20]), st.booleans())
def test_up_to_eight_candidates_of_one_standing_are_drawn(count, bonded, is_open):
    offers = [_offer(f"n{i}", i + 1, i < bonded) for i in range(count)]
    candidates = draw(b"s" * 32, 4, offers, is_open=is_open)
    bonds = min(bonded, count)
    if is_open and 0 < bonds < count:
        assert [o.bonded for o in candidates] == [False, *[True] * min(bonds, 7)]
    else:
        assert {o.bonded for o in candidates} == {bonds > 0}
        assert len(candidates) == min(8, bonds or count)
    drawn = [o.node.pubkey for o in candidates]
    assert len(set(drawn)) == len(drawn)


def test_a_link_takes_half_of_the_round_trip_that_coordinates_predict_where_others_confirm_them():
    a, b = _offer("a", 1, True).node, _offer("b", 1, True).node
    a = a.model_copy(update={"coordinates": (0, 0, 1_000), "is_placed": True})
    b = b.model_copy(update={"coordinates": (30_000, -40_000, 2_001), "is_placed": True})
    assert link_us(a, b) == link_us(b, a) == 26_500
    claimed = a.model_copy(update={"coordinates": b.coordinates, "is_placed": False})
    assert link_us(claimed, b) == link_us(b, claimed) == link_us(claimed, claimed) == FAR_US


def test_among_about_equals_the_one_drawn_first_is_placed_and_the_cheapest_has_no_advantage():
    manifest = ring(0)
    world = World(manifest, 8, 5, bonded=0)

    def alike(node, us, price_msat):
        held = node.held[0]
        offer = held.tasks[0].model_copy(update={"us_per_position": us, "price_msat": price_msat})
        return node.model_copy(update={"held": (held.model_copy(update={"tasks": (offer,), "free": 1}),), "epochs": 9})

    nodes = [alike(node, 1_000 + 30 * i, 10 - i) for i, node in enumerate(world.snapshot.nodes)]
    slow = nodes[3] = alike(nodes[3], 1_300, 1)
    snapshot = world.snapshot.model_copy(update={"nodes": tuple(nodes)})
    placed = Counter(
        assign(manifest, snapshot, **world.inputs(beacon=digest(f"b{i}"))).tasks[0].provider for i in range(400)
    )
    assert set(placed) == {node.pubkey for node in nodes} - {slow.pubkey}


def test_a_thousand_nodes_and_a_hundred_tasks_are_planned_at_once():
    world = World(ring(3), nodes=20)  # the clock is not asserted on, a plan of this size must just come out
    manifest = ring(99)
    template = world.snapshot.nodes[0]
    tasks = tuple(
        template.held[0].tasks[0].model_copy(update={"task": t.name, "us_per_position": 100 + i})
        for i, t in enumerate(manifest.tasks)
    )
    held = template.held[0].model_copy(update={"manifest": manifest.digest(), "tasks": tasks, "free": 1})
    nodes = tuple(
        template.model_copy(
            update={
                "pubkey": digest(f"node {i}"),
                "coordinates": (i * 37 % 9_001, i * 91 % 7_001, i % 100),
                "bond_msat": i % 50 * 1_000_000,
                "held": (held,),
            }
        )
        for i in range(1_000)
    )
    snapshot = world.snapshot.model_copy(update={"nodes": tuple(sorted(nodes, key=lambda n: n.pubkey))})
    inputs = world.inputs(generous())
    started = time.perf_counter()
    plan = assign(manifest, snapshot, **inputs)
    print(f"1,000 nodes, 100 tasks: {time.perf_counter() - started:.3f} s")
    assert len(plan.tasks) == 100
    assert len(plan.pack()) < plan.MAX_BYTES


def _judged(node, passed=0, withheld=0):
    return node.model_copy(update={"passed": passed * POINTS, "withheld": withheld * POINTS})


@settings(max_examples=200)
@given(st.integers(0, 2**40), st.integers(0, 2**20), st.integers(0, 2**20), st.integers(0, 2**40))
def test_repute_is_bounded_rises_with_passes_and_falls_with_what_was_withheld(world, passed, withheld, more, price):
    node = world.snapshot.nodes[0]

    def of(passed=0, withheld=0, price_msat=price):
        return repute(_judged(node, passed, withheld), price_msat, SHARE_PPM)

    found = of(passed, withheld)
    assert 1 <= found <= 1.12 * of()
    assert of(passed + more, withheld) >= found
    assert of(passed, withheld + more) <= found
    assert of(passed, withheld, price + more) <= found
    # it takes twice as many passes for every further step
    assert found <= 10_000_000 + SHARE_PPM * (passed // max(price, 1)).bit_length()


def test_repute_in_numbers(world):
    node = world.snapshot.nodes[0]
    new, full = 10_000_000, 11_200_000

    def steps(price_msat, *passed_msat):
        return [(repute(_judged(node, n), price_msat, SHARE_PPM) - new) / SHARE_PPM for n in passed_msat]

    assert steps(1, 0, 1, 2, 3, 4, 127, 128, 10**6) == [0, 1, 2, 2, 3, 7, 8, 8]
    assert steps(10, 0, 1, 9, 10, 20, 1_279, 1_280, 10**6) == [0, 0, 0, 1, 2, 7, 8, 8]
    assert steps(0, 0, 1, 2) == [0, 1, 2]
    assert [repute(_judged(node, 10**6, n), 1, SHARE_PPM) for n in range(6)] == [full >> min(n, 4) for n in range(6)]
    assert [repute(_judged(node, 0, n), 1, SHARE_PPM) for n in range(6)] == [new >> min(n, 4) for n in range(6)]
    assert repute(_judged(node, 10**6), 1, 0) == new  # where nobody pays a share, passes cost nothing


def test_a_newcomer_is_still_drawn_among_the_renowned():
    """One new node, nineteen of twice its weight: it is among the eight drawn about half as often as they."""
    node = World(ring(0), 1, 5).snapshot.nodes[0]
    offers = [Offer(node, 1, 1, 16, True), *(Offer(node, 1, 1, 32, True) for _ in range(19))]
    times = Counter(
        weight for i in range(400) for weight in {o.weight for o in draw(bytes([i % 256, i // 256]), 0, offers)}
    )
    assert 60 < times[16] < 200
