"""What is offered and what is announced: a new ad for what is new, and beats that fit the ad that stands."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from nodewire.errors import Busy, NotAllowed, RelayRefused
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import ad_profile
from nodewire.protocol.market import heartbeat as beats
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.ad_profile import PublishedProfile, PublishedTask
from nodewire.provider.market.announcer import Announcer, Measurements
from nodewire.provider.tasks.loader import ServedManifest
from nodewire.provider.tasks.registry import Specializations
from tests.plan.markets import ring
from tests.protocol.committee.actors import committee, keys

ME = keys("announcer")
COMMITTEE, _ = committee(1, genesis_s=int(time.time()) - 3_600, beat_ms=50)


def served(*tasks, made=None, slots=4):
    made = made or ring(3)
    us = dict.fromkeys(tasks, 1_000)
    return ServedManifest(made, made.digest(), None, tasks, dict.fromkeys(tasks, 7), us, slots, None)


def describe(offered):
    offers = [
        ManifestOffer(
            manifest=one.digest,
            tasks=tuple(TaskOffer(task=task, price_msat=7, us_per_position=1_000) for task in one.tasks),
            slots=one.slots,
        )
        for one in offered
    ]
    return Ad(name="me", manifests=tuple(offers), committees=(COMMITTEE.digest(),))


class Pool:
    def __init__(self):
        self.events, self.refuses_ads = [], False
        self._came = asyncio.Condition()

    async def publish(self, event, *, timeout_s):
        async with self._came:
            self._came.notify_all()
            if self.refuses_ads and event.kind == ads.KIND:
                raise RelayRefused("event", "not now")
            self.events.append(event)

    async def until(self, holds):
        async with asyncio.timeout(60), self._came:
            await self._came.wait_for(lambda: holds(self))

    @property
    def ads(self):
        return [event for event in self.events if event.kind == ads.KIND]

    @property
    def beats(self):
        return [beats.parse(event) for event in self.events if event.kind == beats.KIND]


@asynccontextmanager
async def announcing(held, profile=ad_profile.UNPROFILED):
    pool, digest = Pool(), COMMITTEE.digest()
    market = SimpleNamespace(committee=COMMITTEE, committee_digest=digest, last_body=lambda: digest)
    bonding = SimpleNamespace(is_due=False, amount_msat=0)
    announcer = Announcer(ME, pool, market, describe, held, bonding, Measurements(lambda: (0, 0, 0), profile))
    running = asyncio.create_task(announcer.run())
    try:
        yield pool
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_said_before_something_is_offered_and_then_it_is_said_at_once():
    held = Specializations()
    async with announcing(held) as pool:
        await asyncio.sleep(0)
        assert not pool.events
        held.offer(served("stage.0"))
        await held.announced()
        await pool.until(lambda seen: seen.beats)
        (ad,) = pool.ads
        assert [offer.task for offer in ads.parse(ad).manifests[0].tasks] == ["stage.0"]
        assert pool.beats[0].ad == ad.id


async def test_what_was_measured_goes_out_with_the_ad_and_only_of_what_it_offers():
    one = served("stage.0")
    figures = PublishedTask(peak_bytes=5_000, us=900, positions=16, us_together=3_000)
    profile = PublishedProfile(7, tasks={(one.digest, "stage.0"): figures, (one.digest, "stage.1"): figures})
    async with announcing(Specializations([one]), profile) as pool:
        await pool.until(lambda seen: seen.ads)
        (ad,) = pool.ads
    read = ad_profile.parse(ad, ads.parse(ad))
    assert (read.at_s, read.tasks) == (7, {(one.digest, "stage.0"): figures})


async def test_until_the_new_ad_is_out_the_old_one_holds():
    old, new = served("stage.0"), served("stage.1", slots=2)
    held = Specializations([old])
    async with announcing(held) as pool:
        await held.announced()
        pool.refuses_ads = True
        held.offer(new)
        held.leave(old)
        said = len(pool.beats)
        await pool.until(lambda seen: len(seen.beats) > said + 2)
        assert {(beat.ad, beat.free[old.digest]) for beat in pool.beats} == {(pool.ads[0].id, 4)}
        pool.refuses_ads = False
        await held.announced()
        said = len(pool.beats)
        await pool.until(lambda seen: len(seen.beats) > said + 1)
        assert (pool.beats[-1].ad, pool.beats[-1].free) == (pool.ads[-1].id, {new.digest: 2})
        first, last = pool.ads
        assert last.created_at > first.created_at  # or a relay might keep the first


async def test_who_offers_nothing_any_more_beats_that_it_is_full():
    one = served("stage.0")
    held = Specializations([one])
    async with announcing(held) as pool:
        await held.announced()
        held.leave(one)
        await held.announced()
        await pool.until(lambda seen: seen.beats and seen.beats[-1].free == {one.digest: 0})
        assert len(pool.ads) == 1


async def test_what_is_leaving_serves_those_who_planned_with_it_until_it_is_dropped():
    old, new = served("stage.0", "stage.1"), served("stage.1", "stage.2")
    held = Specializations([old])
    held.offer(new)
    held.leave(old)
    assert held.offered == (new,)
    assert held.find(old.digest, {"stage.0"}) is old
    assert held.find(old.digest, {"stage.1"}) is new
    with pytest.raises(NotAllowed):
        held.find(old.digest, {"stage.0", "stage.2"})
    pages = old.allocate()
    assert held.load_ppm() == 125_000
    dropping = asyncio.create_task(held.drop(old))
    await asyncio.sleep(0)
    assert not dropping.done()
    with pytest.raises(Busy):
        old.allocate()
    old.give(pages)
    await dropping
    assert held.manifest(old.digest) is new.manifest
    with pytest.raises(NotAllowed):
        held.find(old.digest, {"stage.0"})


async def test_a_node_that_is_paused_offers_no_slot_in_a_beat_that_goes_out_at_once():
    one = served("stage.0")
    held = Specializations([one])
    async with announcing(held) as pool:
        await pool.until(lambda seen: seen.beats)
        assert pool.beats[-1].free == {one.digest: 4}
        held.pause(is_paused=True)
        await pool.until(lambda seen: seen.beats[-1].free == {one.digest: 0})
        held.pause(is_paused=False)
        await pool.until(lambda seen: seen.beats[-1].free == {one.digest: 4})
        assert len(pool.ads) == 1
