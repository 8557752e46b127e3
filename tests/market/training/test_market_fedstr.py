"""A provider's daemon with `fedstr` switched on, and a customer that knows nothing but that layout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.training.engine import bare_loop, data
from nodewire.training.engine.families import initial
from simnet.wallet import SimWallet
from tests.kinds.digits import RECIPE, dataset
from tests.market.market_process import SIMNET, RunningMarket, _toml
from tests.training.fedstr_customer import customer, hosting, inputs, params, save, stepped

LEAST_MSAT, POW_BITS = 7_001, 4
ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})


class Market(RunningMarket):
    """A relay, a Lightning network, a committee that nobody runs, and one trainer."""

    def start(self) -> None:
        self.spawn("relay", "relay", "--port", "0", "--db", self._path("relay.db"), "--blobs", self._path("blobs"))
        self.spawn("simnet", "--port", "0", "--db", self._path("simnet.db"), "--faucet", program=SIMNET)
        ready = self.ready("relay")
        self.relay, self.blossom, self.simnet = ready["url"], ready["blossom"], self.ready("simnet")["url"]
        where = ["--relay", self.relay, "--blossom", self.blossom]
        made = self.command("committee", "create", self._path("committee"), "--oracles", "4", *where)
        asyncio.run(self._open_wallet("ada", 0))
        role = {"key": "key.nsec", "state": "state", "relays": [self.relay], "blossom": [self.blossom]}
        role |= {"committee": made["address"], "patience_s": 20, "pow_bits": POW_BITS}
        train = {"msat_per_pflop": 1, "least_msat": LEAST_MSAT, "fedstr": True, "private_endpoints": True}
        worker = '[worker]\nmemory = "300MB"'
        self._write("ada", [*_toml(role), *self._wallet(), worker, "[train]", *_toml(train)])
        self.spawn("ada", "provider", "--config", str(self.config_of("ada")))
        self.public["ada"] = self.ready("ada")["public"]


@pytest.fixture
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    running = Market(tmp_path_factory.mktemp("fedstr"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


async def test_a_daemon_sells_a_round_in_fedstrs_layout_and_none_without_work(market):
    shard = data.split(dataset(), 1, ONE_ROUND).shards[0].packed
    theta = {name: tensor.numpy() for name, tensor in initial(ONE_ROUND).items()}
    wallet, _ = await SimWallet.open_account(market.simnet, "dora", 10**6)
    async with hosting() as host, customer(market.relay, wallet, Keys(b"\x0d" * 32)) as one:
        wanted = Filter(kinds=frozenset({31990}), tags={"k": frozenset({"8000"})})
        async with asyncio.timeout(300):
            while not (ads := await one.pool.fetch([wanted])):
                await asyncio.sleep(0.1)
        assert [(ad.pubkey, json.loads(ad.content)["pow_bits"]) for ad in ads] == [(market.public["ada"], POW_BITS)]
        tags = [
            *inputs("data", host.put("shard", shard), shard),
            *inputs("state", host.put("theta", save(theta)), save(theta)),
            *params(task="train", run="fedavg", recipe=json.dumps(ONE_ROUND.document())),
        ]
        _, result = await one.buy(market.public["ada"], tags, encrypted=True, pow_bits=POW_BITS)
        theta = stepped(theta, await one.update(result))
    expected, _ = bare_loop.run(ONE_ROUND, dataset(), 1)
    assert {name: array.tobytes() for name, array in theta.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in expected.items()
    }
    assert one.paid_msat == 2_000 + 6_000  # in whole satoshis
