"""Stages that two compute: where one dies the other goes on at once, with the same tokens, and both are paid."""

from __future__ import annotations

import asyncio
import signal
import time
from itertools import pairwise
from statistics import median

import pytest
from running_market import STALLS
from test_market_failover import PROMPT, dies, earned
from test_market_failures import whole_tokens

from nodewire.nostr.nip01 import Filter
from nodewire.protocol import kinds, takeover

pytestmark = pytest.mark.usefixtures("_crowd")
TOKENS = 350
FEW = 130
"""Three chunks."""


@pytest.fixture(scope="module")
def _crowd(market):
    """The slow guest is there, too, so that a hedge leaves others somebody to stand by for them."""
    market.public["fay"] = market.start_provider("fay")["public"]
    yield
    del market.public["fay"]
    process = market.processes.pop("fay")
    process.terminate()
    process.wait(10)
    process.stdout.close()


def gaps_s(at):
    return [b - a for a, b in pairwise(at)]


def longest_s(at):
    return max(gaps_s(at))


def usual_s(at):
    """What a token takes here and now."""
    return median(gaps_s(at))


async def begun(market):
    """An epoch in which all can be bought from."""
    now = await market.until(lambda s: True)
    return await market.until(
        lambda s: any(n.pubkey == market.public["fay"] for n in s.nodes) and market.is_free(*STALLS)(s),
        after=now.body.epoch + 1,
    )


