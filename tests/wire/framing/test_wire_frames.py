"""The frame codec: what is written is read back however it is cut up, and whatever else comes is a typed error."""

import struct
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadInput, BadVersion, TooLarge
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder, FrameMemory
from nodewire.wire.framing.frames import DataHeader, Type

JOB = "ab" * 32
MiB = 2**20


class Recorder:
    """Takes everything in; `allocated` counts the bytes it was asked for."""

    def __init__(self, wanted=lambda header: True):
        self.seen = []
        self.strays = []
        self.allocated = 0
        self.wanted = wanted

    def data_begins(self, header):
        if not self.wanted(header):
            return FrameMemory(None, is_expected=False)
        self.allocated += header.nbytes
        return FrameMemory(memoryview(bytearray(header.nbytes)), is_expected=True)

    def stray(self, nbytes):
        self.strays.append(nbytes)

    def data_ends(self, header, buffer):
        self.seen.append(("data", header, bytes(buffer)))

    def control(self, document):
        self.seen.append(("control", document))

    def credit(self, *fields):
        self.seen.append(("credit", *fields))

    def ping(self, tag):
        self.seen.append(("ping", tag))

    def pong(self, tag):
        self.seen.append(("pong", tag))


def feed(decoder, data, cuts=()):
    """Give `data` to the decoder in pieces of the sizes in `cuts` (again and again), as a socket would."""
    start, turn = 0, 0
    while start < len(data):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0
        size = min(len(buffer), len(data) - start, cuts[turn % len(cuts)] if cuts else len(data))
        buffer[:size] = data[start : start + size]
        decoder.buffer_updated(size)
        start, turn = start + size, turn + 1


def encode(header, arrays, stream=0):
    return b"".join(
        bytes(part)
        for segment in frames.data(stream, frames.pack_header(header), header.nbytes, arrays)
        for part in segment
    )


dtypes = st.sampled_from(sorted(ITEM_BYTES))
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=20)


