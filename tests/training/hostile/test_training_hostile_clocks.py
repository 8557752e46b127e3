"""Clocks that are wrong, or are set while a training runs: nobody is deaf, and nobody's work is lost by it."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from nodewire.errors import NodewireError
from nodewire.training.customer.machine.events import StepCompletion, WorkStart
from nodewire.training.customer.market.context import TrainingOrder
from tests.kinds.digits import RECIPE
from tests.training import small_market
from tests.training.market.test_training_market import expected
from tests.training.small_market import BUDGET_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)
ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


class Clock:
    """The time of whoever's modules are given it."""

    def __init__(self, monkeypatch, *modules: str) -> None:
        self.off_s = 0.0
        real = time.time
        for module in modules:

            class Shifted:
                monotonic = staticmethod(time.monotonic)
                time = staticmethod(lambda: real() + self.off_s)

            monkeypatch.setattr(f"{module}.time", Shifted)


CUSTOMERS = [
    "nodewire.training.customer.driver",
    *(
        f"nodewire.training.customer.market.{one}"
        for one in ("shard_assignment", "results", "audits", "round_close", "round_request")
    ),
]
PROVIDERS = [
    f"nodewire.training.provider.{one}" for one in ("service", "shard_job", "paid_job", "carried_store", "clock_watch")
]


@pytest.mark.parametrize("off_s", [50.0, -50.0])
async def test_a_customer_whose_clock_is_a_minute_off_hears_its_providers(market, monkeypatch, off_s):
    """Providers take what is dated so far ahead; so what they answer, by their own clocks, has to be heard."""
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 3.0)
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.ANSWER_S", 3.0)
    Clock(monkeypatch, *CUSTOMERS).off_s = off_s
    async with provider(market, "ada"):
        async with asyncio.timeout(60):
            _, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(ONE_ROUND, 1)


async def test_a_clock_that_was_an_hour_ahead_and_is_right_again_costs_nothing(market, monkeypatch):
    """A training that was begun by it would be deaf for an hour, however often it is taken up."""
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 2.0)
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.ANSWER_S", 2.0)
    clock = Clock(monkeypatch, *CUSTOMERS)
    async with provider(market, "ada"):
        clock.off_s = 3600.0
        with pytest.raises(NodewireError):  # relays, or whom it asks, refuse what is of the future
            await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
        clock.off_s = 0.0
        async with asyncio.timeout(60):
            _, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(ONE_ROUND, 1)


async def test_a_customers_clock_that_jumps_loses_no_late_result(market, monkeypatch):
    """By the clock the deadline of what is late has come; its provider has still as long as it was told."""
    recipe = RECIPE.model_copy(update={"rounds": 2, "quorum": "0.5", "deadline": 15})
    clock = Clock(monkeypatch, *CUSTOMERS)
    monkeypatch.setattr("nodewire.training.customer.policy.result_deadline.GRACE_S", 0.5)
    late = asyncio.Event()

    async def hold(edge):
        if edge == "train":
            await late.wait()

    def watch(now, event, who):
        if isinstance(event, StepCompletion) and event.round == 0:
            clock.off_s = 45.0
            asyncio.get_running_loop().call_later(3.0, late.set)

    async with provider(market, "ada"), provider(market, "bea", Conduct(hold=hold), concurrency=1):
        async with asyncio.timeout(60):
            done, _ = await train(market, "dora", recipe, on_change=watch)
    assert [reason for _, reason in done.failures if "deadline" in reason] == []
    assert await market.balance_msat("bea") >= LEAST_MSAT


@pytest.mark.parametrize("off_s", [300.0, -300.0])
async def test_a_providers_clock_that_was_wrong_at_its_start_does_not_deafen_it(market, monkeypatch, off_s):
    """It would hear no request until the time that it began with."""
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 3.0)
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.ANSWER_S", 3.0)
    clock = Clock(monkeypatch, *PROVIDERS)
    clock.off_s = off_s
    async with provider(market, "ada"):
        await asyncio.sleep(0.5)
        clock.off_s = 0.0
        await asyncio.sleep(2.5)
        async with asyncio.timeout(60):
            _, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT))
    assert weights == expected(ONE_ROUND, 1)


@pytest.mark.parametrize("off_s", [100_000.0, -100_000.0])
async def test_a_providers_clock_that_jumps_between_delivery_and_pay_costs_it_nothing(market, monkeypatch, off_s):
    clock = Clock(monkeypatch, *PROVIDERS)

    def watch(now, event, who):
        if isinstance(event, WorkStart):
            clock.off_s = off_s

    async with provider(market, "ada"):
        async with asyncio.timeout(60):
            done, weights = await train(market, "dora", ONE_ROUND, TrainingOrder(1, BUDGET_MSAT), on_change=watch)
    assert weights == expected(ONE_ROUND, 1)
    assert done.failures == ()
    assert await market.balance_msat("ada") == LEAST_MSAT
