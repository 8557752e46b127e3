"""A training in parts of less than a satoshi, between wallets that take whole satoshis: in lumps, to the msat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from nodewire.training.engine import bare_loop, state
from nodewire.training.protocol.recipe import Recipe
from tests.kinds.digits import TOML, dataset
from tests.market.training.test_market_training import SATS, TrainingMarket, until

ROUNDS, PRICE_MSAT = 6, 350
DONE_MSAT = ROUNDS * PRICE_MSAT
RECIPE = TOML.replace("rounds = 3", f"rounds = {ROUNDS}")
pytestmark = pytest.mark.timeout(600)


class LumpMarket(TrainingMarket):
    unit_msat, least_msat = 1_000, PRICE_MSAT


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LumpMarket]:
    running = LumpMarket(tmp_path_factory.mktemp("lumps"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def count_payments(market, name: str) -> int:
    book = market.ledger(name)
    try:
        (count,) = book._db.execute("SELECT count(*) FROM payments WHERE state = 'paid'").fetchone()
        return int(count)
    finally:
        book.close()


def tabs(market, name: str, role: str) -> dict[str, dict[str, int]]:
    key = role.removesuffix("s")
    shown = market.command("wallet", "tabs", "--config", str(market.config_of(name)))[role]
    return {one[key]: one for one in shown}


def check_books(market, name: str) -> None:
    """Of a customer that has paid for a training of two shards, and of both who trained it."""
    asyncio.run(market.settled(name))
    me, mine = market.keys(name).public, tabs(market, name, "payees")
    for trainer, public in market.public.items():
        theirs = tabs(market, trainer, "customers")[me]
        for field in ("owed_msat", "ahead_msat", "paid_msat"):
            assert theirs[field] == mine[public][field], (trainer, field)
        assert mine[public]["owed_msat"] == 0
        assert mine[public]["paid_msat"] - mine[public]["ahead_msat"] == DONE_MSAT
    book = market.ledger(name)
    try:
        paid_msat = sum(one["paid_msat"] for one in mine.values())
        assert asyncio.run(market.balances_msat(name))[name] == SATS * 1_000 - paid_msat - book.spent().fees_msat
    finally:
        book.close()


def test_a_training_in_parts_of_less_than_a_satoshi_is_paid_in_few_lumps(trainers):
    expected, _ = bare_loop.run(Recipe.from_toml(RECIPE), dataset(), 2)
    done = trainers.train("dora", RECIPE)
    assert trainers.weights("dora") == state.pack(expected)
    assert done["failures"] == []
    assert done["paid_msat"] == 2 * DONE_MSAT
    check_books(trainers, "dora")
    assert count_payments(trainers, "dora") == 2 * 3 < 2 * (ROUNDS + 1)  # of 1 sat each, for parts of 87.5 to 350 msat
    whose = ["--config", str(trainers.config_of("dora")), "--data", str(trainers.data())]
    assert trainers.command("audit", str(done["transcript"]), *whose)["faults"] == []


def test_a_customer_that_died_goes_on_with_what_it_has_paid_ahead(trainers):
    recipe = RECIPE.replace("steps = 20", "steps = 300")
    expected, _ = bare_loop.run(Recipe.from_toml(recipe), dataset(), 2)
    process = trainers.training("gina", recipe)
    until(process, "round 3 of 6: asked")
    process.kill()
    process.wait()
    done = trainers.train("gina", recipe)
    assert trainers.weights("gina") == state.pack(expected)
    assert done["paid_msat"] == 2 * DONE_MSAT
    check_books(trainers, "gina")
    assert count_payments(trainers, "gina") == 2 * 3
