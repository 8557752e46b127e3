"""Every epoch is read, each in its turn; one that is certified after the next one, as soon as its certificate comes."""

from __future__ import annotations

import pytest

from nodewire.errors import NotFound
from nodewire.oracle.court.case import OPEN_EPOCHS, EpochDraw
from nodewire.oracle.court.epoch_reader import EpochReader
from nodewire.plan.epoch import Epoch
from tests.oracle.court.test_oracle_docket import body
from tests.protocol.committee.actors import committee, digest

COMMITTEE, _ = committee()


class Certified:
    """Epochs whose certificates have come, as `plan.epoch.Epochs` tells of them."""

    def __init__(self):
        self.numbers: set[int] = set()

    def after(self, epoch, now_ms):
        return [Epoch(body(n), digest("beacon"), None, ()) for n in sorted(self.numbers) if n > epoch]


class Clerk:
    """Reads what it is given; `lacking` are epochs of which something is not to be had."""

    def __init__(self):
        self.lacking: set[int] = set()

    async def read(self, epoch):
        if epoch.body.epoch in self.lacking:
            raise NotFound("commitments", "not to be had")
        return EpochDraw(epoch.body.epoch, epoch.body.digest(), (), {}, {})


class Watch:
    now_s = 0.0

    def time_s(self):
        return self.now_s


class Desk:
    """A reader, what it has read, and the time."""

    def __init__(self):
        self.certified, self.clerk, self.clock, self.read = Certified(), Clerk(), Watch(), []
        self.at(10)
        self.reading = EpochReader(
            COMMITTEE, self.certified, self.clerk, self.clock, lambda one: self.read.append(one.epoch)
        )
        self.reading.begin(10)

    def at(self, epoch, after_ms=0):
        self.clock.now_s = (COMMITTEE.close_ms(epoch - 1) + after_ms) / 1000

    async def step(self, epoch, *certified, after_ms=900):
        self.at(epoch, after_ms)
        self.certified.numbers |= set(certified)
        await self.reading.step()
        read, self.read[:] = list(self.read), []
        return read


async def test_epochs_are_read_in_their_turn():
    desk = Desk()
    assert await desk.step(11, 11) == []  # nothing closes before its time
    assert await desk.step(12, 10) == [10, 11]
    assert await desk.step(13, 12) == [12]


async def test_an_epoch_that_is_certified_after_the_next_is_read_and_those_after_it_again():
    """What later certificates hold of its samples was nobody's root when they were read."""
    desk = Desk()
    assert await desk.step(11, 10) == [10]
    assert await desk.step(13) == []
    assert await desk.step(14, 12, 13) == [12, 13]  # 11 has none, and keeps nobody waiting
    assert await desk.step(14, 11, after_ms=1_000) == [11, 12, 13]
    assert await desk.step(15, 14) == [14]


async def test_what_cannot_be_read_at_first_is_read_when_it_can_be():
    desk = Desk()
    desk.clerk.lacking = {10}
    assert await desk.step(11, 10) == []
    assert await desk.step(14, 11, 12) == [11, 12]
    desk.clerk.lacking = set()
    assert await desk.step(15, 13, 14) == [13, 14, 10, 11, 12, 13, 14]


@pytest.mark.parametrize(("late", "read"), [(OPEN_EPOCHS, [10, 11, 12]), (OPEN_EPOCHS + 1, [])])
async def test_what_can_be_pulled_no_more_is_left_unread(late, read):
    desk = Desk()
    assert await desk.step(14, 11, 12) == [11, 12]
    assert await desk.step(10 + late, 10) == read
