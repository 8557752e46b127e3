"""A process that dies before or after any of its writes, each once: nothing is paid twice, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch

from nodewire.errors import NoProvider
from nodewire.pay.accounts.ledger import Ledger
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.provider.store import KeptShards
from nodewire.training.provider.undelivered_results import MadeResults
from tests.kinds.digits import RECIPE
from tests.training import small_market
from tests.training.market.test_training_market import expected
from tests.training.small_market import BUDGET_MSAT, LEAST_MSAT, provider, train

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
CUSTOMER = {Journal: ("append",), Ledger: ("plan", "record", "close_job")}
PROVIDER = {
    Ledger: ("owe", "quoted", "settled", "receipted"),
    KeptShards: ("begun", "delivered", "remove", "stands_for"),
    MadeResults: ("keep", "remove"),
}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


class Killed(BaseException):
    """The process ends here."""


class SingleProcess:
    """Dies before and after every write, each once (of each type of event); the dead write nothing."""

    def __init__(self, monkeypatch, writes) -> None:
        self.died: Counter[str] = Counter()
        self.dead = asyncio.Event()
        for cls, names in writes.items():
            for name in names:
                monkeypatch.setattr(cls, name, self._wrapped(cls, name))

    def _wrapped(self, cls, name):
        real = getattr(cls, name)

        def write(writer, *args, **named):
            if self.dead.is_set():
                raise Killed
            what = f"{cls.__name__}.{name}" + (f" {type(args[-1]).__name__}" if name in ("append", "record") else "")
            self._die(f"before {what}")
            done = real(writer, *args, **named)
            self._die(f"after {what}")
            return done

        return write

    def _die(self, where: str) -> None:
        if not self.died[where]:
            self.died[where] += 1
            self.dead.set()
            raise Killed


async def paid_once(market, done, *names: str) -> None:
    book = Ledger(market.folder / "dora" / "ledger.db")
    try:
        assert (done.owed, book.unpaid()) == ({}, [])
        assert sum([await market.balance_msat(name) for name in names]) == book.spent().paid_msat
    finally:
        book.close()


async def test_a_customer_dies_before_and_after_each_of_its_writes(market, monkeypatch):
    mortal = SingleProcess(monkeypatch, CUSTOMER)
    async with provider(market, "ada"), asyncio.timeout(200):
        while True:
            mortal.dead.clear()
            try:
                done, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT))
                break
            except BaseException:
                if not mortal.dead.is_set():
                    raise
    assert len(mortal.died) >= 28, sorted(mortal.died)
    assert weights == expected(TWO_ROUNDS, 1)
    assert done.failures == ()
    await paid_once(market, done, "ada")
    assert await market.balance_msat("ada") == 2 * LEAST_MSAT


async def test_a_provider_dies_before_and_after_each_of_its_writes(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.ANSWER_S", 3.0)
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 1.0)
    monkeypatch.setattr("nodewire.protocol.model.inline_blob.MAX_BYTES", 0)  # so that what is made is kept
    mortal = SingleProcess(monkeypatch, PROVIDER)

    async def lives() -> None:
        while True:
            mortal.dead.clear()
            async with provider(market, "ada"):
                await mortal.dead.wait()

    recipe = RECIPE.model_copy(update={"rounds": 6})
    living = asyncio.create_task(lives())
    try:
        async with asyncio.timeout(200):
            while True:  # whoever is not found in time is asked again
                try:
                    done, weights = await train(market, "dora", recipe, TrainingOrder(1, BUDGET_MSAT))
                    break
                except NoProvider:
                    continue
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
    assert len(mortal.died) == 20, sorted(mortal.died)
    assert weights == expected(recipe, 1)
    await paid_once(market, done, "ada")
