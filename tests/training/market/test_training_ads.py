"""Trainers' ads by subscription: what is new comes without asking again."""

import asyncio

from nodewire.nostr.pool import Pool
from nodewire.training.customer.market.trainer_ads import Ads
from tests.training import small_market
from tests.training.small_market import provider


async def test_who_comes_later_is_seen_and_nothing_else_changes(tmp_path):
    async with small_market.opened(tmp_path) as market, Pool([market.relay]) as pool, provider(market, "ada") as ada:
        ads = Ads(pool)
        first = await until(ads, {ada.public})
        assert await ads.now() is first
        async with provider(market, "bea") as bea:
            later = await until(ads, {ada.public, bea.public})
        assert first.keys() == {ada.public}
        assert later[ada.public] is first[ada.public]
        ads.close()


async def test_who_comes_after_as_many_as_are_looked_at_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("nodewire.training.customer.market.trainer_ads.MAX_ADS", 1)
    async with small_market.opened(tmp_path) as market, Pool([market.relay]) as pool, provider(market, "ada") as ada:
        ads = Ads(pool)
        await until(ads, {ada.public})
        async with provider(market, "bea"):
            await asyncio.sleep(1)
            assert (await ads.now()).keys() == {ada.public}
        ads.close()


async def until(ads: Ads, wanted: set[str]):
    async with asyncio.timeout(60):
        while (await ads.now()).keys() != wanted:
            await asyncio.sleep(0.02)
    return await ads.now()
