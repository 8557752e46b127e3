"""Who computes along is sent what the consumer is sent, and nobody ever waits for it."""

import asyncio
from contextlib import suppress
from itertools import count, islice

import pytest
from wire_net import TLS_AND_SHM, array, job_id, until

from nodewire.errors import LinkLost, NodewireError, NotFound, WorkerFailed
from nodewire.protocol.frame import Frame
from nodewire.wire import Route, Spool
from nodewire.wire.edges import WINDOW_BYTES

pytestmark = TLS_AND_SHM
JOB = job_id("aside")
SIZE = 2**20


def frame(seq: int, size: int = 100) -> Frame:
    return Frame("e0", seq, (array(bytes([seq % 251]) * size),), {"pos": seq})


class Three:
    """0 produces e0 for 1, which answers on e1; 2 computes along with 1."""

    def __init__(self, net, path) -> None:
        self.net, self.path, self.jobs, self.lost = net, path, {}, []

    async def start(self) -> None:
        self.nodes = [await self.net.node() for _ in range(3)]
        for other in self.nodes[1:]:
            await self.net.link(self.nodes[0], other)
        for i in range(2):
            self.open(i)

    def routes(self, i: int, entered: bool = False) -> dict[str, Route]:
        a, b, c = (node.public for node in self.nodes)
        if entered:
            return {"e0": Route(a, (c,)), "e1": Route(c, (a,))}
        return {"e0": Route(a, (b,), (c,)), "e1": Route(c, ()) if i == 2 else Route(b, (a,))}

    def open(self, i: int) -> None:
        tape = Spool(self.path / str(i), 2**30)
        self.jobs[i] = self.nodes[i].open_job(
            JOB, self.routes(i), 0, on_lost=lambda peer, error: self.lost.append(peer), grace_s=2.0, tape=tape
        )

    async def answer(self, i: int, count: int, first: int = 0) -> None:
        for seq in range(first, first + count):
            got = await self.jobs[i].get()
            assert (got.seq, bytes(got.tensors[0].data[:1])) == (seq, bytes([seq % 251]))
            await self.jobs[i].put(Frame("e1", seq, got.tensors, {"by": i}))


@pytest.fixture
async def three(net, tmp_path):
    made = Three(net, tmp_path)
    await made.start()
    return made


async def test_it_gets_every_frame_and_what_it_puts_out_goes_nowhere(three):
    three.open(2)
    along = asyncio.create_task(three.answer(2, 50))
    stage = asyncio.create_task(three.answer(1, 50))
    for seq in range(50):
        await three.jobs[0].put(frame(seq))
        got = await three.jobs[0].get()
        assert (got.seq, got.meta["by"]) == (seq, 1)
    async with asyncio.timeout(30):
        await asyncio.gather(stage, along)
    assert three.jobs[0].neighbours == {three.nodes[1].public, three.nodes[2].public}
    assert three.jobs[0].aside == {three.nodes[2].public}


async def test_one_that_reads_nothing_holds_nobody_up_and_gets_the_rest_when_it_reads(three):
    three.open(2)
    many = 3 * WINDOW_BYTES // SIZE
    stage = asyncio.create_task(three.answer(1, many))
    async with asyncio.timeout(60):
        for seq in range(many):
            await three.jobs[0].put(frame(seq, SIZE))
            assert (await three.jobs[0].get()).seq == seq
        await stage
        await three.answer(2, many)


async def test_one_that_opens_the_job_late_gets_all_of_it(three):
    stage = asyncio.create_task(three.answer(1, 20))
    for seq in range(20):
        await three.jobs[0].put(frame(seq))
        await three.jobs[0].get()
    await stage
    three.open(2)
    async with asyncio.timeout(30):
        await three.answer(2, 20)


@pytest.mark.parametrize("how", ["killed", "cancelled", "failed"])
async def test_one_that_is_gone_is_nobodys_loss(three, how):
    three.open(2)
    stage, along = asyncio.create_task(three.answer(1, 30)), asyncio.create_task(three.answer(2, 30))
    for seq in range(30):
        if seq == 10:
            if how == "killed":
                for link in list(three.nodes[2].peers.values()):
                    link.abort(LinkLost("killed", ""))
                await three.nodes[2].close()
            else:
                three.jobs[2].cancel(WorkerFailed("worker", "dead") if how == "failed" else None)
        await three.jobs[0].put(frame(seq))
        assert (await three.jobs[0].get()).meta["by"] == 1
    await stage
    along.cancel()
    with suppress(asyncio.CancelledError, NodewireError):
        await along
    assert three.jobs[0].failure is three.jobs[1].failure is None
    await three.jobs[0].control(three.nodes[2].public, {"t": "close"})  # which waits for nobody


