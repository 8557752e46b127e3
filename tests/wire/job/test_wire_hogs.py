"""Peers that say much or keep much: others get their turn, their room, and their links all the same."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from nodewire.errors import Busy, LinkLost, TooLarge
from nodewire.net.rate_limits import Allowance
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder, FrameMemory
from nodewire.wire.framing.headers import DataHeader
from nodewire.wire.job import early_frames, mailbox
from nodewire.wire.job.early_frames import Early
from nodewire.wire.link import link, link_manager
from nodewire.wire.transport import identity, tls
from tests.wire.wire_net import array, data_frame, job_id, until

JOB = job_id("hogging")
ELSEWHERE = "127.0.0.2"
SUITES = {"TLS_AES_128_GCM_SHA256": (SHA256(), 16), "TLS_AES_256_GCM_SHA384": (SHA384(), 32)}
"""Hash, and bytes of a key."""


class Reads(asyncio.BufferedProtocol):
    """Keeps what came, and how much of it in the loop's busiest turn."""

    def __init__(self, size):
        self.memory = bytearray(size)
        self.came = bytearray()

    def connection_made(self, channel):
        self.channel = channel

    def get_buffer(self, sizehint):
        return self.memory

    def buffer_updated(self, nbytes):
        self.came += self.memory[:nbytes]


async def channels(folder, size):
    """(the socket of one end, which nobody reads, what reads at the other, the first one's secret)"""
    loop, shown = asyncio.get_running_loop(), identity.make(Keys.generate(), time.time())
    shown.client.keylog_filename = str(folder / "secrets")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.socket()
        near.setblocking(False)
        await loop.sock_connect(near, listening.getsockname())
        far, _ = listening.accept()
        far.setblocking(False)
    silent, reads = Reads(size), Reads(size)
    async with asyncio.timeout(60):
        await asyncio.gather(
            tls.secured(near, shown.client, silent, is_server=False),
            tls.secured(far, shown.server, reads, is_server=True),
        )
    opened = silent.channel.get_extra_info("ssl_object")
    (secret,) = (
        bytes.fromhex(line.split()[2])
        for line in (folder / "secrets").read_text().splitlines()
        if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")
    )
    await asyncio.sleep(0.01)
    return opened, reads, secret


async def turns(reads, nbytes):
    """How many turns of the loop it takes to read so many bytes, and the most that came in one."""
    count = most = before = 0
    async with asyncio.timeout(60):
        while len(reads.came) < nbytes:
            await asyncio.sleep(0)
            count, most, before = count + 1, max(most, len(reads.came) - before), len(reads.came)
    reads.channel.abort()
    return count, most


