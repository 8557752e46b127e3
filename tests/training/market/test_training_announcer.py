"""A trainer is listed while it runs: its ad ends with it, or by itself some minutes later."""

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

from nodewire.errors import NodeFailed
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.provider import outage as outages
from nodewire.training.customer.market.trainer_ads import Ads
from nodewire.training.customer.policy import provider_selection
from nodewire.training.protocol import trainer_ad
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.provider import announcer
from nodewire.training.provider.announcer import TrainerAnnouncer
from tests.training import small_market

AD = Trainer(
    name="ada.train",
    kinds=(8840,),
    families=("mlp",),
    msat_per_pflop=0,
    gflops=1,
    memory_bytes=10**9,
    most_bytes=10**8,
    concurrency=1,
)


@asynccontextmanager
async def opened(folder):
    ada = Keys.generate()
    async with small_market.opened(folder) as market, Pool([market.relay], keys=ada) as pool:
        ads = Ads(pool)
        try:
            yield ada, pool, ads
        finally:
            ads.close()


async def until(ads, wanted):
    async with asyncio.timeout(60):
        while (await ads.now()).keys() != wanted:
            await asyncio.sleep(0.02)


async def test_a_trainer_that_stops_is_listed_no_more_until_it_comes_back(tmp_path):
    async with opened(tmp_path) as (ada, pool, ads):
        announced = TrainerAnnouncer(ada, pool, AD)
        for _ in range(2):
            await announced.announce()
            await until(ads, {ada.public})
            assert await provider_selection.trainers(pool) == {ada.public: AD}
            await announced.end()
            await until(ads, set())
            async with asyncio.timeout(60):
                while await provider_selection.trainers(pool):
                    await asyncio.sleep(0.1)


async def test_an_ad_that_never_was_is_not_ended(tmp_path):
    async with opened(tmp_path) as (ada, pool, _):
        await TrainerAnnouncer(ada, pool, AD).end()
        assert await provider_selection.trainers(pool) == {}


async def test_an_ad_that_is_not_renewed_ends_by_itself_and_one_without_an_end_stands(tmp_path, monkeypatch):
    async with opened(tmp_path) as (ada, pool, ads):
        bea, now_s = Keys.generate(), int(time.time())
        await pool.publish(trainer_ad.build(bea, AD, created_at=now_s))
        await pool.publish(trainer_ad.build(ada, AD, created_at=now_s, expires_at_s=now_s + 600))
        await until(ads, {ada.public, bea.public})
        later = SimpleNamespace(time=lambda: now_s + 601.0, monotonic=time.monotonic)
        for module in ("market.trainer_ads", "policy.provider_selection"):
            monkeypatch.setattr(f"nodewire.training.customer.{module}.time", later)
        assert (await ads.now()).keys() == {bea.public}
        assert (await provider_selection.trainers(pool)).keys() == {bea.public}


async def test_an_ad_is_renewed_before_it_ends_and_readers_see_no_change(tmp_path, monkeypatch):
    monkeypatch.setattr(announcer, "AGAIN_S", 0.1)
    async with opened(tmp_path) as (ada, pool, ads):
        announced = TrainerAnnouncer(ada, pool, AD)
        await announced.announce()
        await until(ads, {ada.public})
        first, event = await ads.now(), ads._newest[ada.public]
        renewing = asyncio.create_task(announced.renew())
        async with asyncio.timeout(60):
            while ads._newest[ada.public] is event:
                await ads.now()
                await asyncio.sleep(0.02)
        renewing.cancel()
        assert await ads.now() is first


async def test_a_trainer_that_cannot_serve_says_so_and_is_listed_again_when_it_can(tmp_path, monkeypatch):
    """It sells nothing else, so that no beat tells of it."""
    monkeypatch.setattr(outages, "QUIET_S", 0.01)
    monkeypatch.setattr(outages, "FIRST_S", 0.01)
    faults = list[NodeFailed]()

    async def check():
        for fault in faults:
            raise fault

    async with (
        small_market.opened(tmp_path) as market,
        small_market.provider(market, "ada", checks=[check]) as ada,
        Pool([market.relay], keys=Keys.generate()) as pool,
    ):
        ads = Ads(pool)
        await until(ads, {ada.public})
        faults.append(NodeFailed("disk", "No space left on device"))
        await until(ads, set())
        faults.clear()
        await until(ads, {ada.public})
        ads.close()
