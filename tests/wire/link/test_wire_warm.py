"""Links whose congestion windows are open when a job's first frame comes."""

import asyncio
import socket

from nodewire.wire import JobChannelSpec, Patience, Route
from nodewire.wire.link.link import WARM_UP_BYTES
from nodewire.wire.transport.tcp import TcpTls, choose_congestion
from tests.wire.wire_net import job_id, until

PATIENCE = Patience(heartbeat_s=0.05)


async def test_a_link_is_warmed_up_when_it_opens_and_again_for_a_job_after_it_was_idle(net):
    a, b = await net.pair(patience=PATIENCE)
    link = await a.link(b.public, [net.addresses[b.public]])
    assert WARM_UP_BYTES <= link.bytes_out < 2 * WARM_UP_BYTES
    routes = {"x": Route(a.public, b.public)}
    jobs = [a.open_job(JobChannelSpec(job_id("soon"), routes))]
    assert link.bytes_out < 2 * WARM_UP_BYTES  # it has just been
    jobs[0].close()
    await asyncio.sleep(2 * PATIENCE.heartbeat_s)
    jobs = [node.open_job(JobChannelSpec(job_id("later"), routes)) for node in (a, b)]
    assert 2 * WARM_UP_BYTES <= link.bytes_out < 3 * WARM_UP_BYTES
    a.open_job(JobChannelSpec(job_id("beside"), routes))
    assert link.bytes_out < 3 * WARM_UP_BYTES  # heartbeats keep it so
    await until(lambda: b.peers[a.public].bytes_in > 2 * WARM_UP_BYTES)


async def test_congestion_control_is_chosen_before_a_connection_is_opened(net):
    a, b = await net.node(transport=TcpTls("reno")), await net.node(transport=TcpTls("reno"))
    link = await net.link(a, b)
    assert link.congestion == b.peers[a.public].congestion == "reno"


async def test_it_is_chosen_for_connections_that_were_made_elsewhere(net):
    """Holes and splices had CUBIC, whatever the operator wished."""
    a, b = await net.node(transport=TcpTls("reno")), await net.node(transport=TcpTls("reno"))
    near, far = await connected()
    links = await asyncio.gather(a.secure(b.public, near, "punch"), b.serve(a.public, far, "punch"))
    assert [link.congestion for link in links] == ["reno", "reno"]


async def connected():
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.socket()
        near.setblocking(False)
        choose_congestion(near)
        await loop.sock_connect(near, listening.getsockname())
        far, _ = listening.accept()
    far.setblocking(False)
    return near, far


async def test_one_that_the_kernel_lacks_is_no_hindrance(net):
    a, b = await net.pair(transport=TcpTls("carrier-pigeons"))
    assert (await a.link(b.public, [net.addresses[b.public]])).congestion