@st.composite
def arrays(draw):
    dtype, shape = draw(dtypes), draw(shapes)
    size = Array(dtype, shape, b"").nbytes
    return Array(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def data_frames(draw):
    tensors = draw(st.lists(arrays(), max_size=4))
    header = frames.data_header(
        draw(st.binary(min_size=32, max_size=32)).hex(),
        draw(st.text(min_size=1, max_size=16)),
        draw(st.integers(0, 2**16 - 1)),
        draw(st.integers(0, 2**53 - 1)),
        draw(st.binary(min_size=16, max_size=16)),
        tensors,
        draw(st.dictionaries(st.text(max_size=8), scalars, max_size=4)),
        MiB,
    )
    return ("data", header, b"".join(bytes(t.data) for t in tensors)), encode(header, tensors)


documents = st.dictionaries(st.text(max_size=8), scalars, max_size=4).map(lambda d: {**d, "t": "x"})
tags = st.integers(0, 2**16 - 1)
any_frame = st.one_of(
    data_frames(),
    documents.map(lambda d: (("control", d), frames.control(d))),
    st.tuples(st.text(min_size=1, max_size=9), st.integers(0, 9), st.integers(0, 2**63 - 1)).map(
        lambda f: (("credit", JOB, *f), frames.credit(JOB, *f))
    ),
    tags.map(lambda n: (("ping", n), frames.ping(n))),
    tags.map(lambda n: (("pong", n), frames.pong(n))),
    st.integers(0, 500).map(lambda n: (None, frames.filler(n))),
)
cuttings = st.lists(st.integers(1, 400), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(st.lists(any_frame, max_size=6), cuttings)
def test_what_is_written_is_read_back_however_it_is_cut(sent, cuts):
    recorder = Recorder()
    feed(Decoder(recorder), b"".join(data for _, data in sent), cuts)
    assert recorder.seen == [item for item, _ in sent if item is not None]


@given(st.integers(0, 3 * frames.SEGMENT_BYTES), st.integers(1, 200_000))
@settings(deadline=None, max_examples=20)
def test_a_long_frame_travels_in_segments(size, cut):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    tensors = [Array("uint8", (size // 3,), data[: size // 3]), Array("uint8", (size - size // 3,), data[size // 3 :])]
    header = frames.data_header(JOB, "e", 0, 0, bytes(16), tensors, {}, 4 * MiB)
    segments = list(frames.data(0, frames.pack_header(header), size, tensors))
    assert len(segments) == max(1, -(-size // frames.SEGMENT_BYTES))
    recorder = Recorder()
    feed(Decoder(recorder), encode(header, tensors), [cut])
    ((_, got, payload),) = recorder.seen
    assert payload == data
    assert [bytes(a.data) for a in got.arrays(memoryview(payload))] == [bytes(t.data) for t in tensors]


def test_segments_of_frames_on_different_streams_may_alternate():
    tensors = [Array("uint8", (MiB,), bytes([n]) * MiB) for n in range(3)]
    headers = [frames.data_header(JOB, "e", 0, n, bytes(16), [t], {}, MiB) for n, t in enumerate(tensors)]
    streams = [frames.data(n, frames.pack_header(h), MiB, [tensors[n]]) for n, h in enumerate(headers)]
    mixed = b"".join(bytes(part) for turn in zip(*streams, strict=True) for segment in turn for part in segment)
    recorder = Recorder(wanted=lambda header: header.seq != 1)
    feed(Decoder(recorder), mixed + frames.ping(1))
    assert [(i[1].seq, i[2] == bytes([i[1].seq]) * MiB) for i in recorder.seen[:-1]] == [(0, True), (2, True)]
    assert recorder.seen[-1] == ("ping", 1)


@pytest.mark.parametrize("cut", [5_000, frames.SEGMENT_BYTES, frames.SEGMENT_BYTES + 3_000, MiB - 1])
def test_a_discarded_frame_passes_by_and_the_next_is_read(cut):
    tensor = Array("uint8", (MiB,), bytes(MiB))
    header = frames.data_header(JOB, "e", 2, 0, bytes(16), [tensor], {}, MiB)
    data = encode(header, [tensor])
    recorder = Recorder()
    decoder = Decoder(recorder)
    feed(decoder, data[:cut])
    decoder.discard("ef" * 32)  # another job's
    decoder.discard(JOB)
    feed(decoder, data[cut:] + frames.ping(3))
    assert recorder.seen == [("ping", 3)]


def test_a_document_that_is_under_way_when_a_frame_is_given_up_is_read_whole():
    """Both may have the number 0: the document's rest was dropped with the frame, and the link ended over it."""
    tensor = Array("uint8", (MiB,), bytes(MiB))
    header = frames.data_header(JOB, "e", 2, 0, bytes(16), [tensor], {}, MiB)
    first, *rest = frames.data(0, frames.pack_header(header), MiB, [tensor])
    said = {"t": "x", "y": bytes(50_000)}
    document = frames.control(said)
    recorder = Recorder()
    decoder = Decoder(recorder)
    feed(decoder, b"".join(first) + document[:25_000])
    decoder.discard(JOB)
    feed(decoder, document[25_000:] + b"".join(part for segment in rest for part in segment) + frames.ping(3))
    assert recorder.seen == [("control", said), ("ping", 3)]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(any_frame, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.binary(max_size=40),
    cuttings,
)
def test_mutated_frames_give_typed_errors_only(sent, changes, tail, cuts):
    data = bytearray(b"".join(data for _, data in sent) + tail)
    for at, value in changes:
        data[at % len(data)] = value
    recorder = Recorder(wanted=lambda header: header.nbytes <= MiB)
    with suppress(BadFrame, BadVersion, TooLarge):
        feed(Decoder(recorder), bytes(data), cuts)
    assert recorder.allocated <= MiB * len(data)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), cuttings)
def test_random_bytes_give_typed_errors_only(noise, cuts):
    for data in (noise, b"\x01" + noise, frames.PREFIX.pack(1, Type.DATA, 0, len(noise), 0) + noise):
        with suppress(BadFrame, BadVersion, TooLarge):
            feed(Decoder(Recorder()), data, cuts)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=70)
    | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(plain, min_size=5, max_size=9))
def test_headers_of_other_msgpack_give_typed_errors_only(fields):
    good = [bytes.fromhex(JOB), "e", 0, 0, bytes(16), [], {}]
    for mixed in (fields, [*good[: 7 - len(fields[:5])], *fields[:5]], good[:5] + fields[:2]):
        packed = msgpack.packb(mixed)
        if len(packed) > frames.MAX_HEADER_BYTES:
            continue
        with suppress(BadFrame, TooLarge):
            feed(Decoder(Recorder()), frames.PREFIX.pack(1, Type.DATA, 0, len(packed), 0) + packed)


def refused(error, field, data, budget=None):
    recorder = Recorder()
    with pytest.raises(error) as failed:
        feed(Decoder(recorder, budget), data)
    assert failed.value.field == field
    assert recorder.allocated == 0
    return recorder


def prefix(kind, header=0, payload=0, version=1, stream=0):
    return frames.PREFIX.pack(version, kind, stream, header, payload)


def test_a_heartbeat_is_sixteen_bytes():
    assert len(frames.ping(1)) == len(frames.pong(1)) == 16


@pytest.mark.parametrize(
    ("error", "field", "data"),
    [
        (BadVersion, "frame", prefix(Type.PING, version=2)),
        (BadFrame, "type", prefix(0)),
        (BadFrame, "type", prefix(8)),
        (TooLarge, "header", prefix(Type.DATA, frames.MAX_HEADER_BYTES + 1)),
        (TooLarge, "header", prefix(Type.PING, 1)),
        (TooLarge, "payload", prefix(Type.PING, 0, 1)),
        (TooLarge, "payload", prefix(Type.DATA, 9, frames.SEGMENT_BYTES + 1)),
        (TooLarge, "payload", prefix(Type.MORE, 0, 2**64 - 1)),
        (TooLarge, "payload", prefix(Type.CONTROL, 0, frames.MAX_DOCUMENT_BYTES + 1)),
        (TooLarge, "payload", prefix(Type.FILLER, 0, frames.MAX_FILLER_BYTES + 1)),
        (BadFrame, "stream", prefix(Type.MORE, 0, 5)),
        (BadFrame, "header", prefix(Type.DATA)),
        (BadFrame, "document", prefix(Type.CONTROL)),
        (BadFrame, "document", prefix(Type.CONTROL, 0, 1) + b"\x01"),
        (BadFrame, "document", prefix(Type.CONTROL, 0, 1) + b"\x80"),
        (BadFrame, "document", prefix(Type.CONTROL, 0, 4) + b"\x81\xa1t\x01"),
    ],
)
def test_a_frame_beyond_its_caps_is_refused_before_memory_is_taken(error, field, data):
    refused(error, field, data)


def packed(**changed):
    fields = {
        "job": bytes(32),
        "edge": "e",
        "attempt": 0,
        "seq": 0,
        "key": bytes(16),
        "tensors": [["uint8", [4]]],
        "meta": {},
    } | changed
    return msgpack.packb(list(fields.values()))


@pytest.mark.parametrize(
    ("error", "field", "changed"),
    [
        (BadFrame, "job", {"job": bytes(31)}),
        (BadFrame, "edge", {"edge": ""}),
        (BadFrame, "edge", {"edge": "e" * 65}),
        (BadFrame, "attempt", {"attempt": -1}),
        (BadFrame, "seq", {"seq": True}),
        (BadFrame, "seq", {"seq": 2**53}),
        (BadFrame, "key", {"key": "x" * 16}),
        (BadFrame, "tensors", {"tensors": {}}),
        (BadFrame, "tensors", {"tensors": [["uint8"]]}),
        (BadFrame, "header", {"tensors": [["uint8", []]] * 65}),
        (BadFrame, "dtype", {"tensors": [["float64", [1]]]}),
        (BadFrame, "dtype", {"tensors": [[{}, [1]]]}),
        (BadFrame, "shape", {"tensors": [["uint8", [1] * 9]]}),
        (BadFrame, "shape", {"tensors": [["uint8", [-4]]]}),
        (BadFrame, "shape", {"tensors": [["uint8", [4.0]]]}),
        (TooLarge, "frame", {"tensors": [["uint8", [2**40 - 1] * 8]]}),
        (BadFrame, "payload", {"tensors": [["uint8", [5]]]}),
        (BadFrame, "meta", {"meta": {"a": [1]}}),
        (BadFrame, "meta", {"meta": {"a": 1.0}}),
        (BadFrame, "header", {"meta": {1: 1}}),
        (BadFrame, "header", {"meta": {"a": msgpack.ExtType(1, b"x")}}),
        (BadFrame, "meta", {"meta": {b"a": 1}}),
    ],
)
def test_a_header_that_lies_is_refused_by_name(error, field, changed):
    header = packed(**changed)
    refused(error, field, prefix(Type.DATA, len(header), 4) + header + b"abcd")


def test_only_so_many_frames_may_be_under_way_and_none_twice():
    header = packed(tensors=[["uint8", [frames.SEGMENT_BYTES + 1]]])
    first = [prefix(Type.DATA, len(header), frames.SEGMENT_BYTES, stream=n) + header for n in range(65)]
    body = bytes(frames.SEGMENT_BYTES)
    decoder = Decoder(Recorder())
    feed(decoder, b"".join(start + body for start in first[: frames.MAX_STREAMS]))
    with pytest.raises(TooLarge):
        feed(decoder, first[64])
    decoder = Decoder(Recorder())
    feed(decoder, first[0] + body)
    with pytest.raises(BadFrame):
        feed(decoder, first[0])


def test_a_budget_ends_with_unlimited():
    recorder = Recorder()
    decoder = Decoder(recorder, 100)
    feed(decoder, frames.filler(60))
    decoder.unlimited()
    feed(decoder, frames.filler(60) + frames.ping(1))
    assert recorder.seen == [("ping", 1)]
    refused(TooLarge, "channel", frames.filler(20) * 3, budget=100)
    refused(TooLarge, "payload", frames.filler(90)[:16], budget=100)
    feed(Decoder(recorder, 100), frames.filler(84))


def test_documents_are_canonical_and_small():
    with pytest.raises(BadInput):
        frames.control({"t": "x", "f": 1.5})
    with pytest.raises(TooLarge):
        frames.control({"t": "x", "b": bytes(frames.MAX_DOCUMENT_BYTES)})
    body = b"\x82\xa1t\xa1x\xa1a\x01"  # keys out of order
    refused(BadFrame, "document", prefix(Type.CONTROL, 0, len(body)) + body)


def test_the_prefix_is_what_the_specification_says():
    assert frames.ping(0x1234) == struct.pack(">BBHIQ", 1, 5, 0x1234, 0, 0)
    header = DataHeader(JOB, "hidden.0", 1, 7, bytes(16), (("bfloat16", (1, 2)),), {"pos": 3}, 4)
    data = encode(header, [Array("bfloat16", (1, 2), b"abcd")], stream=9)
    fields = [bytes.fromhex(JOB), "hidden.0", 1, 7, bytes(16), [["bfloat16", [1, 2]]], {"pos": 3}]
    assert data == struct.pack(">BBHIQ", 1, 1, 9, len(msgpack.packb(fields)), 4) + msgpack.packb(fields) + b"abcd"
