"""Whoever waits for verdicts waits no longer than they can take, and misses none because something was lost once."""

from __future__ import annotations

import asyncio
import time

import pytest

from nodewire.customer import verified
from nodewire.customer.verified import VERDICT_EPOCHS, follow
from nodewire.errors import LinkLost, NotFound
from nodewire.plan.epoch import Epoch
from nodewire.protocol import kinds
from tests.customer.public_record import HOLDER, PROVIDERS, TASKS, PublicRecord
from tests.protocol_committee.actors import committee, digest

QUICK, SEATS = committee(
    name="quick",
    genesis_s=int(time.time()) - 100,
    epoch_ms=200,
    skew_ms=20,
    beat_ms=100,
    bond_holders=(HOLDER.public,),
    verify_rate_ppm=1_000_000,
    verify_share_ppm=150_000,
)


class Followed(PublicRecord):
    """A job of one chunk by three providers, which waits for its verdicts. As a pool it tells verdicts as they come."""

    def __init__(self) -> None:
        super().__init__(began_s=int(time.time()), committee=QUICK, seats=tuple(SEATS))
        self.last = self.epoch_at(int(time.time()))
        self.epochs: list[Epoch] = []
        self.unread = self.lost = 0

    def certify(self) -> None:
        body = self.certified(self.last, [self.committed(number, (0,), self.last) for number in range(3)])
        self.epochs.append(Epoch(body, digest("beacon"), self.events[0], ()))

    def judge(self) -> None:
        for number in range(3):
            self.judged(self.verdict(number, 0, self.last))

    def epochs_after(self, epoch):
        return [one for one in self.epochs if one.body.epoch > epoch]

    async def snapshot(self, sha256):
        if self.unread:
            self.unread -= 1
            raise NotFound("snapshot", "not now")
        return await super().snapshot(sha256)

    def subscribe(self, filters):
        return Subscription(self)

    async def follow(self):
        roots = {(PROVIDERS[number].public, self.root(TASKS[number], 0)): None for number in range(3)}
        async with asyncio.timeout(8):
            return await follow(self.request, roots, market=self, pool=self, last_epoch=self.last)


class Subscription:
    def __init__(self, record) -> None:
        self.record = record

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def __aiter__(self):
        if self.record.lost:
            self.record.lost -= 1
            raise LinkLost("relays", "gone")
        told: set[str] = set()
        while True:
            for event in self.record.events:
                if event.kind == kinds.CERTIFICATE and event.id not in told:
                    told.add(event.id)
                    yield event
            await asyncio.sleep(0.02)


async def test_what_was_drawn_and_judged_is_waited_for_and_no_longer():
    record = Followed()
    record.certify()
    record.judge()
    began = time.monotonic()
    found = await record.follow()
    assert time.monotonic() - began < 1
    assert (found.roots, found.certified, len(found.samples), len(found.verdicts)) == (3, 3, 3, 3)


async def test_a_committee_that_stops_before_it_certifies_anything_is_not_waited_for():
    found = await Followed().follow()
    assert (found.roots, found.certified, found.samples) == (3, 0, [])


async def test_a_committee_that_stops_before_it_judges_is_waited_for_as_long_as_it_has_time():
    record = Followed()
    record.certify()
    found = await record.follow()
    assert (len(found.samples), found.verdicts) == (3, {})
    assert VERDICT_EPOCHS + 2 <= QUICK.epoch_at(int(time.time() * 1000)) - record.last <= VERDICT_EPOCHS + 5


async def test_an_epoch_that_could_not_be_read_once_is_read_again():
    record = Followed()
    record.unread = 2
    record.certify()
    record.judge()
    found = await record.follow()
    assert (found.certified, len(found.samples), len(found.verdicts)) == (3, 3, 3)


async def test_an_epoch_that_can_never_be_read_ends_the_wait_all_the_same():
    record = Followed()
    record.unread = 10**9
    record.certify()
    assert (await record.follow()).certified == 0


async def test_a_lost_subscription_is_opened_again():
    record = Followed()
    record.lost = 2
    record.certify()
    record.judge()
    assert len((await record.follow()).verdicts) == 3


async def test_a_listener_that_dies_ends_the_wait_and_is_told_of(monkeypatch, caplog):
    record = Followed()
    record.certify()
    record.judge()
    monkeypatch.setattr(verified, "_take", lambda *_: 1 // 0)
    assert (await record.follow()).verdicts == {}
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture(autouse=True)
async def nothing_is_left_running():
    yield
    assert [task for task in asyncio.all_tasks() if "_listen" in repr(task.get_coro())] == []
