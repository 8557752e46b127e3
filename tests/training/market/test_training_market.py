"""Trainings in one process: parity, exact pay, and what comes of those who die, cheat, refuse, or do not pay."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import torch

from nodewire.errors import LinkLost, NoProvider, NotFound, OverBudget
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.training.customer.market import audits
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.engine import bare_loop, state
from nodewire.training.protocol.recipe import Compression, Outer
from nodewire.training.protocol.result import Progress
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, OPENING_MSAT, Conduct, provider, train

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(recipe=TWO_ROUNDS, shards=2) -> bytes:
    return state.pack(bare_loop.run(recipe, dataset(), shards)[0])


async def test_two_trainers_make_what_the_bare_loop_makes_and_earn_their_price(market):
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", TWO_ROUNDS)
    assert weights == expected()
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2
    # two deposits and two balances in the first round, two balances in the second; routing costs 10 msat + 0.1 %
    spent = OPENING_MSAT - await market.balance_msat("dora")
    assert 4 * LEAST_MSAT < spent <= 4 * LEAST_MSAT + 6 * (10 + 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"outer": Outer(method="nesterov", lr="0.7", momentum="0.9"), "compression": Compression(method="int8")},
        {"outer": Outer(method="fedadam", lr="0.01"), "compression": Compression(method="int4")},
        {"compression": Compression(method="topk", fraction="0.25")},
    ],
    ids=["nesterov int8", "fedadam int4", "average topk"],
)
async def test_every_outer_step_and_every_compression_is_the_bare_loops(market, changes):
    recipe = TWO_ROUNDS.model_copy(update=changes)
    async with provider(market, "ada", concurrency=2), provider(market, "bea"):
        done, weights = await train(market, "dora", recipe, TrainingOrder(3, BUDGET_MSAT))
    assert weights == expected(recipe, 3)
    assert done.failures == ()
    earned = [await market.balance_msat(name) for name in ("ada", "bea")]
    assert sorted(earned) == [2 * LEAST_MSAT, 4 * LEAST_MSAT]


class Killed(Exception):
    """The customer's process ends here."""


async def test_a_customer_that_dies_after_everything_that_happens_goes_on_and_pays_once(market):
    events, deaths = 0, 0

    def die(state_, event, provider_):
        nonlocal events
        if not isinstance(event, Progress):  # which is forgotten
            events += 1
            raise Killed

    async with provider(market, "ada"), provider(market, "bea"):
        while True:
            try:
                _, weights = await train(market, "dora", TWO_ROUNDS, on_change=die)
                break
            except Killed:
                deaths += 1
    assert events >= deaths > 15  # two things may happen at once
    assert weights == expected()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2


async def test_a_provider_that_dies_after_everything_that_it_says_goes_on_and_is_paid_once(market):
    died = asyncio.Event()
    said: set[tuple[object, ...]] = set()

    def dies(event):
        """At the first time that it says something."""
        what = event.kind, event.tag("e"), event.tag("status")
        if what not in said:
            said.add(what)
            died.set()

    async def ada():
        while True:
            died.clear()
            async with provider(market, "ada", published=dies):
                await died.wait()

    async with provider(market, "bea"):
        keeps_dying = asyncio.create_task(ada())
        done, weights = await train(market, "dora", TWO_ROUNDS)
        keeps_dying.cancel()
    assert weights == expected()
    assert len(said) >= 4  # the deposit, a round begun, two results
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2


def nothing(edge, frames):
    """A provider that delivers an update of zeros."""
    if edge != "update":
        return frames
    zeros = state.pack({name: torch.zeros(shape) for name, shape in RECIPE.shapes().items()})
    return [Frame("update", 0, (Array("uint8", (len(zeros),), zeros),), {"end": True})]


def garbage(edge, frames):
    if edge != "update":
        return frames
    return [Frame("update", 0, (Array("uint8", (100,), b"\xff" * 100),), {"end": True})]


@pytest.mark.parametrize("cheat", [nothing, garbage])
async def test_who_cheats_keeps_its_deposit_and_gets_no_more(market, cheat):
    async with (
        provider(market, "ada", Conduct(alter=cheat)),
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", TWO_ROUNDS)
    assert weights == expected()
    assert len(done.failures) == 1
    assert await market.balance_msat("ada") == DEPOSIT_MSAT
    # Ada is not asked again: bea made its shard, too, if it was free by then, and else cyd, as in the second round.
    bea, cyd = await market.balance_msat("bea"), await market.balance_msat("cyd")
    assert (bea, cyd) in [(3 * LEAST_MSAT, 2 * LEAST_MSAT), (2 * LEAST_MSAT, 4 * LEAST_MSAT)]


def explodes(edge, frames):
    """A provider whose states are honest, and whose update would be the end of the model."""
    if edge != "update":
        return frames
    huge = state.pack({name: torch.full(shape, 1e6) for name, shape in RECIPE.shapes().items()})
    return [Frame("update", 0, (Array("uint8", (len(huge),), huge),), {"end": True})]


@pytest.mark.parametrize("shards", [2, 4])
async def test_an_update_out_of_all_proportion_never_reaches_the_weights(market, shards):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(provider(market, "ada", Conduct(alter=explodes)))
        for name in ("bea", "cyd", "dan", "eve")[:shards]:
            dear = 1 + (name == ("bea", "cyd", "dan", "eve")[shards - 1])
            await stack.enter_async_context(provider(market, name, least_msat=dear * LEAST_MSAT))
        done, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(shards, BUDGET_MSAT))
    assert weights == expected(TWO_ROUNDS, shards)
    assert len(done.failures) == 1
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


