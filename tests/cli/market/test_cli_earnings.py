"""`nodewire earnings` on a provider's file and its ledger."""

from __future__ import annotations

import json
import time

import pytest
import typer
from typer.testing import CliRunner

from nodewire.cli.market import earnings
from nodewire.errors import BadConfig, NotFound
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning.invoices import hash_of
from nodewire.pay.lightning.wallet import Receipt

ROLE = """
key = "key.nsec"
state = "."
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{author}:c"
[wallet]
url = "http://127.0.0.1:1"
token_file = "wallet.token"
"""


@pytest.fixture
def run(tmp_path):
    app = typer.Typer()
    earnings.add_to(app)

    def one(*options, more='[[serve]]\nmanifest = "38840:{author}:m"\ntasks = ["a"]\nprice_msat = 1\n'):
        path = tmp_path / "role.toml"
        path.write_text((ROLE + more).format(author="ab" * 32))
        return CliRunner().invoke(app, ["--config", str(path), *options])

    return one


def test_what_was_earned_is_told_by_day_model_and_task(run, tmp_path):
    ledger, now_s = Ledger(tmp_path / "ledger.db"), int(time.time())
    for number, (paid, at_s) in enumerate(((True, now_s), (False, now_s), (True, now_s - 40 * 86_400))):
        key, preimage = Key(f"{number:064x}", "aa" * 32, 0), f"{number:064x}"
        ledger.owe(Due(key, "cc" * 32, 3_000, at_s + 30))
        if paid:
            ledger.quoted(Quote(key, hash_of(preimage), "", "lnbcrt"))
            ledger.settled(Receipt(str(number), hash_of(preimage), preimage, 3_000, at_s), "w")
        ledger.work.note(key.job, "smol", {"stage.0": (1, 900_000_000)}, at_s)
    ledger.close()
    told = json.loads(run("--json").stdout)
    (one,) = told["earnings"]
    assert (one["model"], one["task"], one["settled_msat"], one["unsettled_msat"]) == ("smol", "stage.0", 3_000, 3_000)
    assert told["msat_per_hour"] == one["msat_per_hour"] == 6_000 and told["ever"]["paid_msat"] == 6_000
    assert len(json.loads(run("--json", "--days", "60").stdout)["earnings"]) == 2
    shown = run().stdout
    assert "3.000 sat settled, 6.000 sat for each hour of work; 3.000 sat unsettled" in shown and "stage.0" in shown


def test_a_provider_that_has_not_run_and_a_customer_are_told(run):
    assert isinstance(run().exception, NotFound)
    assert isinstance(run(more="").exception, BadConfig)
