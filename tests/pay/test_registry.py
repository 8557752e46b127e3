"""Wallets and bond holders are found by the entry points of installed packages."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from aiohttp import web

from nodewire.errors import BadConfig, NodewireError, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.pay import registry
from nodewire.pay.lightning.invoices import NETWORKS
from nodewire.pay.lightning.wallet import ABILITIES, WalletInfo
from simnet.bond_holder import SimBondHolder
from simnet.wallet import SimWallet

CODE = """
class CoinWallet:
    networks = ("tb",)

    @classmethod
    def from_file(cls, url, token_file):
        return cls()
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package that registers `entries` as wallets, in the way that pip leaves one."""

    def installed(name: str, *entries: str) -> Path:
        folder = tmp_path / name
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("\n".join(["[nodewire.wallets]", *entries, ""]))
        (folder / f"{name}.py").write_text(CODE)
        monkeypatch.syspath_prepend(folder)
        return folder

    yield installed
    sys.modules.pop("coins", None)


def test_the_simulated_network_is_registered_as_wallet_and_as_bond_holder():
    wallets = registry.wallet_class("sim")
    assert wallets is SimWallet
    assert isinstance(registry.bond_holder("sim", wallets.from_file("http://127.0.0.1:1", None)), SimBondHolder)


def test_a_kind_that_nobody_registered_is_refused_with_those_that_there_are(install):
    install("coins", "coin = coins:CoinWallet")
    with pytest.raises(BadConfig) as refused:
        registry.wallet_class("purse")
    said, _, kinds = str(refused.value).partition(" that there is: ")
    assert said == "wallet.kind: 'purse' is not a kind of wallet"
    assert set(kinds.split(", ")) >= {'"coin"', '"lnbits"', '"nwc"', '"sim"'}


def test_another_packages_wallet_is_imported_when_its_kind_is_configured(install):
    install("coins", "coin = coins:CoinWallet")
    registry.wallet_class("sim")
    assert "coins" not in sys.modules
    assert registry.wallet_class("coin").networks == ("tb",)


@pytest.mark.parametrize("entry", ["coins_that_are_not:CoinWallet", "coins:PaperWallet"])
def test_a_registered_class_that_is_not_there_is_told_with_the_setting(install, entry):
    install("coins", f"coin = {entry}")
    with pytest.raises(BadConfig, match=r"^bonds\.kind: 'coin' cannot be loaded: "):
        registry.wallet_class("coin", "bonds.kind")


def test_a_kind_that_two_packages_register_is_refused(install):
    install("coins", "coin = coins:CoinWallet")
    install("purse", "coin = purse:CoinWallet")
    with pytest.raises(BadConfig, match="registered more than once: coins:CoinWallet, purse:CoinWallet"):
        registry.wallet_class("coin")


async def test_a_wallet_whose_kind_has_no_bond_holder_reaches_one_that_refuses(install):
    install("coins", "coin = coins:CoinWallet")
    holder = registry.bond_holder("coin", registry.wallet_class("coin").from_file("", None))
    keys, is_told = Keys.generate(), "wallets of kind 'coin' have no bond holder"
    for asked in (
        holder.holder(),
        holder.bond(keys.public),
        holder.lock(keys, 1, 1, key=""),
        holder.top_up(keys, 1, 1, key=""),
        holder.statement(keys),
        holder.release(keys),
        holder.case(""),
        holder.claim(keys, ""),
        holder.collect(keys),
        holder.book_shares(None),
        holder.treasury(""),
        holder.share_msat("", keys.public, 0, 0),
    ):
        with pytest.raises(NodewireError, match=is_told):
            await asked
    await holder.close()


def test_the_simulated_network_is_refused_where_real_money_is_meant():
    assert registry.network_of("sim") == registry.network_of("sim", "bcrt") == "bcrt"
    for network in ("bc", "tb"):
        refused = rf"^wallet\.network: wallets of kind 'sim' are of \"bcrt\", and refused on \"{network}\"$"
        with pytest.raises(BadConfig, match=refused):
            registry.network_of("sim", network)


def service(said):
    """A service that calls itself a simulated network, and says this of itself."""
    app = web.Application()
    app.router.add_get("/v1/info", lambda _: web.json_response(said))
    return app


async def test_a_simulated_network_that_says_it_is_bitcoins_own_is_refused(unused_tcp_port):
    runner = web.AppRunner(service({"network": "bc", "node": "02" * 33}))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    wallet = SimWallet(f"http://127.0.0.1:{unused_tcp_port}", "token")
    with pytest.raises(NotAllowed, match=r"^network: a simulated network has play money of bcrt, not of bc$"):
        await wallet.info()
    await wallet.close()
    await runner.cleanup()


async def test_a_wallet_of_another_network_than_the_role_means_is_refused(install):
    class Coins:
        async def info(self):
            return WalletInfo("coins", "tbs", 1, 1, 9, ABILITIES)

    install("coins", "coin = coins:CoinWallet")
    with pytest.raises(BadConfig, match=r'^wallet\.network: the wallet is of "tbs", and "tb" is meant'):
        await registry.check_network(Coins(), "coin")


def test_every_wallet_that_the_package_names_is_one():
    """Of the file itself: an installation may be older."""
    named = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    kinds = {"sim", "nwc", "lnbits", "lnd", "cln", "phoenixd", "lexe", "electrum", "cashu"}
    assert set(named["nodewire.wallets"]) == kinds
    for value in named["nodewire.wallets"].values():
        module, _, name = value.partition(":")
        found = getattr(importlib.import_module(module), name)
        assert set(found.networks) <= set(NETWORKS)
        for method in (
            "info",
            "balance_msat",
            "invoice",
            "pay",
            "lookup",
            "settled",
            "close",
            "from_file",
            "open_account",
        ):
            assert callable(getattr(found, method))
