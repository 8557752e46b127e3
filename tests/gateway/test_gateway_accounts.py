"""Accounts of API keys: money and rates outlive the process, whatever it was doing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadConfig, OverBudget
from nodewire.gateway.accounts import Accounts, TooFast
from nodewire.gateway.config import GatewayConfig, KeyConfig
from nodewire.gateway.keys import OPEN, Keys, new_key, sha256_of

AUTHOR = "ab" * 32


def key(**changes) -> KeyConfig:
    return KeyConfig(name="k", sha256="00" * 32, **changes)


def test_a_budget_counts_what_is_set_aside_and_is_given_back_what_was_not_spent(tmp_path):
    accounts, poor = Accounts(tmp_path / "a.db"), key(budget_msat=1_000)
    first = accounts.reserve(poor, 800)
    second = accounts.reserve(poor, 800)
    assert (first.msat, second.msat) == (800, 200)
    with pytest.raises(OverBudget):
        accounts.reserve(poor, 1)
    accounts.settle(first, 300)
    accounts.settle(second, 200)
    assert accounts.reserve(poor, 800).msat == 500


def test_what_a_crash_broke_off_is_settled_by_what_its_jobs_came_to(tmp_path):
    accounts, poor = Accounts(tmp_path / "a.db"), key(budget_msat=1_000)
    made = accounts.reserve(poor, 900)
    accounts.requested(made, "aa", 5_000)
    accounts.requested(made, "bb", 800)
    accounts.close()
    again = Accounts(tmp_path / "a.db")
    assert (again.spent_msat("k"), again.reserved_msat("k")) == (0, 900)
    assert again.recover({"aa": 100, "bb": 50}.__getitem__) == 1
    assert (again.spent_msat("k"), again.reserved_msat("k")) == (150, 0)
    assert again.recover(lambda request: 1_000) == 0


def test_a_job_that_is_dearer_than_the_one_before_it_is_set_aside_anew_or_not_bought(tmp_path):
    """What was given back at the first one's price may be another request's by now: no budget has it twice."""
    accounts, poor = Accounts(tmp_path / "a.db"), key(budget_msat=1_000)
    made = accounts.reserve(poor, 1_000)
    accounts.requested(made, "cheap", 100)
    accounts.requested(made, "dear", 400)
    assert accounts.reserved_msat("k") == 400
    other = accounts.reserve(poor, 1_000)
    assert other.msat == 600
    with pytest.raises(OverBudget):
        accounts.requested(made, "dearer", 401)
    assert accounts.reserved_msat("k") == 1_000
    accounts.settle(other, 0)
    accounts.requested(made, "dearer", 5_000)
    assert accounts.reserved_msat("k") == made.msat
    accounts.settle(made, made.msat)
    assert (accounts.spent_msat("k"), accounts.reserved_msat("k")) == (1_000, 0)


def test_a_rate_outlives_a_restart(tmp_path):
    quick = key(per_minute=2)
    for _ in range(2):
        accounts = Accounts(tmp_path / "a.db")
        accounts.admit(quick, 1_000_000)
        accounts.close()
    accounts = Accounts(tmp_path / "a.db")
    with pytest.raises(TooFast) as refused:
        accounts.admit(quick, 1_000_000)
    assert refused.value.wait_s == 30
    accounts.admit(quick, 1_030_000)


@given(st.integers(1, 600), st.lists(st.integers(0, 20_000), max_size=60))
def test_no_minute_has_more_than_twice_the_rate_and_who_waits_is_served(per_minute, pauses_ms):
    """A burst of a minute's share, and what a minute gains: no window has more."""
    accounts, quick, now_ms, taken = Accounts(":memory:"), key(per_minute=per_minute), 10**12, []
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        try:
            accounts.admit(quick, now_ms)
            taken.append(now_ms)
        except TooFast as refused:
            accounts.admit(quick, now_ms + round(refused.wait_s * 1000))
            now_ms += round(refused.wait_s * 1000)
            taken.append(now_ms)
    for first in taken:
        assert sum(first <= one < first + 60_000 for one in taken) <= 2 * per_minute
    accounts.close()


def test_a_file_of_another_version_is_refused(tmp_path):
    import sqlite3

    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(BadConfig, match="version 9"):
        Accounts(tmp_path / "a.db")


def test_keys_are_found_by_their_hash_or_an_environment_variable(monkeypatch):
    made, sha256 = new_key()
    monkeypatch.setenv("A_KEY", "of-the-environment")
    keys = Keys([KeyConfig(name="one", sha256=sha256), KeyConfig(name="two", env="A_KEY")])
    assert getattr(keys.find(f"Bearer {made}"), "name", None) == "one"
    assert getattr(keys.find("bearer of-the-environment"), "name", None) == "two"
    assert keys.find(f"Bearer {sha256}") is None and keys.find("") is None
    assert Keys([]).find("") is OPEN
    monkeypatch.delenv("A_KEY")
    with pytest.raises(BadConfig, match="A_KEY"):
        Keys([KeyConfig(name="two", env="A_KEY")])


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('listen = "0.0.0.0:80"', "whoever reaches this address could spend"),
        ('cors = ["*"]', "an origin"),
        ('[[keys]]\nname = "a"', "either it or env"),
        (f'[[keys]]\nname = "a"\nsha256 = "{"0" * 64}"\nmodels = ["other"]', "no model is called other"),
        (f'[[models]]\nname = "*"\nmanifest = "38840:{AUTHOR}:m"', "stands for every model"),
        ('[[models]]\nname = "*x"', "or \\* for all others"),
        ("max_requests = 0", "max_requests"),
        ("unknown = 1", "unknown field"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, lines, says):
    model = f'[[models]]\nname = "m"\nmanifest = "38840:{AUTHOR}:m"\n'
    top, tables = (lines, "") if not lines.startswith("[") else ("", lines)
    (tmp_path / "g.toml").write_text(f'customer = "c.toml"\nstate = "s"\n{top}\n{model}{tables}\n')
    with pytest.raises(BadConfig, match=says):
        GatewayConfig.load(tmp_path / "g.toml")


def test_an_address_that_is_not_this_machines_needs_keys():
    keys = [{"name": "k", "sha256": sha256_of("x")}]
    models = [{"name": "m", "manifest": f"38840:{AUTHOR}:m"}]
    made = {"customer": "c.toml", "state": "s", "models": models, "listen": "0.0.0.0:80"}
    assert GatewayConfig.model_validate({**made, "keys": keys}).listen == "0.0.0.0:80"
