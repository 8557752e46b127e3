"""`nodewire wallet test` on a role's file, with a wallet of a running simulated network."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from nodewire.cli.market import wallet
from nodewire.errors import BadConfig, LinkLost
from nodewire.pay.lightning.wallet import ABILITIES
from simnet.wallet import SimWallet
from tests.pay.simnet_process import run_simnet

ROLE = """
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{author}:c"
[wallet]
url = "{url}"
token_file = "wallet.token"
{more}
"""


@pytest.fixture(scope="module")
def simnet(tmp_path_factory):
    with run_simnet(tmp_path_factory.mktemp("simnet") / "simnet.db") as url:
        yield url


@pytest.fixture
def role(simnet, tmp_path):
    """`role(more, url)` -> a role's file whose wallet is on the network."""

    async def opened():
        account, token = await SimWallet.open_account(simnet, "test", 5_000)
        await account.close()
        return token

    (tmp_path / "wallet.token").write_text(asyncio.run(opened()))

    def written(more="", url=simnet):
        path = tmp_path / "role.toml"
        path.write_text(ROLE.format(author="ab" * 32, url=url, more=more))
        return path

    return written


def run(path, *options):
    return CliRunner().invoke(wallet.app, ["test", "--config", str(path), *options])


def test_each_ability_is_told_with_how_it_stands(role):
    done = run(role())
    assert done.exit_code == 0, done.output
    assert "of bcrt" in done.output and "settled  works" in done.output and "pay  untried  pays invoices" in done.output
    told = json.loads(run(role(), "--json").output)
    assert told["id"].startswith("sim:") and {one["ability"] for one in told["abilities"]} == ABILITIES


def test_a_role_that_means_bitcoin_is_refused_a_simulated_wallet(role):
    done = run(role('network = "bc"'))
    assert isinstance(done.exception, BadConfig) and done.exception.field == "wallet.network"


def test_a_wallet_out_of_reach_is_told(role, unused_tcp_port):
    assert isinstance(run(role(url=f"http://127.0.0.1:{unused_tcp_port}")).exception, LinkLost)
