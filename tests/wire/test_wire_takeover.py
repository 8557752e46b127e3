"""A neighbour that dies is replaced in mid-job: every frame comes once, in order, with the same bytes."""

import asyncio
import hashlib
import os
from dataclasses import dataclass

import pytest
from wire_net import array, data_frame, job_id, refused_as, until

from nodewire.errors import BadInput, LinkLost, NotAllowed, NotFound, WorkerFailed
from nodewire.nostr.keys import Keys
from nodewire.protocol.frame import Frame
from nodewire.wire import Patience, Route, Spool
from nodewire.wire.edges import WINDOW_BYTES

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
        self.stop_at: dict[str, tuple[int, str]] = {}
        self.stopped = asyncio.Event()

    def routes(self) -> dict[str, Route]:
        return {f"e{i}": Route(self.at[i], (self.at[(i + 1) % self.places],)) for i in range(self.places)}

    async def start(self) -> None:
        nodes = [await self.net.node() for _ in range(self.places)]
        self.at = [node.public for node in nodes]
        for i, node in enumerate(nodes):
            await self.net.link(node, nodes[(i + 1) % self.places])
        for i, node in enumerate(nodes):
            self.open(node, 0)
            if i:
                self.serve(i)

    def open(self, node, attempt: int) -> None:
        lost: list[str] = []
        tape = Spool(self.path / node.public, 2**30)
        job = node.open_job(
            JOB,
            self.routes(),
            attempt,
            on_lost=lambda peer, error: lost.append(peer),
            grace_s=self.grace_s,
            tape=tape,
        )
        self.members[node.public] = Member(node, job, tape, lost)

    def serve(self, place: int) -> None:
        public = self.at[place]
        self.serving[public] = asyncio.create_task(self._serve(place, self.members[public]))

    async def _serve(self, place: int, member: Member) -> None:
        public = member.node.public
        while True:
            frame = await member.job.get()
            if self.stop_at.get(public) == (frame.seq, "got"):
                self.stopped.set()
                await asyncio.Event().wait()
            made = after(frame.tensors[0].data, place)
            await member.job.put(Frame(f"e{place}", frame.seq, (array(made),), frame.meta))
            if self.stop_at.get(public) == (frame.seq, "put"):
                self.stopped.set()
                await asyncio.Event().wait()

    async def kill(self, *places: int) -> None:
        for place in places:
            self.serving[self.at[place]].cancel()
            for link in list(self.members[self.at[place]].node.peers.values()):
                link.abort(LinkLost("killed", ""))
            await self.members[self.at[place]].node.close()

    async def replace(self, *places: int, attempt: int = 1, late: tuple[int, ...] = ()) -> None:
        """Standbys enter at `places`; the members in `late` hear of it last."""
        standbys = {place: await self.net.node() for place in places}
        old = list(self.at)
        for place, node in standbys.items():
            self.at[place] = node.public
        for i in range(self.places):
            if i not in places and i not in late:
                self.members[old[i]].job.take_over(attempt, self.routes())
        for place, node in standbys.items():
            self.open(node, attempt)
            self.serve(place)
        for place in places:
            before, behind = self.at[place - 1], self.at[(place + 1) % self.places]
            for a, b in ((before, self.at[place]), (self.at[place], behind)):
                await self.net.link(self.members[a].node, self.members[b].node)
        for i in late:
            await asyncio.sleep(0.01)
            self.members[old[i]].job.take_over(attempt, self.routes())

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


@pytest.mark.parametrize("moment", ["got", "put"])
@pytest.mark.parametrize("seq", range(TURNS))
@pytest.mark.parametrize("late", [(), (0,), (2,)])
async def test_a_stage_that_dies_at_any_frame_is_replaced(ring, seq, moment, late):
    ring = await ring(3)
    ring.stop_at[ring.at[1]] = (seq, moment)
    driving = asyncio.create_task(ring.drive())
    await ring.stopped.wait()
    dead = ring.at[1]
    await ring.kill(1)
    await until(lambda: all(ring.members[ring.at[i]].lost == [dead] for i in (0, 2)))
    await ring.replace(1, late=late)
    async with asyncio.timeout(5):
        await driving


async def test_a_ring_of_two_gets_another_stage(ring):
    ring = await ring(2)
    data = await ring.drive(3)
    await ring.kill(1)
    await ring.replace(1)
    await ring.drive(3, 3, data)


@pytest.mark.parametrize("seq", range(3))
async def test_two_neighbours_that_die_together_are_replaced_by_one_takeover(ring, seq):
    ring = await ring(4)
    ring.stop_at[ring.at[2]] = (seq, "got")
    driving = asyncio.create_task(ring.drive())
    await ring.stopped.wait()
    await ring.kill(1, 2)
    await ring.replace(1, 2)
    async with asyncio.timeout(5):
        await driving


async def test_two_neighbours_that_die_one_after_the_other_are_replaced_by_two_takeovers(ring):
    ring = await ring(4)
    ring.stop_at[ring.at[2]] = (2, "got")
    driving = asyncio.create_task(ring.drive())
    await ring.stopped.wait()
    await ring.kill(1, 2)
    standby = await ring.net.node()
    ring.at[1] = standby.public
    for place in (0, 3):
        ring.members[ring.at[place]].job.take_over(1, ring.routes())
    ring.open(standby, 1)
    ring.serve(1)
    await ring.net.link(ring.members[ring.at[0]].node, standby)
    await until(lambda: ring.members[standby.public].tape.next_seq(JOB, "e1") == 1)
    await ring.replace(2, attempt=2)
    async with asyncio.timeout(5):
        await driving


