"""Outer steps that are bought: parity with the bare loop, exact pay, crashes, and what comes of those who cheat."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import torch

from nodewire.protocol.recipe import Compression, Outer
from nodewire.train import bare, state
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import LEAST_MSAT, provider, train

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
NESTEROV = TWO_ROUNDS.model_copy(
    update={"outer": Outer(method="nesterov", lr="0.7", momentum="0.9"), "compression": Compression(method="int8")}
)
STEPS = {"kinds": (8842,)}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(recipe=TWO_ROUNDS, shards=2) -> bytes:
    return state.pack(bare.run(recipe, dataset(), shards)[0])


@pytest.mark.parametrize(
    ("changes", "shards"),
    [
        ({}, 2),
        ({"outer": Outer(aggregate="clip", bound="1.0")}, 2),
        ({"outer": Outer(method="nesterov", lr="0.7", momentum="0.9"), "compression": Compression(method="int8")}, 2),
        ({"outer": Outer(method="fedadam", lr="0.01", aggregate="median")}, 3),
    ],
    ids=["average", "clip", "nesterov int8", "fedadam median"],
)
async def test_bought_steps_make_what_the_bare_loop_makes_and_are_paid(market, changes, shards):
    recipe = TWO_ROUNDS.model_copy(update=changes)
    async with AsyncExitStack() as stack:
        for name in ("ada", "bea", "cyd")[:shards]:
            await stack.enter_async_context(provider(market, name))
        await stack.enter_async_context(provider(market, "oona", **STEPS))
        done, weights = await train(market, "dora", recipe, shards=shards, buys_steps=True)
    assert weights == expected(recipe, shards)
    assert done.failures == ()
    assert await market.balance_msat("oona") == 2 * LEAST_MSAT
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2
