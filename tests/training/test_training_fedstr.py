"""FEDSTR's layout: two chained rounds bought by a customer that knows nothing else, and all that is refused."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nip01 import Filter
from nodewire.protocol.frame import Frame
from nodewire.train import bare, data, state
from nodewire.train.families import initial
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.fedstr_customer import customer, hosting, inputs, params, save, sealed, stepped, why
from tests.training.small_market import DEPOSIT_MSAT, LEAST_MSAT, OPENING_MSAT, provider

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
SHARD = data.split(dataset(), 1, TWO_ROUNDS).shards[0].packed
THETA = {name: tensor.numpy() for name, tensor in initial(TWO_ROUNDS).items()}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


@pytest.fixture
async def host():
    async with hosting() as running:
        yield running


@asynccontextmanager
async def dora(market):
    async with customer(market.relay, await market.wallet("dora", OPENING_MSAT), Keys(b"\x0d" * 32)) as one:
        yield one


def round_of(host, *, theta=THETA, number=0, recipe=TWO_ROUNDS, run="fedavg", shard=SHARD, **more):
    weights = save(theta)
    return [
        *inputs("data", host.put("shard", shard), shard),
        *inputs("state", host.put(f"theta{number}", weights), weights),
        *params(task="train", run=run, recipe=json.dumps(recipe.document()), round=number, **more),
    ]


async def test_a_plain_customer_buys_two_chained_rounds_and_gets_what_the_bare_loop_makes(market, host):
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        (ad,) = await one.pool.fetch([Filter(kinds=frozenset({31990}), tags={"k": frozenset({"8000"})})])
        assert ad.pubkey == ada.public and json.loads(ad.content)["least_msat"] == LEAST_MSAT
        first, result = await one.buy(ada.public, round_of(host))
        assert json.loads(result.tag("request"))["id"] == first.id
        assert result.values("i") == first.values("i")
        theta = stepped(THETA, await one.update(result))
        weights = save(theta)
        chained = [
            ["i", result.id, "job", market.relay],
            *inputs("state", host.put("theta1", weights), weights),
            *params(task="train", run="fedavg", recipe=json.dumps(TWO_ROUNDS.document()), round=1),
        ]
        second, result = await one.buy(ada.public, chained)
        theta = stepped(theta, await one.update(result))
        assert one.said(second)[0] == "payment-required" and "processing" in one.said(second)
    expected, _ = bare.run(TWO_ROUNDS, dataset(), 1)
    assert {name: array.tobytes() for name, array in theta.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in expected.items()
    }
    assert one.paid_msat == 2 * LEAST_MSAT
    assert await market.balance_msat("ada") == 2 * LEAST_MSAT
