"""Rounds with unequal and unreliable machines: steps by speed, quorums, late results, who comes and who leaves.

Whatever counted, the weights are the bare loop's with the same participation, which the steps' events say.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
import torch

from nodewire.errors import WorkerFailed
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.training.customer.machine.events import (
    Event,
    RequestPublication,
    ResultJudgement,
    ResultTimeout,
    ShardLoss,
    StepCompletion,
)
from nodewire.training.customer.machine.journal import Journal, tag
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.customer.policy.life_signs import LifeSigns
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.bare_loop import Part
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import Progress
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def of(**changes: object) -> Recipe:
    return Recipe.from_document(RECIPE.document() | {"rounds": 2} | changes)


def journal(market, name: str = "dora") -> list[Event]:
    one = Journal(market.folder / name / "journal.db")
    try:
        return one.events()
    finally:
        one.close()


def participation(market) -> dict[int, list[Part]]:
    """What counted in each round, as the journal says it."""
    steps = [event for event in journal(market) if isinstance(event, StepCompletion)]
    return {event.round: [Part(c.index, c.round, c.steps) for c in event.counted] for event in steps}


def expected(market, recipe: Recipe, shards: int = 2) -> bytes:
    return state.pack(bare_loop.run(recipe, dataset(), shards, participation=participation(market))[0])


async def earned(market, *names: str) -> list[int]:
    return [await market.balance_msat(name) for name in names]


class Gate:
    """Holds a provider at its training until it is opened; `at` is set when somebody stands there."""

    def __init__(self, edge: str = "train") -> None:
        self.at, self.open, self._edge = asyncio.Event(), asyncio.Event(), edge

    async def __call__(self, edge: str) -> None:
        if edge == self._edge:
            self.at.set()
            await self.open.wait()


async def test_the_faster_one_makes_more_steps_and_all_is_as_the_requests_say(market):
    recipe = of(pace="speed", audit={"segment": 5})

    async def slow(edge: str) -> None:
        await asyncio.sleep(0.2 if edge == "train" else 0)

    async with provider(market, "ada", gflops=40), provider(market, "bea", Conduct(hold=slow), gflops=10) as bea:
        _, weights = await train(market, "dora", recipe)
        async with Pool([market.relay]) as pool:
            requests = await pool.fetch([Filter(kinds=frozenset({8840}))])
    said = {(r.round.round, s.index): s.steps for r in map(rounds.parse, requests) for s in r.round.shards}
    assert sorted(said[0, index] for index in (0, 1)) == [5, 20]  # by what the ads claim
    assert 5 <= min(said[1, index] for index in (0, 1)) < 20  # by what it took
    whose = {
        row.index: row.provider
        for event in journal(market)
        if isinstance(event, RequestPublication)
        for row in event.rows
    }
    assert all(said[round_, index] < 20 for (round_, index) in said if whose[index] == bea.public)
    counted = participation(market)
    assert {(p.round, p.index): p.steps for parts in counted.values() for p in parts} == said
    assert weights == expected(market, recipe)
    assert weights != state.pack(bare_loop.run(recipe, dataset(), 2)[0])


@pytest.mark.parametrize(("late", "by"), [("drop", 1), ("half", 1), ("half", 2)])
async def test_a_round_is_stepped_without_who_takes_long_and_its_result_is_paid_and_counts_as_agreed(market, late, by):
    recipe = of(quorum="0.5", late=late, rounds=by + 1, outer=RECIPE.outer.document() | {"shards": 2})
    slow, quick = Gate(), Gate()
    quick.open.set()
    judged = []

    def watch(now, event, who):
        match event:
            case StepCompletion(round_) if round_ == by - 1:
                quick.open.clear()
                slow.open.set()
            case ResultJudgement():
                judged.append((event.request, who))
                if who == ada.public:
                    quick.open.set()

    async with provider(market, "ada", Conduct(hold=slow)) as ada, provider(market, "bea", Conduct(hold=quick)):
        done, weights = await train(market, "dora", recipe, on_change=watch)
    counted = participation(market)
    steps = recipe.steps
    (mine,) = [part.index for part in counted[0]]
    assert counted[0] == [Part(mine, 0, steps)]
    late_ones = [part for round_ in range(1, by + 1) for part in counted[round_] if part.round < round_]
    assert late_ones == ([Part(1 - mine, 0, steps)] if (late, by) == ("half", 1) else [])
    assert weights == expected(market, recipe)
    # Each is paid for what it delivered, whether it counted or not.
    assert sum(await earned(market, "ada", "bea")) == LEAST_MSAT * len(judged)
    assert (await earned(market, "ada"))[0] >= LEAST_MSAT
    assert done.failures == ()


async def test_what_is_not_there_by_its_deadline_is_not_delivered_and_not_owed(market):
    recipe = of(quorum="0.5", deadline=5)
    slow = Gate()
    async with provider(market, "ada", Conduct(hold=slow)) as ada, provider(market, "bea"):
        training = asyncio.create_task(train(market, "dora", recipe))
        await asyncio.sleep(6.5)
        slow.open.set()
        done, weights = await training
        async with Pool([market.relay]) as pool:
            results = await pool.fetch([Filter(kinds=frozenset({6840}), authors=frozenset({ada.public}))])
    assert weights == expected(market, recipe)
    assert (ada.public, "not-allowed") in done.failures
    assert results == []
    assert await earned(market, "ada") == [DEPOSIT_MSAT]


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_late_provider_is_waited_for_as_long_as_it_says_that_it_is_at_it(market, monkeypatch, speaks):
    monkeypatch.setattr("nodewire.training.customer.policy.result_deadline.SILENT_S", 2.5)
    monkeypatch.setattr("nodewire.training.provider.shard_job.ALIVE_S", 0.2 if speaks else 100.0)
    recipe = of(quorum="0.5", rounds=1)
    slow = Gate()
    async with provider(market, "ada", Conduct(hold=slow)) as ada, provider(market, "bea"):
        training = asyncio.create_task(train(market, "dora", recipe))
        await slow.at.wait()
        await asyncio.sleep(5)
        assert training.done() != speaks
        slow.open.set()
        done, weights = await training
    assert weights == expected(market, recipe)
    assert done.failures == (() if speaks else ((ada.public, "no word for 2 s"),))
    assert await earned(market, "ada", "bea") == [LEAST_MSAT if speaks else DEPOSIT_MSAT, LEAST_MSAT]


class Killed(Exception):
    """The customer's process ends here."""


