"""Two jobs of one text: the session's tokens are the same, whichever of them gives them, and whatever befalls one."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.customer.migration.race import Race
from nodewire.errors import LinkLost, WorkerFailed
from tests.customer.script import CHUNK, TOKENS, contender, last

LATE_S = 0.05


class Session:
    """A race with what is told of it."""

    def __init__(self):
        self.told, self.ended, self.ids = [], [], []
        self.race = Race(lambda contender, outcome: self.told.append((contender, outcome)), self.ended.append)

    def lead(self, *tokens, first=0):
        one = contender(first)
        self.race.begin(one)
        one.bought.purchase.put(*tokens)
        return one

    def second(self, *tokens, overtaking=100):
        other = contender(len(self.ids))
        self.race.second(other, overtaking)
        other.bought.purchase.put(*tokens)
        return other

    async def read(self, count):
        while len(self.ids) < count and (piece := await asyncio.wait_for(self.race.next(self.ids), 5)) is not None:
            self.ids += piece.ids

    async def nothing_comes(self):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.race.next(self.ids), LATE_S)


@pytest.fixture
async def session():
    session = Session()
    yield session
    await session.race.end()


async def test_who_catches_up_leads_and_no_token_is_told_twice(session):
    slow = session.lead(*TOKENS[:12])
    await session.read(10)
    quick = session.second(*TOKENS[10:40])
    await session.read(40)
    assert session.ids == TOKENS[:40]
    assert session.race.lead is quick
    assert session.told == [(quick, "moved")]
    assert not slow.bought.purchase.closed.is_set()


async def test_a_job_that_is_left_ends_with_its_chunk(session):
    slow = session.lead(*TOKENS[:12])
    await session.read(12)
    session.second(*TOKENS[12:20])
    await session.read(20)
    purchase = slow.bought.purchase
    purchase.put(*TOKENS[12 : 2 * CHUNK])  # the prompt's token, and one less than two chunks
    await asyncio.sleep(LATE_S)
    assert not purchase.closed.is_set()
    purchase.put(TOKENS[2 * CHUNK])
    await asyncio.wait_for(purchase.closed.wait(), 5)
    await slow.wait_end()
    assert len(purchase.timing.outputs) == 2 * CHUNK + 1
    assert session.ended == [slow]


async def test_who_says_that_it_is_quick_and_never_catches_up_is_out(session):
    session.lead(*TOKENS[:100])
    await session.read(100)
    boaster = contender(0)
    session.race.second(boaster, 4)
    boaster.bought.purchase.put(*TOKENS[:60])
    await session.nothing_comes()
    assert session.told == [(boaster, "slower")]
    assert 40 < boaster.at <= 42


async def test_who_makes_other_tokens_is_out_and_the_first_goes_on(session):
    honest = session.lead(*TOKENS[:20])
    await session.read(20)
    liar = contender(10)
    session.race.second(liar, 100)
    liar.bought.purchase.put(*TOKENS[10:15], 7)
    await session.nothing_comes()
    assert session.told == [(liar, "differs")]
    honest.bought.purchase.put(*TOKENS[20:30])
    await session.read(30)
    assert session.ids == TOKENS[:30]


async def test_a_new_ring_that_fails_in_mid_move_leaves_the_old_one_as_it_is(session):
    old = session.lead(*TOKENS[:10])
    await session.read(10)
    new = session.second(LinkLost("node", "gone"))
    await session.nothing_comes()
    assert session.told == [(new, "failed")]
    old.bought.purchase.put(*TOKENS[10:20])
    await session.read(20)
    assert session.ids == TOKENS[:20]


async def test_where_the_old_ring_fails_in_mid_move_the_new_one_ends_too_and_both_are_settled(session):
    old = session.lead(*TOKENS[:20])
    await session.read(12)
    new = session.second()
    await session.read(20)
    old.bought.purchase.put(WorkerFailed("worker", "died"))
    with pytest.raises(WorkerFailed):
        await session.read(21)
    await session.race.clear()
    assert session.told == [(new, "ended")] and new.bought.purchase.closed.is_set()
    begun = session.lead(*TOKENS[20:30], first=20)
    await session.read(30)
    assert session.ids == TOKENS[:30] and session.race.lead is begun


async def test_where_both_fail_the_session_hears_of_the_last(session):
    session.lead(*TOKENS[:12], WorkerFailed("worker", "died"))
    await session.read(12)
    session.second(LinkLost("node", "gone"))
    with pytest.raises((LinkLost, WorkerFailed)):
        await session.read(13)


async def test_who_gives_up_in_mid_move_has_both_settled(session):
    old = session.lead(*TOKENS[:10])
    await session.read(10)
    new = session.second()
    await session.nothing_comes()
    await session.race.end()
    assert old.bought.purchase.closed.is_set() and new.bought.purchase.closed.is_set()
    assert session.told == [(new, "ended")]


async def test_a_generation_that_ends_in_mid_move_needs_no_other_ring(session):
    old = session.lead(*TOKENS[:10])
    await session.read(10)
    new = session.second()
    old.bought.purchase.put(None)
    assert await asyncio.wait_for(session.race.next(session.ids), 5) is None
    assert session.told == [(new, "ended")]
    await session.race.end()
    assert new.bought.purchase.closed.is_set()


async def test_after_the_last_token_there_is_none_though_its_job_is_still_settled(session):
    lead = session.lead(*TOKENS[:10], last(TOKENS[10]))
    await session.read(11)
    assert session.race.is_whole and not lead.task.done()
    lead.bought.purchase.put(None)
    assert await asyncio.wait_for(session.race.next(session.ids), 5) is None
    assert lead.task.done()


async def test_a_job_is_read_no_further_than_its_tokens_are_taken(session):
    session.lead(*TOKENS[:10])
    await session.read(3)
    await asyncio.sleep(LATE_S)
    assert len(session.race.lead.bought.purchase.timing.outputs) <= 4
