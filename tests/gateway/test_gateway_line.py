"""The line in front of the desk: each owner's share of it, and an end to waiting."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import Busy
from nodewire.gateway.line import Line, TooMany


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_go_to_owners_in_turn_however_many_wait_of_one():
    line, got = Line(1, 64, 60), []
    await line.acquire("crowd")

    async def wait(owner):
        await line.acquire(owner)
        got.append(owner)

    waiting = [asyncio.ensure_future(wait(owner)) for owner in ["crowd"] * 10 + ["other"]]
    await settled()
    for _ in range(2):
        line.give("crowd")
        await settled()
    assert got == ["crowd", "other"]
    for one in waiting:
        one.cancel()
    await settled()
    assert line.waiting == 0


async def test_when_too_many_wait_the_youngest_goes_of_the_owner_that_has_most():
    line = Line(1, 4, 60)
    await line.acquire("crowd")
    crowd = [asyncio.ensure_future(line.acquire("crowd")) for _ in range(4)]
    await settled()
    with pytest.raises(Busy):
        await line.acquire("crowd")
    other = asyncio.ensure_future(line.acquire("other"))
    await settled()
    assert [one.done() for one in (*crowd, other)] == [False, False, False, True, False]
    with pytest.raises(Busy):
        crowd[-1].result()
    for one in (*crowd, other):
        one.cancel()
    await settled()


async def test_who_leaves_the_line_or_is_told_too_late_keeps_no_place():
    line = Line(1, 4, 60)
    await line.acquire("a")
    left, stays = (asyncio.ensure_future(line.acquire(owner)) for owner in ("b", "c"))
    await settled()
    line.give("a")
    left.cancel()  # in the turn in which its place came
    await settled()
    assert left.cancelled() and stays.done()
    line.give("c")
    await line.acquire("d")


async def test_a_key_has_no_more_at_a_time_than_it_may_and_waiting_has_an_end():
    line = Line(1, 4, 0.01)
    await line.acquire("key", 2)
    with pytest.raises(Busy, match="none has ended"):
        await line.acquire("key", 2)
    line = Line(1, 4, 60)
    await line.acquire("key", 2)
    waits = asyncio.ensure_future(line.acquire("key", 2))
    await settled()
    with pytest.raises(TooMany):
        await line.acquire("key", 2)
    line.close()
    with pytest.raises(Busy):
        await waits
