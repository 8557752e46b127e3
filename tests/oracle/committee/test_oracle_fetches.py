"""Fetches by id go together, a few at a time, and what strangers have looked for is bounded."""

from __future__ import annotations

import asyncio

from nodewire.oracle.committee.fetches import IDS_PER_FETCH, Fetches


class Relay:
    """Answers when it is told to."""

    def __init__(self):
        self.asked, self.answers, self.tasks = [], asyncio.Event(), []

    async def fetch(self, ids):
        self.asked.append(ids)
        await self.answers.wait()

    def spawn(self, work):
        self.tasks.append(asyncio.create_task(work))

    async def settled(self):
        self.answers.set()
        await asyncio.gather(*self.tasks)


def named(start, end):
    return [f"{n:064x}" for n in range(start, end)]


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


async def test_ids_of_one_moment_are_fetched_together_and_each_once():
    relay = Relay()
    fetches = Fetches(relay.fetch, relay.spawn, at_a_time=2, most=1_000)
    for id_ in (*named(0, 300), *named(0, 300)):
        fetches.add([id_])
    await relay.settled()
    assert [len(ids) for ids in relay.asked] == [IDS_PER_FETCH, 300 - IDS_PER_FETCH]
    assert set().union(*relay.asked) == set(named(0, 300))


async def test_no_more_fetches_are_under_way_than_allowed_and_the_oldest_ids_give_way():
    relay = Relay()
    fetches = Fetches(relay.fetch, relay.spawn, at_a_time=2, most=10)
    for number in range(2):
        fetches.add(named(number, number + 1))
        await until(lambda number=number: len(relay.asked) == number + 1)
    fetches.add(named(100, 150))
    assert len(relay.tasks) == 2
    await relay.settled()
    assert relay.asked[2:] == [set(named(140, 150))]
    fetches.add(named(0, 1))  # there is room again
    await relay.settled()
    assert relay.asked[-1] == set(named(0, 1))