async def test_a_customer_that_dies_around_a_quorum_and_a_late_result_pays_once_and_steps_as_it_says(market):
    recipe = of(quorum="0.5", late="half", rounds=3)
    slow = Gate()
    deaths: list[str] = []

    def die(now, event, who):
        if isinstance(event, Progress):
            return
        if isinstance(event, StepCompletion):
            slow.open.set()
        deaths.append(tag(event))
        raise Killed

    async with provider(market, "ada", Conduct(hold=slow)), provider(market, "bea"):
        while True:
            try:
                done, weights = await train(market, "dora", recipe, on_change=die)
                break
            except Killed:
                continue
    assert {"Sufficed", "Stepped", "Judged", "Audited", "Paid"} <= set(deaths)
    assert weights == expected(market, recipe)
    assert len(participation(market)) == 3
    accepted = [event for event in journal(market) if isinstance(event, ResultJudgement) and event.accepted]
    assert len({(event.request, event.provider) for event in accepted}) == len(accepted)
    assert await earned(market, "ada", "bea") == [
        LEAST_MSAT * len([e for e in accepted if e.provider == who])
        for who in (public(market, "ada"), public(market, "bea"))
    ]
    assert done.late == ()


def public(market, name: str) -> str:
    return Keys.from_file(market.folder / name / "key").public


