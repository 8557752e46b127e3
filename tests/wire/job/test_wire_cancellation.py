"""A put that is cancelled: its frame goes all the same, whole and before the next one, and its memory is free."""

import asyncio
import os

import pytest

from nodewire.errors import LinkLost
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.job.edge_window import WINDOW_BYTES
from tests.wire.wire_net import TLS_AND_SHM, array, job_id, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")
MiB = 2**20


def open_job(net, producer, consumer, **options):
    routes = {"e": Route(producer.public, consumer.public)}
    return [node.open_job(JobChannelSpec(JOB, routes, **options)) for node in (producer, consumer)]


async def cancel(putting) -> None:
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting


async def got(job, seq) -> bytes:
    async with asyncio.timeout(60):
        frame = await job.get()
    assert frame.seq == seq
    return bytes(frame.tensors[0].data)


@pytest.mark.parametrize("others", [0, 1])
async def test_in_mid_frame_the_rest_goes_before_the_next_frame(net, others):
    a, b = await net.pair()
    mine, theirs = open_job(net, a, b)
    mine._edges.outgoing["e"].window.grant(2**40)
    theirs._edges.incoming["e"].granted = 2**40
    data = [bytearray(os.urandom(size)) for size in (48 * MiB, 3 * MiB, 100)]
    expected = [bytes(one) for one in data]
    outbox = a.peers[b.public]._outbox
    putting = asyncio.create_task(mine.put(Frame("e", 0, (array(data[0]),))))
    await until(lambda: outbox._active and not a.peers[b.public]._writable)
    waiting = [asyncio.create_task(mine.put(Frame("e", 1, (array(data[1]),))))] if others else []
    await asyncio.sleep(0)
    await cancel(putting)
    data[0][:] = bytes(len(data[0]))
    for seq in range(1 + len(waiting), 3):
        await mine.put(Frame("e", seq, (array(data[seq]),)))
    await asyncio.gather(*waiting)
    assert [await got(theirs, seq) for seq in range(3)] == expected


async def test_before_its_first_byte_is_written_it_is_sent_in_its_turn(net):
    a, b = await net.pair()
    mine, theirs = open_job(net, a, b)
    link = a.peers[b.public]
    link.pause_writing()
    data = bytearray(b"x" * 1_000)
    putting = asyncio.create_task(mine.put(Frame("e", 0, (array(data),))))
    await until(lambda: link._outbox._waiting)
    await cancel(putting)
    data[:] = bytes(1_000)
    link.resume_writing()
    await mine.put(Frame("e", 1, (array(b"y"),)))
    assert [await got(theirs, 0), await got(theirs, 1)] == [b"x" * 1_000, b"y"]


@pytest.mark.parametrize("times", [1, 3])
async def test_while_it_waits_for_the_window_the_frame_is_owed(net, times):
    a, b = await net.pair()
    mine, theirs = open_job(net, a, b, limits={"e": MiB})
    fits = WINDOW_BYTES // (MiB + 2 * 1024)
    for seq in range(fits):
        await mine.put(Frame("e", seq, (array(bytes([seq]) * MiB),)))
    for seq in range(fits, fits + times):
        data = bytearray([seq]) * MiB
        putting = asyncio.create_task(mine.put(Frame("e", seq, (array(data),))))
        await until(lambda seq=seq: mine._edges.outgoing["e"].next_seq == seq + 1)
        await asyncio.sleep(0.01)
        await cancel(putting)
        data[:] = bytes(MiB)
    last = asyncio.create_task(mine.put(Frame("e", fits + times, (array(b"last"),))))
    for seq in range(fits + times):
        assert await got(theirs, seq) == bytes([seq]) * MiB
    assert await got(theirs, fits + times) == b"last"
    await last
    assert not any(turns.owed for turns in mine._sender._turns.values())


async def test_nobody_need_put_again_for_it_to_go(net):
    a, b = await net.pair()
    mine, theirs = open_job(net, a, b, limits={"e": MiB})
    fits = WINDOW_BYTES // (MiB + 2 * 1024)
    for seq in range(fits):
        await mine.put(Frame("e", seq, (array(bytes(MiB)),)))
    putting = asyncio.create_task(mine.put(Frame("e", fits, (array(b"last" * (MiB // 4)),))))
    await asyncio.sleep(0.01)
    await cancel(putting)
    for seq in range(fits):
        await got(theirs, seq)
    assert await got(theirs, fits) == b"last" * (MiB // 4)


async def test_a_link_that_breaks_meanwhile_is_what_the_next_put_learns(net):
    a, b = await net.pair()
    mine, theirs = open_job(net, a, b)
    mine._edges.outgoing["e"].window.grant(2**40)
    theirs._edges.incoming["e"].granted = 2**40
    putting = asyncio.create_task(mine.put(Frame("e", 0, (array(bytes(48 * MiB)),))))
    await until(lambda: not a.peers[b.public]._writable)
    await cancel(putting)
    await b.close()
    with pytest.raises(LinkLost):
        await mine.put(Frame("e", 1, (array(b"y"),)))
