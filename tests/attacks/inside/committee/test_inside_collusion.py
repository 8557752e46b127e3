"""Three providers of eight and an oracle: verifying each other, choosing who may, buying a good name."""

from __future__ import annotations

import pytest

from nodewire.plan.assign import repute
from nodewire.plan.policy import SHIPPED
from nodewire.plan.sample import AUDITED_PPM, draw, is_audited, is_drawn
from nodewire.protocol.committee.reputation import POINTS, faded
from nodewire.protocol.job import request as job
from nodewire.protocol.market.snapshot import Node as Place
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.protocol.verification.verdict import sample_key
from tests.attacks.inside.committee.test_inside_crowd import (
    BONDED,
    COMMITTEE,
    RATE_PPM,
    committed,
    request,
    roots,
    snapshot,
)
from tests.oracle.courtroom import TASK
from tests.protocol.committee.actors import digest, keys

HAND = BONDED[:3]
CHEATER = HAND[0]
FRIENDS = {one.public for one in HAND[1:]}
AUDITED = AUDITED_PPM / 1_000_000
BEACONS = [digest(f"beacon/{n}") for n in range(60)]


def of_friends(asked, nodes):
    """Of all samples of the cheater's, the share whose first verifier is a friend, or that have none."""
    parsed, found = {asked.id: job.parse(asked)}, []
    for beacon in BEACONS:
        found += draw(COMMITTEE, beacon, [committed(CHEATER, roots(asked, range(400)))], parsed, nodes)
    drawn = [sample for sample in found if sample.verifiers]
    assert len(found) > 1_000 * RATE_PPM / 50_000
    return sum(s.verifiers[0] in FRIENDS for s in drawn) / len(found)


def with_bonds(units):
    nodes = tuple(
        one.model_copy(update={"bond_msat": units.get(one.pubkey, 1) * COMMITTEE.bond_unit_msat})
        for one in snapshot().nodes
    )
    return snapshot().model_copy(update={"nodes": nodes})


def cheating(colluding, *, in_flight, accomplices):
    """What a chunk that is not computed earns, in costs of one: caught by an honest verifier, or in an audit with its
    accomplice; a bond stands for `in_flight` chunks, and is lost whole (half of it to a hand of many roles)."""
    lost = SHIPPED.stake * in_flight / 2
    honest = SHIPPED.rate * (1 - colluding) * (SHIPPED.reward + lost)
    audited = SHIPPED.rate * colluding * AUDITED * (SHIPPED.reward + lost + accomplices * SHIPPED.stake * in_flight)
    return SHIPPED.reward - honest - audited


def test_three_of_eight_verify_each_other_no_oftener_than_their_bonds_say_and_cheating_loses():
    asked = request(CHEATER, keys("honest customer"))
    colluding = of_friends(asked, snapshot())
    assert colluding == pytest.approx(2 / 7, abs=0.05)
    assert cheating(colluding, in_flight=1, accomplices=1) < 0


def test_ten_times_the_bond_draws_ten_times_as_often_and_burns_as_much():
    asked = request(CHEATER, keys("honest customer"))
    colluding = of_friends(asked, with_bonds(dict.fromkeys(FRIENDS, 10)))
    assert colluding == pytest.approx(20 / 25, abs=0.05)
    assert cheating(colluding, in_flight=2, accomplices=10) < 0


def test_where_only_friends_are_left_to_verify_audits_alone_make_cheating_lose():
    """Honest nodes that have a part in the plan cannot verify it; bonds are for all chunks in flight."""
    asked = request(CHEATER, keys("honest customer"))
    held = {node.pubkey for node in snapshot().nodes} - FRIENDS
    nodes = tuple(n.model_copy(update={"held": ()}) if n.pubkey in held else n for n in snapshot().nodes)
    colluding = of_friends(asked, snapshot().model_copy(update={"nodes": nodes}))
    assert colluding == 1
    assert cheating(1, in_flight=8, accomplices=1) < 0
    honest = SHIPPED.reward - SHIPPED.cost
    assert cheating(1, in_flight=2, accomplices=1) < honest


