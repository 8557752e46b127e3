"""Wallets that take whole satoshis pay parts of less: in lumps, and by what is ahead, to the msat in both books."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
import torch

from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.ledger import Ledger
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.engine import bare_loop, state
from nodewire.training.protocol.recipe import Recipe
from simnet.wallet import SimWallet
from tests.kinds.digits import TOML, dataset
from tests.training import small_market
from tests.training.small_market import BUDGET_MSAT, OPENING_MSAT, provider, train

torch.set_num_threads(1)
ROUNDS, PRICE_MSAT = 6, 350
RECIPE = Recipe.from_toml(TOML.replace("rounds = 3", f"rounds = {ROUNDS}"))
CHEAP = {"least_msat": PRICE_MSAT}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path, unit_msat=1_000) as running:
        yield running


def expected(shards=2) -> bytes:
    return state.pack(bare_loop.run(RECIPE, dataset(), shards)[0])


@contextmanager
def book(market, name):
    ledger = Ledger(market.folder / name / "ledger.db")
    try:
        yield ledger
    finally:
        ledger.close()


async def books_agree(market, *names: str) -> dict[str, int]:
    """Of dora's and of these providers' books, and of their wallets; what each provider has earned."""
    earned = {}
    me = Keys.from_file(market.folder / "dora" / "key").public
    with book(market, "dora") as mine:
        paid_msat = 0
        for name in names:
            tab = mine.tab(Keys.from_file(market.folder / name / "key").public)
            paid_msat += tab.paid_msat
            with book(market, name) as theirs:
                async with asyncio.timeout(60):
                    while theirs.paid_msat(me) < tab.paid_msat:
                        await asyncio.sleep(0.01)
                assert (theirs.paid_msat(me), theirs.balance_msat(me)) == (tab.paid_msat, tab.ahead_msat)
                assert theirs.owed_msat(me) == tab.owed_msat == 0
                earned[name] = theirs.earned_msat()
            assert earned[name] + tab.ahead_msat == tab.paid_msat == await market.balance_msat(name)
        spent = mine.spent()
        assert spent.paid_msat == sum(earned.values())
        assert OPENING_MSAT - await market.balance_msat("dora") == paid_msat + spent.fees_msat
    return earned


def count_payments(market) -> int:
    with book(market, "dora") as mine:
        return int(mine._db.execute("SELECT count(*) FROM payments WHERE state = 'paid'").fetchone()[0])


async def test_a_training_is_paid_in_fewer_lumps_than_it_has_parts(market):
    async with provider(market, "ada", **CHEAP), provider(market, "bea", **CHEAP):
        done, weights = await train(market, "dora", RECIPE)
        earned = await books_agree(market, "ada", "bea")
    assert weights == expected()
    assert done.failures == ()
    assert earned == {"ada": ROUNDS * PRICE_MSAT, "bea": ROUNDS * PRICE_MSAT}
    assert {(one.part, one.amount_msat) for one in market.transcript.payments} == {(0, 88), (1, 262), (1, 350)}
    assert len(market.transcript.payments) == 2 * (ROUNDS + 1)
    assert count_payments(market) == 2 * 3  # of 1 sat each


async def test_deposits_are_paid_by_what_is_ahead_while_results_wait_for_their_audits(market):
    """Who has two shards is asked for a deposit for the second in each round, and gives credit for balances."""
    async with provider(market, "ada", concurrency=2, credit_msat=10**6, **CHEAP):
        done, weights = await train(market, "dora", RECIPE, TrainingOrder(2, BUDGET_MSAT))
        earned = await books_agree(market, "ada")
    assert weights == expected()
    assert done.failures == ()
    assert earned == {"ada": 2 * ROUNDS * PRICE_MSAT}
    assert count_payments(market) <= 5


async def test_a_customer_and_a_provider_that_die_again_and_again_leave_no_msat(market):
    died, deaths, seen = asyncio.Event(), 0, set()

    def die(state_, event, provider_):
        nonlocal deaths
        if type(event) not in seen:
            seen.add(type(event))
            deaths += 1
            raise RuntimeError("the customer's process ends here")

    async def ada():
        said = set()

        def dies(event):
            what = event.kind, event.tag("e"), event.tag("status")
            if what not in said:
                said.add(what)
                died.set()

        while True:
            died.clear()
            async with provider(market, "ada", published=dies, **CHEAP):
                await died.wait()

    async with provider(market, "bea", **CHEAP):
        keeps_dying = asyncio.create_task(ada())
        while True:
            try:
                _, weights = await train(market, "dora", RECIPE, on_change=die)
                break
            except RuntimeError:
                continue
        keeps_dying.cancel()
        await asyncio.gather(keeps_dying, return_exceptions=True)
    assert deaths > 8
    assert weights == expected()
    async with provider(market, "ada", **CHEAP), provider(market, "bea", **CHEAP):
        earned = await books_agree(market, "ada", "bea")
    assert earned == {"ada": ROUNDS * PRICE_MSAT, "bea": ROUNDS * PRICE_MSAT}


async def test_a_deposit_that_comes_when_it_is_not_waited_for_any_more_is_a_deposit_in_both_books(market, monkeypatch):
    given_up, pay = asyncio.Event(), SimWallet.pay

    async def late(wallet, bolt11, **options):
        await given_up.wait()
        return await pay(wallet, bolt11, **options)

    def note(event):
        if event.kind == 7000 and event.tag("status") == "error":
            given_up.set()

    monkeypatch.setattr(SimWallet, "pay", late)
    async with (
        provider(market, "ada", patience_s=0.5, published=note, **CHEAP),
        provider(market, "bea", **(CHEAP | {"least_msat": 2 * PRICE_MSAT})),
    ):
        _, weights = await train(market, "dora", RECIPE, TrainingOrder(1, BUDGET_MSAT))
        earned = await books_agree(market, "ada", "bea")
    assert given_up.is_set()
    assert weights == expected(1)
    assert sum(earned.values()) >= ROUNDS * PRICE_MSAT
