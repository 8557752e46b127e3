"""A provider that follows demand takes over what nobody else serves, and customers buy it there."""

from __future__ import annotations

import asyncio
import json

import pytest

from nodewire.provider.autoscale import store
from tests.market.buy.test_market_dag import check, publish_dag
from tests.market.dag_model import call, register
from tests.market.market_process import WIRE, _toml

pytestmark = pytest.mark.timeout(600)
PRICE_MSAT = 1_009
SELLERS = {"oda": (("left", "join"), 20_000), "pip": (("right",), 1_000)}
"""By name: tasks, microseconds. oda is the slowest, so that una goes there first."""


def role(market, name, *lines):
    asyncio.run(market._open_wallet(name, 0))
    common = {
        "key": "key.nsec",
        "state": "state",
        "relays": [market.relay],
        "blossom": [market.blossom],
        "committee": market.committee,
    }
    top = [line for line in lines if "=" in line and not line.startswith("[")]
    tables = [line for line in lines if line not in top]
    market._write(name, [*_toml(common), *top, *market._wallet(), '[worker]\nmemory = "60MB"', WIRE, *tables])


@pytest.fixture(scope="module")
def followers(market, tmp_path_factory):
    """The model's address and digest, and the three sellers' public keys."""
    folder = tmp_path_factory.mktemp("followed")
    address, digest = asyncio.run(publish_dag(market, folder, "followed"))
    memory = max(task.memory_bytes for task in register(folder / "again", "followed").manifest.tasks)
    for name, (tasks, us) in SELLERS.items():
        serve = {"manifest": address, "tasks": tasks, "price_msat": PRICE_MSAT, "us_per_position": us}
        role(market, name, "\n".join(["[[serve]]", *_toml(serve)]))
    auto = {"manifests": [address], "memory": 3 * memory // 2, "rest": 1, "patience": 1, "slots": 4}
    role(market, "una", 'specialize = "auto"', "\n".join(["[auto]", *_toml(auto)]))
    names = [*SELLERS, "una"]
    for name in names:
        market.start_provider(name, wait=False)
    public = {name: market.ready(name)["public"] for name in names}
    yield address, digest, public
    for name in names:
        market.stop_one(name)


async def holds(market, digest, public, task):
    """The first epoch in which the node is certified to offer this task of the model with a free slot."""

    def held(snapshot):
        node = snapshot.node(public)
        mine = [h for h in node.held if h.manifest == digest and h.free] if node is not None else []
        return any(offer.task == task for one in mine for offer in one.tasks)

    async with asyncio.timeout(120):
        return (await market.until(held)).body.epoch


async def test_what_a_provider_leaves_is_held_by_one_that_follows_demand(market, followers):
    address, digest, public = followers
    for name, (tasks, _) in SELLERS.items():
        await holds(market, digest, public[name], tasks[0])
    await holds(market, digest, public["una"], "left")
    async with market.customer("edna") as edna:
        given = call(3, 5)
        check([await edna.run(address, given)], [given])
        assert {one["task"]: one["provider"] for one in edna.last["tasks"]}["right"] == public["pip"]
        await asyncio.to_thread(market.stop_one, "pip")
        epoch = await holds(market, digest, public["una"], "right")
        await edna.session.market.epoch(timeout_s=30, after=epoch - 1)
        for seed in range(3):
            given = call(seed, 3, seed)
            check([await edna.run(address, given)], [given])
        by_task = {one["task"]: one["provider"] for one in edna.last["tasks"]}
        assert by_task == {"left": public["oda"], "right": public["una"], "join": public["oda"]}
        cost = edna.last["paid_msat"][public["una"]] + edna.last["on_tab_msat"][public["una"]]
        assert cost == PRICE_MSAT  # as much as pip asked
    known = store.read(market.folder / "una" / "state")
    assert (known.digest, known.tasks) == (digest, ("right",))
    log = market.log("una")  # there is room for one task at a time, so the old one was left first
    assert log.index("leaves left of followed: others serve") < log.index("holds right of followed: others serve")
    config = str(market.config_of("una"))
    shown = json.loads((await asyncio.to_thread(market.run, "doctor", "--config", config)).stdout)
    (row,) = [one for one in shown["checks"] if one["what"] == "specialize"]
    assert row["ok"] and row["said"].startswith("right of followed since epoch")
