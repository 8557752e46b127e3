"""A stage that sends too late, twice, never, or what has the wrong shape: its ring goes on with others, where it was.
Sessions beside it notice nothing."""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.market.failure.test_market_failures import whole_tokens
from tests.market.failure.test_market_rubbish import PROMPT, paid
from tests.market.market_process import STALLS

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))
from nodewire_faults.strike import FRAME

pytestmark = pytest.mark.timeout(600)
AFTER = 70
"""The frame from which on bea's stage.1 cheats: two chunks are whole."""


@pytest.fixture(params=["short", "twice", "late", "silent"])
async def cheat(market, request):
    """What bea does."""
    await asyncio.to_thread(market.stop_one, "bea")
    market.spawn_dishonest("bea", request.param, "stage.1", after=AFTER)
    await asyncio.to_thread(market.ready, "bea")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)
    yield request.param
    await asyncio.to_thread(market.stop_one, "bea")
    await asyncio.to_thread(market.start_provider, "bea")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)


async def test_a_generation_goes_on_without_a_stage_that_does_not_send_as_it_should(market, cheat):
    epoch = await market.until(market.is_free(*STALLS))
    bea = market.public["bea"]
    async with market.customer(f"suffers-{cheat}") as customer, market.customer(f"beside-{cheat}") as beside:
        for one in (customer, beside):
            await one.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)

        async def bought(customer, tokens, **options):
            ids, at = [], []
            async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=tokens, **options):
                ids += piece.ids
                at.append(time.monotonic())
            assert ids == whole_tokens(market, PROMPT, tokens)
            return at

        without = beside.terms.model_copy(update={"excluded": (bea, market.public["ada"])})
        async with asyncio.timeout(400):
            at, _ = await asyncio.gather(bought(customer, 100), bought(beside, 200, terms=without))
        # Nothing was lost there. On a slow machine it may have tried a quicker ring meanwhile.
        assert all(one.is_second for one in list(beside.purchases)[1:]), beside.last
        lied, *_, made = customer.purchases
        struck = [int(seq) for request, edge, seq in FRAME.findall(market.log("bea")) if request == lied.request.id]
        assert min(struck) >= AFTER  # it cheated, and nothing else ended that job
        assert lied.plan.assignment("stage.1").provider == bea and bea not in made.plan.providers()
        assert not paid(made).get(bea)
        deadline_s = lied.plan.next_result_ms / 1000
        assert max(b - a for a, b in pairwise(at)) < 3 * (deadline_s + 4)
