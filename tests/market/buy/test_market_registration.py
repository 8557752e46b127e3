"""A module of one's own, from Python to the market and back: registered, published, served by two, bought, the same."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import torch
from torch import nn

import nodewire
from tests.market.buy.test_market_dag import BOND_MSAT, PRICE_MSAT, Dag

logging.getLogger("torch.__trace").disabled = True  # thousands of records, which pytest would keep
pytestmark = pytest.mark.timeout(600)
WIDTH, WORDS, TARGET = 48, 60, 180_000


class Mine(nn.Module):
    """Words and what was measured beside them, in a mapping; two outputs, one of them an embedding's own weight."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.measured = nn.Linear(5, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2))
        self.back = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, said):
        x = self.words(said["ids"]) + self.measured(said["numbers"])[:, None]
        for up, down in zip(self.layers, self.back, strict=True):
            x = x + down(torch.nn.functional.silu(up(x)))
        return {"words": x @ self.words.weight.t(), "whole": x.mean(1)}


def call(rows: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows)
    return {
        "said.ids": random.integers(0, WORDS, (rows, length)),
        "said.numbers": random.standard_normal((rows, 5)).astype(np.float32),
    }


def said(given: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("said."): torch.from_numpy(array) for name, array in given.items()}


async def test_a_module_of_ones_own_is_bought_of_strangers_and_says_what_it_says_at_home(market, tmp_path):
    torch.manual_seed(6)
    model, blobs = Mine().eval(), tmp_path / "blobs"
    examples = [{"said": said(call(*sizes))} for sizes in ((1, 4), (6, 9))]
    made = nodewire.register(model, examples, target_vram=TARGET, out=blobs, name="mine")
    tasks = [task.name for task in made.manifest.tasks]
    assert len(tasks) > 1
    where = ["--relay", market.relay, "--blossom", market.blossom, "--key", str(market.folder / "author.nsec")]
    published = await asyncio.to_thread(market.command, "register", str(blobs), *where)
    assert published["digest"] == made.manifest.digest()
    dag = Dag(market, published["address"], published["digest"], {})
    try:
        for name, own in (("wim", tasks[::2]), ("xan", tasks[1::2])):
            await asyncio.to_thread(dag.start, name, own, 1_000, BOND_MSAT)
            dag.public[name] = (await asyncio.to_thread(market.ready, name))["public"]
        now = await dag.live("wim", "xan")
        async with market.customer("dora-at-home") as customer:
            await customer.session.market.epoch(timeout_s=30, after=now - 1)
            calls = [call(3, 5), call(6, 9), call(1, 2), call(20, 4)]  # the last is made in parts
            outputs = await customer.run(dag.address, calls)
            paid = customer.last["paid_msat"]
    finally:
        for name in dag.public:
            market.stop_one(name)
    with torch.no_grad():
        for got, given in zip(outputs, calls, strict=True):
            for name, wanted in model(said(given)).items():
                np.testing.assert_allclose(got[name], wanted.numpy(), rtol=0, atol=1e-5)
    assert paid.keys() == set(dag.public.values())
    assert all(one % PRICE_MSAT == 0 and one >= len(calls) * PRICE_MSAT for one in paid.values())
