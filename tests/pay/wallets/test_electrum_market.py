"""A market over three real nodes, before it starts: its roles have no wallet and no holder but those of the nodes."""

from __future__ import annotations

import json

import pytest

from nodewire.config import CustomerConfig, ProviderConfig
from nodewire.config.provider import CreditConfig
from tools.lightning.daemons import PORTS, free_ports
from tools.lightning.market import NodesMarket
from tools.lightning.network import Network


@pytest.fixture
def market(tmp_path):
    """Its folder, its relay's address and its committee's; nothing runs."""
    network = Network(tmp_path / "net")
    network.folder.mkdir()
    nodes = {one: {"url": f"http://127.0.0.1:{at}", "token_file": f"/{one}.rpc"} for at, one in enumerate("abc", 1)}
    network.state_file.write_text(json.dumps({"nodes": nodes}))
    made = NodesMarket(tmp_path, network)
    made.relay, made.blossom, made.committee = "ws://127.0.0.1:1", "http://127.0.0.1:1", f"38841:{'ab' * 32}:four"
    made.models = {made._wanted[0].name: {"address": f"38840:{'cd' * 32}:model", "tasks": [{"name": "driver"}]}}
    return made


async def test_customers_have_the_wallet_of_a_and_providers_that_of_c(market):
    (model,) = market.models
    customer = CustomerConfig.load(await market.customer_config("customer"))
    provider = ProviderConfig.load((await market.add_provider([(model, "driver")])).config)
    assert (customer.wallet.url, provider.wallet.url) == ("http://127.0.0.1:1", "http://127.0.0.1:3")
    for role in (customer, provider):
        assert (role.wallet.kind, role.wallet.network, role.holder) == ("electrum", "bcrt", None)
    assert (provider.credit, provider.bond.amount_msat) == (CreditConfig(), 0)
    await market.open_money()
    assert market.processes == {} and not market.simnet


def test_ports_are_others_and_none_that_the_system_hands_out():
    found = free_ports(20)
    assert len(set(found)) == 20 and set(found) <= set(PORTS)
    assert PORTS.stop <= 32_768
