"""A provider whose disk is full leaves plans, and comes back when there is room: seen from outside, by real processes.

The kernel's limit on file sizes stands for the full disk: it needs no mount, and can be lifted again.
"""

from __future__ import annotations

import resource

from nodewire.protocol.snapshot import Snapshot

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