def lies(edge, frames):
    """A provider that commits to states that it did not go through."""
    if edge != "train":
        return frames
    return [replace(one, meta={**one.meta, "state": "ab" * 32}) for one in frames]


def withholds(edge, frames):
    if edge == "reveal":
        raise NotFound("snapshot", "gone")
    return frames


@pytest.mark.parametrize("cheat", [lies, withholds])
async def test_whose_work_does_not_stand_an_audit_gets_no_balance(market, monkeypatch, cheat):
    monkeypatch.setattr("nodewire.training.customer.market.audits.AUDIT_S", 5.0)  # a machine may be busy
    async with (
        provider(market, "ada", Conduct(alter=cheat)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", RECIPE)
    assert weights == expected(RECIPE)
    assert {who for who, _ in done.failures} == {ada.public}
    assert any("bad-hash" in reason or "withheld" in reason for _, reason in done.failures)
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


async def test_who_needs_as_long_as_its_rounds_take_to_show_its_work_is_waited_for(market, monkeypatch):
    """It has to compute it again, beside the next round."""
    monkeypatch.setattr("nodewire.training.customer.market.audits.AUDIT_S", 0.1)

    async def hold(edge):
        await asyncio.sleep({"train": 1.5, "reveal": 0.5}.get(edge, 0.0))

    async with provider(market, "ada", Conduct(hold=hold)), provider(market, "bea", Conduct(hold=hold)):
        done, weights = await train(market, "dora", TWO_ROUNDS)
    assert weights == expected()
    assert done.failures == ()


async def test_a_server_that_is_down_while_an_audit_fetches_is_not_the_providers_fault(market, monkeypatch):
    fetch, failures = audits._files, 0

    async def fails_at_first(course, showing, wanted):
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise LinkLost("server", "down")
        return await fetch(course, showing, wanted)

    monkeypatch.setattr(audits, "_files", fails_at_first)
    monkeypatch.setattr(audits, "FETCH_AGAIN_S", 0.05)
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", TWO_ROUNDS)
    assert failures > 3
    assert weights == expected()
    assert done.failures == ()


async def test_a_provider_that_was_restarted_shows_what_it_computes_again(market):
    """It has delivered, and lost what it kept of the work."""
    async with provider(market, "bea"):
        died = asyncio.Event()
        async with provider(market, "ada", published=lambda event: event.kind == 6840 and died.set()):
            training = asyncio.create_task(train(market, "dora", TWO_ROUNDS))
            await died.wait()
        async with provider(market, "ada"):
            done, weights = await training
    assert weights == expected()
    assert done.failures == ()
    assert await market.balance_msat("ada") == 2 * LEAST_MSAT


async def test_every_result_is_audited(market):
    async with provider(market, "ada"), provider(market, "bea"):
        await train(market, "dora", TWO_ROUNDS)
        async with Pool([market.relay]) as pool:
            events = await pool.fetch([Filter(kinds=frozenset({8844, 6844}))])
    assert sorted(event.kind for event in events) == [6844] * 4 + [8844] * 4


async def test_a_budget_that_is_too_small_ends_before_the_round_that_would_exceed_it(market):
    async with provider(market, "ada"), provider(market, "bea"):
        with pytest.raises(OverBudget):
            await train(market, "dora", TWO_ROUNDS, TrainingOrder(2, 3 * LEAST_MSAT))
        assert await market.balance_msat("ada") <= LEAST_MSAT
        _, weights = await train(market, "dora", TWO_ROUNDS, TrainingOrder(2, 4 * LEAST_MSAT))
    assert weights == expected()


async def test_without_trainers_nothing_is_spent(market, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 0.1)
    with pytest.raises(NoProvider):
        await train(market, "dora", TWO_ROUNDS)
    assert await market.balance_msat("dora") == OPENING_MSAT


async def test_a_round_takes_few_events(market):
    async with AsyncExitStack() as stack:
        for name in ("ada", "bea", "cyd", "dan"):
            await stack.enter_async_context(provider(market, name))
        await train(market, "dora", TWO_ROUNDS, TrainingOrder(4, BUDGET_MSAT))
        pool = await stack.enter_async_context(Pool([market.relay]))
        events = await pool.fetch([Filter(kinds=frozenset({8840, 6840, 7000}))])
    assert len([e for e in events if e.kind == 8840]) == 2
    assert len([e for e in events if e.kind == 6840]) == 8
    assert len([e for e in events if e.kind == 7000]) == 4  # deposits: what is quick says nothing before its result
