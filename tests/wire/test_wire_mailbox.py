"""A job's frames arrive whole, in order, from the right producer, and no faster than they are taken."""

import asyncio
import os

import pytest
from conftest import QUICK, array, job_id, until

from nodewire.errors import BadFrame, LinkLost, NotAllowed, NotFound, TooLarge
from nodewire.protocol.frame import Array, Frame
from nodewire.wire import Route

JOB = job_id("job")


def echo_routes(a, b):
    return {"there": Route(a.public, (b.public,)), "back": Route(b.public, (a.public,))}


async def echo(job, turns):
    for _ in range(turns):
        frame = await job.get()
        await job.put(Frame("back", frame.seq, frame.tensors, frame.meta))


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 262_144, 262_145, 3 * 2**20 + 7])
async def test_frames_come_back_bit_for_bit(net, size):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JOB, echo_routes(a, b)) for node in (a, b))
    served = asyncio.create_task(echo(theirs, 2))
    for seq in range(2):
        data = os.urandom(size)
        await mine.put(Frame("there", seq, (array(data),), {"pos": seq, "end": True, "text": "é", "none": None}))
        frame = await mine.get()
        assert bytes(frame.tensors[0].data) == data
        assert frame.meta == {"pos": seq, "end": True, "text": "é", "none": None}
    await served


async def test_several_tensors_of_all_types_travel_in_one_frame(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JOB, echo_routes(a, b)) for node in (a, b))
    tensors = (
        Array("bfloat16", (2, 3), os.urandom(12)),
        Array("bool", (3,), b"\x01\x00\x01"),
        Array("int64", (), os.urandom(8)),
        Array("float32", (0, 4), b""),
        Array("float32", (70_000,), memoryview(bytearray(os.urandom(280_000)))),
    )
    await mine.put(Frame("there", 0, tensors))
    await echo(theirs, 1)
    frame = await mine.get()
    assert [(t.dtype, t.shape, bytes(t.data)) for t in frame.tensors] == [
        (t.dtype, t.shape, bytes(t.data)) for t in tensors
    ]


async def test_a_ring_of_three_turns_a_hundred_times(net):
    nodes = [await net.node() for _ in range(3)]
    routes = {f"e{i}": Route(nodes[i].public, (nodes[(i + 1) % 3].public,)) for i in range(3)}
    for i in range(3):
        await net.link(nodes[i], nodes[(i + 1) % 3])
    jobs = [node.open_job(JOB, routes) for node in nodes]

    async def stage(i):
        for seq in range(100):
            frame = await jobs[i].get()
            await jobs[i].put(Frame(f"e{i}", seq, frame.tensors, frame.meta))

    stages = [asyncio.create_task(stage(i)) for i in (1, 2)]
    data = os.urandom(4096)
    for seq in range(100):
        await jobs[0].put(Frame("e0", seq, (array(data, "bfloat16", (2, 1024)),), {"pos": seq}))
        frame = await jobs[0].get()
        assert (frame.edge, frame.seq, frame.meta["pos"]) == ("e2", seq, seq)
        assert bytes(frame.tensors[0].data) == data
    await asyncio.gather(*stages)