async def test_it_enters_without_computing_anything_again(three):
    three.open(2)
    await three.net.link(three.nodes[2], three.nodes[0])
    along, stage = asyncio.create_task(three.answer(2, 40)), asyncio.create_task(three.answer(1, 10))
    for seq in range(20):
        await three.jobs[0].put(frame(seq))
        if seq < 10:
            assert (await three.jobs[0].get()).meta["by"] == 1
    await stage  # and nothing after that
    await until(lambda: three.jobs[2]._edges.outgoing["e1"].next_seq == 20)
    for i in (0, 2):
        three.jobs[i].take_over(1, three.routes(i, entered=True))
    async with asyncio.timeout(30):
        for seq in range(10, 20):
            got = await three.jobs[0].get()
            assert (got.seq, got.meta["by"]) == (seq, 2)
        for seq in range(20, 40):
            await three.jobs[0].put(frame(seq))
            got = await three.jobs[0].get()
            assert (got.seq, got.meta["by"]) == (seq, 2)
        await along
    assert three.jobs[0].aside == set()


@pytest.mark.parametrize("known", ["before", "after"])
async def test_who_enters_and_lacks_what_was_not_kept_ends_the_job(three, known):
    """It is known that nothing more can be sent to it before it enters, or only when it reads on after that."""
    three.jobs[0]._tape._max_bytes = 20 * SIZE
    three.open(2)
    await three.net.link(three.nodes[2], three.nodes[0])
    many = 24
    stage = asyncio.create_task(three.answer(1, many))
    for seq in range(many):
        await three.jobs[0].put(frame(seq, SIZE))
        await three.jobs[0].get()
    await stage
    aside = three.jobs[0]._edges.outgoing["e0"].aside[three.nodes[2].public]
    if known == "before":
        reading = asyncio.create_task(three.answer(2, many))
        await until(lambda: aside.left)
    for i in (0, 2):
        three.jobs[i].take_over(1, three.routes(i, entered=True))
    if known == "after":
        reading = asyncio.create_task(three.answer(2, many))
    with pytest.raises(NotFound):
        async with asyncio.timeout(30):
            await three.jobs[0].put(frame(many))
    reading.cancel()
    with suppress(asyncio.CancelledError, NodewireError):
        await reading


@pytest.mark.parametrize("steps", [("both",), ("first", "both"), ("second", "both")])
async def test_two_neighbours_die_and_both_of_their_hedges_enter(net, tmp_path, steps):
    """0 produces e0 for 1, that e1 for 2, which answers on e2; 3 computes along with 1, 4 with 2."""
    nodes = [await net.node() for _ in range(5)]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            await net.link(a, b)
    d, a, b, along_a, along_b = (node.public for node in nodes)

    def routes(i: int, entered: tuple[str, ...] = ()) -> dict[str, Route]:
        first, second = along_a if "first" in entered else a, along_b if "second" in entered else b
        beside_a = () if "first" in entered else (along_a,)
        beside_b = () if "second" in entered else (along_b,)
        found = {"e0": Route(d, (first,), beside_a), "e1": Route(first, (second,), beside_b), "e2": Route(second, (d,))}
        if i == 3 and beside_a:
            found["e1"] = Route(along_a, ())
        if i == 4 and beside_b:
            found["e2"] = Route(along_b, ())
        return found

    jobs = {
        i: node.open_job(
            JOB, routes(i), 0, on_lost=lambda peer, error: None, grace_s=2.0, tape=Spool(tmp_path / str(i), 2**30)
        )
        for i, node in enumerate(nodes)
    }

    async def pass_on(i: int) -> None:
        with suppress(NodewireError):
            while True:
                got = await jobs[i].get()
                await jobs[i].put(Frame({"e0": "e1", "e1": "e2"}[got.edge], got.seq, got.tensors, {"by": i}))

    working = {i: asyncio.create_task(pass_on(i)) for i in range(1, 5)}
    numbers = count()

    async def turns(by: int) -> None:
        async with asyncio.timeout(30):
            for seq in islice(numbers, 20):
                await jobs[0].put(frame(seq))
                got = await jobs[0].get()
                assert (got.seq, bytes(got.tensors[0].data[:1]), got.meta["by"]) == (seq, bytes([seq % 251]), by)

    await turns(2)
    for attempt, step in enumerate(steps, 1):
        entered = ("first", "second") if step == "both" else (step,)
        for i in (i for i, of in ((1, "first"), (2, "second")) if of in entered):
            jobs[i].close()
        for i in {0, 3, 4, *({2} if entered == ("first",) else ()), *({1} if entered == ("second",) else ())}:
            jobs[i].take_over(attempt, routes(i, entered))
        await turns(4 if "second" in entered else 2)
    for one in working.values():
        one.cancel()
    await asyncio.gather(*working.values(), return_exceptions=True)