async def test_a_put_that_waits_for_a_full_window_goes_on_to_the_standby(net, tmp_path):
    a, b, c = [await net.node() for _ in range(3)]
    await net.link(a, b)
    routes = {"e": Route(a.public, (b.public,))}
    options = {"on_lost": lambda peer, error: None, "tape": Spool(tmp_path, 2**30)}
    mine = a.open_job(JOB, routes, limits={"e": 2**20}, **options)
    b.open_job(JOB, routes, limits={"e": 2**20}, on_lost=lambda peer, error: None)
    data = [os.urandom(2**20) for _ in range(24)]

    async def produce():
        for seq, item in enumerate(data):
            await mine.put(Frame("e", seq, (array(item),)))

    producing = asyncio.create_task(produce())
    fits = WINDOW_BYTES // (2**20 + 1024)
    await until(lambda: mine._out["e"].next_seq == fits + 1)
    routes = {"e": Route(a.public, (c.public,))}
    theirs = c.open_job(JOB, routes, 1, limits={"e": 2**20}, on_lost=lambda peer, error: None)
    mine.take_over(1, routes)  # b is alive and its link open
    await net.link(a, c)
    for seq, item in enumerate(data):
        frame = await theirs.get()
        assert (frame.seq, bytes(frame.tensors[0].data)) == (seq, item)
    await producing
    assert theirs._in["e"].unread == 0


async def test_a_put_in_a_black_hole_goes_on_to_the_standby_and_its_memory_is_free(net, tmp_path):
    a, c, keys = await net.node(patience=Patience(silence_s=30)), await net.node(), Keys.generate()
    raw = await net.proven(a, keys)
    routes = {"e": Route(a.public, (keys.public,))}
    tape = Spool(tmp_path, 2**30)
    mine = a.open_job(JOB, routes, on_lost=lambda peer, error: None, tape=tape)
    raw.send(b"")
    link = a.peers[keys.public]
    mine._out["e"].windows[keys.public].grant(2**40)
    raw.writer.transport.pause_reading()
    data = bytearray(os.urandom(48 * 2**20))
    putting = asyncio.create_task(mine.put(Frame("e", 0, (array(data),))))
    await until(lambda: link._active and not link._writable)
    routes = {"e": Route(a.public, (c.public,))}
    theirs = c.open_job(JOB, routes, 1, on_lost=lambda peer, error: None)
    mine.take_over(1, routes)
    await net.link(a, c)
    frame = await theirs.get()
    await putting
    expected = bytes(data)
    data[:] = bytes(len(data))  # the kind uses its memory again
    assert bytes(frame.tensors[0].data) == expected
    rest = b"".join(bytes(buffer) for outgoing in link._active for s in outgoing._segments for buffer in s)
    assert rest[-100:] == expected[-100:]  # what still goes to the old one is no newer memory


async def test_frames_of_a_node_that_was_replaced_pass_by_and_it_is_told_once(net, tmp_path):
    b, old, new = await net.node(), Keys.generate(), Keys.generate()
    raws = [await net.proven(b, keys) for keys in (old, new)]
    job = b.open_job(JOB, {"e": Route(old.public, (b.public,))}, on_lost=lambda peer, error: None)
    raws[0].send(data_frame(JOB, "e", 0, b"zero") + data_frame(JOB, "e", 1, b"half of it", size=20))
    assert bytes((await job.get()).tensors[0].data) == b"zero"
    await until(lambda: job._in["e"].under_way)
    job.take_over(1, {"e": Route(new.public, (b.public,))})
    document = await raws[1].document()
    assert document == {"t": "resume", "job": JOB, "edge": "e", "first": 1}
    raws[0].send(b"the rest: " + data_frame(JOB, "e", 2, b"late", stream=1))
    while (document := await raws[0].document())["t"] != "error":
        assert document["t"] == "resume"
    assert (document["job"], document["error"]["field"]) == (JOB, "producer")
    raws[1].send(data_frame(JOB, "e", 1, b"one", attempt=1))
    frame = await job.get()
    assert (frame.seq, bytes(frame.tensors[0].data)) == (1, b"one")
    raws[0].send(data_frame(JOB, "e", 2, b"later still", stream=2) + data_frame(JOB, "e", 2, b"", attempt=1, stream=3))
    raws[1].send(data_frame(JOB, "e", 2, b"two", attempt=1))
    assert bytes((await job.get()).tensors[0].data) == b"two"
    assert not job._queue
    assert b.peers[old.public].is_open


async def test_a_standby_sends_nothing_before_it_knows_what_is_lacking(net, tmp_path):
    s, keys = await net.node(), Keys.generate()
    raw = await net.proven(s, keys)
    routes = {"e": Route(s.public, (keys.public,))}
    job = s.open_job(JOB, routes, 1, on_lost=lambda peer, error: None, tape=Spool(tmp_path, 2**20))
    assert job.awaited == {keys.public}

    async def produce():
        for seq in range(4):
            await job.put(Frame("e", seq, (array(bytes([seq])),)))

    producing = asyncio.create_task(produce())
    sent = s.peers[keys.public].bytes_out
    raw.send(resume("e", 2))
    await producing
    assert not job.awaited
    raw.send(resume("e", 0))  # said twice: not heard
    raw.send(resume("none", 0) + resume("e", 1))
    await raw.document_of("pong-marker") if False else None
    from nodewire.wire import frames

    assert s.peers[keys.public].bytes_out - sent < 4 * frames.PREFIX.size + 1_000
    assert [attempt for attempt, _ in job._tape.read(JOB, "e")] == [1, 1, 1, 1]


def resume(edge, first):
    from nodewire.wire import frames

    return frames.control({"t": "resume", "job": JOB, "edge": edge, "first": first})
