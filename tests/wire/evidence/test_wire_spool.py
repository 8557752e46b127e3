"""What is kept is there again bit for bit, also for a later process; what is not whole is not gone into."""

import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadInput, Busy
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array, Frame, bytes_of
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.wire.evidence.spool import ORPHAN_S, Spool
from tests.wire.wire_net import array, job_id

JOB, OTHER = job_id("job"), job_id("other")


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, 2**30)
    yield spool
    spool.close()


def frame(seq: int, size: int = 100, edge: str = "e") -> Frame[Array]:
    return Frame(edge, seq, (array(os.urandom(size)),), {"pos": seq})


def contents(spool, edge="e", first=0, job=JOB):
    return [(attempt, f.seq, [bytes(t.data) for t in f.tensors]) for attempt, f in spool.read(job, edge, first)]


def written(spool, count, job=JOB, edge="e", size=100, first=0):
    sent = []
    for seq in range(first, first + count):
        sent.append(frame(seq, size, edge))
        spool.write(job, edge, 0, sent[-1])
    return [(0, f.seq, [bytes(t.data) for t in f.tensors]) for f in sent]


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    count = bytes_of(dtype, shape)
    return Array(dtype, shape, draw(st.binary(min_size=count, max_size=count)))


METAS = st.dictionaries(
    st.text(max_size=10), st.integers(-(2**63), 2**63) | st.text(max_size=20) | st.binary() | st.booleans() | st.none()
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(st.tuples(st.lists(arrays(), max_size=4), METAS, st.integers(0, 2**16 - 1)), max_size=6),
    first=st.integers(0, 6),
)
def test_frames_come_back_as_they_were_written(tmp_path_factory, data, first):
    path = tmp_path_factory.mktemp("spool")
    spool = Spool(path, 2**30)
    for seq, (tensors, meta, attempt) in enumerate(data):
        spool.write(JOB, "hidden.0", attempt, Frame("hidden.0", seq, tuple(tensors), meta))
    for reader in (spool, Spool(path, 2**30)):
        found = list(reader.read(JOB, "hidden.0", first))
        assert [attempt for attempt, _ in found] == [attempt for _, _, attempt in data[first:]]
        for (_, got), (seq, (tensors, meta, _)) in zip(found, list(enumerate(data))[first:], strict=True):
            assert (got.edge, got.seq, got.meta) == ("hidden.0", seq, meta)
            assert [(t.dtype, t.shape, bytes(t.data)) for t in got.tensors] == [
                (t.dtype, t.shape, bytes(t.data)) for t in tensors
            ]
        assert reader.bytes == spool.bytes
    spool.close()


def test_a_reader_sees_what_was_written_after_it_began(spool):
    written(spool, 1)
    reading = spool.read(JOB, "e")
    next(reading)
    written(spool, 1, first=1)
    assert next(reading)[1].seq == 1
    assert next(reading, None) is None
    assert list(spool.read(JOB, "e", 5)) == list(spool.read(JOB, "none")) == list(spool.read(OTHER, "e")) == []


def test_the_first_of_two_frames_stands_and_a_gap_ends_the_edge(spool):
    sent = written(spool, 2)
    spool.write(JOB, "e", 1, frame(0))
    spool.write(JOB, "e", 1, frame(1))
    assert contents(spool) == sent
    assert spool.is_whole(JOB)
    spool.write(JOB, "e", 1, frame(3))
    spool.write(JOB, "e", 1, frame(2))
    assert contents(spool) == sent
    assert not spool.is_whole(JOB)


def test_the_caps_cut_an_edge_and_a_later_process_knows(tmp_path):
    spool = Spool(tmp_path, max_bytes=3_000, max_job_bytes=1_560)
    sent = written(spool, 20)
    kept = contents(spool)
    assert kept == sent[: len(kept)] and 10 <= len(kept) < 12
    assert not spool.is_whole(JOB)
    assert written(spool, 1, edge="small", size=1) == contents(spool, "small")
    for n in range(4):
        written(spool, 20, job=job_id(f"{n}"))
    assert spool.bytes <= 3_000
    assert contents(spool, job=job_id("3")) == []
    later = Spool(tmp_path, 2**30)
    assert contents(later) == kept
    written(later, 1, edge="small", first=1, size=1)
    assert len(contents(later, "small")) == 2
    written(later, 1, first=len(kept))
    assert contents(later) == kept


