"""A job's frames arrive whole, in order, from the right producer, and no faster than they are taken."""

import asyncio
import os
import tracemalloc

import pytest

from nodewire.errors import BadFrame, BadInput, LinkLost, NotAllowed, NotFound, TooLarge
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, Patience, Route
from nodewire.wire.framing import frames
from nodewire.wire.job import early_frames
from nodewire.wire.job.mailbox import INITIAL_WINDOW_BYTES, MAX_CONTROLS, WINDOW_BYTES
from tests.wire.wire_net import TLS_AND_SHM, array, data_frame, job_id, refused_as, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")


def echo_routes(a, b):
    return {"there": Route(a.public, b.public), "back": Route(b.public, a.public)}


async def echo(job, turns):
    for _ in range(turns):
        frame = await job.get()
        await job.put(Frame("back", frame.seq, frame.tensors, frame.meta))


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 262_144, 262_145, 3 * 2**20 + 7])
async def test_frames_come_back_bit_for_bit(net, size):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
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
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
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
    routes = {f"e{i}": Route(nodes[i].public, nodes[(i + 1) % 3].public) for i in range(3)}
    for i in range(3):
        await net.link(nodes[i], nodes[(i + 1) % 3])
    jobs = [node.open_job(JobChannelSpec(JOB, routes)) for node in nodes]

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


async def get_all(job):
    while True:
        await job.get()


async def test_a_consumer_on_the_same_node_gets_the_frame_itself(net):
    a = await net.node()
    job = a.open_job(JobChannelSpec(JOB, {"e": Route(a.public, a.public)}))
    frame = Frame("e", 0, (array(b"abc"),))
    await job.put(frame)
    assert await job.get() is frame


async def test_frames_that_come_before_the_job_is_opened_wait_for_it(net):
    a, b = await net.pair()
    mine = a.open_job(JobChannelSpec(JOB, echo_routes(a, b)))
    data = os.urandom(300_000)
    for seq in range(2):
        await mine.put(Frame("there", seq, (array(data),)))
    await until(lambda: [held.done for _, held in _held(b)] == [True, True])
    theirs = b.open_job(JobChannelSpec(JOB, echo_routes(a, b)))
    for seq in range(2):
        frame = await theirs.get()
        assert (frame.seq, bytes(frame.tensors[0].data)) == (seq, data)
    assert not b._jobs.early._bytes


def _held(node):
    return [(place, held) for place, frames in node._jobs.early._held.items() for held in frames]


async def test_a_frame_that_is_under_way_when_the_job_opens_is_delivered(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    frame = data_frame(JOB, "e", 0, b"0123456789")
    raw.send(frame[:-5])
    await until(lambda: _held(b))
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}))
    raw.send(frame[-5:])
    assert bytes((await job.get()).tensors[0].data) == b"0123456789"


async def test_a_job_that_nobody_opens_is_answered_with_not_found(net):
    a, b = await net.pair(patience=Patience(early_s=0.3))
    mine = a.open_job(JobChannelSpec(JOB, echo_routes(a, b)))
    await mine.put(Frame("there", 0, (array(b"x"),)))
    await refused_as(NotFound, "job", mine.get())
    with pytest.raises(NotFound):
        await mine.put(Frame("there", 1, (array(b"x"),)))
    assert not b._jobs.early._bytes
    assert a.peers[b.public].is_open


