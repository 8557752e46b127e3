"""Outer steps that are bought: parity with the bare loop, exact pay, crashes, and what comes of those who cheat."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
import torch

from nodewire.errors import Busy
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.customer.round_history import History
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.actors.outer_step import _OuterSession
from nodewire.training.engine.update import outer_step, step_proof
from nodewire.training.protocol.recipe import Compression, Outer
from nodewire.training.protocol.result import Progress
from nodewire.training.verify.transcript import check
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, OPENING_MSAT, Conduct, provider, train

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
    return state.pack(bare_loop.run(recipe, dataset(), shards)[0])


@pytest.mark.parametrize(
    ("changes", "shards"),
    [
        ({}, 2),
        ({"outer": Outer(aggregate="clip", bound="1.0")}, 2),
        ({"outer": Outer(method="nesterov", lr="0.7", momentum="0.9"), "compression": Compression(method="int8")}, 2),
        ({"outer": Outer(method="fedadam", lr="0.01", aggregate="median")}, 3),
        ({"outer": Outer(method="fedadam", lr="0.01"), "compression": Compression(fragments=2)}, 2),
    ],
    ids=["average", "clip", "nesterov int8", "fedadam median", "fedadam fragments"],
)
async def test_bought_steps_make_what_the_bare_loop_makes_and_are_paid(market, changes, shards):
    recipe = TWO_ROUNDS.model_copy(update=changes)
    async with AsyncExitStack() as stack:
        for name in ("ada", "bea", "cyd")[:shards]:
            await stack.enter_async_context(provider(market, name))
        await stack.enter_async_context(provider(market, "oona", **STEPS))
        done, weights = await train(market, "dora", recipe, TrainingOrder(shards, BUDGET_MSAT, buys_steps=True))
    assert weights == expected(recipe, shards)
    assert done.failures == ()
    assert check(market.transcript).faults == []
    assert await market.balance_msat("oona") == 2 * LEAST_MSAT
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2


async def test_the_next_round_begins_with_the_providers_own_blobs_and_the_customer_uploads_no_weights(market):
    async with provider(market, "ada"), provider(market, "bea"), provider(market, "oona", **STEPS) as oona:
        await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
        async with Pool([market.relay]) as pool:
            events = await pool.fetch([Filter(kinds=frozenset({8841, 8842, 6841, 6842}))])
    of = {kind: sorted((e for e in events if e.kind == kind), key=lambda e: e.created_at) for kind in (8841, 8842)}
    results = {e.tag("e"): e for e in events if e.kind == 6842}
    first, second = sorted(of[8842], key=lambda e: ["param", "round", "1"] in [list(tag) for tag in e.tags])
    theta, momenta = results[first.id].values("i")
    assert {theta, momenta} == {tag[1] for tag in second.tags if tag[0] == "i" and tag[2] == "blob"}
    asked = [e for e in of[8841] if ["param", "round", "1"] in [list(tag) for tag in e.tags]]
    assert [e.tag("i") for e in asked] == [theta]
    used = {tag[1] for one in (first, second) for tag in one.tags if tag[0] == "i" and tag[2] == "job"}
    assert used == {e.id for e in events if e.kind == 6841}  # chained: every result of both rounds
    assert {e.pubkey for e in results.values()} == {oona.public}
    journal = Journal(market.folder / "dora" / "journal.db")
    opened, history = journal.events()[0], History.replay(journal.events())
    journal.close()
    assert history.up_bytes == opened.theta.bytes + sum(shard.bytes for shard in opened.shards)
    assert history.down_bytes > 4 * opened.theta.bytes  # weights and momenta of two rounds, and updates


def off_by_a_bit(of):
    def change(session, after):
        after[of]["layers.0.bias"].view(torch.int32)[3] ^= 1
        return after

    return change


def not_a_number(session, after):
    after["theta"]["layers.0.bias"][0] = float("nan")
    return after


def nothing(session, after):
    """Theta and momenta as they were."""
    momenta = session._momenta or outer_step.start(NESTEROV.outer, session._theta)
    return {"theta": session._theta, "momenta": momenta}


def stale(session, after):
    """The step of a theta from before."""
    return {"theta": {name: tensor + 1e-3 for name, tensor in after["theta"].items()}, "momenta": after["momenta"]}


@pytest.fixture
def first_step(monkeypatch):
    """Makes the first provider that makes a step a cheat that commits to what it delivers."""

    def cheats(change):
        make, left = _OuterSession._step, [change]

        def step(self):
            said = make(self)
            if not left:
                return said
            self._after = left.pop()(self, {what: dict(tensors) for what, tensors in self._after.items()})
            root = step_proof.root(NESTEROV.outer, self._after["theta"], self._after["momenta"])
            return Frame("stepped", 0, (), {"root": root.hex()})

        monkeypatch.setattr(_OuterSession, "_step", step)

    return cheats


@pytest.mark.parametrize(
    "cheat",
    [off_by_a_bit("theta"), off_by_a_bit("momenta"), not_a_number, nothing, stale],
    ids=["a bit of theta", "a bit of momenta", "nan", "nothing", "stale"],
)
async def test_a_wrong_step_is_not_paid_and_another_makes_it(market, first_step, cheat):
    first_step(cheat)
    async with AsyncExitStack() as stack:
        for name in ("ada", "bea"):
            await stack.enter_async_context(provider(market, name))
        oona = await stack.enter_async_context(provider(market, "oona", **STEPS))
        await stack.enter_async_context(provider(market, "pia", least_msat=2 * LEAST_MSAT, **STEPS))
        done, weights = await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
    assert weights == expected(NESTEROV)
    assert [who for who, _ in done.failures] == [oona.public]
    assert "bad-update" in done.failures[0][1]
    assert await market.balance_msat("oona") == DEPOSIT_MSAT
    assert await market.balance_msat("pia") == 4 * LEAST_MSAT  # also in the second round: oona is not asked again


def another_root(edge, frames):
    return [Frame("stepped", 0, (), {"root": "ab" * 32})] if edge == "step" else frames


def elsewhere(session, after):
    """A number that a round of the first fragment does not step."""
    after["theta"]["layers.1.bias"][-1] += 1
    return after


async def test_what_a_fragments_step_must_leave_alone_is_seen_to(market, first_step):
    first_step(elsewhere)
    recipe = NESTEROV.model_copy(update={"compression": Compression(fragments=2)})
    async with provider(market, "ada"), provider(market, "bea"), provider(market, "oona", **STEPS):
        done, weights = await train(market, "dora", recipe, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
    assert weights == expected(recipe)
    assert ["does not step has changed" in reason for _, reason in done.failures] == [True]
    assert await market.balance_msat("oona") == DEPOSIT_MSAT


def garbage(edge, frames):
    if edge != "after":
        return frames
    return [Frame("after", 0, (Array("uint8", (100,), b"\xff" * 100),), {"end": True})]


@pytest.mark.parametrize("cheat", [another_root, garbage])
async def test_with_nobody_left_the_step_is_made_here(market, cheat):
    async with (
        provider(market, "ada"),
        provider(market, "bea"),
        provider(market, "oona", Conduct(alter=cheat), **STEPS),
    ):
        done, weights = await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
    assert weights == expected(NESTEROV)
    assert len(done.failures) == 1
    assert await market.balance_msat("oona") == DEPOSIT_MSAT


async def test_without_a_seller_or_the_money_steps_are_made_here(market):
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
        assert (weights, done.failures) == (expected(NESTEROV), ())
        async with provider(market, "oona", **STEPS):
            budget = 4 * LEAST_MSAT
            _, weights = await train(market, "dana", NESTEROV, TrainingOrder(2, budget, buys_steps=True))
    assert weights == expected(NESTEROV)
    assert await market.balance_msat("oona") == 0


class Killed(Exception):
    """The customer's process ends here."""


