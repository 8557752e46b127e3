"""The way to a provider is cut in mid-generation: it goes on over the next link, and nobody is replaced."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise

import pytest
from running_market import STALLS, WIRE
from test_market_failures import whole_tokens

from nodewire.nostr.nip01 import Filter
from nodewire.protocol import kinds
from tests.faults.cut import Way

PROMPT = "the cat sat on the mat"
TOKENS, CUT_S = 350, 2.0

pytestmark = pytest.mark.timeout(300)  # a provider starts twice besides


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(params=["ada", "bea"], ids=["driver", "stages"])
async def way(request, market):
    """What leads to one provider, which has the tasks of every plan that it can have."""
    name, port = request.param, free_port()
    file = market.config_of(name).read_text()

    async def again(config, announced) -> None:
        market.stop_one(name)
        market.config_of(name).write_text(config)
        await asyncio.to_thread(market.start_provider, name)

        def holds(snapshot) -> bool:
            ads = snapshot.ads({market.public[name]})
            return len(ads) == 1 and (announced in ads[market.public[name]].wire) == (config is not file)

        await market.until(lambda snapshot: holds(snapshot) and market.is_free(*STALLS)(snapshot))

    async with Way(f"127.0.0.1:{port}") as way:
        there = f'{WIRE}\nlisten = "127.0.0.1:{port}"\nannounce = ["{way.address}"]\nsame_host = false'
        await again(file.replace(WIRE, there), way.address)
        yield name, way
        await again(file, way.address)


async def test_a_generation_goes_on_when_the_way_to_a_provider_was_cut_for_two_seconds(market, way):
    name, way = way
    async with market.customer(f"cut-off-{name}") as customer:
        ids: list[int] = []
        at_s: list[float] = []
        async with asyncio.timeout(60):
            async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=TOKENS):
                before, ids = len(ids), ids + list(piece.ids)
                at_s.append(time.monotonic())
                if before < 100 <= len(ids):
                    assert market.public[name] in customer.purchases[-1].plan.providers()
                    await way.cut()
                    asyncio.get_running_loop().call_later(CUT_S, way.mend)
        done = customer.last
    assert ids == whole_tokens(market, PROMPT, TOKENS)
    assert not done.get("takeovers")
    assert "requests" not in done  # it is one job
    assert CUT_S / 2 < max(b - a for a, b in pairwise(at_s)) < 2 * CUT_S + 1
    about = Filter(kinds=frozenset({kinds.TAKEOVER}), tags={"e": frozenset({done["request"]})})
    assert not await market.events(about)
