"""Who gets the next turn, and whose share of what all need is used up."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from nodewire.verify.waiting_list import Cap, WaitingList

ONE = (Cap("all", 1),)


class Queue:
    """Parties that hold their turns until they are told to go."""

    def __init__(self):
        self.list, self.served, self.leaving, self.tasks = WaitingList(), [], {}, {}

    async def come(self, name, rank=0, caps=ONE):
        self.leaving[name] = asyncio.Event()

        async def hold():
            async with self.list.turn(rank, caps):
                self.served.append(name)
                await self.leaving[name].wait()

        self.tasks[name] = asyncio.create_task(hold())
        await self.settle()

    async def go(self, name):
        self.leaving[name].set()
        await self.tasks[name]
        await self.settle()

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def queue():
    made = Queue()
    yield made
    for task in made.tasks.values():
        task.cancel()
    await asyncio.gather(*made.tasks.values(), return_exceptions=True)


async def test_the_lowest_rank_comes_first_and_then_whoever_came_first(queue):
    for name, rank in (("holds", 1), ("stranger", 1), ("late stranger", 1), ("bonded", 0), ("late bonded", 0)):
        await queue.come(name, rank)
    for name in ("holds", "bonded", "late bonded", "stranger"):
        await queue.go(name)
    assert queue.served == ["holds", "bonded", "late bonded", "stranger", "late stranger"]


async def test_a_party_that_uses_up_its_share_is_passed_over_until_it_gives_some_back(queue):
    greedy = [Cap("all", 3), Cap("greedy", 1)]
    await queue.come("first", caps=greedy)
    await queue.come("second", caps=greedy)
    await queue.come("another", caps=[Cap("all", 3)])
    assert queue.served == ["first", "another"]
    await queue.go("first")
    assert queue.served == ["first", "another", "second"]


async def test_more_than_the_whole_is_served_alone(queue):
    await queue.come("small", caps=[Cap("bytes", 10, 4)])
    await queue.come("huge", caps=[Cap("bytes", 10, 99)])
    await queue.come("after", caps=[Cap("bytes", 10, 4)])
    assert queue.served == ["small", "after"]
    await queue.go("small")
    await queue.go("after")
    assert queue.served[-1] == "huge"
    await queue.come("waits", caps=[Cap("bytes", 10, 1)])
    assert queue.served[-1] == "huge"


@pytest.mark.parametrize("when", ["waiting", "just served"])
async def test_a_party_that_gives_up_takes_nothing_with_it(queue, when):
    await queue.come("holds")
    await queue.come("gives up")
    if when == "just served":
        queue.leaving["holds"].set()
        await queue.tasks["holds"]  # the turn is given; its holder has not run yet
    queue.tasks["gives up"].cancel()
    await queue.settle()
    await queue.come("next")
    if when == "waiting":
        await queue.go("holds")
    assert queue.served[-1] == "next"


async def test_a_fault_gives_the_turn_back():
    turns = WaitingList()
    with pytest.raises(ZeroDivisionError):
        async with turns.turn(0, [Cap("all", 1)]):
            raise ZeroDivisionError
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            await stack.enter_async_context(turns.turn(0, [Cap("all", 1)]))
