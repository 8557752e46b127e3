"""A provider that many have left unpaid asks a newcomer for more work than its ad says, and gets it."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.nostr.nips import nip13
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
AD_BITS, MORE_BITS = 8, 6


@pytest.fixture
async def wary(market):
    await asyncio.to_thread(market.stop_one, "ada")
    market.spawn_dishonest("ada", "wary", "driver")
    await asyncio.to_thread(market.ready, "ada")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)
    yield market.public["ada"]
    await asyncio.to_thread(market.stop_one, "ada")
    await asyncio.to_thread(market.start_provider, "ada")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)


async def test_a_newcomer_works_for_its_first_chunk_and_whoever_has_paid_does_not(market, wary):
    others = tuple(public for name, public in market.public.items() if name == "dan")
    async with market.customer("worker-for-credit") as customer:
        terms = customer.terms.model_copy(update={"excluded": others})

        async def bought() -> int:
            async for _ in customer.generate(market.decoder["address"], "the cat", max_tokens=4, terms=terms):
                pass
            made = customer.purchases[-1]
            assert made.plan.tasks[0].provider == wary
            return nip13.committed_target(made.request)

        assert await bought() == AD_BITS + MORE_BITS
        assert await bought() == AD_BITS
        assert len(customer.purchases) == 2
