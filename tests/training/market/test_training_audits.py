"""Audits that a crash does not get around, and that show a customer what was drawn and nothing else."""

from __future__ import annotations

import asyncio

import pytest
import torch

from nodewire.errors import Busy, NoProvider
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.protocol import audit, round_close
from nodewire.training.protocol.result import Progress
from nodewire.training.provider.shard_job import MAX_ASKED, ShardRun
from tests.kinds.digits import RECIPE
from tests.training import small_market
from tests.training.market.test_training_market import Killed, expected, lies
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


async def test_who_lied_is_not_paid_though_its_customer_dies_after_everything_that_happens(market):
    def die(state_, event, provider_):
        if not isinstance(event, Progress):
            raise Killed

    async with (
        provider(market, "ada", Conduct(alter=lies)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        while True:
            try:
                done, weights = await train(market, "dora", RECIPE, on_change=die)
                break
            except Killed:
                pass
    assert weights == expected(RECIPE)
    assert {who for who, _ in done.failures} == {ada.public}
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


async def test_a_close_names_what_was_delivered_before_anything_is_asked_for(market):
    async with provider(market, "ada"), provider(market, "bea"):
        await train(market, "dora", TWO_ROUNDS)
        async with Pool([market.relay]) as pool:
            events = await pool.fetch([Filter(kinds=frozenset({6840, 8844, 8859}))])
    closes = {event.id: round_close.parse(event) for event in events if event.kind == 8859}
    results = {event.id: event for event in events if event.kind == 6840}
    asked = [audit.parse(event) for event in events if event.kind == 8844]
    assert sorted(closed.close.round for closed in closes.values()) == [0, 1]
    assert {one.result for closed in closes.values() for one in closed.close.results} == set(results)
    assert len(asked) == 4
    for one in asked:
        closed = closes[one.close]
        counted = closed.close.find_result(one.request, one.provider)
        assert counted.commitment == results[counted.result].tag("x")
        assert one.snapshots == round_close.ends(round_close.drawn(closed, counted, TWO_ROUNDS, TWO_ROUNDS.steps))


async def test_a_provider_shows_nothing_that_the_close_does_not_draw(market, monkeypatch):
    """And the customer that asked for it has nothing to say against that."""
    ask = audit.ask

    def fishes(keys, kind, request, provider_, close, snapshots, **at):
        return ask(keys, kind, request, provider_, close, (2, 5, 7), **at)

    recipe = RECIPE.model_copy(
        update={"rounds": 1, "audit": RECIPE.audit.model_copy(update={"segment": 2, "fraction": "0.1"})}
    )
    monkeypatch.setattr("nodewire.training.protocol.audit.ask", fishes)
    monkeypatch.setattr("nodewire.training.customer.market.audits.AUDIT_S", 1.0)
    heard = asyncio.Event()
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 3.0)
    failures: tuple[tuple[str, str], ...] = ()

    def watch(now, event, who):
        nonlocal failures
        failures = now.failures

    async with provider(market, "ada", published=lambda event: event.tag("status") == "error" and heard.set()):
        with pytest.raises(NoProvider):  # to make the round again
            await train(market, "dora", recipe, TrainingOrder(1, BUDGET_MSAT), on_change=watch)
        async with Pool([market.relay]) as pool:
            assert not await pool.fetch([Filter(kinds=frozenset({6844}))])
    assert heard.is_set()
    assert any("withheld" in reason for _, reason in failures)


async def test_who_is_asked_again_after_a_crash_gives_the_same_answer(market):
    answers: dict[str, list[str]] = {}

    def published(event):
        if event.kind == 6844:
            answers.setdefault(event.tag("e"), []).append(event.id)

    deaths = 0

    def die(state_, event, provider_):
        nonlocal deaths
        if "held" in {debt.balance for debt in state_.debts.values()} and not isinstance(event, Progress):
            deaths += 1
            raise Killed

    async with provider(market, "ada", published=published):
        while True:
            try:
                done, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(1, BUDGET_MSAT), on_change=die)
                break
            except Killed:
                pass
    assert deaths > 2 and done.failures == ()
    assert weights == expected(TWO_ROUNDS, 1)
    assert len(answers) == 2 and all(len(set(ids)) == 1 for ids in answers.values())
    assert await market.balance_msat("ada") == 2 * LEAST_MSAT


def test_questions_are_counted():
    run = object.__new__(ShardRun)
    run._asked = 0
    for _ in range(MAX_ASKED):
        run.check_asked()
    with pytest.raises(Busy):
        run.check_asked()
