"""Keys that cost nothing, on a live market: they beat, offer every task for next to nothing, and never answer."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from nodewire.config import CustomerConfig
from nodewire.market import open_market
from nodewire.nostr.keys import Keys
from nodewire.plan.assign import CertifiedEpoch, assign
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import heartbeat as beats
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.heartbeat import Beat
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
KEYS, GENERATIONS, PLANS = 16, 20, 400


def _check_few(plans, held):
    """One draw in twenty is expected to hold one. All jobs of one epoch, redrawn as often, have the same draw."""
    draws = {(plan.epoch, plan.k) for plan in plans}
    found = {(plan.epoch, plan.k) for plan in plans if held(plan)}
    assert len(found) <= len(draws) * 0.05 + 5 * (len(draws) * 0.05 * 0.95) ** 0.5, (len(found), len(draws))


@asynccontextmanager
async def strangers(market, name):
    """So many keys are in every snapshot. Yields the market as they see it, and their public keys."""
    config = await market.customer_config(name)
    async with AsyncExitStack() as stack:
        _, pool, seen = await open_market(stack, CustomerConfig.load(config))
        following = asyncio.create_task(seen.run())
        stack.callback(following.cancel)
        await seen.epoch(timeout_s=40)
        manifest = await seen.manifest(market.decoder["address"])
        tasks = tuple(TaskOffer(task=task.name, price_msat=1, us_per_position=1) for task in manifest.tasks)
        offer = ManifestOffer(manifest=manifest.digest(), tasks=tasks, slots=4_096)
        made = {}
        for i in range(KEYS):
            ad = Ad(
                name=f"stranger-{i}",
                manifests=(offer,),
                wire=("127.0.0.1:9",),
                lnurl="http://127.0.0.1:9/x",
                relays=(market.relay,),
                committees=(seen.committee_digest,),
            )
            keys = Keys.generate()
            event = ads.build(keys, ad, created_at=int(time.time()))
            await pool.publish(event)
            made[keys] = event.id

        async def beat():
            last, free = -1, {offer.manifest: offer.slots}
            while True:
                epoch = seen.committee.epoch_at(int(time.time() * 1000))
                if epoch != last:
                    last, expires_at_s = epoch, beats.expires_at_s(seen.committee, epoch)
                    for keys, ad in made.items():
                        said = Beat(
                            committee=seen.committee_digest,
                            last=seen.last_body(),
                            epoch=epoch,
                            ad=ad,
                            load_ppm=0,
                            free=free,
                            coordinates=(0, 0, 0),
                        )
                        at_s = int(time.time())
                        await pool.publish(beats.build(keys, said, created_at=at_s, expires_at_s=expires_at_s))
                await asyncio.sleep(seen.committee.epoch_ms / 8_000)

        beating = asyncio.create_task(beat())
        stack.callback(beating.cancel)
        yield seen, {keys.public for keys in made}


async def test_free_keys_in_every_snapshot_cost_no_generation(market):
    async with strangers(market, "flood") as (seen, keys):
        epoch = await market.until(lambda s: keys <= {node.pubkey for node in s.nodes} and market.is_free(*STALLS)(s))
        snapshot, manifest = await seen.snapshot(epoch.body.snapshot), await seen.manifest(market.decoder["address"])
        held = 0
        for i in range(PLANS):
            drawn = CertifiedEpoch(seen.committee, epoch.body, f"{i:064x}")
            terms = Terms(max_chunk_msat=10**9, max_total_msat=10**9)
            plan = assign(manifest, snapshot, epoch=drawn, terms=terms, customer=Keys.generate().public)
            assert len({*plan.providers()} & keys) <= 1
            held += bool({*plan.providers()} & keys)
        assert held <= PLANS * 0.05 + 3 * (PLANS * 0.05 * 0.95) ** 0.5
        async with market.customer("unmoved") as customer:
            await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
            for _ in range(GENERATIONS):
                ids = [id_ async for piece in customer.generate(market.decoder["address"], "a cat", max_tokens=2)
                       for id_ in piece.ids]  # fmt: skip
                assert len(ids) == 2
            bought = [purchase.plan for purchase in customer.purchases]
    assert len(bought) >= GENERATIONS
    for plan in bought:  # nobody but the one node of an open task may be placed, whatever is free
        assert len({*plan.providers()} & keys) <= 1
    _check_few(bought, lambda plan: {*plan.providers()} & keys)


async def test_bonded_nodes_find_each_other_and_nobody_plans_with_keys_that_do_not_answer(market):
    """As long as their observers come by: then what they say of free slots counts for nothing."""
    async with strangers(market, "absent") as (_, keys):
        known = {market.public[name] for name in STALLS}

        def found(snapshot):
            nodes = {node.pubkey: node for node in snapshot.nodes}
            placed = [node for one in known if (node := nodes.get(one)) is not None and node.is_placed]
            gone = [one for one in keys if one in nodes and not any(held.free for held in nodes[one].held)]
            return len(placed) >= 3 and gone

        await market.until(found)
