"""Every family in every way, over a market: what comes out is the bare loop's, byte for byte."""

from __future__ import annotations

import pytest
import torch

from nodewire.train import bare, state
from tests.training import models, small_market
from tests.training.models import Given
from tests.training.small_market import provider, train

torch.set_num_threads(1)

FAMILIES = ("linear", "mlp", "cnn", "decoder", "encoder")
AVERAGE = {"method": "average"}
DILOCO = {"method": "nesterov", "lr": "0.7", "momentum": "0.9"}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(given: Given, shards: int = 2) -> bytes:
    return state.pack(bare.run(given.recipe, given.dataset, shards, start=given.tensors)[0])


@pytest.mark.parametrize(
    ("outer", "compression"),
    [(AVERAGE, "f32"), (DILOCO, "int8"), (DILOCO, "int4")],
    ids=["FedAvg f32", "DiLoCo int8", "DiLoCo int4"],
)
@pytest.mark.parametrize("name", models.MAKERS)
async def test_the_markets_weights_are_the_bare_loops(market, tmp_path, name, outer, compression):
    given = models.given(name, tmp_path / "files", outer=outer, compression={"method": compression})
    wanted = expected(given)
    assert wanted != expected_before(given)
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        done, weights = await train(market, "dora", given.recipe, data=given.data, start=given.start)
    assert weights == wanted
    assert done.failures == ()


def expected_before(given: Given) -> bytes:
    return state.pack(bare.run(given.recipe, given.dataset, 2, start=given.tensors, rounds=0)[0])
