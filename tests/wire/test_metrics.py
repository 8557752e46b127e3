"""What a node's links are counted as."""

import asyncio

from nodewire.errors import LinkLost, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.metrics import Links
from tests.wire.wire_net import QUICK, array, job_id, refused_as, until


def shown(node) -> dict[tuple[str, ...], float]:
    """By sample and the values of its labels."""
    return {
        (sample.name.removeprefix("nodewire_wire_"), *sample.labels.values()): sample.value
        for metric in Links(node).collect()
        for sample in metric.samples
    }


async def test_links_and_what_goes_over_them_are_counted(net):
    a, b = await net.pair(survey_s=0.05)
    before = shown(b)
    assert before["links", "address"] == before["links_opened_total", "address"] == 1
    assert before["links", "shm"] == before["reconnects_total",] == 0
    routes = {"x": Route(a.public, b.public)}
    job = job_id("counted")
    sender, receiver = a.open_job(JobChannelSpec(job, routes)), b.open_job(JobChannelSpec(job, routes))
    await sender.put(Frame("x", 0, (array(bytes(1_000_000)),), {}))
    await receiver.get()
    assert shown(a)["bytes_total", "out"] > 1_000_000
    assert shown(b)["bytes_total", "in"] - before["bytes_total", "in"] > 1_000_000
    await until(lambda: ("round_trip_seconds", "0.5") in shown(b))
    now = shown(b)
    assert 0 < now["round_trip_seconds", "0.5"] <= now["round_trip_seconds", "0.95"] <= now["round_trip_seconds", "1"]


async def test_bytes_never_become_fewer_and_a_new_link_to_a_peer_is_a_reconnect(net):
    a, b = await net.pair()
    before = shown(a)
    a.open_link(b.public).end(LinkLost(b.public, "a test"))
    await until(lambda: not a.peers and not b.peers and shown(a)["links", "address"] == 0)
    assert shown(a)["links_lost_total", "link-lost"] == 1
    assert shown(a)["bytes_total", "out"] >= before["bytes_total", "out"] > 0
    ended = shown(a)
    await net.link(a, b)
    await until(lambda: shown(a)["reconnects_total",] == 1)
    assert shown(a)["links_opened_total", "address"] == 2
    assert shown(a)["bytes_total", "in"] >= ended["bytes_total", "in"]


async def test_who_is_turned_away_is_counted_by_why(net):
    picky = await net.node(patience=QUICK, admit=lambda peer: False)
    guest = await net.node()
    await refused_as(NotAllowed, "npub", guest.link(picky.public, [net.addresses[picky.public]]))
    assert shown(picky)["handshakes_refused_total", "not-allowed"] == 1
    host, port = net.addresses[picky.public].split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    silent = await net.raw(picky, Keys.generate())  # a TLS handshake, and no proof of a key
    await until(lambda: shown(picky)["half_open_connections",] >= 1)
    await until(lambda: shown(picky)["handshakes_refused_total", "unproven"] == 2)
    assert shown(picky)["half_open_connections",] == 0
    assert sum(value for (name, *_), value in shown(picky).items() if name == "handshakes_refused_total") == 3
    await silent.is_closed()
    writer.close()
