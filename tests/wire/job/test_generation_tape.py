"""A job's tape where its driver guesses: what is kept is plain, and what is sent again is as it went out."""

from __future__ import annotations

import struct

import pytest

from nodewire.errors import BadFrame, LinkLost
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job import generation_tape
from nodewire.wire.job.generation_tape import GenerationTape
from tests.protocol.documents import manifest

JOB, CHUNK = "ab" * 32, 4


def frame(seq, pos, *numbers, epoch=0, edge="hidden.0"):
    chunk = 1 + (pos - 3) // CHUNK if seq else 0
    rows = b"".join(struct.pack("<f", number) for number in numbers)
    meta = {"pos": pos, "chunk": chunk, "tokens": len(numbers), "epoch": epoch}
    return Frame(edge, seq, (Array("float32", (1, len(numbers), 1), rows),), meta)


def numbers(frames):
    return [(one.seq, struct.unpack(f"<{one.tensors[0].shape[1]}f", one.tensors[0].data)) for one in frames]


class Kept:
    def __init__(self, path):
        self.spool = Spool(path, 10**7)
        self.tape = GenerationTape(self.spool, JOB, manifest().model_copy(update={"chunk": CHUNK}), 8)
        self.plain, self.closed = [], []
        self.tape.attend({"hidden.0"}, lambda edge, chunk, one: self.plain.append((chunk, one.seq)), self.closed.append)

    def read(self, first):
        return numbers(one for _, one in self.tape.read(JOB, "hidden.0", first))

    def kept(self):
        return numbers(one for _, one in self.spool.read(JOB, "hidden.0"))


@pytest.fixture
def kept(tmp_path):
    made = Kept(tmp_path)
    yield made
    made.spool.close()


def test_frames_of_closed_chunks_are_on_disk_and_all_others_in_memory(kept):
    for one in (frame(0, 0, 1, 2, 3), frame(1, 3, 4, 5, 6), frame(2, 5, 7, 8, 9, epoch=1)):
        kept.tape.write(JOB, "hidden.0", 0, one)
    assert kept.kept() == []
    again = [(0, (1, 2, 3)), (1, (4, 5, 6)), (2, (7, 8, 9))]
    assert kept.read(0) == again
    kept.tape.on_signed(0)
    kept.tape.on_signed(1)
    assert kept.closed == [0, 1]
    assert kept.plain == [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert kept.kept() == [(0, (1, 2, 3)), (1, (4,)), (2, (5,)), (3, (7,)), (4, (8,))]
    assert kept.read(0) == again
    assert kept.read(2) == again[2:]


def test_a_close_that_comes_before_its_rows_waits_for_them(kept):
    kept.tape.write(JOB, "hidden.0", 0, frame(0, 0, 1, 2, 3))
    kept.tape.on_signed(1)
    kept.tape.on_signed(0)
    assert kept.closed == [0]
    kept.tape.write(JOB, "hidden.0", 0, frame(1, 3, 4, 5, 6))
    assert kept.closed == [0]
    kept.tape.write(JOB, "hidden.0", 0, frame(2, 6, 7))
    assert kept.closed == [0, 1]


def both_ends(kept):
    kept.tape.attend(
        {"hidden.0", "hidden.1"},
        lambda edge, chunk, one: kept.plain.append((edge, chunk, one.seq)),
        kept.closed.append,
    )
    for edge in ("hidden.0", "hidden.1"):
        kept.tape.write(JOB, edge, 0, frame(0, 0, 1, 2, 3, edge=edge))
        kept.tape.write(JOB, edge, 0, frame(1, 3, 4, 5, 6, 7, edge=edge))


def test_a_close_of_rows_that_the_driver_makes_void_is_refused_and_names_its_edge(kept):
    both_ends(kept)
    kept.tape.on_signed(0)
    kept.tape.write(JOB, "hidden.0", 0, frame(2, 6, 8, epoch=1))  # which is being computed
    with pytest.raises(BadFrame) as refused:
        kept.tape.on_signed(1)
    assert refused.value.field == "hidden.0"
    assert kept.closed == [0]
    assert kept.plain == [("hidden.0", 0, 0), ("hidden.1", 0, 0)]


def test_a_chunk_that_is_not_closed_is_complete_when_what_came_goes_far_beyond_it(kept):
    both_ends(kept)
    assert kept.tape.is_past(0)
    assert not kept.tape.is_past(1)
    kept.tape.on_signed(0)
    for seq in range(2, 20):
        for edge in ("hidden.0", "hidden.1"):
            kept.tape.write(JOB, edge, 0, frame(seq, 5 + seq, seq, edge=edge))
        assert kept.tape.is_past(1) == (6 + seq > 7 + 2 * 8)
    assert not kept.tape.is_past(2)


def test_the_customers_edges_go_straight_to_the_tape(kept):
    text = Frame("tokens", 0, (Array("int64", (1,), bytes(8)),), {"pos": 3, "chunk": 0})
    kept.tape.write(JOB, "tokens", 0, text)
    assert [one for _, one in kept.tape.read(JOB, "tokens")] == [one for _, one in kept.spool.read(JOB, "tokens")]
    assert len(list(kept.spool.read(JOB, "tokens"))) == 1


def test_what_cannot_follow_is_refused_with_its_edge_and_leaves_nothing(kept):
    with pytest.raises(BadFrame) as refused:
        kept.tape.record_frame("hidden.0", frame(1, 3, 1))
    assert refused.value.field == "hidden.0"
    kept.tape.record_frame("hidden.0", frame(0, 0, 1, 2, 3))


def test_guesses_are_held_as_they_went_out_up_to_a_bound(kept, monkeypatch):
    monkeypatch.setattr(generation_tape, "MAX_SENT_BYTES", 16)
    for one in (frame(0, 0, 1, 2, 3), frame(1, 3, 4, 5), frame(2, 4, 6, epoch=1), frame(3, 5, 7, epoch=1)):
        kept.tape.write(JOB, "hidden.0", 0, one)
    assert kept.read(1) == [(1, (4, 5)), (2, (6,)), (3, (7,))]
    assert kept.read(4) == []
    with pytest.raises(LinkLost):
        kept.read(0)
