"""Two people with API keys of one gateway: to providers they are one customer, and one asks what the other has sent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodewire.gateway.keys import sha256_of
from tests.gateway.counter import KEY, opened

GUESS = "the cat sat on the mat, and what it thought of the dog was said to nobody. " * 6
OTHER = "another key"


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    sys.path.insert(0, str(Path(__file__).parents[1] / "market"))
    from running_market import RunningMarket

    running = RunningMarket(tmp_path_factory.mktemp("apart"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


async def test_a_gateway_keeps_the_prompts_of_each_key_apart(tmp_path):
    keys = [{"name": name, "sha256": sha256_of(key)} for name, key in (("somebody", KEY), ("other", OTHER))]
    async with opened(tmp_path, keys=keys) as gateway:
        for key in (KEY, OTHER, KEY):
            body = {"model": "talker", "prompt": GUESS}
            status, _ = await gateway.post("completions", body, Authorization=f"Bearer {key}")
            assert status == 200
        first, other, again = (order.params["apart"] for order in gateway.buyer.orders)
    assert first == again != other


async def test_who_sends_a_prompt_again_for_another_finds_nothing_of_it(market):
    """Without `apart` the second of them was told, by time and price, that its guess was right."""
    found = []
    async with market.customer("gateway") as customer:
        for apart in ("01", "01", "02", "02"):
            jobs = []
            made = customer.generate(market.decoder["address"], GUESS, max_tokens=2, apart=apart, begun=jobs.append)
            async for _ in made:
                pass
            found.append(max(job.cached_tokens for job in jobs))
    assert found[0] == found[2] == 0
    assert found[1] == found[3] > 0