async def test_a_job_that_was_closed_is_answered_with_not_found(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    theirs.close()
    await mine.put(Frame("there", 0, (array(b"x"),)))
    await refused_as(NotFound, "job", mine.get())
    assert not _held(b)


async def test_a_stranger_cannot_fill_the_memory_with_jobs_that_are_not_open(net):
    b = await net.node()
    raw = await net.proven(b)
    for n in range(9):
        raw.send(data_frame(job_id(f"{n}"), "e", 0, bytes(frames.SEGMENT_BYTES), size=frames.SEGMENT_BYTES))
        raw.send(data_frame(job_id(f"{n}"), "e", 1, bytes(frames.SEGMENT_BYTES), size=frames.SEGMENT_BYTES))
    document = await raw.document()
    assert (document["t"], document["error"]["code"]) == ("error", "busy")
    assert sum(b._jobs.early._bytes.values()) <= early_frames.MAX_LINK_BYTES


@pytest.fixture
async def trio(net):
    """b, which consumes `e` from a; a; and a raw peer that is linked to b but has no part in the job."""
    a, b = await net.pair()
    routes = {"e": Route(a.public, b.public)}
    return a.open_job(JobChannelSpec(JOB, routes)), b.open_job(JobChannelSpec(JOB, routes)), await net.proven(b)


async def test_a_frame_from_the_wrong_producer_ends_the_job_for_that_one_only(trio):
    mine, theirs, raw = trio
    raw.send(data_frame(JOB, "e", 0, b"forged"))
    document = await raw.document()
    assert (document["t"], document["job"], document["error"]["field"]) == ("error", JOB, "producer")
    raw.send(data_frame(JOB, "e", 0, b"again", stream=1) + frames.ping(7))  # passes by unread, the link lives
    await mine.put(Frame("e", 0, (array(b"true"),)))
    assert bytes((await theirs.get()).tensors[0].data) == b"true"


@pytest.mark.parametrize(
    ("field", "frame"),
    [
        ("edge", lambda: data_frame(JOB, "other", 0)),
        ("seq", lambda: data_frame(JOB, "e", 1)),
        ("key", lambda: data_frame(JOB, "e", 0, key=bytes(16))),
        ("frame", lambda: data_frame(JOB, "e", 0, size=1_001)),
        ("seq", lambda: data_frame(JOB, "e", 0) + data_frame(JOB, "e", 0)),
    ],
)
async def test_a_producer_that_breaks_the_rules_ends_the_job_but_no_other(net, field, frame):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    routes = {"e": Route(keys.public, b.public)}
    job, other = (
        b.open_job(JobChannelSpec(JOB, routes, limits={"e": 1_000})),
        b.open_job(JobChannelSpec(job_id("other"), routes)),
    )
    raw.send(frame())
    while (document := await raw.document())["t"] != "error":
        pass
    assert document["error"]["field"] == field
    with pytest.raises(BadFrame, match=f"^e: {field}"):  # whatever it named, it is its own edge that is refused
        await get_all(job)
    if field != "frame":  # that one still owes its payload
        raw.send(data_frame(job_id("other"), "e", 0, b"fine", stream=9))
        assert bytes((await other.get()).tensors[0].data) == b"fine"


async def test_who_sends_on_anothers_edge_is_refused_on_its_own(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route("ff" * 32, b.public), "own": Route(keys.public, b.public)}))
    raw.send(data_frame(JOB, "e", 0))
    with pytest.raises(BadFrame, match=r"^own: producer"):
        await get_all(job)


