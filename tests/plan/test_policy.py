"""Policies by formula and by dice: where the inequality holds, honesty pays more over many tasks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.pay.bond.settlement import (
    FLAT_UNITS,
    PREFILL_DISCOUNT,
    funded_units,
    unit_share_msat,
    verifier_pay_msat,
)
from nodewire.plan.assign import repute
from nodewire.plan.policy import SHARE_PPM, SHIPPED, Policy, SelfDealingModel, VerifierPay, minimum_bond_msat
from nodewire.protocol.committee.reputation import MAX_POINTS, POINTS
from nodewire.protocol.market.snapshot import Node

SPLITUP = Policy(rate=0.08, stake=10.0, reward=1.2, collusion=0.1)


def test_splitups_own_numbers_fail_its_inequality():
    assert not SPLITUP.is_secure()
    assert round(SPLITUP.rate_min() * 100, 2) == 9.92
    assert round(SPLITUP.stake_min(), 2) == 12.69


def test_the_shipped_policy_makes_cheaters_lose_money():
    assert SHIPPED.is_secure()
    assert SHIPPED.is_ruinous()
    assert SHIPPED.cheat(0.1) < SHIPPED.honest()


shares = st.floats(0.001, 1)


@given(shares, st.floats(0, 1_000), st.floats(0.1, 10), st.floats(0, 0.9), shares)
def test_the_least_rate_and_stake_are_where_cheating_begins_to_pay(rate, stake, reward, collusion, power):
    policy = Policy(rate, stake, reward, collusion, power)
    assert policy.is_secure() == (rate > policy.rate_min()) or abs(rate - policy.rate_min()) < 1e-9
    assert policy.is_secure() == (stake > policy.stake_min()) or abs(stake - policy.stake_min()) < 1e-6


@pytest.mark.parametrize("skipped", [1.0, 0.5, 0.1])
def test_over_many_tasks_the_dice_agree(skipped):
    dice = np.random.default_rng(7)
    tasks = 100_000
    caught = (dice.random(tasks) < SHIPPED.rate) & (dice.random(tasks) >= SHIPPED.collusion)
    cheat = SHIPPED.reward - (1 - skipped) * SHIPPED.cost - caught * (SHIPPED.reward + SHIPPED.stake)
    assert cheat.mean() < SHIPPED.honest()
    assert cheat.mean() == pytest.approx(SHIPPED.cheat(skipped), abs=0.3)
    assert cheat.mean() < 0


@pytest.mark.parametrize("wrong", [{"rate": 1.1}, {"rate": -0.1}, {"stake": -1}, {"collusion": 1.0}, {"power": 0.0}])
def test_what_is_no_policy_is_refused(wrong):
    with pytest.raises(BadInput):
        Policy(**{"rate": 0.1, "stake": 1.0, **wrong})


def test_a_bond_covers_what_is_in_flight():
    bond = minimum_bond_msat(base_msat=1_000, per_gb_msat=100, weights_gb=2.5, chunk_msat=21_000, in_flight=6)
    assert bond == 1_000 + 250 + 100 * 21_000 * 6


def run(*options):
    done = subprocess.run(
        [sys.executable, "-m", "nodewire.cli", "policy", "check", *options], capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_the_command_says_what_is_missing_and_fails_for_it():
    code, said = run("--rate", "8%", "--stake", "10", "--reward", "1.2", "--collusion", "10%")
    assert code == 1
    assert "p_min 9.92%" in said and "S_min 12.69" in said and "cheating pays" in said
    code, said = run("--json")
    assert code == 0
    assert json.loads(said)["ruinous"] is True
    code, _ = run("--rate", "often")
    assert code == 1


SHIPPED_PAY = VerifierPay(share=SHARE_PPM / 1_000_000)


@pytest.mark.parametrize("speedup", [10, 40])
def test_a_verifier_is_paid_what_it_computes_at_every_position_of_a_long_context(speedup):
    """The shipped price is 1.2 times the cost. A position of the context costs a tenth of a decoded one, or less."""
    pay = VerifierPay(share=SHARE_PPM / 1_000_000, speedup=speedup)
    assert all(pay.pays(units) for units in range(1, 131_072 // 64 + 1))
    assert VerifierPay(share=0.15, discount=1e9).pays(1)
    assert not VerifierPay(share=0.15, discount=1e9).pays(512)  # what one price for every sample would come to


@given(st.integers(1, 10**6), st.integers(1, 2_048))
def test_the_pay_is_the_policys(price_msat, units):
    assert verifier_pay_msat(price_msat, units) == int(price_msat + price_msat * (units - 1) // PREFILL_DISCOUNT)
    assert abs(verifier_pay_msat(price_msat, units) - price_msat * SHIPPED_PAY.paid(units)) <= 1


def test_the_share_of_every_chunk_pays_for_its_samples_however_long_the_context():
    assert all(SHIPPED_PAY.is_funded(units) for units in range(1, 131_072 // 64 + 1))
    flat = VerifierPay(share=SHIPPED_PAY.share, flat=10**9)
    assert [units for units in range(1, 99) if flat.is_funded(units)] == list(
        range(1, 22)
    )  # and that is where it grows
    assert SHIPPED_PAY.flat == FLAT_UNITS


@given(st.integers(1, 10**6), st.integers(1, 2_048))
def test_the_share_is_the_policys(unit_msat, number):
    share = VerifierPay(share=unit_msat)
    assert 0 <= unit_share_msat(unit_msat, number) - share.share_of(number) < 1


@given(st.integers(1, 10**4), st.integers(1, 300))
def test_what_came_funds_the_units_that_it_was_zapped_for(unit_msat, units):
    came_msat = sum(unit_share_msat(unit_msat, number) for number in range(1, units + 1))
    assert funded_units(came_msat, unit_msat) == units
    assert funded_units(came_msat - 1, unit_msat) == max(1, units - 1)
    assert funded_units(came_msat + unit_msat - 1, unit_msat) == units


def test_what_jobs_pay_in_shares():
    shares = [SHIPPED_PAY.share_of_job(units) for units in (21, 41, 128, 512)]
    assert shares == pytest.approx([0.15, 0.175, 0.364, 1.255], abs=0.01)


def test_fewer_samples_of_long_contexts_would_let_cheats_pay():
    """At a rate that falls as a sample's pay grows, so that each chunk costs its verifiers the same."""

    def is_secure(units):
        return Policy(rate=SHIPPED.rate / SHIPPED_PAY.paid(units), stake=SHIPPED.stake).is_secure()

    assert is_secure(43) and not is_secure(44)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10**10), st.integers(1, 4_096), st.integers(1, 1_000_000))
