"""A bond ends once, nothing of it is lost, and a replayed log ends where the first run ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, NotAllowed
from nodewire.pay.bond import bonds
from nodewire.pay.bond.bonds import Free, HolderStatement, Payout, Raise, Refund, Slash, Unbond, apply

DELAY_S = 100
BOND = bonds.lock(bonds.Lock("b0" * 32, "ab" * 32, 21_000, 2_000))


def payouts(case, amounts):
    return tuple(Payout(case, f"payee {n}", amount) for n, amount in enumerate(amounts))


cases = st.sampled_from(["c1", "c2", "c3"])
amounts = st.lists(st.integers(1, 6_000), max_size=3)
times = st.integers(0, 4_000)
events = st.lists(
    st.one_of(
        st.builds(Raise, st.sampled_from(["k1", "k2"]), st.integers(0, 5_000), st.integers(1_900, 2_500)),
        st.builds(HolderStatement, times),
        st.builds(lambda case, a, lost: Refund(case, payouts(case, a), lost), cases, amounts, st.integers(0, 9_000)),
        st.builds(lambda case, a, at_s: Slash(case, payouts(case, a), at_s, DELAY_S), cases, amounts, times),
        st.builds(Unbond, times, st.just(DELAY_S)),
        st.builds(Free, times),
    ),
    max_size=12,
)


def run(log, bond=BOND):
    accepted, seen = [], [bond]
    for event in log:
        try:
            bond = apply(event, bond)
        except (NotAllowed, BadInput):
            continue
        accepted.append(event)
        seen.append(bond)
    return seen, accepted


@given(events)
def test_a_bond_is_never_both_released_and_slashed(log):
    states = [bond.state for bond in run(log)[0]]
    assert "released" not in states or not {"slashed", "burnt"} & set(states)
    assert states == sorted(states, key=["locked", "unbonding", "released", "slashed", "burnt"].index)


@given(events)
def test_replaying_the_accepted_log_after_a_crash_changes_nothing(log):
    seen, accepted = run(log)
    for n in range(len(accepted) + 1):
        half = run(accepted[:n])[0][-1]
        assert run(accepted, half)[0][-1] == seen[-1]


@given(events)
def test_payouts_and_remainder_are_the_amount_and_payouts_at_most_half_of_it(log):
    for bond in run(log)[0]:
        paid = sum(payout.amount_msat for payout in bond.payouts)
        assert paid + bond.forfeited_msat + bond.remainder_msat == bond.amount_msat
        assert bond.remainder_msat >= 0
        assert paid <= bond.amount_msat // 2
        assert len({(p.case, p.payee) for p in bond.payouts}) == len(bond.payouts)


@given(events)
def test_the_first_verdict_on_a_case_stands(log):
    bond, accepted = run(log)[0][-1], run(log)[1]
    first = {}
    for event in accepted:
        if isinstance(event, Refund | Slash):
            first.setdefault(event.case, event)
    assert {j.case: j.payouts for j in bond.judged} == {case: event.payouts for case, event in first.items()}


@given(events)
def test_what_was_stated_can_be_reached_for_the_whole_delay_after(log):
    seen, accepted = run(log)
    for before, event in zip(seen, accepted, strict=False):
        if isinstance(event, Free) and before.state in ("unbonding", "slashed"):
            assert event.at_s >= before.stated_until_s + DELAY_S


def test_nothing_is_stated_beyond_the_end_nor_once_the_bond_unbonds():
    with pytest.raises(NotAllowed):
        apply(HolderStatement(2_001), BOND)
    with pytest.raises(NotAllowed):
        apply(HolderStatement(1_500), apply(Unbond(1_000, DELAY_S), BOND))


def test_a_slash_while_it_unbonds_keeps_the_coins_and_one_after_release_is_refused():
    unbonding = apply(Unbond(1_500, DELAY_S), apply(HolderStatement(1_000), BOND))
    slash = Slash("c1", payouts("c1", [500]), 1_599, DELAY_S)
    assert apply(slash, unbonding).state == "slashed"
    with pytest.raises(NotAllowed):
        apply(slash, apply(Free(1_600), unbonding))


def test_further_verdicts_reach_a_slashed_bond_until_it_is_burnt():
    once = apply(Slash("c1", payouts("c1", [500]), 1_000, DELAY_S), BOND)
    twice = apply(Slash("c2", payouts("c2", [700]), 1_050, DELAY_S), once)
    assert (twice.frees_at_s, twice.remainder_msat) == (1_100, 19_800)
    burnt = apply(Free(1_100), twice)
    with pytest.raises(NotAllowed):
        apply(Refund("c3", payouts("c3", [1])), burnt)


def test_a_refund_leaves_the_bond_locked_and_smaller():
    after = apply(Refund("c1", payouts("c1", [500])), BOND)
    assert (after.state, after.remainder_msat) == ("locked", 20_500)


@pytest.mark.parametrize(("amount_msat", "until_s"), [(0, 2_000), (-1, 2_000), (5, 1_999)])
def test_a_raise_raises(amount_msat, until_s):
    with pytest.raises(BadInput):
        apply(Raise("k", amount_msat, until_s), BOND)


@pytest.mark.parametrize(
    ("amount_msat", "until_s", "field"),
    [
        (0, 2_000, "amount_msat"),
        (bonds.MAX_MSAT + 1, 2_000, "amount_msat"),
        (1, 0, "until_s"),
        (1, 2**53, "until_s"),
    ],
)
def test_a_lock_of_an_impossible_amount_or_end_is_refused_by_its_field(amount_msat, until_s, field):
    with pytest.raises(BadInput) as refused:
        bonds.lock(bonds.Lock("b0" * 32, "ab" * 32, amount_msat, until_s))
    assert refused.value.field == field


def test_a_raise_beyond_the_most_or_beyond_all_time_or_once_too_often_is_refused():
    many = BOND
    for number in range(bonds.MAX_RAISES):
        many = apply(Raise(f"k{number}", 1, 2_000), many)
    for event, bond in (
        (Raise("k", bonds.MAX_MSAT, 2_000), BOND),
        (Raise("k", 0, 2**53), BOND),
        (Raise("one more", 1, 2_000), many),
    ):
        with pytest.raises(BadInput, match="more, later or more often"):
            apply(event, bond)
    assert many.amount_msat == BOND.amount_msat + bonds.MAX_RAISES


@pytest.mark.parametrize(
    ("paid", "reason"),
    [
        (payouts("c2", [500]), "of another case"),
        (payouts("c1", [500, 0]), "not above zero"),
        ((Payout("c1", "a", 1), Payout("c1", "a", 2)), "stands twice"),
    ],
)
def test_payouts_of_another_case_or_of_nothing_or_twice_to_a_payee_are_refused(paid, reason):
    for event in (Refund("c1", paid), Slash("c1", paid, 1_000, DELAY_S)):
        with pytest.raises(BadInput, match=reason) as refused:
            apply(event, BOND)
        assert refused.value.field == "payouts"


@pytest.mark.parametrize("forfeit_msat", [-1, 20_501])
def test_a_refund_that_forfeits_less_than_nothing_or_more_than_what_is_left_is_refused(forfeit_msat):
    with pytest.raises(NotAllowed) as refused:
        apply(Refund("c1", payouts("c1", [500]), forfeit_msat), BOND)
    assert refused.value.field == "forfeit_msat"
    assert apply(Refund("c1", payouts("c1", [500]), 20_500), BOND).remainder_msat == 0