@pytest.mark.parametrize("lost", [1, 50, 100, 101, 120, 130])
def test_a_truncated_tail_is_ignored_and_nothing_is_written_behind_it(tmp_path, lost):
    spool = Spool(tmp_path, 2**30)
    sent = written(spool, 3)
    spool.close()
    path = tmp_path / JOB / "e"
    os.truncate(path, path.stat().st_size - lost)
    later = Spool(tmp_path, 2**30)
    assert contents(later) == sent[:2]
    written(later, 1, first=2)
    assert contents(later) == sent[:2]


@pytest.mark.parametrize("garbage", [b"\x00" * 16, b"\xff" * 16, b"\x00" * 400, struct.pack("!IIQ", 4, 7, 2**40), b"x"])
def test_garbage_at_the_end_is_ignored(tmp_path, garbage):
    spool = Spool(tmp_path, 2**30)
    sent = written(spool, 3)
    spool.close()
    with (tmp_path / JOB / "e").open("ab") as file:
        file.write(garbage)
    later = Spool(tmp_path, 2**30)
    assert contents(later) == sent
    written(later, 1, first=3)
    assert contents(later) == sent


@given(data=st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_to_a_header_crashes_a_reader(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("spool")
    spool = Spool(path, 2**30)
    sent = written(spool, 3, size=10)
    spool.close()
    file = path / JOB / "e"
    raw = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(raw)
    later = Spool(path, 2**30)
    found = contents(later)
    assert [seq for _, seq, _ in found] == list(range(len(found)))
    assert len(found) <= len(sent)
    written(later, 1, first=len(found))  # the file is read for that, and not gone into


def test_a_later_process_goes_on_where_the_earlier_ended(tmp_path):
    sent = written(Spool(tmp_path, 2**30), 2)
    later = Spool(tmp_path, 2**30)
    sent += written(later, 2, first=2)
    assert contents(later) == sent
    assert later.is_whole(JOB)
    assert later.bytes == Spool(tmp_path, 2**30).bytes


def test_jobs_are_deleted_when_their_time_has_passed(tmp_path):
    spool = Spool(tmp_path, 2**30)
    written(spool, 3)
    written(spool, 3, job=OTHER)
    half = spool.bytes // 2
    assert spool.sweep(2**40) == 0  # running jobs have no time yet
    spool.keep_until(JOB, 1_000)
    spool.keep_until(job_id("unknown"), 1)
    assert spool.sweep(999) == 0
    reading = spool.read(JOB, "e")
    next(reading)
    assert spool.sweep(1_000) == half == spool.bytes
    assert next(reading)[1].seq == 1
    assert contents(spool) == []
    assert not (tmp_path / JOB).exists()
    spool.keep_until(OTHER, 5_000)
    later = Spool(tmp_path, 2**30)
    assert later.bytes == half
    assert later.sweep(4_999) == 0
    assert later.sweep(5_000) == half


def test_jobs_of_an_earlier_process_without_a_time_are_orphans(tmp_path):
    written(Spool(tmp_path, 2**30), 1)
    newest_s = (tmp_path / JOB / "e").stat().st_mtime
    later = Spool(tmp_path, 2**30)
    assert later.sweep(newest_s + ORPHAN_S - 1) == 0
    assert later.sweep(newest_s + ORPHAN_S + 1) > 0
    assert not (tmp_path / JOB).exists()


def test_many_edges_need_few_descriptors(spool):
    for turn in range(2):
        for n in range(200):
            written(spool, 1, edge=f"e{n}", first=turn)
    assert len(spool._open) <= 128
    assert all(len(contents(spool, f"e{n}")) == 2 for n in range(200))


@pytest.mark.parametrize(
    ("job", "edge"), [("", "e"), ("..", "e"), (JOB, "../e"), (JOB, ""), (JOB, "until"), (JOB, "E")]
)
def test_a_name_is_no_path(spool, job, edge):
    for call in (
        lambda: spool.write(job, edge, 0, frame(0)),
        lambda: spool.read(job, edge),
    ):
        with pytest.raises(BadInput):
            call()


def test_a_malformed_frame_is_refused(spool):
    with pytest.raises(BadFrame):
        spool.write(JOB, "e", 0, Frame("e", 0, (), {"x": object()}))
    spool.write(JOB, "e", 0, frame(0))
    assert len(contents(spool)) == 1


def test_a_disk_that_cannot_be_written_cuts_the_edge(tmp_path):
    spool = Spool(tmp_path / "spool", 2**30)
    written(spool, 1)
    (tmp_path / "spool" / OTHER).write_text("in the way")
    spool.write(OTHER, "e", 0, frame(0))
    spool.keep_sent(statement(0, third := job_id("third")))
    assert (spool.is_whole(OTHER), spool.is_whole(JOB), spool.is_whole(third)) == (False, True, True)
    (tmp_path / "spool" / job_id("fourth")).write_text("in the way")
    spool.keep_sent(statement(0, job_id("fourth")))
    assert not spool.is_whole(job_id("fourth"))


def statement(chunk: int, job: str = JOB) -> FrameStatement:
    fields = {"request": job, "task": "driver", "edge": "e", "attempt": 0, "frames": "ab" * 32}
    return FrameStatement.sign(Keys(b"\x05" * 32), chunk=chunk, **fields)


def test_statements_are_kept_beside_the_frames_and_go_with_them(spool, tmp_path):
    written(spool, 2)
    before = spool.bytes
    for chunk in (0, 1):
        spool.keep_sent(statement(chunk))
    spool.keep_sent(statement(0, OTHER))
    spool.close()
    later = Spool(tmp_path, 2**30)
    assert list(later.sent(JOB)) == [statement(0), statement(1)]
    assert list(later.sent(OTHER)) == [statement(0, OTHER)]
    assert later.bytes == spool.bytes > before
    assert len(contents(later)) == 2
    later.remove(JOB)
    assert list(later.sent(JOB)) == []
    later.remove(OTHER)
    assert later.bytes == 0
    later.close()


def test_a_statement_that_was_not_written_whole_is_passed_over(spool, tmp_path):
    spool.keep_sent(statement(0))
    with (tmp_path / JOB / "_sent").open("ab") as file:
        file.write(statement(1).to_json().encode()[:99])
    assert list(spool.sent(JOB)) == [statement(0)]
    with pytest.raises(BadInput):
        list(spool.sent("../x"))


def test_statements_count_towards_the_caps(tmp_path):
    spool = Spool(tmp_path, 1_000)
    for chunk in range(5):
        spool.keep_sent(statement(chunk))
    assert 0 < len(list(spool.sent(JOB))) < 5
    assert not spool.is_whole(JOB)
    assert spool.bytes <= 1_000
    spool.close()


def test_a_job_finds_the_room_that_was_reserved_for_it_however_much_others_write(tmp_path):
    spool = Spool(tmp_path, 10_000)
    spool.reserve(JOB, 4_000)
    first = written(spool, 5)
    written(spool, 200, job=OTHER)
    spool.keep_sent(statement(0, OTHER))
    assert not spool.is_whole(OTHER)
    assert 5_000 < spool.bytes <= 6_000 + 5 * 200
    while (more := 4_000 - sum(one.bytes for one in spool._jobs[JOB].edges.values())) > 200:
        first += written(spool, 1, first=len(first), size=min(100, more - 100))
    assert contents(spool) == first
    assert spool.is_whole(JOB)
    assert spool.bytes <= 10_000
    spool.close()


def test_what_is_reserved_is_neither_given_twice_nor_beyond_what_one_job_may_have(tmp_path):
    spool = Spool(tmp_path, 10_000, max_job_bytes=6_000)
    with pytest.raises(Busy, match="spool"):
        spool.reserve(JOB, 6_001)
    spool.reserve(JOB, 6_000)
    written(spool, 5)  # moves from what is reserved to what is used
    with pytest.raises(Busy, match="spool"):
        spool.reserve(OTHER, 4_001)
    spool.reserve(OTHER, 4_000)
    with pytest.raises(Busy):
        spool.reserve(job_id("third"), 1)
    spool.close()


@pytest.mark.parametrize("end", ["keep_until", "remove"])
def test_room_that_an_ended_job_did_not_use_is_others(tmp_path, end):
    spool = Spool(tmp_path, 10_000)
    spool.reserve(JOB, 10_000)
    written(spool, 5)
    spool.keep_until(JOB, 1_000) if end == "keep_until" else spool.remove(JOB)
    with pytest.raises(Busy):
        spool.reserve(OTHER, 10_001 - spool.bytes)
    spool.reserve(OTHER, 10_000 - spool.bytes)
    spool.remove(OTHER)  # it never wrote a byte
    written(spool, 5, job=OTHER)
    assert spool.is_whole(OTHER)
    spool.close()
