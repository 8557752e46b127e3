"""The ways between providers are cut in mid-generation: it goes on over the next links, as one job."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from statistics import median

import pytest

from nodewire.customer.api import CallListener
from nodewire.errors import LinkLost
from tests.faults.cut import Way
from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS, WIRE
from tests.market.record.test_market_metrics import until
from tests.metrics.scrape import value

PROMPT = "the cat sat on the mat"
TOKENS, CUT_S = 350, 2.0
FAST = ("ada", "bea", "cyd")

pytestmark = pytest.mark.timeout(600)  # a provider starts twice besides


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
async def ways(market):
    """What leads to the providers that have the tasks of every plan, for all who dial them."""
    async with AsyncExitStack() as stack:
        ports = {name: free_port() for name in FAST}
        files = {name: market.config_of(name).read_text() for name in FAST}
        ways = {name: await stack.enter_async_context(Way(f"127.0.0.1:{port}")) for name, port in ports.items()}

        async def again(configs, *, announced) -> None:
            for name in FAST:
                market.stop_one(name)
                market.config_of(name).write_text(configs[name])
            for name in FAST:
                await asyncio.to_thread(market.start_provider, name)

            def holds(snapshot) -> bool:
                """They are announced, and others have found where they are: till then they count as far away, and a
                slow provider that was found can have the task."""
                ads = snapshot.ads({market.public[name] for name in FAST})
                found = {name: ads.get(market.public[name]) for name in FAST}
                placed = {node.pubkey for node in snapshot.nodes if node.is_placed}
                return placed >= {market.public[name] for name in FAST} and all(
                    ad and (ways[name].address in ad.wire) == announced for name, ad in found.items()
                )

            await market.until(lambda snapshot: holds(snapshot) and market.is_free(*STALLS)(snapshot))

        def beyond(name) -> str:
            wire = [f'listen = "127.0.0.1:{ports[name]}"', f'announce = ["{ways[name].address}"]', "same_host = false"]
            return files[name].replace(WIRE, "\n".join([WIRE, *wire]))

        await again({name: beyond(name) for name in FAST}, announced=True)
        yield list(ways.values())
        await again(files, announced=False)


async def test_a_generation_goes_on_when_all_ways_were_cut_for_two_seconds(market, ways):
    async with market.customer("cut-off") as customer:
        ids: list[int] = []
        at_s: list[float] = []
        async with asyncio.timeout(200):
            # A pause can look like a slow ring, which is left where that may cost something.
            async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=TOKENS, resplit_msat=0):
                before, ids = len(ids), ids + list(piece.ids)
                at_s.append(time.monotonic())
                if before < 100 <= len(ids):
                    for way in ways:
                        await way.cut()
                        asyncio.get_running_loop().call_later(CUT_S, way.mend)
        done = customer.last
    assert {task["provider"] for task in done["tasks"]} <= {market.public[name] for name in FAST}
    assert ids == whole_tokens(market, PROMPT, TOKENS)
    assert "requests" not in done  # it is one job
    gaps_s = [b - a for a, b in pairwise(at_s)]
    assert CUT_S / 2 < max(gaps_s) < 2 * CUT_S + 1 + 20 * median(gaps_s)


async def test_a_customer_that_cannot_reach_its_driver_goes_on_elsewhere_and_keeps_nobodys_slot(market, monkeypatch):
    """All others reach it, and would wait for the prompt of the first job as long as for any."""
    ada, begun_s, ends_s = market.public["ada"], [], []
    await until(market, "ada", has_no_job)
    async with market.customer("walled-off") as customer:
        node = customer.session.node
        link = node.link

        async def walled(public, addresses):
            if public == ada:
                raise LinkLost(public, "no route")
            return await link(public, addresses)

        async def ended():
            await until(market, "ada", has_no_job, 120)
            return time.monotonic()

        def begun(purchase):
            begun_s.append(time.monotonic())
            if len(begun_s) == 2:
                ends_s.append(asyncio.create_task(ended()))

        monkeypatch.setattr(node, "link", walled)
        async with asyncio.timeout(200):
            pieces = customer.generate(market.decoder["address"], PROMPT, max_tokens=16, listener=CallListener(begun))
            ids = [one async for piece in pieces for one in piece.ids]
            assert ids == whole_tokens(market, PROMPT, 16)
            first, second = customer.purchases
            assert ada in first.plan.providers() and ada not in second.plan.providers()
            took_s = await ends_s[0] - begun_s[1]
    # Who hears nothing holds its slot for its patience, and for a first result besides.
    assert took_s < STALLS["ada"].patience_s


def has_no_job(text):
    return not value(text, "nodewire_provider_jobs_in_flight", kind="8843")
