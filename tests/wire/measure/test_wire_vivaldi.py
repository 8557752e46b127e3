"""Where nodes learn that they are: near what is measured, whatever a minority claims."""

import math
import random
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.market.coordinates import MOST_US, in_ms, rtt_us
from nodewire.wire.measure.vivaldi import MOST_ERROR_PPM, STEP_US, Claim, Place, Vivaldi

coordinate = st.integers(-MOST_US, MOST_US)
claims = st.builds(Claim, st.tuples(coordinate, coordinate, st.integers(0, MOST_US)), st.integers(0, MOST_ERROR_PPM))
peers = st.sampled_from("abcdefgh")
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("update"), peers, claims),
        st.tuples(st.just("measured"), peers, st.integers(-5, 2 * MOST_US)),
        st.tuples(st.just("forget"), peers),
    ),
    max_size=200,
)


def happened(vivaldi, what):
    for name, *arguments in what:
        getattr(vivaldi, name)(*arguments)


@given(happenings)
def test_whatever_peers_say_a_node_claims_what_a_beat_may_hold(what):
    vivaldi = Vivaldi("node")
    happened(vivaldi, what)
    claim = vivaldi.place.claim
    assert Claim.parse(claim.document()) == claim


@given(happenings)
def test_the_same_happenings_lead_to_the_same_place(what):
    one, other = Vivaldi("node"), Vivaldi("node")
    happened(one, what)
    happened(other, what)
    assert one.place == other.place


@given(claims, st.integers(1, MOST_US))
def test_a_peer_moves_a_node_by_no_more_than_the_round_trip_and_a_step(claim, measured_us):
    vivaldi = Vivaldi("node")
    before = vivaldi.place
    vivaldi.update("a", claim)
    vivaldi.measured("a", measured_us)
    after = vivaldi.place
    moved_us = math.hypot(after.x_us - before.x_us, after.y_us - before.y_us)
    assert moved_us <= min(STEP_US, measured_us) + 1  # and a little gravity
    assert abs(after.height_us - before.height_us) <= min(STEP_US, measured_us) + 1


def test_claims_alone_move_nobody():
    vivaldi = Vivaldi("node")
    before = vivaldi.place
    for number in range(1_000):
        vivaldi.update("a", Claim((number, 0, 0), 0))
    assert vivaldi.place == before


def test_two_nodes_end_as_far_from_each_other_as_was_measured():
    nodes = {name: Vivaldi(name) for name in "ab"}
    for _ in range(100):
        for me, peer in ("ab", "ba"):
            nodes[me].update(peer, nodes[peer].place.claim)
            nodes[me].measured(peer, 40_000)
    assert rtt_us(nodes["a"].place.claim.at, nodes["b"].place.claim.at) == pytest.approx(40_000, rel=0.1)


def test_what_was_claimed_is_where_a_node_begins_again():
    claim = Claim((-5_000, 70_000, 1_200), 80_000)
    assert Vivaldi("node", Place.from_claim(claim)).place.claim == claim


POINTS = [(x * 9e3, y * 11e3, 500 + 700 * ((3 * x + 5 * y) % 4)) for x in range(6) for y in range(5)]


def apart_us(i, j):
    a, b = POINTS[i], POINTS[j]
    return round(math.dist(a[:2], b[:2]) + a[2] + b[2])


def learned(liars=frozenset(), rounds=60):
    """Nodes at POINTS, each of which has dialled eight others; and which pairs have met."""
    chance = random.Random(7)
    nodes = [Vivaldi(str(i)) for i in range(len(POINTS))]
    met = {
        (min(i, j), max(i, j))
        for i in range(len(POINTS))
        for j in chance.sample([j for j in range(len(POINTS)) if j != i], 8)
    }
    for _ in range(rounds):
        said = [node.place.claim for node in nodes]
        for i in liars:
            said[i] = Claim((chance.randint(-200_000, 200_000), chance.randint(-200_000, 200_000), 0), 0)
        for i, j in sorted(met):
            nodes[i].update(str(j), said[j])
            nodes[i].measured(str(j), apart_us(i, j))
            nodes[j].update(str(i), said[i])
            nodes[j].measured(str(i), apart_us(i, j))
    return nodes, met


def wrong(nodes, met, liars=frozenset()):
    """The median relative error of honest pairs that never met."""
    return median(
        abs(rtt_us(nodes[i].place.claim.at, nodes[j].place.claim.at) - apart_us(i, j)) / apart_us(i, j)
        for i, j in combinations(range(len(POINTS)), 2)
        if (i, j) not in met and not {i, j} & liars
    )


def test_round_trips_between_nodes_that_never_met_are_predicted():
    assert wrong(*learned()) <= 0.15


def test_every_fifth_node_may_lie():
    liars = frozenset(range(0, len(POINTS), 5))
    assert wrong(*learned(liars), liars) <= 2 * max(wrong(*learned()), 0.02)


def test_two_fifths_of_the_peers_cannot_call_a_settled_node_away():
    nodes, met = learned()
    one = 12
    before = nodes[one].place
    others = sorted({i + j - one for i, j in met if one in (i, j)})
    liars = others[: len(others) * 2 // 5]
    for _ in range(60):
        for other in others:
            x, y, height = nodes[other].place.claim.at
            moved = 300_000 if other in liars else 0  # they agree on a place where all of them are
            nodes[one].update(str(other), Claim((x + moved, y, height), 0 if moved else 50_000))
            nodes[one].measured(str(other), apart_us(one, other))
    after = nodes[one].place
    assert math.hypot(after.x_us - before.x_us, after.y_us - before.y_us) < 15_000


def test_beats_say_no_less_than_a_millisecond():
    assert in_ms((1_499, -1_499, 499)) == (1_000, -1_000, 0)
    assert in_ms((1_500, -1_501, 10_000_000)) == (2_000, -2_000, 10_000_000)
