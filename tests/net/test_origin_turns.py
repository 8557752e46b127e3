"""Turns of an event loop: what is sparse goes first, and origins have equal shares however much each has to do."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from nodewire.net.origin_turns import TURN_S, Turns


class Work:
    """Something that takes `takes_s` a turn, `times` times; each turn is written to `log`."""

    def __init__(self, turns, name, origin, log, clock, *, times=1, takes_s=0.001):
        self.turns, self.name, self.origin, self.log, self.clock = turns, name, origin, log, clock
        self.left, self.takes_s = times, takes_s

    def __call__(self):
        end_s = self.turns.end_s()
        self.clock[0] += self.takes_s
        self.log.append(self.name)
        self.left -= 1
        if self.left:
            self.turns.wait(self.origin, self, again=True)
        self.turns.spent(end_s)


@pytest.fixture
async def made():
    clock = [0.0]
    return Turns(asyncio.get_running_loop(), lambda: clock[0]), [], clock


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0)


async def test_origins_take_turns_however_much_each_has_to_do(made):
    turns, log, clock = made
    for number in range(20):
        turns.wait("crowd", Work(turns, f"crowd {number}", "crowd", log, clock, times=10))
    turns.wait("other", Work(turns, "other", "other", log, clock, times=5))
    await until(lambda: log.count("other") == 5)
    assert log[:10].count("other") == 5


async def test_what_had_no_turn_yet_goes_before_what_waits_again(made):
    turns, log, clock = made
    for number in range(20):
        turns.wait("here", Work(turns, f"hungry {number}", "here", log, clock, times=10))
    await until(lambda: len(log) >= 20)
    turns.wait("here", Work(turns, "sparse", "here", log, clock))
    before = len(log)
    await until(lambda: "sparse" in log)
    assert log.index("sparse") == before


async def test_the_loop_does_other_things_between_turns(made):
    turns, log, clock = made
    turns.wait("here", Work(turns, "hungry", "here", log, clock, times=100))
    seen = []
    while len(log) < 100:
        await asyncio.sleep(0)
        seen.append(len(log))
    assert max(b - a for a, b in pairwise(seen)) <= TURN_S / 0.001 + 1


async def test_work_at_once_has_a_turns_time_between_two_looks_of_the_loop(made):
    turns, log, clock = made
    for _ in range(10):
        if turns.has_time:
            Work(turns, "at once", "here", log, clock)()
    assert len(log) == TURN_S / 0.001
    await asyncio.sleep(0)
    assert turns.has_time


async def test_what_waits_is_done_with_its_result_or_error_and_not_when_nobody_waits(made):
    turns, log, _ = made
    turns._spent_s = 1.0
    assert await turns.done("here", lambda: 7) == 7
    turns._spent_s = 1.0
    with pytest.raises(KeyError):
        await turns.done("here", lambda: {}["x"])
    turns._spent_s = 1.0
    left = asyncio.ensure_future(turns.done("here", lambda: log.append("done")))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not log


async def test_little_works_of_a_crowd_come_in_batches_and_another_origin_waits_for_one_at_most(made):
    turns, log, _ = made

    async def little(origin):
        await turns.due(origin)
        log.append(origin)

    crowd = [asyncio.create_task(little("crowd")) for _ in range(500)]
    await until(lambda: log)
    await little("other")
    assert log.index("other") <= 3 * TURN_S / 0.000_2
    await asyncio.gather(*crowd)
