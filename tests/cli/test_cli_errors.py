"""What goes wrong at a command is one line that says what to do, or one JSON document; never a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nodewire.config import CustomerConfig, ProviderConfig, load_role, parse_msat
from nodewire.errors import BadConfig, BadInput

ROOT = Path(__file__).parent.parent.parent
ROLE = """
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:7777"]
blossom = ["http://127.0.0.1:7777"]
committee = "38841:{0}:main"
[wallet]
url = "http://127.0.0.1:7778"
token_file = "wallet.token"
"""
SERVE = """
[[serve]]
manifest = "38840:{0}:model"
tasks = ["driver"]
price_msat = 1000
"""


def run(*command, cwd):
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodewire.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, str(ROOT), *command], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_port_of_another_machine_is_one_line(tmp_path):
    done = run("relay", "--host", "203.0.113.1", "--port", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bad-config")
    assert "203.0.113.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_an_error_is_a_document_with_advice(tmp_path):
    done = run("relay", "--db", "nowhere/relay.db", "--port", "0", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)["error"]
    assert (said["code"], said["field"]) == ("bad-config", "nowhere/relay.db")
    assert said["advice"]


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_bought(tmp_path):
    done = run("generate", "hi", "--report", "nowhere/report.json", "--config", "nope.toml", "-m", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bad-input  --report")


def test_a_file_that_serves_is_a_providers_and_its_faults_are_told_as_such(tmp_path):
    path = tmp_path / "role.toml"
    path.write_text(ROLE.format("0" * 64))
    assert isinstance(load_role(path), CustomerConfig)
    path.write_text((ROLE + SERVE).format("0" * 64))
    assert isinstance(load_role(path), ProviderConfig)
    path.write_text((ROLE + SERVE).format("0" * 64).replace('"driver"', '"driver", "driver"'))
    with pytest.raises(BadConfig, match=r"role\.toml: .*serve: a task is named twice"):
        load_role(path)


@pytest.mark.parametrize(
    ("text", "msat"), [("100000sat", 10**8), ("5 msat", 5), ("0.5sat", 500), ("7", 7_000), ("0.001 SAT", 1)]
)
def test_amounts_are_written_in_sat_or_msat(text, msat):
    assert parse_msat(text) == msat


@pytest.mark.parametrize("text", ["", "5eur", "0.5msat", "-1", "nan", "inf", "1e99", "1e999999999"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(BadInput):
        parse_msat(text)