def test_what_passes_bring_is_less_than_the_shares_that_were_paid_for_them(price_msat, eighths, share_ppm):
    """By the weights of plans. Bought is work of so many eighths of a chunk's price; an honest node comes by it, too.

    What is brought is summed up over its way to the full weight. Of the shares a tenth comes back.
    """
    price_msat *= 8
    weights = [weight_of(n * price_msat // 8, price_msat, share_ppm) for n in range(8 * 128 + eighths + 1)]
    brought = sum(weights[n + eighths] / weights[n] - 1 for n in range(8 * 128))
    assert brought <= eighths * share_ppm / 1_000_000 * 0.9


def weight_of(passed_msat: int, price_msat: int, share_ppm: int) -> int:
    node = Node(
        pubkey="0" * 64, beat="0" * 64, ad="0" * 64, held=(), bond_msat=0, region="", load_ppm=0, coordinates=(0, 0, 0),
        epochs=1, passed=min(passed_msat * POINTS, MAX_POINTS),
    )  # fmt: skip
    return repute(node, price_msat, share_ppm)


@pytest.mark.parametrize("share", [0.01, SHARE_PPM / 1_000_000, 1.0])
def test_dealing_with_oneself_costs_more_than_it_brings_whatever_the_margin(share):
    dealing = SelfDealingModel(share)
    assert dealing.is_safe()
    assert not dealing.pays()
    assert not SelfDealingModel(share, collusion=0.2).pays()  # a fifth of all bonds are the dealer's, too


def test_twice_the_weight_of_a_newcomer_would_pay_whoever_sells_dearly():
    """As it was: eight steps of an eighth, for a share of 15 %."""
    share = SHARE_PPM / 1_000_000
    before = SelfDealingModel(share, reach=1 / share)
    assert before.weight(255) == 2
    assert before.pays()
    assert not SelfDealingModel(share, reach=1 / share, margin=1 / 6).pays()


@pytest.mark.parametrize("passes", [1, 7, 128])
def test_the_policys_weight_is_the_one_that_plans_are_made_by(passes):
    share = SelfDealingModel(SHARE_PPM / 1_000_000)
    for price_msat in (1, 1_000):
        ratio = weight_of(passes * price_msat, price_msat, SHARE_PPM) / weight_of(0, price_msat, SHARE_PPM)
        assert ratio == pytest.approx(share.weight(passes))
