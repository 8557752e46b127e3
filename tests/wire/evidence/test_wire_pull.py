"""A verifier pulls what a holder kept: authorized, bounded, and in its own time."""

import asyncio
import os
import tracemalloc
from contextlib import aclosing

import pytest

from nodewire.errors import BadFrame, BadInput, Busy, LinkLost, NotAllowed, NotFound, TimedOut, TooLarge
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import Spool
from nodewire.wire.evidence import pull
from nodewire.wire.evidence.pull import Want
from tests.wire.wire_net import TLS_AND_SHM, array, job_id, refused_as, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")
MiB = 2**20


def want(**changed) -> Want:
    return Want(**{"what": "frames", "request": JOB, "task": "stage.0", "attempt": 0, "first": 0, "last": 3} | changed)


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path, 2**30)


async def holder_and_puller(net, holder):
    return await net.node(holder=holder), await net.node()


def answering(answer):
    async def holder(peer, want):
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    return holder


async def pulled(net, puller, holder, **options):
    given = options.pop("want", want())
    stream = pull.pull(puller, holder.public, [net.addresses[holder.public]], given, **options)
    return [item async for item in stream]


async def test_kept_frames_come_with_their_attempts_bit_for_bit(net, spool):
    sent = []
    for seq in range(5):
        tensors = (
            Array("bfloat16", (1, 2), os.urandom(4)),
            Array("int64", (), os.urandom(8)),
            Array("float32", (0, 3), b""),
        )
        sent.append((seq // 3, Frame("hidden.0", seq, tensors, {"pos": seq, "text": "é", "b": b"\x00", "none": None})))
        spool.write(JOB, "hidden.0", *sent[-1])
    asked = []

    async def holder(peer, wanted):
        asked.append((peer, wanted))
        return spool.read(wanted.request, wanted.edges[0], wanted.first)

    a, b = await holder_and_puller(net, holder)
    wanted = want(edges=("hidden.0",), first=1, epoch=7)
    found = await pulled(net, b, a, want=wanted)
    assert asked == [(b.public, wanted)]
    assert [(at, f.edge, f.seq, f.meta) for at, f in found] == [(at, f.edge, f.seq, f.meta) for at, f in sent[1:]]
    for (_, got), (_, was) in zip(found, sent[1:], strict=True):
        assert [(t.dtype, t.shape, bytes(t.data)) for t in got.tensors] == [
            (t.dtype, t.shape, bytes(t.data)) for t in was.tensors
        ]
    await until(lambda: not a._jobs and not b._jobs)


async def test_a_document_comes_whole(net):
    opening = os.urandom(3 * MiB)
    a, b = await holder_and_puller(net, answering(opening))
    found = await pull.pull_document(b, a.public, [net.addresses[a.public]], want(what="opening"))
    assert found == opening
    await refused_as(
        TooLarge,
        "tensor",
        pull.pull_document(b, a.public, [net.addresses[a.public]], want(what="opening"), max_bytes=MiB),
    )
    await refused_as(BadFrame, "pull", pulled(net, b, a))
    frames = await holder_and_puller(net, answering(lambda: iter([(0, Frame("e", 0, (array(b"x"),)))])))
    document = pull.pull_document(frames[1], frames[0].public, [net.addresses[frames[0].public]], want())
    await refused_as(BadFrame, "document", document)


@pytest.mark.parametrize("error", [NotAllowed("draw", "not drawn"), NotFound("request", "swept"), Busy("disk")])
async def test_a_refusal_comes_as_the_error_that_it_is(net, error):
    a, b = await holder_and_puller(net, answering(error))
    await refused_as(type(error), error.field, pulled(net, b, a))
    assert not b._jobs


async def test_who_keeps_nothing_says_so(net):
    a, b = await net.node(), await net.node()
    await refused_as(NotAllowed, "pull", pulled(net, b, a))


async def test_an_error_in_the_middle_comes_after_the_frames_before_it(net):
    def cut():
        yield 0, Frame("e", 0, (array(b"x"),))
        raise NotFound("tape", "e has not been kept from 1 on")

    a, b = await holder_and_puller(net, answering(cut))
    found = []
    with pytest.raises(NotFound, match="kept"):
        async for item in pull.pull(b, a.public, [net.addresses[a.public]], want()):
            found.append(item)  # noqa: PERF401 - those before the error are kept
    assert len(found) == 1


async def test_a_huge_pull_takes_no_more_memory_than_a_window_at_either_side(net):
    read = 0

    def huge():
        nonlocal read
        for seq in range(400):
            read += 1
            yield 0, Frame("e", seq, (array(bytes(MiB)),))

    a, b = await holder_and_puller(net, answering(huge))
    tracemalloc.start()
    stream = pull.pull(b, a.public, [net.addresses[a.public]], want(), max_frame_bytes=MiB, max_bytes=64 * MiB)
    await anext(stream)
    await until(lambda: read >= 16)
    await asyncio.sleep(0.05)
    assert read <= 18
    with pytest.raises(TooLarge, match="more than"):
        async for _ in stream:
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * MiB
    assert read < 100
    await until(lambda: not a._jobs)
    await refused_as(TooLarge, "tensor", pulled(net, b, a, max_frame_bytes=1_000))


async def test_who_stops_early_stops_the_holder(net):
    closed = asyncio.Event()

    def endless():
        try:
            seq = 0
            while True:
                yield 0, Frame("e", seq, (array(bytes(1_000)),))
                seq += 1
        finally:
            closed.set()

    a, b = await holder_and_puller(net, answering(endless))
    async with aclosing(pull.pull(b, a.public, [net.addresses[a.public]], want())) as stream:
        async for _ in stream:
            break
    await closed.wait()
    assert not b._jobs
    assert a.peers[b.public].is_open


async def test_a_link_that_is_cut_in_the_middle_is_told(net):
    def endless():
        seq = 0
        while True:
            yield 0, Frame("e", seq, (array(bytes(1_000)),))
            seq += 1

    a, b = await holder_and_puller(net, answering(endless))
    seen = 0
    with pytest.raises(LinkLost):
        async for _ in pull.pull(b, a.public, [net.addresses[a.public]], want()):
            seen += 1
            if seen == 10:
                a.peers[b.public].abort(LinkLost(b.public, "cut"))
    await until(lambda: not a._jobs and not a._pulls._under_way)


async def test_who_says_nothing_and_who_takes_nothing_is_not_waited_for(net, monkeypatch):
    monkeypatch.setattr(pull, "PATIENCE_S", 0.1)

    async def silent(peer, wanted):
        await asyncio.Event().wait()

    a, b = await holder_and_puller(net, silent)
    await refused_as(TimedOut, "pull", pulled(net, b, a))  # the holder's patience
    await refused_as(TimedOut, "pull", pulled(net, b, a, patience_s=0.05))  # the puller's
    many = answering(lambda: ((0, Frame("e", seq, (array(bytes(MiB)),))) for seq in range(40)))
    a, b = await holder_and_puller(net, many)
    stream = pull.pull(b, a.public, [net.addresses[a.public]], want())
    await anext(stream)
    await until(lambda: not a._jobs)
    with pytest.raises(TimedOut, match="taken"):
        async for _ in stream:
            pass


async def test_a_peer_has_two_pulls_at_a_time(net):
    waiting = asyncio.Event()

    async def slow(peer, wanted):
        await waiting.wait()
        return iter(())

    a, b = await holder_and_puller(net, slow)
    first = [asyncio.create_task(pulled(net, b, a)) for _ in range(2)]
    await until(lambda: a._pulls._under_way[b.public] == 2)
    await refused_as(Busy, "pull", pulled(net, b, a))
    waiting.set()
    assert await asyncio.gather(*first) == [[], []]
    assert await pulled(net, b, a) == []


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("job", {"job": JOB}),
        ("nonce", {"nonce": b"short"}),
        ("nonce", {"nonce": 7}),
        ("limit", {"limit": 2**40}),
        ("limit", {"limit": "1"}),
        ("want", {"want": None}),
        ("last", {"want": {"v": 1, "what": "frames", "request": JOB, "task": "t", "attempt": 0, "first": 0}}),
    ],
)
async def test_a_malformed_pull_is_refused_and_opens_no_job(net, field, changed):
    from nodewire.wire.framing import frames

    a, _ = await holder_and_puller(net, answering(b""))
    raw = await net.proven(a)
    nonce = bytes(16)
    good = {"t": "pull", "job": pull._job(want(), raw.keys.public, a.public, nonce), "nonce": nonce, "limit": MiB}
    raw.send(frames.control({**good, "want": want().document(), **changed}))
    document = await raw.document()
    assert (document["t"], document["error"]["field"]) == ("error", field)
    assert not a._jobs


async def test_frames_of_other_edges_than_asked_are_refused(net):
    a, b = await holder_and_puller(net, answering(lambda: iter([(0, Frame("other", 0, (array(b"x"),)))])))
    await refused_as(BadFrame, "edge", pulled(net, b, a, want=want(edges=("e",))))
    with pytest.raises(BadInput):
        Want.from_document(want().document() | {"last": 0, "first": 1})
