"""Guessed frames and the plain ones that they stand for, beside a model that keeps every way through a tree whole."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, NotFound
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.guesses import Fences, packed, without_rows
from nodewire.protocol.history import History

PROMPT, CHUNK, LOOKAHEAD = 3, 4, 8


def row(number: int) -> bytes:
    return struct.pack("<2f", number, -number)


def frame(seq, pos, numbers, *, epoch=0, chunk=None, parents=None, keep=None, **meta):
    chunk = 1 + (pos - PROMPT) // CHUNK if chunk is None else chunk
    meta = {"pos": pos, "chunk": chunk, "tokens": len(numbers), "epoch": epoch, **meta}
    if parents is not None:
        meta["parents"] = packed(tuple(parents))
    if keep is not None:
        meta["keep"] = packed(tuple(keep))
    tensor = Array("float32", (1, len(numbers), 2), b"".join(map(row, numbers)))
    return Frame("hidden", seq, (tensor,), meta)


def prompt():
    return frame(0, 0, [901, 902, 903], chunk=0)


def plain(seq, number):
    pos = PROMPT + seq - 1
    meta = {"pos": pos, "chunk": 1 + (seq - 1) // CHUNK, "tokens": 1}
    return Frame("hidden", seq, (Array("float32", (1, 1, 2), row(number)),), meta)


def begun(lookahead=LOOKAHEAD):
    history = History("hidden", chunk=CHUNK, lookahead=lookahead)
    history.take(prompt())
    return history


def closed(history, chunk, positions=None):
    return [(one.seq, one.tensors[0].data, dict(one.meta)) for one in history.close(chunk, positions)]


def shown(frames):
    return [(one.seq, one.tensors[0].data, dict(one.meta)) for one in frames]


def test_frames_of_a_driver_that_never_guesses_are_the_plain_ones():
    history = begun(lookahead=1)
    sent = [plain(seq, seq) for seq in range(1, 6)]
    for one in sent:
        history.take(one)
    assert [dict(one.meta) for one in history.close(0)] == [{"pos": 0, "chunk": 0, "tokens": 3}]
    assert closed(history, 1) == shown(sent[:4])
    assert closed(history, 2, 1) == shown(sent[4:])


def test_of_a_position_the_last_row_counts():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3]))
    history.take(frame(2, 4, [4, 5, 6], epoch=1))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 4), plain(3, 5), plain(4, 6)])


def test_what_is_kept_of_a_tree_joins_the_run():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3, 4], parents=[-1, 0, 0, 2]))
    history.take(frame(2, 6, [5], keep=[0, 2, 3]))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 5)])


def test_live_cells_that_follow_what_was_kept_are_numbered_anew():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3, 4, 5], parents=[-1, 0, 0, 2, 1]))
    history.take(frame(2, 5, [6], keep=[0, 2], parents=[0]))  # of 4, the only one left, which is number 0 now
    history.take(frame(3, 7, [7], keep=[0, 1]))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 6)])


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        (frame(3, 8, [9], epoch=1), "pos"),
        (frame(3, 2, [9], epoch=1, chunk=0), "pos"),
        (frame(3, 5, [9], epoch=1, chunk=2), "chunk"),
        (frame(3, 5, [9], epoch=1, chunk=0), "chunk"),
        (frame(3, 5, [9], epoch=0), "epoch"),
        (frame(3, 5, list(range(9)), epoch=1), "rows"),
        (frame(3, 5, [9], epoch=1, tokens=2), "tokens"),
        (frame(3, 5, [9], epoch=-1), "epoch"),
        (frame(3, 5, [9], epoch=True), "epoch"),
        (frame(3, True, [9], chunk=1, epoch=1), "pos"),
        (frame(2, 5, [9], epoch=1), "seq"),
        (frame(3, 6, [9], epoch=1, keep=[0]), "keep"),
        (frame(3, 5, [9], epoch=1, parents=[0]), "parents"),
        (frame(3, 5, [9], epoch=1, parents=[-2]), "parents"),
        (frame(3, 5, [9], epoch=1, parents=[-1, 0]), "parents"),
        (Frame("hidden", 3, (), {"pos": 5, "chunk": 1}), "shape"),
        (Frame("hidden", 3, (Array("float32", (1, 1, 3), bytes(12)),), {"pos": 5, "chunk": 1, "epoch": 1}), "tensors"),
        (Frame("hidden", 3, frame(3, 5, [9]).tensors, {"pos": 5, "chunk": 1, "keep": b"\0", "epoch": 1}), "keep"),
    ],
)
def test_what_cannot_follow_is_refused_by_its_field_and_changes_nothing(lie, named):
    history = begun()
    history.take(frame(1, 3, [1, 2]))
    history.take(frame(2, 4, [3], epoch=1))
    with pytest.raises(BadFrame) as refused:
        history.take(lie)
    assert refused.value.field == named
    history.take(frame(3, 5, [4, 5], epoch=1))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 5)])


def test_nothing_rewinds_into_a_chunk_that_is_closed():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3, 4, 5]))
    history.close(0)
    history.close(1)
    with pytest.raises(BadFrame):
        history.take(frame(2, 6, [9], epoch=1))
    history.take(frame(2, 7, [9], epoch=1))


def test_a_chunk_is_closed_in_its_turn_and_when_all_its_positions_have_rows():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3]))
    for chunk in (1, 2):
        with pytest.raises(BadFrame):
            history.close(chunk)
    history.close(0)
    with pytest.raises(BadFrame):
        history.close(0)
    assert history.lacks(1)
    assert not history.lacks(1, 3)
    for positions in (None, 0, 4, 5):
        with pytest.raises(BadFrame):
            history.close(1, positions)
    assert len(history.close(1, 3)) == 3


def test_a_frame_that_was_not_computed_leaves_its_positions_without_rows():
    history = begun()
    history.take(without_rows("hidden", frame(1, 3, [1, 2]), "float32"))
    history.take(without_rows("hidden", frame(2, 5, [3]), "float32"))
    with pytest.raises(BadFrame):
        history.take(frame(3, 6, [4]))  # as if they had been
    history.take(frame(3, 3, [4], epoch=1))
    assert not history.lacks(1, 1)


def test_rows_of_one_chunk_are_bounded_whoever_makes_them():
    history, seq = begun(lookahead=2), 0
    with pytest.raises(BadFrame) as refused:
        while True:
            seq += 1
            history.take(frame(seq, 3, [seq, seq], epoch=seq))
    assert refused.value.field == "lookahead"
    assert seq == (2 * CHUNK + 64) // 2 + 1
    empty, seq = begun(lookahead=2), 0
    with pytest.raises(BadFrame):
        while True:
            seq += 1
            empty.take(without_rows("hidden", frame(seq, 3, [1], epoch=seq), "float32"))
    assert seq == 2 * CHUNK + 64 + 1


def test_what_is_kept_in_memory_is_the_rows_of_open_chunks():
    history, seq = begun(), 0
    history.close(0)
    for chunk in range(1, 200):
        for offset in range(CHUNK):
            pos = PROMPT + (chunk - 1) * CHUNK + offset
            history.take(frame(seq + 1, pos, [1, 2, 3], epoch=2 * seq))
            history.take(frame(seq + 2, pos, [1], epoch=2 * seq + 1))
            seq += 2
        history.close(chunk)
        assert len(history._open) + len(history._run) <= 2 * CHUNK


def test_a_driver_that_enters_may_begin_within_the_last_closed_chunk_and_that_counts_for_nothing():
    history = begun()
    history.take(frame(1, 3, [1, 2, 3, 4, 5, 6]))
    history.close(0)
    history.close(1)
    with pytest.raises(BadFrame):
        history.take(frame(2**32, 2, [9], chunk=0))
    history.take(frame(2**32, 5, [13, 14, 15], epoch=2**32))
    history.take(frame(2**32 + 1, 8, [16, 17, 18], epoch=2**32))
    with pytest.raises(BadFrame):
        history.take(frame(2**32 + 2, 6, [13], epoch=2**32))
    assert closed(history, 2) == shown([plain(5, 15), plain(6, 16), plain(7, 17), plain(8, 18)])


def void(one, *later):
    fences = Fences()
    for waiting in later:
        fences.note(waiting)
    return fences.void(one)


def test_a_newer_epoch_voids_what_lies_before_it_at_its_position_or_behind():
    later = frame(9, 5, [1], epoch=2)
    assert void(frame(7, 5, [1], epoch=1), later)
    assert void(frame(7, 6, [1], epoch=0), frame(8, 7, [1], epoch=1), later, frame(10, 6, [1], epoch=2))
    assert not void(frame(7, 4, [1, 2, 3], epoch=1), later)
    assert not void(frame(7, 5, [1], epoch=2), later)
    assert not void(frame(7, 5, [1], epoch=1, keep=[0]), later)
    assert not void(frame(0, 5, [1]), later)
    assert not void(frame(7, 5, [1], epoch="x"), later)
    assert not void(frame(7, 5, [1], epoch=1), frame(9, 5, [1], epoch="x"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 9)), max_size=20))
def test_what_is_void_is_what_any_frame_behind_makes_void(steps):
    epoch, waiting = 0, []
    for seq, (more, pos) in enumerate(steps, 1):
        epoch += more
        waiting.append(frame(seq, pos, [1], epoch=epoch))
    fences = Fences()
    for one in waiting:
        fences.note(one)
    for i, one in enumerate(waiting):
        behind = [w for w in waiting[i + 1 :] if w.meta["epoch"] > one.meta["epoch"]]
        assert fences.void(one) == any(w.meta["pos"] <= one.meta["pos"] for w in behind)


# Beside a model.


@dataclass
class Model:
    """The run as numbers; every live cell as the whole way that leads to it."""

    run: list[int] = field(default_factory=list)
    live: list[tuple[int, ...]] = field(default_factory=list)

    def take(self, pos, numbers, parents, keep, fresh=False):
        if fresh:
            self.live = []
        if keep:
            way = self.live[keep[-1]]
            self.run += way
            self.live = [one[len(way) :] for one in self.live if len(one) > len(way) and one[: len(way)] == way]
        if numbers and (pos < PROMPT + len(self.run) or parents is None):
            del self.run[pos - PROMPT :]
            self.live = []
        if parents is None:
            self.run += numbers
        else:
            for number, parent in zip(numbers, parents, strict=True):
                self.live.append((*(self.live[parent] if parent >= 0 else ()), number))


@st.composite
def speculated(draw, trees=True):
    """Frames and closes in a good order: (frame, None), or (None, chunk)."""
    model, number, epoch, chunk, events = Model(), 0, 0, 1, []
    for seq in range(1, draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["chain", "rewind", "empty", *(["tree", "keep"] * trees)]))
        n = draw(st.integers(1, 5))
        numbers = list(range(number, number + n))
        number += n
        parents, keep, fresh, end = None, None, False, PROMPT + len(model.run)
        pos, first = end, PROMPT + (chunk - 1) * CHUNK
        if kind == "empty":
            pos = draw(st.integers(first, end + 3))
            events.append((frame(seq, pos, [], epoch=epoch), None))
            continue
        if kind == "rewind":
            epoch, pos = epoch + 1, draw(st.integers(first, end))
        if kind == "keep" and model.live:
            keep = []
            last = draw(st.integers(0, len(model.live) - 1))
            keep = [model.live.index(model.live[last][:k]) for k in range(1, len(model.live[last]) + 1)]
            pos = end + len(keep)
            numbers = numbers * draw(st.booleans())
        if kind == "tree" or (keep and numbers and draw(st.booleans())):
            fresh = not keep and draw(st.booleans())
            left = [w for w in model.live if keep and w[: len(keep)] == model.live[keep[-1]] and len(w) > len(keep)]
            before = len(left) if keep else 0 if fresh else len(model.live)
            epoch += fresh
            parents = [draw(st.integers(-1, before + i - 1)) for i in range(n)]
        events.append((frame(seq, pos, numbers, epoch=epoch, parents=parents, keep=keep), None))
        model.take(pos, numbers, parents, keep, fresh)
        while len(model.run) >= chunk * CHUNK and draw(st.booleans()):
            events.append((None, (chunk, list(model.run[(chunk - 1) * CHUNK : chunk * CHUNK]))))
            chunk += 1
    return events


@settings(max_examples=150, deadline=None)
@given(speculated())
def test_plain_frames_are_those_of_a_model_that_keeps_every_way(events):
    history = begun()
    history.close(0)
    for one, close in events:
        if one is not None:
            history.take(one)
        else:
            chunk, numbers = close
            first = 1 + (chunk - 1) * CHUNK
            assert closed(history, chunk) == shown(plain(first + i, number) for i, number in enumerate(numbers))


@settings(max_examples=150, deadline=None)
@given(speculated(trees=False), st.integers(0, 40))
def test_what_is_sent_again_leads_to_the_same_plain_frames(events, late):
    """To who has nothing; and to who has the first frames, among them all rows that have been closed."""
    producer, consumer = begun(), begun()
    kept = producer.close(0)
    consumer.close(0)
    lacks = False
    for number, (one, close) in enumerate(events):
        if one is not None:
            producer.take(one)
            if number < late:
                consumer.take(one)
            continue
        kept += producer.close(close[0])
        lacks = lacks or number >= late
        if not lacks:
            consumer.close(close[0])

    def reading(seq):
        return iter([one for one in kept if one.seq >= seq])

    anew, seqs = History("hidden", chunk=CHUNK, lookahead=LOOKAHEAD), []
    for again in producer.again(0, reading):
        seqs.append(again.seq)
        anew.take(again)
    assert seqs == list(range(1 + sum(one is not None for one, _ in events)))
    again = [one for chunk in range(producer.closed + 1) for one in anew.close(chunk)]
    assert shown(again) == shown(kept)
    expected = [cell.data for cell in producer._run]
    assert [cell.data for cell in anew._run] == expected
    if not lacks:
        for again in producer.again(consumer.last_seq + 1, reading):
            consumer.take(again)
        assert [cell.data for cell in consumer._run] == expected


def test_what_was_not_kept_cannot_be_sent_again():
    producer = begun()
    producer.take(frame(1, 3, [1, 2, 3, 4]))
    producer.close(0)
    producer.close(1)
    with pytest.raises(NotFound):
        list(producer.again(0, lambda seq: iter(())))
