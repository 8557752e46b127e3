"""Policies by formula and by dice: where the inequality holds, honesty pays more over many tasks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.plan.policy import SHIPPED, Policy, minimum_bond_msat

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
