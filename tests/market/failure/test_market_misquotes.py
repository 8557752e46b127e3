"""A driver whose tokens are the model's, and which says another text beside them."""

from __future__ import annotations

import asyncio

import pytest

from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
PROMPT = "the cat sat on the mat"
AFTER = 20
"""The token from which on ada misquotes."""


@pytest.fixture
async def liar(market):
    """ada, the driver whom assign/1 prefers; her public key."""
    await asyncio.to_thread(market.stop_one, "ada")
    market.spawn_dishonest("ada", "misquoted", "driver", after=AFTER)
    await asyncio.to_thread(market.ready, "ada")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)
    yield market.public["ada"]
    await asyncio.to_thread(market.stop_one, "ada")
    await asyncio.to_thread(market.start_provider, "ada")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)


async def test_nobody_reads_what_a_driver_says_instead_and_another_goes_on(market, liar):
    epoch = await market.until(market.is_free(*STALLS))
    async with market.customer("reader") as customer:
        await customer.session.market.epoch(timeout_s=60, after=epoch.body.epoch - 1)
        said = customer.generate(market.decoder["address"], PROMPT, max_tokens=40)
        texts = [piece.text async for piece in said]
        assert "thief" not in "".join(texts)
        assert customer.last["ids"] == whole_tokens(market, PROMPT, 40)
        lied, made = customer.purchases
        assert lied.plan.tasks[0].provider == liar and lied.timing.outputs
        assert made.plan.tasks[0].provider == market.public["dan"]
        assert customer.session.payer.unpaid() == []
