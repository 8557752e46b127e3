"""An installation without torch, a solver or plots buys, certifies and relays; it says what else a command needs."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import readable

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """`nodewire` of a fresh environment that `make base` has set up."""
    venv = tmp_path_factory.mktemp("base") / "venv"
    made = subprocess.run(
        ["make", "base", f"VENV={venv}", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return [str(venv / "bin" / "python"), "-m", "nodewire.cli"]


@contextmanager
def daemon(base, *command):
    """A daemon of that installation, and what it says when it is ready."""
    process = subprocess.Popen([*base, *command, "--json"], stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout
    try:
        line = process.stdout.readline() if readable(process.stdout.fileno(), 120) else b""
        assert b'"ready"' in line, command
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def run(base, *command):
    done = subprocess.run([*base, *command, "--json"], capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout.splitlines()[-1] if done.stdout else done.stderr.splitlines()[-1])


def test_nothing_of_an_engine_is_installed(base):
    look = "import importlib.util, sys; print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    engines = "torch", "safetensors", "transformers", "matplotlib", "highspy"
    found = subprocess.run([base[0], "-c", look, *engines], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_command_that_computes_says_which_extra_it_needs(base, tmp_path):
    code, said = run(base, "generate", "a cat", "--local", str(ROOT / "demo" / "model" / "pycoder"))
    assert code == 1
    assert "pip install '.[worker]'" in json.dumps(said)
    code, said = run(base, "doctor")
    assert code == 0, said


async def test_a_customer_buys_what_a_full_installation_would_get(market, base):
    config = str(await market.customer_config("basic"))
    buy = ["generate", "a cat", "--model", market.decoder["address"], "--max-tokens", "8", "--config", config]
    code, bought = run(base, *buy)
    assert code == 0, bought
    alone = market.command("generate", "a cat", "--local", str(market.decoder_folder), "--max-tokens", "8")
    assert bought["ids"] == alone["ids"]


def test_a_relay_and_four_oracles_certify_an_epoch(base, tmp_path):
    stores = ["--db", str(tmp_path / "relay.db"), "--blobs", str(tmp_path / "blobs")]
    with daemon(base, "relay", "--port", "0", *stores) as relay:
        code, holder = run(base, "keys", "new", str(tmp_path / "holder.nsec"))
        assert code == 0, holder
        where = ["--relay", relay["url"], "--blossom", relay["blossom"], "--bond-holder", holder["npub"]]
        founded, folder = (
            ["--oracles", "4", "--epoch-ms", "4000", "--skew-ms", "400", "--beat-ms", "2000", *where],
            tmp_path / "committee",
        )
        code, committee = run(base, "committee", "create", str(folder), *founded)
        assert code == 0, committee
        oracles = [daemon(base, "oracle", "--config", str(folder / f"oracle-{i}" / "oracle.toml")) for i in range(1, 5)]
        with oracles[0], oracles[1], oracles[2], oracles[3]:
            lines = {"key": "key.nsec", "relays": [relay["url"]], "blossom": [relay["blossom"]]}
            config = tmp_path / "customer.toml"
            toml = [f"{name} = {json.dumps(value)}" for name, value in lines.items()]
            toml += [f"committee = {json.dumps(committee['address'])}", 'state = "state"']
            toml += ["[wallet]", 'url = "http://127.0.0.1:9"', 'token_file = "token"']
            config.write_text("\n".join(['role = "customer"'[:0], *toml]))
            code, said = run(base, "models", "--config", str(config))
            assert code == 0, said
