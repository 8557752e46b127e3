"""A peer that dies, stalls or is cut off is noticed soon; what it took down is its own jobs and nothing else."""

import asyncio
import os
import signal
import sys
import time

import pytest

from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Patience, Route
from tests.wire.wire_net import TLS_AND_SHM, array, data_frame, job_id, until

pytestmark = TLS_AND_SHM

JOB = job_id("job")
SHORT = Patience(heartbeat_s=0.05, silence_s=0.3)

PEER = """
import asyncio, pathlib, sys, uvloop
from nodewire.nostr.keys import Keys
from nodewire.wire import JobChannelSpec, Node, Route
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.shm import SameHost
async def main():
    secret, other, address, request, folder = sys.argv[1:]
    keys = Keys(bytes.fromhex(secret))
    node = Node(keys, policy=LinkPolicy(beside=SameHost(keys, pathlib.Path(folder)) if folder else None))
    await node.link(other, [address])
    routes = {"there": Route(other, node.public), "back": Route(node.public, other)}
    job = node.open_job(JobChannelSpec(request, routes))
    while True:
        frame = await job.get()
        await job.put(type(frame)("back", frame.seq, frame.tensors, frame.meta))
uvloop.run(main())
"""


@pytest.fixture
async def process(net):
    """A node, its job, and the process of the peer that echoes its frames."""
    a, keys = await net.node(), Keys.generate()
    job = a.open_job(JobChannelSpec(JOB, {"there": Route(a.public, keys.public), "back": Route(keys.public, a.public)}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, keys.secret.hex(), a.public, net.addresses[a.public], JOB, str(net.folder or "")
    )
    await job.put(Frame("there", 0, (array(os.urandom(1_000)),)))
    await job.get()
    assert a.peers[keys.public].transport == ("shm" if net.folder else "tls")
    yield a, job, process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_a_killed_peer_is_noticed_at_once(process):
    a, job, peer = process
    waiting = asyncio.create_task(job.get())
    await asyncio.sleep(0)
    peer.kill()
    with pytest.raises(LinkLost) as lost:
        await waiting
    assert "silent" not in str(lost.value)
    with pytest.raises(LinkLost):
        await job.put(Frame("there", 1))
    assert not a.peers


async def test_a_stopped_peer_is_noticed_after_a_second_of_silence(process):
    _, job, peer = process
    began = time.monotonic()
    peer.send_signal(signal.SIGSTOP)
    with pytest.raises(LinkLost, match="silent"):
        await job.get()
    assert time.monotonic() - began < 3.0


async def test_a_peer_that_stalls_in_the_middle_of_a_frame_is_given_up(net):
    b, keys = await net.node(patience=SHORT), Keys.generate()
    raw = await net.proven(b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}))
    raw.send(data_frame(JOB, "e", 0, b"half", size=1_000))
    with pytest.raises(LinkLost, match="silent"):
        await job.get()


async def test_without_a_job_a_silent_peer_is_left_alone(net):
    b, keys = await net.node(patience=SHORT), Keys.generate()
    await net.proven(b, keys)
    await asyncio.sleep(2 * SHORT.silence_s)
    assert b.peers[keys.public].is_open


async def test_what_came_before_the_loss_is_delivered_first(net):
    a, b = await net.pair()
    routes = {"e": Route(a.public, b.public)}
    mine, theirs = (node.open_job(JobChannelSpec(JOB, routes)) for node in (a, b))
    await mine.put(Frame("e", 0, (array(b"last words"),)))
    await until(lambda: theirs._queue)
    await a.close()
    await until(lambda: not b.peers)
    assert bytes((await theirs.get()).tensors[0].data) == b"last words"
    with pytest.raises(LinkLost):
        await theirs.get()


async def test_only_jobs_with_that_neighbour_end(net):
    a, b, c = [await net.node() for _ in range(3)]
    await net.link(a, b)
    await net.link(a, c)
    lost = a.open_job(JobChannelSpec(JOB, {"e": Route(b.public, a.public)}))
    # b is a member of the second job, but sends and receives nothing that concerns a
    routes = {"e": Route(c.public, a.public), "f": Route(b.public, c.public)}
    kept, source = (node.open_job(JobChannelSpec(job_id("kept"), routes)) for node in (a, c))
    await b.close()
    with pytest.raises(LinkLost):
        await lost.get()
    await source.put(Frame("e", 0, (array(b"x"),)))
    assert (await kept.get()).seq == 0


async def test_a_put_that_waits_for_a_window_ends_with_the_link(net):
    a, b = await net.pair()
    routes = {"e": Route(a.public, b.public)}
    mine, _ = (node.open_job(JobChannelSpec(JOB, routes)) for node in (a, b))

    async def flood():
        for seq in range(1_000):
            await mine.put(Frame("e", seq, (array(bytes(2**20)),)))

    flooding = asyncio.create_task(flood())
    window = mine._edges.outgoing["e"].window
    await until(lambda: window.limit > 2**20 and window.limit - window.sent < 2**20)
    await b.close()
    with pytest.raises(LinkLost):
        await flooding


async def test_a_peer_that_does_not_read_is_given_up(net):
    b, keys = await net.node(), Keys.generate()
    raw = await net.proven(b, keys)
    link = b.peers[keys.public]
    raw.writer.transport.pause_reading()

    def shout():
        for _ in range(10_000):
            link.send_control({"t": "x", "b": bytes(60_000)})

    with pytest.raises(LinkLost, match="does not read"):
        shout()
    assert not b.peers


async def test_a_broken_link_may_be_made_again(net):
    a, b = await net.pair()
    a.peers[b.public].abort(LinkLost(b.public, "cut"))
    await until(lambda: not b.peers)
    await net.link(a, b)
    routes = {"e": Route(a.public, b.public)}
    mine, theirs = (node.open_job(JobChannelSpec(JOB, routes)) for node in (a, b))
    await mine.put(Frame("e", 0, (array(b"x"),)))
    assert (await theirs.get()).seq == 0


async def test_a_job_that_outlives_its_links_notices_the_silence_of_a_member_that_is_no_neighbour(net):
    """Heard first-hand, it costs one silence: the word of a neighbour would cost another."""
    b, keys, other = await net.node(patience=SHORT), Keys.generate(), Keys.generate().public
    await net.proven(b, keys)
    lost = asyncio.Queue()
    routes = {"to": Route(b.public, other), "on": Route(other, keys.public), "end": Route(keys.public, other)}
    b.open_job(JobChannelSpec(JOB, routes, on_lost=lambda peer, error: lost.put_nowait((peer, str(error)))))
    async with asyncio.timeout(5 * SHORT.silence_s):
        peer, error = await lost.get()
    assert peer == keys.public
    assert "silent" in error