async def test_who_is_replaced_and_delivers_by_the_deadline_is_paid_too(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.policy.result_deadline.LEAST_S", 2.0)
    slow = Gate()

    def watch(now, event, who):
        if isinstance(event, ResultTimeout):
            slow.open.set()

    async with AsyncExitStack() as stack:
        ada = await stack.enter_async_context(provider(market, "ada", Conduct(hold=slow)))
        for name in ("bea", "cyd"):
            await stack.enter_async_context(provider(market, name))
        spare = await stack.enter_async_context(provider(market, "dan", least_msat=2 * LEAST_MSAT))
        done, weights = await train(market, "dora", of(), TrainingOrder(3, BUDGET_MSAT), on_change=watch)
    assert weights == state.pack(bare_loop.run(of(), dataset(), 3)[0])
    assert [who for who, _ in done.failures] == [ada.public]
    accepted = [event.provider for event in journal(market) if isinstance(event, ResultJudgement) and event.accepted]
    assert len(accepted) == 7 and accepted.count(ada.public) >= 1
    assert await earned(market, "ada", "dan") == [
        LEAST_MSAT * accepted.count(ada.public),
        2 * LEAST_MSAT * accepted.count(spare.public),
    ]


async def test_who_falls_silent_before_anybody_has_delivered_is_replaced_long_before_the_deadline(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.policy.result_deadline.QUIET_S", 2.0)
    monkeypatch.setattr("nodewire.training.provider.shard_job.ALIVE_S", 100.0)
    slow = Gate()

    def watch(now, event, who):
        if isinstance(event, ResultTimeout):
            slow.open.set()

    recipe = of(rounds=1, deadline=600)
    async with provider(market, "ada", Conduct(hold=slow)) as ada, provider(market, "bea") as bea:
        done, weights = await asyncio.wait_for(train(market, "dora", recipe, on_change=watch), 60)
    assert weights == expected(market, recipe)
    assert done.failures == ((ada.public, "no word for 2 s"),)
    judged = [event for event in journal(market) if isinstance(event, ResultJudgement) and event.accepted]
    assert [event.provider for event in judged].count(bea.public) == 2


async def test_nobody_is_silent_while_no_relay_is_connected():
    async with Pool(["ws://127.0.0.1:9"]) as pool:  # where nobody is
        hearing = LifeSigns(pool)
        asked_s = time.monotonic()
        assert hearing.silent_since_s("ab" * 32, "cd" * 32) >= asked_s


async def test_more_shards_than_providers_are_trained_one_after_the_other(market):
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", of(), TrainingOrder(5, BUDGET_MSAT))
    assert weights == state.pack(bare_loop.run(of(), dataset(), 5)[0])
    assert done.failures == ()
    assert sum(await earned(market, "ada", "bea")) == 10 * LEAST_MSAT


async def test_who_leaves_in_the_middle_of_a_round_is_replaced_at_once_and_costs_one_reassignment(market):
    recipe, rounds_ = of(rounds=3), 0
    when: dict[str, float] = {}

    async def leaves(edge: str) -> None:
        nonlocal rounds_
        rounds_ += edge == "theta"
        if edge == "train" and rounds_ == 2:
            raise WorkerFailed("train", "switched off")

    def watch(now, event, who):
        if isinstance(event, ShardLoss):
            when["lost"] = time.monotonic()
        if isinstance(event, RequestPublication) and "lost" in when:
            when.setdefault("asked", time.monotonic())

    async with (
        provider(market, "ada", Conduct(hold=leaves)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=LEAST_MSAT + 1) as cyd,
    ):
        done, weights = await train(market, "dora", recipe, on_change=watch)
    assert weights == state.pack(bare_loop.run(recipe, dataset(), 2)[0])
    assert [who for who, _ in done.failures] == [ada.public]
    assert when["asked"] - when["lost"] < 2
    asked = [row.provider for event in journal(market) if isinstance(event, RequestPublication) for row in event.rows]
    assert len(asked) == 7 and cyd.public in asked
    assert (await earned(market, "ada"))[0] == LEAST_MSAT


async def test_who_comes_with_a_much_better_price_takes_a_shard_over_in_the_next_round(market):
    recipe = of(rounds=3)
    gate = Gate()
    async with AsyncExitStack() as stack:
        dear = await stack.enter_async_context(provider(market, "ada", Conduct(hold=gate), least_msat=2 * LEAST_MSAT))
        training = asyncio.create_task(train(market, "dora", recipe, TrainingOrder(1, BUDGET_MSAT)))
        await gate.at.wait()
        cheap = await stack.enter_async_context(provider(market, "bea"))
        gate.open.set()
        _, weights = await training
    assert weights == state.pack(bare_loop.run(recipe, dataset(), 1)[0])
    asked = [row.provider for event in journal(market) if isinstance(event, RequestPublication) for row in event.rows]
    assert asked == [dear.public, cheap.public, cheap.public]
    assert await earned(market, "ada", "bea") == [2 * LEAST_MSAT, 2 * LEAST_MSAT]
