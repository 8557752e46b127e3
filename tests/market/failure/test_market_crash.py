"""Who crashes after its work is done has lost nothing: it commits, shows and is judged as if it had never been away."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import result
from nodewire.protocol.verification import verdict
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
PROMPT = "the cat sat on the mat"


async def test_a_provider_killed_after_a_sampled_job_comes_back_passes_and_keeps_its_bond(market):
    """bea is killed when her result is out: nothing of her last chunk can be certified yet."""
    bea, eve = market.public["bea"], market.public["eve"]
    before = await market.until(market.is_free(*STALLS))
    async with market.customer("patient") as customer:
        await customer.session.market.epoch(timeout_s=30, after=before.body.epoch - 1)
        terms = customer.terms.model_copy(update={"verify": "sampled", "excluded": (eve,)})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms):
            pass
        done = customer.last
    job = frozenset({done["request"]})
    results = Filter(kinds=frozenset({kinds.result_of(kinds.INFERENCE)}), authors=frozenset({bea}), tags={"e": job})
    async with asyncio.timeout(60):
        while not (said := await market.events(results)):
            await asyncio.sleep(0.05)
    process = market.processes["bea"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    await asyncio.to_thread(market.start_provider, "bea")

    mine = {(root.task, root.chunk) for root in result.parse(said[0]).roots}
    assert mine == {(task, chunk) for task in STALLS["bea"].decoder for chunk in (0, 1)}
    judged: dict[tuple[str, int], str] = {}
    verdicts = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": job})
    async with asyncio.timeout(240):
        while judged.keys() < mine:
            await asyncio.sleep(0.5)
            found = [verdict.parse(event).verdict for event in await market.events(verdicts)]
            judged = {(one.task, one.chunk): one.outcome for one in found if one.provider == bea}
    assert set(judged.values()) == {"pass"}
    bond_msat = STALLS["bea"].bond_msat
    await market.until(lambda s: (node := s.node(bea)) is not None and node.bond_msat == bond_msat)