def test_without_any_verifier_oracles_compute_every_sample():
    asked = request(CHEATER, keys("honest customer"))
    empty = Snapshot(committee=COMMITTEE.digest(), epoch=1, nodes=(), events=())
    for beacon in BEACONS[:20]:
        for sample in draw(
            COMMITTEE, beacon, [committed(CHEATER, roots(asked, range(400)))], {asked.id: job.parse(asked)}, empty
        ):
            assert sample.verifiers == ()


@pytest.mark.parametrize("ground", ["customer", "chunk", "root"])
def test_grinding_names_and_roots_changes_nothing_that_the_beacon_decides(ground):
    """Of a thousand requests, chunks or roots the best by one beacon is any other by the next."""

    def key(n):
        if ground == "chunk":
            return sample_key(CHEATER.public, digest("r"), TASK, n, 0)
        return sample_key(CHEATER.public, digest(f"r/{n}" if ground == "customer" else "r"), TASK, n, 0)

    known, later = BEACONS[:2]
    safe = [n for n in range(4_000) if not is_drawn(known, key(n), RATE_PPM)]
    drawn = sum(is_drawn(later, key(n), RATE_PPM) for n in safe) / len(safe)
    assert drawn == pytest.approx(RATE_PPM / 1_000_000, abs=0.015)
    quiet = [n for n in range(4_000) if not is_audited(known, key(n))]
    assert sum(is_audited(later, key(n)) for n in quiet) / len(quiet) == pytest.approx(AUDITED, abs=0.02)


def place(passed=0, withheld=0):
    return Place(
        pubkey=CHEATER.public, beat=digest("b"), ad=digest("a"), held=(), bond_msat=0, region="", load_ppm=0,
        coordinates=(0, 0, 0), epochs=1, passed=passed * POINTS, withheld=withheld * POINTS,
    )  # fmt: skip


SHARE_PPM = 150_000


def weight(price_msat=1, **account):
    return repute(place(**account), price_msat, SHARE_PPM)


def test_bought_passes_add_less_to_a_weight_than_their_share_and_one_silence_takes_that_away():
    assert weight() < weight(passed=10**6) <= 1.12 * weight()
    assert weight(passed=255) == weight(passed=10**6)
    assert weight(passed=10**6, withheld=1) < weight()
    assert weight(passed=10**6, withheld=4) < weight() / 14


def test_work_for_oneself_at_a_millisat_is_no_reputation_for_whoever_sells_dearly():
    """255 samples of it, drawn of 5,100 chunks, would have doubled the weight at any price, for 5,100 msat."""
    assert weight(price_msat=100_000, passed=255) == weight(price_msat=100_000)
    assert weight(price_msat=100_000, passed=255 * 100_000) == weight(passed=255)


def test_nobody_waits_an_account_away_within_a_thousand_epochs():
    """Whoever withheld would leave, and come back under the same bond a few epochs later."""
    assert faded(POINTS, 1_000) > 0.7 * POINTS
    silent = place().model_copy(update={"withheld": faded(POINTS, 1_000)})
    assert weight() > repute(silent, 1, SHARE_PPM)


def test_a_verifier_is_no_party_to_the_job_whatever_keys_the_customer_has():
    """The customer's key and the providers are barred; another key of theirs needs a bond of its own."""
    asked = request(CHEATER, BONDED[1])
    for beacon in BEACONS:
        for sample in draw(
            COMMITTEE, beacon, [committed(CHEATER, roots(asked, range(50)))], {asked.id: job.parse(asked)}, snapshot()
        ):
            assert {one.public for one in HAND[:2]}.isdisjoint(sample.verifiers)
            assert len(set(sample.verifiers)) == len(sample.verifiers)
