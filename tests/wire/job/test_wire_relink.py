"""A link that breaks in mid-job is made again: every frame comes once, in order, with the same bytes."""

import asyncio
import hashlib
import os
import random
from dataclasses import dataclass

import pytest

from nodewire.errors import LinkLost, NodeFailed, NotAllowed, NotFound
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Patience, Route, Spool
from nodewire.wire.framing import frames
from nodewire.wire.job.edge_window import WINDOW_BYTES
from tests.wire.wire_net import TLS_AND_SHM, array, job_id, refused_as, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")
TURNS = 6


def after(data: bytes | memoryview, stage: int) -> bytes:
    """What a stage makes of its input; as long as that."""
    return (hashlib.sha256(bytes([stage]) + bytes(data)).digest() * (len(data) // 32 + 1))[: len(data)]


@dataclass
class Member:
    """A node's part of a ring: it consumes `into` and produces `out_of`."""

    node: object
    job: object
    tape: Spool
    lost: list[str]


class Ring:
    """0 drives, 1 .. n-1 are stages, edge e<i> leads from place i to the next; the last back to 0."""

    def __init__(self, net, places: int, path, size: int = 300, grace_s: float = 5.0) -> None:
        self.net, self.places, self.path, self.size, self.grace_s = net, places, path, size, grace_s
        self.at: list[str] = []
        self.members: dict[str, Member] = {}
        self.serving: dict[str, asyncio.Task] = {}

    def routes(self) -> dict[str, Route]:
        return {f"e{i}": Route(self.at[i], self.at[(i + 1) % self.places]) for i in range(self.places)}

    async def start(self) -> None:
        nodes = [await self.net.node() for _ in range(self.places)]
        self.at = [node.public for node in nodes]
        for i, node in enumerate(nodes):
            await self.net.link(node, nodes[(i + 1) % self.places])
        for i, node in enumerate(nodes):
            self.open(node)
            if i:
                self.serve(i)

    def open(self, node) -> None:
        lost: list[str] = []
        tape = Spool(self.path / node.public, 2**30)
        job = node.open_job(
            JobChannelSpec(
                JOB,
                self.routes(),
                on_lost=lambda peer, error: lost.append(peer),
                grace_s=self.grace_s,
                tape=tape,
            )
        )
        self.members[node.public] = Member(node, job, tape, lost)

    def serve(self, place: int) -> None:
        public = self.at[place]
        self.serving[public] = asyncio.create_task(self._serve(place, self.members[public]))

    async def _serve(self, place: int, member: Member) -> None:
        while True:
            frame = await member.job.get()
            made = after(frame.tensors[0].data, place)
            await member.job.put(Frame(f"e{place}", frame.seq, (array(made),), frame.meta))

    async def kill(self, place: int) -> None:
        self.serving[self.at[place]].cancel()
        for link in list(self.members[self.at[place]].node.peers.values()):
            link.abort(LinkLost("killed", ""))
        await self.members[self.at[place]].node.close()

    async def relink(self, place: int) -> None:
        """Cut the link from a place to the next, and make it again."""
        a, b = (self.members[self.at[at % self.places]].node for at in (place, place + 1))
        if (link := a.peers.get(b.public)) is not None:
            link.abort(LinkLost(b.public, "cut"))
        await until(lambda: a.public not in b.peers)
        await self.net.link(a, b)

    async def drive(self, turns: int = TURNS, first: int = 0, data: bytes | None = None) -> bytes:
        """Turn the ring, checking what comes; the state that goes on."""
        driver = self.members[self.at[0]]
        data = data or bytes(i % 251 for i in range(self.size))
        for seq in range(first, first + turns):
            await driver.job.put(Frame("e0", seq, (array(data),), {"pos": seq}))
            frame = await driver.job.get()
            expected = data
            for place in range(1, self.places):
                expected = after(expected, place)
            assert (frame.seq, frame.meta["pos"], bytes(frame.tensors[0].data)) == (seq, seq, expected)
            data = expected
        return data


@pytest.fixture
async def ring(net, tmp_path):
    rings = []

    async def start(places: int, **options) -> Ring:
        rings.append(Ring(net, places, tmp_path, **options))
        await rings[-1].start()
        return rings[-1]

    yield start
    for ring in rings:
        for task in ring.serving.values():
            task.cancel()
        await asyncio.gather(*ring.serving.values(), return_exceptions=True)
        for member in ring.members.values():
            member.tape.close()


async def test_a_put_that_waits_for_a_full_window_goes_on_over_the_next_link(net, tmp_path):
    a, b = await net.pair()
    routes = {"e": Route(a.public, b.public)}
    options = {"limits": {"e": 2**20}, "on_lost": ignore, "tape": Spool(tmp_path, 2**30)}
    mine = a.open_job(JobChannelSpec(JOB, routes, **options))
    theirs = b.open_job(JobChannelSpec(JOB, routes, limits={"e": 2**20}, on_lost=ignore))
    data = [os.urandom(2**20) for _ in range(24)]

    async def produce():
        for seq, item in enumerate(data):
            await mine.put(Frame("e", seq, (array(item),)))

    producing = asyncio.create_task(produce())
    fits = WINDOW_BYTES // (2**20 + 2 * 1024)
    await until(lambda: mine._edges.outgoing["e"].next_seq == fits + 1)
    a.peers[b.public].abort(LinkLost(b.public, "cut"))
    await until(lambda: a.public not in b.peers)
    await net.link(a, b)
    for seq, item in enumerate(data):
        frame = await theirs.get()
        assert (frame.seq, bytes(frame.tensors[0].data)) == (seq, item)
    await producing
    assert theirs._edges.incoming["e"].unread == 0


async def test_a_put_in_a_black_hole_goes_on_over_the_next_link_and_its_memory_is_free(net, tmp_path):
    a, keys = await net.node(patience=Patience(silence_s=30)), Keys.generate()
    raw = await net.proven(a, keys)
    routes = {"e": Route(a.public, keys.public)}
    mine = a.open_job(JobChannelSpec(JOB, routes, on_lost=ignore, tape=Spool(tmp_path, 2**30)))
    link = a.peers[keys.public]
    mine._edges.outgoing["e"].window.grant(2**40)
    raw.writer.transport.pause_reading()
    data = bytearray(os.urandom(48 * 2**20))
    putting = asyncio.create_task(mine.put(Frame("e", 0, (array(data),))))
    await until(lambda: link._outbox._active and not link._writable)
    link.abort(LinkLost(keys.public, "cut"))
    c = await net.node(keys)
    theirs = c.open_job(JobChannelSpec(JOB, routes, on_lost=ignore))
    await net.link(c, a)
    getting = asyncio.create_task(theirs.get())
    await putting
    expected = bytes(data)
    data[:] = bytes(len(data))  # the kind uses its memory again
    assert bytes((await getting).tensors[0].data) == expected


async def test_a_producer_sends_nothing_on_a_link_made_again_before_it_knows_what_is_lacking(net, tmp_path):
    s, keys = await net.node(), Keys.generate()
    await net.proven(s, keys)
    routes = {"e": Route(s.public, keys.public)}
    job = s.open_job(JobChannelSpec(JOB, routes, on_lost=ignore, tape=Spool(tmp_path, 2**24)))
    s.peers[keys.public].abort(LinkLost(keys.public, "cut"))
    await until(lambda: job._awaited.keys() == {keys.public})

    async def produce():
        for seq in range(4):
            await job.put(Frame("e", seq, (array(bytes([seq]) * 200_000),)))

    producing = asyncio.create_task(produce())
    raw = await net.proven(s, keys)
    await mark(raw)
    link = s.peers[keys.public]
    assert link.bytes_out < 200_000
    assert job._awaited.keys() == {keys.public}
    raw.send(resume("e", 2))
    await producing
    assert not job._awaited
    sent = link.bytes_out
    raw.send(resume("e", 0) + resume("e", 1) + resume("none", 0))  # a consumer that is not waited for is not heard
    await mark(raw)
    assert link.bytes_out - sent < 200_000
    assert [attempt for attempt, _ in job._tape.read(JOB, "e")] == [0, 0, 0, 0]


async def mark(raw):
    """Wait until what was sent by hand has been read."""
    raw.send(frames.ping(4_711))
    while True:
        _, kind, stream, header, payload = frames.PREFIX.unpack(await raw.reader.readexactly(16))
        await raw.reader.readexactly(header + payload)
        if (kind, stream) == (frames.Type.PONG, 4_711):
            return


def resume(edge, first) -> bytes:
    return frames.control({"t": "resume", "job": JOB, "edge": edge, "first": first})


def ignore(peer, error) -> None:
    pass


async def test_a_link_that_breaks_and_comes_back_loses_nothing(ring):
    ring = await ring(3)
    driving = asyncio.create_task(ring.drive(60))
    for turn in range(9):
        await until(lambda turn=turn: ring.members[ring.at[0]].job._edges.outgoing["e0"].next_seq > 3 * turn)
        await ring.relink(turn % 3)
    async with asyncio.timeout(60):
        await driving
    assert all(not ring.members[public].job._awaited for public in ring.at)


@pytest.mark.parametrize("back", [False, True])
async def test_a_member_that_is_not_heard_of_in_the_job_is_waited_for_as_long_as_the_grace_period(ring, back):
    ring = await ring(3, grace_s=0.2)
    dead = ring.at[1]
    keys = ring.members[dead].node._links._keys
    data = await ring.drive(2)
    await ring.kill(1)
    driver = ring.members[ring.at[0]]
    await until(lambda: driver.lost == [dead])
    if back:  # the process is there again, but the job is not
        await driver.node.link(dead, [await reborn(ring.net, keys)])
        assert driver.job._awaited.keys() == {dead}
    putting = asyncio.create_task(driver.job.put(Frame("e0", 2, (array(data),))))
    began = asyncio.get_running_loop().time()
    await refused_as(LinkLost, dead, driver.job.get())
    await refused_as(LinkLost, dead, putting)
    assert asyncio.get_running_loop().time() - began > 0.1


async def reborn(net, keys) -> str:
    node = await net.node(keys)
    return net.addresses[node.public]


async def test_a_consumer_that_never_comes_is_waited_for_as_long(net):
    a = await net.node()
    nobody = Keys.generate().public
    job = a.open_job(JobChannelSpec(JOB, {"e": Route(a.public, nobody)}, on_lost=ignore, grace_s=0.1))
    await refused_as(LinkLost, nobody, job.put(Frame("e", 0)))


@pytest.mark.parametrize("error", [NodeFailed("worker", "killed"), NotAllowed("job", "withdrawn")])
async def test_the_words_of_a_neighbour_end_the_job_also_where_it_outlives_its_links(net, error):
    a, b = await net.pair()
    lost = []
    routes = {"e": Route(b.public, a.public)}
    mine, theirs = (
        node.open_job(JobChannelSpec(JOB, routes, on_lost=lambda peer, error: lost.append((peer, error.code))))
        for node in (a, b)
    )
    theirs.cancel(error)
    await refused_as(type(error), error.field, mine.get())
    assert mine.failure.by == b.public
    assert not lost


async def test_without_a_tape_what_the_consumer_lacks_ends_the_job(net):
    a, keys = await net.node(), Keys.generate()
    await net.proven(a, keys)
    job = a.open_job(JobChannelSpec(JOB, {"e": Route(a.public, keys.public)}, on_lost=ignore))
    await job.put(Frame("e", 0, (array(b"x"),)))
    a.peers[keys.public].abort(LinkLost(keys.public, "cut"))
    raw = await net.proven(a, keys)
    raw.send(resume("e", 0))
    await refused_as(NotFound, "tape", job.get())


async def test_a_tape_that_was_cut_ends_the_job(net, tmp_path):
    a, keys = await net.node(), Keys.generate()
    await net.proven(a, keys)
    routes = {"e": Route(a.public, keys.public)}
    job = a.open_job(JobChannelSpec(JOB, routes, on_lost=ignore, tape=Spool(tmp_path, 1_000)))
    for seq in range(3):
        await job.put(Frame("e", seq, (array(bytes(400)),)))
    a.peers[keys.public].abort(LinkLost(keys.public, "cut"))
    c = await net.node(keys)
    theirs = c.open_job(JobChannelSpec(JOB, routes, on_lost=ignore))
    await net.link(c, a)
    assert [(await theirs.get()).seq for _ in range(2)] == [0, 1]
    await refused_as(NotFound, "tape", job.get())


async def test_documents_wait_for_a_member_that_is_lost(net):
    a, b = await net.pair()
    mine, theirs = (n.open_job(JobChannelSpec(JOB, {"e": Route(a.public, b.public)}, on_lost=ignore)) for n in (a, b))
    a.peers[b.public].abort(LinkLost(b.public, "cut"))
    await until(lambda: not b.peers)
    saying = asyncio.create_task(mine.control(b.public, {"t": "close"}))
    await asyncio.sleep(0)
    await net.link(b, a)
    await saying
    assert (await anext(theirs.controls()))[1]["t"] == "close"


async def test_documents_come_in_order_and_once_over_breaking_links(net):
    a, b = await net.pair()
    mine, theirs = (n.open_job(JobChannelSpec(JOB, {"e": Route(a.public, b.public)}, on_lost=ignore)) for n in (a, b))
    heard = []

    async def listen():
        async for _, document in theirs.controls():
            heard.append(document["i"])

    listening = asyncio.create_task(listen())
    for i in range(60):
        await mine.control(b.public, {"t": "close", "i": i})
        if i % 7 == 3:
            a.peers[b.public].abort(LinkLost(b.public, "cut"))
            await until(lambda: a.public not in b.peers)
            await net.link(b, a)
    await until(lambda: len(heard) == 60)
    assert heard == list(range(60))
    listening.cancel()


async def test_a_node_that_closes_does_not_call_its_peers_lost(net):
    a, b = await net.pair()
    lost = []
    job = a.open_job(
        JobChannelSpec(JOB, {"e": Route(b.public, a.public)}, on_lost=lambda peer, error: lost.append(peer))
    )
    await a.close()
    await refused_as(LinkLost, a.public, job.get())
    assert not lost


async def test_unread_frames_count_against_the_window_of_the_next_link(net, tmp_path):
    a, b = await net.pair()
    limit = {"e": 2**20}
    routes = {"e": Route(a.public, b.public)}
    theirs = a.open_job(JobChannelSpec(JOB, routes, limits=limit, on_lost=ignore, tape=Spool(tmp_path, 2**30)))
    mine = b.open_job(JobChannelSpec(JOB, routes, limits=limit, on_lost=ignore))
    for seq in range(10):
        await theirs.put(Frame("e", seq, (array(bytes([seq]) * 2**20),)))
    await until(lambda: len(mine._queue) == 10)
    a.peers[b.public].abort(LinkLost(b.public, "cut"))
    await until(lambda: a.public not in b.peers)
    await net.link(a, b)

    async def produce():
        for seq in range(10, 40):
            await theirs.put(Frame("e", seq, (array(bytes([seq]) * 2**20),)))

    producing = asyncio.create_task(produce())
    fits = WINDOW_BYTES // (2**20 + 2 * 1024)
    await until(lambda: len(mine._queue) == fits)
    await asyncio.sleep(0.05)
    assert len(mine._queue) == fits
    for seq in range(40):
        frame = await mine.get()
        assert (frame.seq, bytes(frame.tensors[0].data)) == (seq, bytes([seq]) * 2**20)
    await producing
    assert mine._edges.incoming["e"].unread == 0 and mine._edges.incoming["e"].taken == 30 * (2**20 + 2 * 1024)


@pytest.mark.parametrize("seed", range(8))
async def test_many_frames_in_flight_and_broken_links_in_any_order(ring, seed):
    chance = random.Random(seed)
    places, count = chance.choice((3, 4, 5)), 60
    # Nobody is given up, however long a busy machine takes for a word.
    ring = await ring(places, size=chance.choice((40, 5_000, 100_000)), grace_s=120.0)
    driver = ring.members[ring.at[0]]
    data = [os.urandom(ring.size) for _ in range(count)]

    async def produce():
        for seq, item in enumerate(data):
            await driver.job.put(Frame("e0", seq, (array(item),), {"pos": seq}))

    async def consume():
        for seq, item in enumerate(data):
            frame = await driver.job.get()
            for place in range(1, places):
                item = after(item, place)
            assert (frame.seq, bytes(frame.tensors[0].data)) == (seq, item)

    working = [asyncio.create_task(produce()), asyncio.create_task(consume())]
    for cut in range(1, 6):
        await until(lambda cut=cut: driver.job._edges.incoming[f"e{places - 1}"].next_seq > 9 * cut, 20)
        for place in chance.sample(range(places), chance.randint(1, places)):
            await ring.relink(place)
    async with asyncio.timeout(60):
        await asyncio.gather(*working)
