"""Numbers that begin anew are a driver's that has entered: nobody computes them before it knows of that."""

import asyncio

import pytest
from wire_net import array, job_id

from nodewire.errors import NotAllowed
from nodewire.protocol.frame import Frame
from nodewire.wire import Route
from nodewire.wire.edges import RESTART

JOB = job_id("restart")


class Tape:
    """What was put, by any number."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, Frame]] = []

    def write(self, request: str, edge: str, attempt: int, frame: Frame) -> None:
        self.frames.append((attempt, frame))

    def read(self, request: str, edge: str, first: int = 0):
        return iter([one for one in self.frames if one[1].seq >= first])


@pytest.fixture
async def edge(net):
    """The mailboxes of both ends of an edge with guesses, and a way to put numbers on it."""
    a, b = await net.node(), await net.node()
    await net.link(a, b)
    routes = {"e": Route(a.public, (b.public,))}
    here, there = (node.open_job(JOB, routes, guessed={"e"}, tape=Tape()) for node in (a, b))

    async def put(*numbers: int) -> None:
        for seq in numbers:
            await here.put(Frame("e", seq, (array(b"x"),)))

    return there, routes, put


async def test_frames_that_begin_anew_wait_for_the_takeover_that_they_come_of(edge):
    job, routes, put = edge
    await put(0, RESTART, RESTART + 1)
    assert (await job.get()).seq == 0
    waiting = asyncio.create_task(job.get())
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    job.take_over(1, routes, {"e"})
    assert (await asyncio.wait_for(waiting, 5)).seq == RESTART
    assert (await job.get()).seq == RESTART + 1


async def test_a_job_that_ends_does_not_wait_for_a_takeover(edge):
    job, _, put = edge
    await put(3 * RESTART)
    waiting = asyncio.create_task(job.get())
    await asyncio.wait([waiting], timeout=0.1)
    job.take_over(2, edge[1], {"e"})
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    job.cancel()
    with pytest.raises(NotAllowed):
        await asyncio.wait_for(waiting, 5)
