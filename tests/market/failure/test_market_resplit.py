"""A generation that is under way leaves a ring that has become slow for one that is not, and nothing of it shows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from processes.slowdown import children, slowed
from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(1_800)  # three generations, each slow to its end where no ring is found faster
PROMPT = "the cat sat on the mat"
MUCH_SLOWER_S = 0.8
"""A stage that stands still for so long a token is slower than any ring, however busy the machine is."""


@asynccontextmanager
async def joined(market, name):
    """A further provider is there, and in the snapshots. Yields its public key."""
    public = (await asyncio.to_thread(market.start_provider, name))["public"]
    try:
        await market.until(lambda s: s.node(public) is not None)
        yield public
    finally:
        await asyncio.to_thread(market.stop_one, name)
        await market.until(lambda s: s.node(public) is None)


async def _generate_past_a_slow_stage(market, customer):
    """A generation, right to the token, in which `bea` is slow from its 60th token on. Returns its summary."""
    ids: list[int] = []
    async with AsyncExitStack() as stack:
        async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=350):
            ids += piece.ids
            if len(ids) == 60:
                await stack.enter_async_context(slowed(children(market.processes["bea"].pid), MUCH_SLOWER_S))
    assert ids == customer.last["ids"] == whole_tokens(market, PROMPT, 350)
    return customer.last


async def test_a_session_leaves_a_stage_that_has_become_slow_with_the_same_tokens(market):
    async with AsyncExitStack() as stack:
        isa = await stack.enter_async_context(joined(market, "isa"))
        customer = await stack.enter_async_context(market.customer("restless"))
        requests, paid_msat = [], 0
        for _ in range(3):  # on a busy machine the ring in reserve may be found slower than the stage that stutters
            await market.until(market.is_free(*STALLS))
            done = await _generate_past_a_slow_stage(market, customer)
            requests += done.get("requests", [done["request"]])
            paid_msat += sum(done["paid_msat"].values())
            outcomes = [move["outcome"] for move in done["moves"]]
            assert set(outcomes) <= {"moved", "slower"}
            if "moved" in outcomes:
                break
        (move,) = [move for move in done["moves"] if move["outcome"] == "moved"]
        assert move["slow"] == (market.public["bea"],)
        assert {move["after"][task] for task in ("stage.0", "stage.1")} == {isa}
        assert 60 < move["at"] <= move["overtook_at"] < 350
        assert [task["provider"] for task in done["tasks"]].count(market.public["bea"]) == 0
    await market.settled("restless")
    ledger = market.ledger("restless")
    paid = sum(ledger.spent(job=request).paid_msat for request in requests)
    ledger.close()
    assert paid == paid_msat