@pytest.mark.parametrize("verify", ["none", "sampled"])
async def test_a_stage_dies_and_its_hedge_goes_on_at_once(market, verify):
    epoch = await begun(market)
    names = {public: name for name, public in market.public.items()}
    customer_name = f"wary-{verify}"
    async with market.customer(customer_name) as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        # Its provider has no bond to lose, so it serves again after it was missing for long.
        terms = customer.terms.model_copy(update={"verify": verify, "hedge": ("stage.2",)})
        ids: list[int] = []
        at: list[float] = []
        struck = None
        async with asyncio.timeout(250):
            async for piece in customer.generate(
                market.decoder["address"], PROMPT, max_tokens=TOKENS, terms=terms, resplit_msat=0
            ):
                ids += piece.ids
                at.append(time.monotonic())
                if struck is None and len(ids) >= 100:
                    plan = customer.purchases[-1].plan
                    task, hedge = next(iter(plan.hedges.items()))
                    struck = dies(market, names[plan.assignment(task).provider], signal.SIGKILL)
                    await struck.__aenter__()
        done = customer.last
        await struck.__aexit__(None, None, None)
        request = done["request"]
        assert ids == whole_tokens(market, PROMPT, TOKENS)
        assert "requests" not in done and [handed["attempt"] for handed in done["takeovers"]] == [1]
        (handed,) = done["takeovers"]
        assert longest_s(at) < 2.0 + 50 * usual_s(at), handed
        assert plan.chunk_msat == sum(a.price_msat * (2 if a.task in plan.hedges else 1) for a in plan.tasks)
        assert next(one for one in done["tasks"] if one["task"] == task)["hedged"]
    about = Filter(kinds=frozenset({kinds.TAKEOVER}), tags={"e": frozenset({request})})
    said = [takeover.parse(event) for event in await market.events(about)]
    assert (task, plan.assignment(task).provider, hedge) in {entry[:3] for one in said for entry in one.replaced}
    await market.settled(customer_name)
    # From the first chunk to the last it is paid its task's price once each.
    chunks = 1 + -(-(TOKENS - 1) // customer.purchases[-1].manifest.chunk)
    assert earned(market, hedge, request) == chunks * plan.assignment(task).price_msat


async def test_a_hedge_that_dies_is_not_missed(market):
    epoch = await begun(market)
    names = {public: name for name, public in market.public.items()}
    async with market.customer("wary-of-none") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        ids: list[int] = []
        at: list[float] = []
        struck = None
        async with asyncio.timeout(250):
            async for piece in customer.generate(
                market.decoder["address"], PROMPT, max_tokens=TOKENS, hedge=3, resplit_msat=0
            ):
                ids += piece.ids
                at.append(time.monotonic())
                if struck is None and len(ids) >= 100:
                    plan = customer.purchases[-1].plan
                    task, hedge = next(iter(plan.hedges.items()))
                    struck = dies(market, names[hedge], signal.SIGKILL)
                    await struck.__aenter__()
        done = customer.last
        await struck.__aexit__(None, None, None)
        assert ids == whole_tokens(market, PROMPT, TOKENS)
        assert "requests" not in done and done["takeovers"] == []
        assert longest_s(at[20:]) < 1.0 + 50 * usual_s(at)
    await market.settled("wary-of-none")
    price = plan.assignment(task).price_msat
    assert 0 < earned(market, hedge, done["request"]) < 7 * price


async def test_a_hedge_that_falls_behind_makes_up_for_it_and_is_paid_all_of_it(market):
    """Its process stands still while a chunk is closed: the close is there before the frames are."""
    epoch = await begun(market)
    names = {public: name for name, public in market.public.items()}
    async with market.customer("wary-and-patient") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        terms = customer.terms.model_copy(update={"hedge": ("stage.2",)})
        ids: list[int] = []
        still = None
        try:
            async with asyncio.timeout(250):
                async for piece in customer.generate(
                    market.decoder["address"], PROMPT, max_tokens=TOKENS, terms=terms, resplit_msat=0
                ):
                    ids += piece.ids
                    if still is None and len(ids) >= 120:  # the second chunk ends with the 129th
                        plan = customer.purchases[-1].plan
                        task, hedge = next(iter(plan.hedges.items()))
                        still, began = market.processes[names[hedge]], time.monotonic()
                        still.send_signal(signal.SIGSTOP)
                    elif still is not None and (len(ids) >= 140 or time.monotonic() > began + 0.7):
                        still.send_signal(signal.SIGCONT)
        finally:
            if still is not None:
                still.send_signal(signal.SIGCONT)
        done = customer.last
        assert ids == whole_tokens(market, PROMPT, TOKENS)
        assert "requests" not in done and done["takeovers"] == []
    await market.settled("wary-and-patient")
    chunks = 1 + -(-(TOKENS - 1) // customer.purchases[-1].manifest.chunk)
    assert earned(market, hedge, done["request"]) == chunks * plan.assignment(task).price_msat


async def test_a_hedge_that_lies_is_convicted_and_nothing_is_made_again(market):
    """lia computes stage.2 along, and adds 5 % of noise: no token comes of it, and its bond pays for what it got."""
    market.spawn_dishonest("lia", "scaled", "stage.2")
    lia = (await asyncio.to_thread(market.ready, "lia"))["public"]
    trusted = (*(public for name, public in market.public.items() if name not in ("dan", "fay")), lia)
    try:
        epoch = await market.until(
            lambda s: (node := s.node(lia)) is not None and node.bond_msat > 0 and market.is_free(*STALLS)(s)
        )
        async with market.customer("wary-of-lies") as customer:
            await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
            wish = {"verify": "sampled", "trusted": trusted, "hedge": ("stage.2",)}
            terms = customer.terms.model_copy(update=wish)
            async with asyncio.timeout(500):
                for _ in range(4):  # what it commits to is drawn by chance, and its bond may be an epoch too young
                    pieces = customer.generate(
                        market.decoder["address"], PROMPT, max_tokens=FEW, terms=terms, wait=True, resplit_msat=0
                    )
                    ids = [id_ async for piece in pieces for id_ in piece.ids]
                    assert ids == whole_tokens(market, PROMPT, FEW) and not customer.last["repaired"]
                    assert customer.purchases[-1].plan.hedges == {"stage.2": lia}
                    if guilty := [one for one in customer.last["verdicts"] if one["outcome"] == "fail"]:
                        break
    finally:
        market.stop_one("lia")
    assert {(one["task"], one["culprit"]) for one in guilty} == {("stage.2", lia)}
    assert customer.last["refunded_msat"] > 0
