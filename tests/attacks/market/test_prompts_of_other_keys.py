"""Two people with API keys of one gateway: what it orders for them tells providers whose prompt is whose."""

from __future__ import annotations

from nodewire.gateway.keys import sha256_of
from tests.gateway.counter import KEY, opened

GUESS = "the cat sat on the mat"
OTHER = "another key"


async def test_a_gateway_keeps_the_prompts_of_each_key_apart(tmp_path):
    keys = [{"name": name, "sha256": sha256_of(key)} for name, key in (("somebody", KEY), ("other", OTHER))]
    async with opened(tmp_path, keys=keys) as gateway:
        for key in (KEY, OTHER, KEY):
            body = {"model": "talker", "prompt": GUESS}
            status, _ = await gateway.post("completions", body, Authorization=f"Bearer {key}")
            assert status == 200
        first, other, again = (order.params["apart"] for order in gateway.buyer.orders)
    assert first == again != other