async def test_a_customer_that_dies_after_everything_that_happens_buys_each_step_once(market):
    deaths, of_steps = 0, set()

    def die(state_, event, provider_):
        if isinstance(event, Progress):
            return
        if state_.outer.status != "idle" or getattr(event, "request", "") in of_steps:
            of_steps.add(state_.outer.request)
        raise Killed

    async with provider(market, "ada"), provider(market, "bea"), provider(market, "oona", **STEPS):
        while True:
            try:
                done, weights = await train(
                    market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True), on_change=die
                )
                break
            except Killed:
                deaths += 1
    assert deaths > 20 and len(of_steps - {""}) == 2
    assert weights == expected(NESTEROV)
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea", "oona")] == [2 * LEAST_MSAT] * 3
    spent = OPENING_MSAT - await market.balance_msat("dora")
    assert 6 * LEAST_MSAT < spent <= 6 * LEAST_MSAT + 10 * (10 + 8)


async def test_a_provider_that_dies_after_everything_that_it_says_makes_each_step_once(market):
    died = asyncio.Event()
    said: set[tuple[object, ...]] = set()

    def dies(event):
        what = event.kind, event.tag("e"), event.tag("status")
        if what not in said:
            said.add(what)
            died.set()

    async def oona():
        while True:
            died.clear()
            async with provider(market, "oona", published=dies, **STEPS):
                await died.wait()

    async with provider(market, "ada"), provider(market, "bea"):
        keeps_dying = asyncio.create_task(oona())
        await asyncio.sleep(0.5)
        done, weights = await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
        keeps_dying.cancel()
    assert weights == expected(NESTEROV)
    assert done.failures == ()
    assert len(said) >= 4  # two deposits and two results
    assert [await market.balance_msat(name) for name in ("ada", "bea", "oona")] == [2 * LEAST_MSAT] * 3


async def test_a_provider_that_fails_is_replaced_by_the_customer_itself(market):
    def fails(edge, frames):
        if edge == "step":
            raise Busy("step", "later")
        return frames

    async with (
        provider(market, "ada"),
        provider(market, "bea"),
        provider(market, "oona", Conduct(alter=fails), **STEPS),
    ):
        done, weights = await train(market, "dora", NESTEROV, TrainingOrder(2, BUDGET_MSAT, buys_steps=True))
    assert weights == expected(NESTEROV)
    assert {reason for _, reason in done.failures} == {"busy"}
    assert await market.balance_msat("oona") == 2 * DEPOSIT_MSAT
