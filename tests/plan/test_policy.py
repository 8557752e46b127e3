"""Policies by formula and by dice: where the inequality holds, honesty pays more over many tasks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.pay.settlement import PREFILL_DISCOUNT, verifier_pay_msat
from nodewire.plan.policy import SHARE_PPM, SHIPPED, Policy, SelfDealing, VerifierPay, minimum_bond_msat

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


def test_a_share_pays_for_jobs_up_to_a_length_that_the_policy_tells():
    most = SHIPPED_PAY.units_max()
    assert most == 41  # 2,624 positions
    assert SHIPPED_PAY.share_min(most) <= SHIPPED_PAY.share < SHIPPED_PAY.share_min(most + 1)
    assert VerifierPay(share=SHIPPED_PAY.share_min(512)).units_max() == 512


@pytest.mark.parametrize("price_msat", [1, 3, 10, 100, 10_000])
def test_dealing_with_oneself_costs_more_than_it_brings_where_shares_are_in_proportion(price_msat):
    dealing = SelfDealing(price_msat=price_msat, share_msat=price_msat * SHARE_PPM / 1_000_000)
    assert not dealing.pays()
    assert dealing.share_min_msat() <= dealing.share_msat


def test_dealing_with_oneself_at_the_least_price_pays_for_whoever_sells_dearly():
    assert not SelfDealing(price_msat=6).pays()
    assert SelfDealing(price_msat=100).pays()