async def test_a_producer_cannot_send_more_than_was_granted(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}, limits={"e": frames.SEGMENT_BYTES}))
    for seq in range(WINDOW_BYTES // frames.SEGMENT_BYTES + 1):
        raw.send(data_frame(JOB, "e", seq, bytes(frames.SEGMENT_BYTES)))
    assert (await raw.document())["error"]["field"] == "window"
    with pytest.raises(BadFrame):
        await get_all(job)


async def test_an_oversized_claim_takes_no_memory(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    routes = {"e": Route(keys.public, b.public)}
    b.open_job(JobChannelSpec(JOB, routes, limits={"e": 1_000}))
    tracemalloc.start()
    segment = bytes(frames.SEGMENT_BYTES)
    raw.send(data_frame(JOB, "e", 0, segment, size=2**27))  # over the edge's limit
    assert (await raw.document())["error"]["code"] == "too-large"
    raw.send(data_frame(job_id("unknown"), "e", 0, segment, size=2**27, stream=1))
    assert (await raw.document())["error"]["code"] == "busy"
    raw.send(frames.PREFIX.pack(1, frames.Type.MORE, 0, 0, 2**60))  # over any cap: the link ends
    document = await raw.document()
    assert (document["t"], document["error"]["code"]) == ("bye", "too-large")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


async def test_a_slow_consumer_holds_its_producer_and_nobody_else(net):
    a, b = await net.pair()
    slow_routes, quick = echo_routes(a, b), job_id("quick")
    slow, theirs = (node.open_job(JobChannelSpec(JOB, slow_routes, limits={"there": 2**20})) for node in (a, b))
    sent = 0

    async def flood():
        nonlocal sent
        data = bytes(2**20)
        while True:
            await slow.put(Frame("there", sent, (array(data),)))
            sent += 1

    flooding = asyncio.create_task(flood())
    await until(lambda: len(theirs._queue) == WINDOW_BYTES // (2**20 + 2 * 1024))
    mine, other = (node.open_job(JobChannelSpec(quick, echo_routes(a, b))) for node in (a, b))
    served = asyncio.create_task(echo(other, 50))
    for seq in range(50):
        await mine.put(Frame("there", seq, (array(bytes(5_000)),)))
        await mine.get()
    await served
    held = sent
    assert len(theirs._queue) == held == WINDOW_BYTES // (2**20 + 2 * 1024)
    for seq in range(40):  # what is taken makes room
        assert (await theirs.get()).seq == seq
    assert sent > held
    flooding.cancel()


async def test_memory_is_free_after_put_even_if_the_socket_was_full(net):
    a, keys = await net.node(), Keys.generate()
    raw = await net.proven(a, keys)
    mine = a.open_job(JobChannelSpec(JOB, {"e": Route(a.public, keys.public)}))
    mine._edges.outgoing["e"].window.grant(2**40)
    raw.writer.transport.pause_reading()

    async def produce():
        for seq in range(100):
            data = bytearray([seq]) * 200_000
            await mine.put(Frame("e", seq, (array(data),)))
            data[:] = bytes(len(data))

    producing = asyncio.create_task(produce())
    await until(lambda: not a.peers[keys.public]._writable)
    raw.writer.transport.resume_reading()
    seq = 0
    while seq < 100:
        _, kind, stream, header, payload = frames.PREFIX.unpack(await raw.reader.readexactly(16))
        body = await raw.reader.readexactly(header + payload)
        if kind == frames.Type.PING:
            raw.send(frames.pong(stream))
        if kind == frames.Type.DATA:
            assert body[header:] == bytes([seq]) * 200_000
            seq += 1
    await producing


async def test_urgent_frames_pass_a_long_tensor(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    put = asyncio.create_task(mine.put(Frame("there", 0, (array(bytes(60 * 2**20)),))))
    await until(lambda: b.peers[a.public].bytes_in > 2**21)
    await mine.control(b.public, {"t": "hurry"})
    assert await anext(theirs.controls()) == (a.public, {"t": "hurry", "job": JOB})
    assert not theirs._queue
    await put
    await theirs.get()


async def test_a_first_frame_above_the_initial_window_goes_whoever_opens_first(net):
    a, b = await net.pair()
    data = os.urandom(3 * INITIAL_WINDOW_BYTES)
    for name, order in (("x", (a, b)), ("y", (b, a))):
        jobs = {}
        for node in order:
            jobs[node] = node.open_job(JobChannelSpec(job_id(name), echo_routes(a, b)))
            await asyncio.sleep(0.01)  # its credit has come and gone
        await jobs[a].put(Frame("there", 0, (array(data),)))
        assert bytes((await jobs[b].get()).tensors[0].data) == data


async def test_a_frame_of_another_attempt_than_the_first_ends_the_job(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}))
    raw.send(data_frame(JOB, "e", 0, b"first") + data_frame(JOB, "e", 1, b"ahead", attempt=1, stream=1))
    assert bytes((await job.get()).tensors[0].data) == b"first"
    await refused_as(BadFrame, "e", job.get())


async def test_controls_of_a_job_reach_its_members_only(net):
    heard = []
    a = await net.node()
    b = await net.node(on_control=lambda peer, document: heard.append((peer, document)))
    await net.link(a, b)
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    await mine.control(b.public, {"t": "chunk", "root": b"\x01" * 32})
    await theirs.control(a.public, {"t": "zap", "n": 1})
    assert await anext(theirs.controls()) == (a.public, {"t": "chunk", "root": b"\x01" * 32, "job": JOB})
    assert await anext(mine.controls()) == (b.public, {"t": "zap", "n": 1, "job": JOB})
    stranger = await net.proven(b)
    stranger.send(
        frames.control({"t": "chunk", "job": JOB}) + frames.control({"t": "cancel", "job": JOB, "attempt": 0})
    )
    a.peers[b.public].send_control({"t": "ticket", "job": job_id("later")})
    await until(lambda: len(heard) == 2)
    assert sorted(document["t"] for _, document in heard) == ["chunk", "ticket"]
    await refused_as(NotAllowed, "document", mine.control(stranger.keys.public, {"t": "hi"}))
    await refused_as(NotAllowed, "document", mine.control(b.public, {"t": "error"}))
    await mine.put(Frame("there", 0, (array(b"x"),)))
    await theirs.get()


async def test_too_many_unread_controls_cost_the_sender_its_link(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))

    async def flood():
        while True:
            await mine.control(b.public, {"t": "hi"})
            await asyncio.sleep(0)

    with pytest.raises(LinkLost):
        await flood()
    assert len(theirs._controls) == MAX_CONTROLS


async def test_cancel_ends_the_job_at_both_ends(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    waiting = asyncio.create_task(theirs.get())
    mine.cancel()
    await refused_as(NotAllowed, "job", waiting)
    await refused_as(NotAllowed, "job", theirs.put(Frame("back", 0)))
    await refused_as(NotAllowed, "job", mine.get())
    assert a.peers[b.public].is_open


async def test_an_error_that_a_neighbour_reported_says_whose_word_it_is(net):
    a, b = await net.pair()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    mine.cancel(BadFrame("there", "not finite"))
    for job, by in ((mine, ""), (theirs, a.public)):
        with pytest.raises(BadFrame, match="there: not finite") as ended:
            await get_all(job)
        assert ended.value.by == by


async def test_our_own_mistakes_are_told_before_anything_is_sent(net):
    a, b = await net.pair()
    job = a.open_job(JobChannelSpec(JOB, echo_routes(a, b), limits={"there": 100}))
    for error, field, frame in (
        (BadFrame, "edge", Frame("back", 0)),
        (BadFrame, "edge", Frame("none", 0)),
        (BadFrame, "seq", Frame("there", 1)),
        (BadFrame, "dtype", Frame("there", 0, (array(b"x", "float8"),))),
        (BadFrame, "shape", Frame("there", 0, (array(b"x", shape=(2,)),))),
        (TooLarge, "tensor", Frame("there", 0, (array(bytes(101)),))),
        (TooLarge, "frame", Frame("there", 0, (array(bytes(60)), array(bytes(60))))),
        (TooLarge, "header", Frame("there", 0, (), {"text": "x" * 5_000})),
        (BadFrame, "meta", Frame("there", 0, (), {"x": 1.5})),
    ):
        await refused_as(error, field, job.put(frame))
    with pytest.raises(NotAllowed):
        a.open_job(JobChannelSpec(JOB, echo_routes(a, b)))
    for request in ("", "G" * 64, JOB.upper()):
        with pytest.raises(BadInput):
            a.open_job(JobChannelSpec(request, {}))
    with pytest.raises(TooLarge):
        a.open_job(JobChannelSpec(job_id("big"), {"e": Route(a.public, a.public)}, limits={"e": 2**29}))
    await job.put(Frame("there", 0, (array(bytes(100)),)))


async def test_a_job_may_be_opened_before_its_links(net):
    a, b = await net.node(), await net.node()
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    put = asyncio.create_task(mine.put(Frame("there", 0, (array(b"x"),))))
    await asyncio.sleep(0)
    await net.link(b, a)
    await put
    assert (await theirs.get()).seq == 0
