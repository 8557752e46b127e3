"""A part of the market is out, and comes back: seen from outside, by real processes.

The kernel's limit on file sizes stands for a full disk: it needs no mount, and can be lifted again. A relay that is
stopped stands for one that is down.
"""

from __future__ import annotations

import asyncio
import resource
import signal

from nodewire.customer.job import settlement
from nodewire.protocol.market.snapshot import Snapshot

NOWHERE = resource.RLIM_INFINITY


def offers(market, public, *, some):
    """Whether a snapshot has this node with some free slots, or with none."""

    def holds(snapshot: Snapshot) -> bool:
        held = [held for node in snapshot.nodes if node.pubkey == public for held in node.held]
        return bool(held) and all(bool(one.free) is some for one in held)

    return holds


async def test_a_provider_whose_disk_is_full_leaves_plans_and_comes_back_by_itself(market):
    public = market.start_provider("isa")["public"]
    process = market.processes["isa"]
    await market.until(offers(market, public, some=True))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, NOWHERE))
    sick = await market.until(offers(market, public, some=False))
    async with market.customer("outage-customer") as customer:
        pieces = [piece async for piece in customer.generate(market.decoder["address"], "the cat", max_tokens=8)]
        assert customer.last is not None and public not in customer.last["providers"]
    assert sum(len(piece.ids) for piece in pieces) == 8
    assert process.poll() is None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (NOWHERE, NOWHERE))
    await market.until(offers(market, public, some=True), after=sick.body.epoch)
    market.stop_one("isa")


async def test_a_generation_whose_relays_are_lost_at_its_last_token_is_whole_and_no_longer(market, monkeypatch):
    """It is paid and settled when they are back. Its text ends where it ends."""
    monkeypatch.setattr(settlement, "SETTLE_S", 2.0)
    address, prompt, relay = market.decoder["address"], "the cat sat on the mat", market.processes["relay"]
    async with market.customer("lost-relays") as customer:
        whole = [piece.text async for piece in customer.generate(address, prompt, max_tokens=120)]
        stop = "".join(whole[90:96])
        texts, ends = [], []
        try:
            async with asyncio.timeout(120):
                async for piece in customer.generate(address, prompt, max_tokens=120, stop=[stop]):
                    texts.append(piece.text)
                    ends.append(piece.end)
                    if piece.end:
                        relay.send_signal(signal.SIGSTOP)
                        asyncio.get_running_loop().call_later(18.0, relay.send_signal, signal.SIGCONT)
        finally:
            relay.send_signal(signal.SIGCONT)
        assert "".join(texts) == "".join(whole).partition(stop)[0]
        assert ends.index(True) == len(ends) - 1
        assert customer.last["begun_anew"] == 0 and "requests" not in customer.last
        await market.settled("lost-relays")
