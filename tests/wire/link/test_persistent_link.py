"""Links that are made again when they are lost."""

import asyncio
import socket
from contextlib import suppress

from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Patience, Route
from tests.wire.wire_net import TLS_AND_SHM, array, job_id, until

QUICK = Patience(heartbeat_s=0.05, silence_s=0.3, again_s=0.2)


class Dials:
    """How often a node's dials have made a link."""

    def __init__(self, node, monkeypatch):
        self.times, self._link = 0, node.link
        monkeypatch.setattr(node, "link", self._count)

    async def _count(self, public, addresses):
        link = await self._link(public, addresses)
        self.times += 1
        return link


@TLS_AND_SHM
async def test_a_link_is_made_again_until_it_is_not_wanted_any_more(net, monkeypatch):
    a, b = await net.node(), await net.node()
    dials = Dials(a, monkeypatch)
    kept = a.keep(b.public, [net.addresses[b.public]])
    for times in (1, 2, 3):
        await until(lambda times=times: dials.times == times and a.public in b.peers)
        next(iter(b.peers.values())).abort(LinkLost("link", "cut"))
    await until(lambda: dials.times == 4)
    kept.close()
    a.peers[b.public].abort(LinkLost("link", "cut"))
    await asyncio.sleep(0.5)
    assert not a.peers


@TLS_AND_SHM
async def test_a_peer_that_welcomes_and_goes_at_once_is_no_link_and_nobody_dials_it_without_a_pause(net, monkeypatch):
    """The word of its end may come in the same read as the welcome, before whoever dialled goes on."""
    a, b = await net.node(), await net.node()
    monkeypatch.setattr(b._links, "_opened", lambda link: link.end(LinkLost("link", "cut")))
    with suppress(LinkLost):
        await a.link(b.public, [net.addresses[b.public]])
    await until(lambda: not a.peers and not b.peers)
    tried = []
    with monkeypatch.context() as patched:
        dials = Dials(a, patched)
        a.keep(b.public, [net.addresses[b.public]], tried.append)
        await asyncio.sleep(1.5)
        assert dials.times + len(tried) <= 5
    monkeypatch.undo()
    await until(lambda: b.public in a.peers and a.public in b.peers)
    await asyncio.sleep(0.1)
    assert a.peers[b.public].error is None


@TLS_AND_SHM
async def test_a_peer_that_comes_back_is_found(net, monkeypatch):
    a, keys = await net.node(), Keys.generate()
    dials = Dials(a, monkeypatch)
    b = await net.node(keys)
    address = net.addresses[b.public]
    a.keep(keys.public, [address])
    await until(lambda: dials.times == 1)
    await b.close()
    await until(lambda: not a.peers)
    await asyncio.sleep(0.3)
    again = await net.node(keys)
    host, port = address.split(":")
    await again.listen(host, int(port))
    await until(lambda: dials.times == 2)


async def test_an_address_whose_first_packets_are_lost_is_tried_once_more(net):
    """The first connections are taken by nobody, as if their packets had got lost."""
    a, b = await net.node(patience=QUICK), await net.node()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        linking = asyncio.create_task(a.link(b.public, [address]))
        taken = [await asyncio.to_thread(silent.accept) for _ in range(3)]
    for connection, _ in taken:
        connection.close()
    linking.cancel()


@TLS_AND_SHM
async def test_frames_of_a_job_go_on_where_they_were_over_links_that_are_cut_again_and_again(net, monkeypatch):
    a, b = await net.node(patience=QUICK), await net.node(patience=QUICK)
    dials = Dials(a, monkeypatch)
    routes = {"e": Route(a.public, b.public)}
    a.keep(b.public, [net.addresses[b.public]])

    class Tape:
        """All that was put."""

        def __init__(self):
            self.frames = []

        def write(self, request, edge, attempt, frame):
            self.frames.append((attempt, frame))

        def read(self, request, edge, first=0):
            return iter(self.frames[first:])

    mine = a.open_job(JobChannelSpec(job_id("j"), routes, on_lost=lambda peer, error: None, tape=Tape()))
    theirs = b.open_job(JobChannelSpec(job_id("j"), routes, on_lost=lambda peer, error: None))

    async def put():
        for seq in range(300):
            await mine.put(Frame("e", seq, (array(seq.to_bytes(4, "big") * 1_000),)))
            if seq % 100 == 50:
                await until(lambda: a.peers)
                a.peers[b.public].abort(LinkLost("link", "cut"))

    putting = asyncio.create_task(put())
    for seq in range(300):
        frame = await theirs.get()
        assert (frame.seq, bytes(frame.tensors[0].data[:4])) == (seq, seq.to_bytes(4, "big"))
    await putting
    assert dials.times >= 3