def key_updates(suite: str, secret: bytes, count: int, last: bytes) -> bytes:
    """As many records of TLS 1.3 that only change the key, then one with data. RFC 8446, 4.6.3, 5.2 and 7."""

    def expand(label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        about = struct.pack("!HB", length, len(label)) + label + b"\0"
        return HKDFExpand(digest, length, about).derive(secret)

    digest, key_bytes = SUITES[suite]

    records = []
    for number in range(count + 1):
        inner = b"\x18\0\0\x01\0\x16" if number < count else last + b"\x17"
        head = b"\x17\3\3" + struct.pack("!H", len(inner) + 16)
        records.append(head + AESGCM(expand(b"key", key_bytes)).encrypt(expand(b"iv", 12), inner, head))
        secret = expand(b"traffic upd", digest.digest_size)
    return b"".join(records)


async def test_a_stranger_that_changes_keys_without_end_does_not_hold_the_loop(tmp_path):
    """It did, before it had proven anything: OpenSSL reads on until there is data, for 27 bytes and 10 us each."""
    opened, reads, secret = await channels(tmp_path, 65_536)
    count = 2_000
    data = key_updates(opened.cipher()[0], secret, count, b"x")
    assert socket.socket.send(opened, data) == len(data)
    took, _ = await turns(reads, 1)
    assert took > count / 2


async def test_records_of_one_byte_do_not_hold_the_loop(tmp_path):
    """A long buffer was filled before anybody else had a turn, by a quarter of a million calls."""
    opened, reads, _ = await channels(tmp_path, 262_144)
    count = 2_000
    for _ in range(count):
        opened.send(b"x")
    _, most = await turns(reads, count)
    assert most <= 100


UNKNOWN = job_id("nobody opened this")
PASSING = data_frame(UNKNOWN, "e", 0, bytes(2**18), size=2 * early_frames.MAX_LINK_BYTES)
STRAYS = {
    "ping": frames.ping(1),
    "pong": frames.pong(1),
    "credit": frames.credit(JOB, "e", 0, 1),
    "control": frames.control({"t": "no"}),
    "filler of nothing": frames.filler(0),
    "filler": frames.filler(100_000),
    "data of no job": data_frame(UNKNOWN, "e", 0),
    "data that passes by": frames.PREFIX.pack(1, frames.Type.MORE, 0, 0, 2**18) + bytes(2**18),
}


@pytest.mark.parametrize("stray", STRAYS)
async def test_a_link_that_sends_too_much_for_no_job_is_closed_whatever_it_sends(net, monkeypatch, stray):
    """FILLER and DATA of unknown jobs counted for nothing: one link kept a provider's loop for itself."""
    monkeypatch.setattr(link, "MAX_STRAY_BYTES", 2**20)
    monkeypatch.setattr(link, "STRAY_BYTES_PER_S", 1)
    provider = await net.node()
    flooding, other = await net.proven(provider), await net.proven(provider)
    if "passes by" in stray:
        flooding.send(PASSING)
        assert (await flooding.document())["error"]["code"] == Busy.code
    for _ in range(1 + 2 * 2**20 // max(4_096, len(STRAYS[stray]))):
        flooding.send(STRAYS[stray])
    while (said := await flooding.document())["t"] == "error":
        pass
    assert (said["t"], said["error"]["code"]) == ("bye", Busy.code)
    await until(lambda: set(provider.peers) == {other.keys.public})


async def test_a_job_of_two_nodes_takes_next_to_nothing_of_an_allowance(net):
    """Heartbeats, credit and two warm-ups a second are what an honest link needs."""
    a, b = await net.pair()
    routes = {"there": Route(a.public, b.public), "back": Route(b.public, a.public)}
    jobs = [node.open_job(JobChannelSpec(JOB, routes)) for node in (a, b)]
    for seq in range(40):
        for edge, sender, receiver in (("there", *jobs), ("back", *reversed(jobs))):
            await sender.put(Frame(edge, seq, (array(bytes(2**20)),), {}))
            await receiver.get()
    for node, other in ((a, b), (b, a)):
        spent = link.MAX_STRAY_BYTES - node.peers[other.public].allowance.left_bytes
        assert spent < link.STRAY_BYTES_PER_S


async def test_frames_that_came_before_their_job_are_its_own_once_it_opens(net, monkeypatch):
    monkeypatch.setattr(link, "STRAY_BYTES_PER_S", 0)
    provider = await net.node()
    peer = await net.proven(provider)
    allowance = provider.peers[peer.keys.public].allowance
    before = allowance.left_bytes
    peer.send(data_frame(JOB, "e", 0, bytes(2**18)))
    await until(lambda: allowance.left_bytes < before - 2**18)
    job = provider.open_job(JobChannelSpec(JOB, {"e": Route(peer.keys.public, provider.public)}))
    assert (await job.get()).seq == 0
    assert before - 8_192 < allowance.left_bytes


async def test_what_was_granted_may_still_come_when_the_job_is_over(net, monkeypatch):
    """A window may be larger than all that a link may send for nothing."""
    monkeypatch.setattr(link, "MAX_STRAY_BYTES", 2**20)
    monkeypatch.setattr(link, "STRAY_BYTES_PER_S", 0)
    provider = await net.node()
    peer = await net.proven(provider)
    job = provider.open_job(JobChannelSpec(JOB, {"e": Route(peer.keys.public, provider.public)}))
    job.close()
    for seq in range(60):
        peer.send(data_frame(JOB, "e", seq, bytes(2**18)))
    opened = provider.peers[peer.keys.public]
    await until(lambda: opened.bytes_in > 60 * 2**18)
    assert opened.is_open


async def test_an_origin_that_broke_the_rules_is_not_let_in_for_a_while_and_others_are(net, monkeypatch):
    """Keys are free: whoever lost a link came back with another one, and went on."""
    monkeypatch.setattr(
        link_manager, "MAX_ORIGIN_BYTES", link_manager.FAULT_BYTES + 3 * link_manager.HANDSHAKE_BYTES + 2**17
    )
    monkeypatch.setattr(link_manager, "ORIGIN_BYTES_PER_S", 0)
    provider = await net.node()
    neighbour, hostile = await net.proven(provider), await net.proven(provider)
    hostile.send(b"\xff" * 16)
    assert (await hostile.document())["t"] == "bye"
    await net.proven(provider)
    with pytest.raises(ConnectionError):
        await net.raw(provider)
    assert provider.turned_away["spent"] == 1
    await net.proven(provider, whence=ELSEWHERE)
    neighbour.send(frames.ping(1) * 1_000)
    await until(lambda: provider.peers[neighbour.keys.public].bytes_in > 16_000)
    assert provider.peers[neighbour.keys.public].is_open


async def test_all_links_of_an_origin_together_send_no_more_for_nothing_than_it_may(net, monkeypatch):
    monkeypatch.setattr(link_manager, "MAX_ORIGIN_BYTES", 2 * link.MAX_STRAY_BYTES)
    monkeypatch.setattr(link_manager, "ORIGIN_BYTES_PER_S", 0)
    monkeypatch.setattr(link_manager, "FAULT_BYTES", 0)
    monkeypatch.setattr(link, "STRAY_BYTES_PER_S", 0)
    provider = await net.node()
    crowd = [await net.proven(provider) for _ in range(6)]
    other = await net.proven(provider, whence=ELSEWHERE)
    opened = [provider.peers[one.keys.public] for one in crowd]
    for one in crowd:
        one.send(frames.filler(2**17) * 200)
    for one in crowd:
        await one.is_closed()
    # Half of a link's own is never the others' to take.
    assert sum(one.bytes_in for one in opened) < (2 + 6 / 2 + 1) * link.MAX_STRAY_BYTES
    assert set(provider.peers) == {other.keys.public}


async def test_a_document_pays_for_its_values(net, monkeypatch):
    """64 KiB of empty lists took a hundred times as long to read as 64 KiB of text."""
    monkeypatch.setattr(link, "STRAY_BYTES_PER_S", 0)
    provider = await net.node()
    peer = await net.proven(provider)
    allowance, costs = provider.peers[peer.keys.public].allowance, []
    for said in (bytes(1_000), [[]] * 1_000):
        before = allowance.left_bytes
        peer.send(frames.control({"t": "x", "y": said}))
        await until(lambda before=before: allowance.left_bytes < before)
        costs.append(before - allowance.left_bytes)
    assert costs[1] > 50 * costs[0]
    peer.send(frames.control({"t": "x", "y": [[]] * frames.MAX_DOCUMENT_VALUES}))
    assert (await peer.document())["error"]["code"] == TooLarge.code


async def test_jobs_of_one_peer_that_are_not_open_are_few(net):
    """A thousand expired in one turn of the loop, and each was written about."""
    provider = await net.node()
    peer = await net.proven(provider)
    for number in range(early_frames.MAX_LINK_JOBS + 1):
        peer.send(data_frame(job_id(str(number)), "e", 0, b""))
    said = await peer.document()
    assert (said["job"], said["error"]["code"]) == (job_id(str(early_frames.MAX_LINK_JOBS)), Busy.code)


def test_an_allowance_is_saved_up_and_what_is_excused_does_not_grow():
    now_s = 0.0
    shared = Allowance(10, 1_000, lambda: now_s)
    mine = Allowance(10, 100, lambda: now_s, shared)
    mine.spend(100)
    with pytest.raises(Busy):
        mine.spend(1)
    now_s = 5.0
    mine.spend(50)
    mine.excuse(500)
    now_s = 1_000.0
    assert (mine.left_bytes, shared.left_bytes) == (500, 1_400)
    with pytest.raises(Busy):
        mine.spend(501)


def test_where_an_origin_is_spent_a_link_may_send_half_of_its_own():
    shared = Allowance(1, 100, lambda: 0.0)
    mine = Allowance(1, 100, lambda: 0.0, shared)
    shared.charge(100)
    for _ in range(6):
        mine.spend(10)
    assert mine.left_bytes == 40
    with pytest.raises(Busy):
        mine.spend(10)


def test_what_is_excused_is_bounded():
    mine = Allowance(1, 100, lambda: 0.0)
    for _ in range(3):
        mine.excuse(300 * 2**20)
    assert mine.left_bytes == 100 + 512 * 2**20


class Priced:
    """What a decoder calls, with the prices that it named. `expects`: the frames of a job that is open here."""

    def __init__(self, expects=False):
        self.prices, self.expects = [], expects

    def stray(self, nbytes):
        self.prices.append(nbytes)

    def data_begins(self, header):
        return FrameMemory(memoryview(bytearray(header.nbytes)), is_expected=self.expects)

    def __getattr__(self, name):
        return lambda *what: None


def priced(frame, **options):
    receiver = Priced(**options)
    decoder = Decoder(receiver)
    while frame:
        into = decoder.get_buffer()
        size = min(len(into), len(frame))
        into[:size], frame = frame[:size], frame[size:]
        decoder.buffer_updated(size)
    return receiver.prices


def test_every_frame_that_no_edge_expects_has_a_price():
    """4 KiB, its bytes, eight times those that are parsed, and 1 KiB for each value of a document."""
    document = {"t": "x", "list": [1, 2, 3]}
    packed = len(frames.control(document)) - frames.PREFIX.size
    assert priced(frames.control(document)) == [4_096 + 8 * packed, 1_024 * frames.values(document)]
    credit = frames.credit(JOB, "e", 0, 1)
    assert priced(credit) == [4_096 + 8 * (len(credit) - frames.PREFIX.size)]
    assert priced(frames.filler(1_000)) == [5_096]
    assert priced(frames.ping(1)) == priced(frames.pong(1)) == [4_096]
    frame = data_frame(JOB, "e", 0, b"x" * 100)
    assert priced(frame) == [4_096 + 8 * (len(frame) - frames.PREFIX.size - 100) + 100]
    assert priced(frame, expects=True) == []


def test_every_further_segment_has_its_price_too():
    size = frames.SEGMENT_BYTES + 10
    header = frames.data_header(JOB, "e", 0, 0, bytes(16), [array(b"x" * size)], {}, 2**30)
    parts = [
        b"".join(map(bytes, part)) for part in frames.data(0, frames.pack_header(header), size, [array(b"x" * size)])
    ]
    assert len(parts) == 2
    assert priced(b"".join(parts))[1:] == [4_096 + 10]


async def test_answers_to_what_came_together_go_together(net):
    """A record for each took longer than all the rest of the work."""
    provider = await net.node()
    peer = await net.proven(provider)
    opened = provider.peers[peer.keys.public]
    written = []
    channel = opened._channel
    whole, channel.writelines = channel.writelines, lambda data: written.append(list(data)) or whole(written[-1])
    peer.send(b"".join(frames.ping(1) for _ in range(100)))
    await until(lambda: sum(len(one) for data in written for one in data) >= 1_600)
    assert len(written) < 20


async def test_a_pong_before_its_ping_is_nothing(net):
    """Tags were counted up: whoever foresaw them was as near as it liked."""
    provider = await net.node()
    peer = await net.proven(provider)
    opened = provider.peers[peer.keys.public]
    for _ in range(16):
        opened._ping()
    sent, before = len(opened._pulse._pings), opened.bytes_in
    for tag in range(64):
        peer.send(frames.pong(tag))
    await until(lambda: opened.bytes_in >= before + 64 * len(frames.pong(0)))
    assert len(opened._pulse._pings) >= sent - 1  # one may be met by chance


async def test_one_address_with_many_keys_does_not_keep_others_from_a_link(net, monkeypatch):
    """It did: every link was a stranger's, and whoever came to buy was told that all are taken."""
    monkeypatch.setattr(link_manager, "MAX_LINKS", 8)
    provider = await net.node()
    honest = await net.proven(provider, whence=ELSEWHERE)
    crowd = [await net.proven(provider) for _ in range(12)]
    second = await net.proven(provider, whence=ELSEWHERE)
    assert len(provider.peers) == 8
    assert {honest.keys.public, second.keys.public} <= set(provider.peers)
    said = await crowd[0].document()
    assert (said["t"], said["error"]["code"]) == ("bye", Busy.code)


async def test_a_link_with_a_job_makes_no_room(net, monkeypatch):
    monkeypatch.setattr(link_manager, "MAX_LINKS", 2)
    provider = await net.node()
    peers = [await net.proven(provider) for _ in range(2)]
    for number, peer in enumerate(peers):
        provider.open_job(JobChannelSpec(job_id(str(number)), {"e": Route(peer.keys.public, provider.public)}))
    third = await net.raw(provider)
    third.prove()
    said = await third.document()
    assert (said["t"], said["error"]["code"]) == ("refuse", Busy.code)
    assert set(provider.peers) == {peer.keys.public for peer in peers}


async def test_connections_of_one_key_do_not_pile_up_while_its_link_is_asked_whether_it_lives(net):
    """Each was proven, so it was no stranger, and no link: nobody counted them."""
    provider, keys = await net.node(), Keys.generate()
    first = await net.proven(provider, keys)
    first.reader._transport.pause_reading()  # it lives, and does not say so soon
    crowd = [await net.raw(provider, keys) for _ in range(link_manager.MAX_SETTLING + 3)]
    for one in crowd:
        one.prove()
    said = [await one.document() for one in crowd[link_manager.MAX_SETTLING :]]
    assert {(one["t"], one["error"]["code"]) for one in said} == {("refuse", Busy.code)}


def header(job: str, nbytes: int) -> DataHeader:
    return DataHeader(job, "e", 0, 0, bytes(16), (("uint8", (nbytes,)),), {}, nbytes)


def test_frames_of_jobs_that_are_not_open_are_displaced_of_the_origin_that_has_most():
    """A few headers of sixteen keys filled the room, and the first frames of everybody else's jobs were refused."""
    kept, size = Early(), early_frames.MAX_LINK_BYTES - 4_096
    honest = header(job_id("honest"), 2**20)
    kept.begin("honest", "there", honest)
    gone = []
    for number in range(40):
        sent = header(job_id(str(number)), size)
        try:
            gone += kept.displaced(f"key {number}", "here", sent)
        except Busy:
            continue
        kept.begin(f"key {number}", "here", sent)
    assert not gone
    later = header(job_id("later"), size)
    gone = list(kept.displaced("late", "elsewhere", later))
    kept.begin("late", "elsewhere", later)
    assert [place for place, _ in gone] == [("key 0", job_id("0"))]
    assert sum(kept._bytes.values()) <= early_frames.MAX_BYTES
    assert len(list(kept.pop(honest.job))) == len(list(kept.pop(later.job))) == 1


async def test_who_is_displaced_is_told_so_and_the_first_frames_of_others_come(net, monkeypatch):
    monkeypatch.setattr(early_frames, "MAX_BYTES", 2**20)
    provider = await net.node()
    crowd = [await net.proven(provider) for _ in range(8)]
    for number, one in enumerate(crowd):
        one.send(data_frame(job_id(str(number)), "e", 0, size=2**18)[:-1])  # a header costs them nothing
    await until(lambda: len(provider._jobs.early._bytes) >= 3)
    honest = await net.proven(provider, whence=ELSEWHERE)
    honest.send(data_frame(JOB, "e", 0, bytes(2**18)))
    said = await crowd[0].document()
    assert (said["t"], said["job"], said["error"]["code"]) == ("error", job_id("0"), Busy.code)
    job = provider.open_job(JobChannelSpec(JOB, {"e": Route(honest.keys.public, provider.public)}))
    async with asyncio.timeout(60):
        assert (await job.get()).seq == 0


async def test_a_member_that_talks_does_not_cost_another_its_link(net):
    """The documents of all were counted together, and who came last paid for it."""
    provider, talker, quiet = await net.node(), Keys.generate(), Keys.generate()
    talking, other = await net.proven(provider, talker), await net.proven(provider, quiet)
    job = provider.open_job(
        JobChannelSpec(JOB, {"a": Route(talker.public, provider.public), "b": Route(quiet.public, talker.public)})
    )
    for _ in range(mailbox.MAX_CONTROLS):
        talking.send(frames.control({"t": "x", "job": JOB}))
    await until(lambda: len(job._controls) == mailbox.MAX_CONTROLS)
    other.send(frames.control({"t": "y", "job": JOB}))
    await until(lambda: len(job._controls) == mailbox.MAX_CONTROLS + 1)
    assert set(provider.peers) == {talker.public, quiet.public}
    talking.send(frames.control({"t": "x", "job": JOB}))
    await until(lambda: set(provider.peers) == {quiet.public})


async def test_a_job_opens_though_a_link_ends_over_what_came_too_early(net):
    """It raised KeyError: the peer of the second frame was gone since the first had been answered."""
    provider = await net.node()
    peer = await net.proven(provider)
    opened = provider.peers[peer.keys.public]
    for edge in ("x", "y"):
        peer.send(data_frame(JOB, edge, 0))
    await until(lambda: len(provider._jobs.early._held.get((peer.keys.public, JOB), ())) == 2)
    peer.writer.transport.pause_reading()
    while opened._outbox.urgent_bytes < link.MAX_URGENT_BYTES - 100:
        left = link.MAX_URGENT_BYTES - opened._outbox.urgent_bytes
        opened.send_control({"t": "x", "y": bytes(min(60_000, max(left - 130, 1)))})
    routes = {edge: Route(provider.public, peer.keys.public) for edge in ("x", "y")}
    job = provider.open_job(JobChannelSpec(JOB, routes))
    assert provider.peers == {}
    with pytest.raises(LinkLost):
        job.check()


async def test_frames_of_jobs_that_nobody_opened_are_not_written_down(net, caplog):
    """A stranger filled an operator's disk with a line for each."""
    caplog.set_level(logging.INFO)
    provider = await net.node()
    peer = await net.proven(provider)
    for number in range(20):
        large = data_frame(
            job_id(str(number)), "e", 0, bytes(2**18), size=2 * early_frames.MAX_LINK_BYTES, stream=number
        )
        peer.send(large)
    for _ in range(20):
        assert (await peer.document())["error"]["code"] == Busy.code
    assert not [record for record in caplog.records if record.name == "nodewire.wire"]
