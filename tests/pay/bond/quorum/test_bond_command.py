"""`nodewire bond` with a vault, as an operator types it: a registrar, a Bitcoin node, and commands of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.pay.bond_market as bm
from nodewire.nostr.keys import Keys
from tests.pay.bitcoin_process import PASSWORD, Chain, needs_bitcoind, run_bitcoind
from tests.pay.bond.quorum.market import COMMITTEE

pytestmark = needs_bitcoind
ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path):
    """A provider's and a registrar's files, and a package that registers the holder as nodewire's own does."""
    (tmp_path / "committee.json").write_text(COMMITTEE.to_json())
    for name, keys in (("holder", bm.HOLDER), ("provider", Keys.generate())):
        (tmp_path / f"{name}.nsec").write_text(keys.nsec)
        (tmp_path / f"{name}.nsec").chmod(0o600)
    (tmp_path / "wallet.token").write_text("00" * 32)
    about = tmp_path / "packages" / "vaults-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vaults\nVersion: 1.0\n")
    entry = "vault = nodewire.pay.bond.quorum.bootstrap:open_vault"
    (about / "entry_points.txt").write_text(f"[nodewire.bond_holders]\n{entry}\n")
    return tmp_path


def command(folder, *words):
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{folder / 'packages'}"}
    return [sys.executable, "-m", "nodewire.cli", *words], env


def nodewire(folder, *words):
    """What the command prints: its JSON document, or its error's."""
    asked, env = command(folder, *words, "--json")
    done = subprocess.run(asked, env=env, cwd=folder, capture_output=True, timeout=120)
    assert PASSWORD.encode() not in done.stdout + done.stderr
    assert done.stdout, done.stderr.decode()
    said = json.loads(done.stdout)
    return said.get("error", said)


async def test_lock_show_and_release(folder, tmp_path_factory):
    node = await asyncio.to_thread(run_bitcoind(tmp_path_factory.mktemp("bitcoin")).__enter__)
    chain = Chain(node)
    files = ["--key", "holder.nsec", "--committee", "committee.json", "--bitcoin", str(node.file)]
    asked, env = command(folder, "registrar", *files, "--confirmations", "1", "--port", "0", "--json")
    registrar = subprocess.Popen(asked, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=(folder / "log").open("wb"))
    try:
        ready = json.loads(await asyncio.to_thread(registrar.stdout.readline) or (folder / "log").read_text())
        assert (ready["ready"], ready["kind"], ready["holder"]) == ("registrar", "vault", bm.HOLDER.public)
        (folder / "provider.toml").write_text(
            f"""
state = "state"
key = "provider.nsec"
committee = "38841:{"ab" * 32}:main"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
[wallet]
url = "http://127.0.0.1:1"
token_file = "wallet.token"
[[serve]]
manifest = "38840:{"cd" * 32}:tiny"
tasks = ["driver"]
price_msat = 1000
[holder]
kind = "vault"
url = "{ready["url"]}"
committee_digest = "{COMMITTEE.digest()}"
bitcoin = "{node.file}"
"""
        )
        role = ("--config", "provider.toml")
        first = await asyncio.to_thread(nodewire, folder, "bond", "lock", "100000sat", "--days", "2", *role)
        assert first["code"] == "not-found" and "0 of 1 confirmations" in first["reason"]
        await chain.mine()
        locked = await asyncio.to_thread(nodewire, folder, "bond", "lock", "100000sat", "--days", "2", *role)
        assert (locked["state"], locked["amount_msat"]) == ("locked", 100_000_000), locked
        assert locked["statement"]["pubkey"] == bm.HOLDER.public
        shown = await asyncio.to_thread(nodewire, folder, "bond", "show", *role)
        assert (shown["state"], shown["id"]) == ("locked", locked["id"])
        released = await asyncio.to_thread(nodewire, folder, "bond", "release", "--yes", *role)
        assert released["state"] == "unbonding" and released["frees_at_s"] > released["stated_until_s"]
        stored = [path.name for path in folder.iterdir() if path.suffix == ".db"]
        assert stored == ["bonds.db"] and (folder / "bonds.db").stat().st_mode & 0o077 == 0
    finally:
        registrar.terminate()
        await asyncio.to_thread(registrar.wait, 20)
        await chain.node.close()
        await asyncio.to_thread(node.__exit__)
    assert PASSWORD not in (folder / "log").read_text()
