"""Accounts of behaviour: counted once, whatever each oracle happens to have seen; faded by epochs; nobody sheds one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.committee.reputation import (
    COUNTED_AFTER,
    MAX_JUDGED,
    MAX_POINTS,
    POINTS,
    Account,
    ReputationVerdict,
    agreed,
    due,
    faded,
    shown,
)
from nodewire.protocol.market.snapshot import MAX_ABSENT, Snapshot, derive
from tests.protocol.committee.actors import Provider, committee, digest, keys, rederived

COMMITTEE, _ = committee(1)
HELD = {digest("model"): ([("driver", 10, 500)], 4)}
PROVIDERS = [Provider(f"p{i}", COMMITTEE, HELD) for i in range(3)]
ONE = PROVIDERS[0].keys.public
LATER = 40


def judged(epoch: int, n: int = 0, provider: str = ONE, outcome="pass", price_msat: int = 1) -> ReputationVerdict:
    price_msat = price_msat if outcome == "pass" else 0
    return ReputationVerdict(
        epoch=epoch, sample=digest(f"{epoch}/{n}"), provider=provider, outcome=outcome, price_msat=price_msat
    )


some = st.builds(
    judged,
    st.integers(0, 40),
    st.integers(0, 3),
    st.sampled_from([p.keys.public for p in PROVIDERS]),
    st.sampled_from(["pass", "withheld"]),
)


def snapshot(epoch: int, found=(), previous: Snapshot | None = None, providers=PROVIDERS) -> Snapshot:
    beats = [p.beat(epoch) for p in providers]
    return derive(COMMITTEE, epoch, beats, [p.ad for p in providers], judged=found, previous=previous)


def account(found: Snapshot, pubkey: str) -> tuple[int, int]:
    """Msat of work that passed, and withheld chunks, that a snapshot shows, node or not."""
    one = found.node(pubkey) or next((a for a in found.absent if a.pubkey == pubkey), None)
    return (shown(one.passed), shown(one.withheld)) if one else (0, 0)


def test_a_verdict_counts_twelve_epochs_after_its_draw():
    verdict = judged(5)
    assert account(snapshot(5 + COUNTED_AFTER - 1, [verdict]), ONE) == (0, 0)
    found = snapshot(5 + COUNTED_AFTER, [verdict])
    assert account(found, ONE) == (1, 0)
    assert found.judged == (verdict,)
    after = snapshot(5 + COUNTED_AFTER + 1, [verdict], found)
    assert after.judged == ()
    assert account(after, ONE) == (1, 0)


@given(st.sets(some, max_size=30), st.sets(st.integers(12, 50), min_size=1).map(sorted))
def test_whichever_epochs_are_certified_each_verdict_counts_once(found, epochs):
    epochs = [12, *(n for n in range(13, 50) if n in epochs or n % 16 == 0), 52]
    counted, previous = [], None
    for epoch in epochs:
        previous = snapshot(epoch, found, previous, providers=())
        counted += previous.judged
    by_sample = {one.sample: one for one in sorted(found, key=lambda one: one.order, reverse=True)}
    assert sorted(counted, key=lambda one: one.order) == sorted(by_sample.values(), key=lambda one: one.order)


@given(st.lists(some, max_size=20, unique=True), st.randoms(use_true_random=False))
def test_neither_order_nor_who_listed_what_changes_an_account(found, random):
    shuffled = random.sample(found, len(found))
    previous = snapshot(LATER - 1, found)
    assert snapshot(LATER, found, previous).nodes == snapshot(LATER, shuffled, previous).nodes
    # of four oracles one missed everything and one makes things up
    lists = [found, shuffled, (), [judged(30, n + 100) for n in range(5)]]
    assert agreed(lists, COMMITTEE.f) == agreed(random.sample(lists, 4), COMMITTEE.f)
    assert agreed(lists, COMMITTEE.f) == sorted(found, key=lambda one: one.order)


@given(st.integers(0, 2**45), st.integers(0, 2**20), st.integers(0, 16), st.integers(0, 16))
def test_points_fade_to_nothing_and_never_below(points, more, first, then):
    left = faded(points, first)
    assert 0 <= left <= points
    assert faded(left, then) == faded(points, first + then)
    assert faded(points, first) <= faded(points + more, first)
    assert (left < points) == (points > 0 and first > 0)


def test_one_verdict_shows_for_4096_epochs_and_many_halve_in_2839():
    assert shown(faded(POINTS, POINTS - 1)) == 1
    assert faded(POINTS, POINTS) == 0
    assert shown(faded(1000 * POINTS, 2839)) == 500


def test_a_withheld_chunk_and_passes_stay_with_who_stays_away():
    found = [judged(5), judged(5, 1, outcome="withheld")]
    here = snapshot(17, found)
    gone = snapshot(18, found, here, providers=PROVIDERS[1:])
    assert gone.node(ONE) is None
    assert gone.absent == (Account(pubkey=ONE, passed=POINTS - 1, withheld=POINTS - 1),)
    back = snapshot(19, found, gone)
    assert back.absent == ()
    assert (back.node(ONE).passed, back.node(ONE).withheld) == (POINTS - 2, POINTS - 2)
    assert Snapshot.unpack(gone.pack()) == gone
    assert rederived(COMMITTEE, gone, here) == gone


def test_contradicting_verdicts_on_a_sample_count_as_one():
    both = [judged(5), judged(5, outcome="withheld")]
    assert account(snapshot(17, both), ONE) == account(snapshot(17, both[::-1]), ONE) == (1, 0)


def test_the_many_do_not_crowd_a_withheld_chunk_out():
    others = tuple(sorted(keys(f"other/{i}").public for i in range(MAX_ABSENT)))
    crowd = tuple(Account(pubkey=pubkey, passed=9 * POINTS, withheld=0) for pubkey in others)
    full = Snapshot(committee=COMMITTEE.digest(), epoch=16, nodes=(), events=(), absent=crowd)
    found = snapshot(17, [judged(5, outcome="withheld")], full, providers=())
    assert len(found.absent) == MAX_ABSENT
    assert account(found, ONE) == (0, 1)


def test_more_than_fit_are_the_latest():
    many = [judged(epoch, n) for epoch in (4, 5) for n in range(MAX_JUDGED)]
    assert {one.epoch for one in due(many, 17, 15)} == {5}
    assert len(due(many, 17, 15)) == MAX_JUDGED


def test_a_pass_counts_by_what_it_was_paid_up_to_what_an_account_holds():
    found = [judged(5, 0, price_msat=0), judged(5, 1, price_msat=3), judged(5, 2, price_msat=1_000)]
    assert account(snapshot(17, found), ONE) == (1_003, 0)
    dear = [judged(5, n, price_msat=10**18) for n in range(3)]
    assert snapshot(17, dear).node(ONE).passed == MAX_POINTS


def test_work_in_doubt_leaves_an_eighth_and_nobody_below_a_new_node():
    passes = [judged(5, n) for n in range(16)]
    once = snapshot(17, [*passes, judged(5, 99, outcome="unsure")])
    assert account(once, ONE) == (2, 0)
    assert account(snapshot(17, [*passes, *(judged(5, 99 + n, outcome="unsure") for n in range(2))]), ONE) == (1, 0)
    again = snapshot(18, [judged(6, n, outcome="unsure") for n in range(5)], once)
    assert account(again, ONE) == (0, 0)
    assert account(snapshot(19, [judged(7)], again), ONE) == (1, 0)  # there is no debt
    mixed = snapshot(17, [judged(5, outcome="withheld"), judged(5, 1, outcome="unsure")], providers=())
    assert account(mixed, ONE) == (0, 1)
