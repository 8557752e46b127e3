"""What fuzzing has found: bytes that ended in something else than a typed error, or took more memory than they may."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodewire.errors import BadPeer, LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Route
from nodewire.wire.framing import frames
from nodewire.wire.framing.headers import FRAME_COST_BYTES, META_COST_BYTES, TENSOR_COST_BYTES, data_header
from nodewire.wire.transport import identity
from tests.wire.wire_net import QUICK, array, data_frame, job_id, until

JOB = job_id("hostile")


@pytest.mark.parametrize("count", [255, 300, 1_000])
def test_a_certificate_with_a_long_signature_is_refused(count):
    """It ended in a ValueError, and whoever waited for the dial waited for ever."""
    keys, private = Keys.generate(), ec.generate_private_key(ec.SECP256R1())
    der = identity.build(keys, private, time.time(), 3_600).public_bytes(serialization.Encoding.DER)
    signature = x509.load_der_x509_certificate(der).signature
    long = b"\x03\x82" + (count + 1).to_bytes(2, "big") + b"\0" + bytes(count)
    inner = der[4 : -len(signature) - 3] + long
    made = b"\x30\x82" + len(inner).to_bytes(2, "big") + inner
    assert len(x509.load_der_x509_certificate(made).signature) == count
    with pytest.raises(BadPeer) as refused:
        identity.check_certificate(made, keys.public, time.time())
    assert refused.value.field == "certificate"


def test_many_small_tensors_are_not_free():
    """A frame of 64 empty ones takes 40 KB of memory, and counted 1 KiB."""
    arrays = [array(b"", shape=(0,))] * 64
    header = data_header(JOB, "e", 0, 0, bytes(16), arrays, {"pos": 1}, 0)
    assert header.nbytes == 0
    assert header.cost == FRAME_COST_BYTES + 64 * TENSOR_COST_BYTES + META_COST_BYTES


async def test_documents_wait_packed_and_are_read_as_they_were(net):
    a, b = await net.pair()
    routes = {"e": Route(a.public, b.public)}
    mine, theirs = a.open_job(JobChannelSpec(JOB, routes)), b.open_job(JobChannelSpec(JOB, routes))
    said = {"t": "sent", "nested": [[], {}, {"x": b"y"}], "n": 1}
    await mine.control(b.public, said)
    await until(lambda: len(theirs._controls) == 1)
    assert isinstance(theirs._controls[0][1], bytes)
    async for peer, document in theirs.controls():
        assert (peer, document) == (a.public, {**said, "job": JOB})
        break


async def test_what_follows_the_end_of_a_link_in_one_read_takes_no_memory(net):
    """It was admitted for a producer that had just been lost, which then was never asked to send it again."""
    node, keys = await net.node(), Keys.generate()
    peer = await net.proven(node, keys)
    job = node.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, node.public)}, on_lost=lambda peer, error: None))
    link = node.peers[keys.public]
    bye = frames.control({"t": "bye", "error": LinkLost("peer", "leaves").as_dict()})
    stream = bye + data_frame(JOB, "e", 0, size=2) + data_frame(job_id("early"), "e", 0, stream=1)
    peer.writer.transport.pause_reading()
    buffer = link.get_buffer(-1)
    buffer[: len(stream)] = stream
    link.buffer_updated(len(stream))
    assert node.peers == {}
    assert job._edges.incoming["e"].next_seq == 0
    assert node._jobs.early._bytes == {}


async def test_frames_of_a_link_are_not_dropped_when_those_of_the_one_before_it_expire(net):
    """They were, while they came: their memory was in use and counted as free."""
    node, keys = await net.node(patience=QUICK), Keys.generate()
    first = await net.proven(node, keys)
    first.send(data_frame(JOB, "e", 0))
    await until(lambda: keys.public in node._jobs.early._bytes)
    old = node.peers[keys.public]
    first.writer.transport.abort()
    await until(lambda: not node.peers)
    second = await net.proven(node, keys)
    second.send(data_frame(JOB, "e", 0))
    await until(lambda: keys.public in node._jobs.early._bytes)
    node._jobs._expire(old, JOB, 0)
    assert keys.public in node._jobs.early._bytes
    job = node.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, node.public)}))
    frame: Frame = await job.get()
    assert frame.seq == 0
