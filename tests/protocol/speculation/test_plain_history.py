"""Guessed frames and the plain ones that they stand for, beside a model that keeps every way through a tree whole."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import Fences, is_computed, packed, step_of, without_rows
from nodewire.protocol.speculation.plain_history import History
from nodewire.protocol.tensors.frame import Array, Frame

PROMPT, CHUNK, LOOKAHEAD, WIDTH = 3, 4, 8, 2


def row(number: int) -> bytes:
    return struct.pack("<2f", number, -number)


def frame(seq, pos, numbers, *, epoch=0, chunk=None, parents=None, keep=None, **meta):
    chunk = 1 + (pos - PROMPT) // CHUNK if chunk is None else chunk
    meta = {"pos": pos, "chunk": chunk, "tokens": len(numbers), "epoch": epoch, **meta}
    if parents is not None:
        meta["parents"] = packed(tuple(parents))
    if keep is not None:
        meta["keep"] = packed(tuple(keep))
    tensor = Array("float32", (1, len(numbers), WIDTH), b"".join(map(row, numbers)))
    return Frame("hidden", seq, (tensor,), meta)


def prompt():
    return frame(0, 0, [901, 902, 903], chunk=0)


def plain(seq, number):
    pos = PROMPT + seq - 1
    meta = {"pos": pos, "chunk": 1 + (seq - 1) // CHUNK, "tokens": 1}
    return Frame("hidden", seq, (Array("float32", (1, 1, 2), row(number)),), meta)


def begun(lookahead=LOOKAHEAD):
    history = History("hidden", chunk=CHUNK, lookahead=lookahead)
    history.append(prompt())
    return history


def closed(history, chunk, positions=None):
    return [(one.seq, one.tensors[0].data, dict(one.meta)) for one in history.close(chunk, positions)]


def shown(frames):
    return [(one.seq, one.tensors[0].data, dict(one.meta)) for one in frames]


def test_frames_of_a_driver_that_never_guesses_are_the_plain_ones():
    history = begun(lookahead=1)
    sent = [plain(seq, seq) for seq in range(1, 6)]
    for one in sent:
        history.append(one)
    assert [dict(one.meta) for one in history.close(0)] == [{"pos": 0, "chunk": 0, "tokens": 3}]
    assert closed(history, 1) == shown(sent[:4])
    assert closed(history, 2, 1) == shown(sent[4:])


def test_of_a_position_the_last_row_counts():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3]))
    history.append(frame(2, 4, [4, 5, 6], epoch=1))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 4), plain(3, 5), plain(4, 6)])


def test_what_is_kept_of_a_tree_joins_the_run():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3, 4], parents=[-1, 0, 0, 2]))
    history.append(frame(2, 6, [5], keep=[0, 2, 3]))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 5)])


def test_live_cells_that_follow_what_was_kept_are_numbered_anew():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3, 4, 5], parents=[-1, 0, 0, 2, 1]))
    history.append(frame(2, 5, [6], keep=[0, 2], parents=[0]))  # of 4, the only one left, which is number 0 now
    history.append(frame(3, 7, [], chunk=1, keep=[0, 1]))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 6)])


def test_a_frame_without_rows_is_of_the_chunk_of_what_it_keeps_and_nothing_keeps_beyond_a_chunk():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3, 4, 5], parents=[-1, 0, 1, 2, 3]))
    for lie in (
        frame(2, 7, [6], keep=[0, 1, 2, 3]),
        frame(2, 8, [], chunk=2, keep=[0, 1, 2, 3, 4]),
        frame(2, 7, [], chunk=2, keep=[0, 1, 2, 3]),
        frame(2, 3, [], keep=[]),
    ):
        with pytest.raises(BadFrame):
            history.append(lie)
    history.append(frame(2, 7, [], chunk=1, keep=[0, 1, 2, 3]))
    assert not history.lacks(1)
    history.append(frame(3, 8, [], chunk=2, keep=[0]))


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
    history.append(frame(1, 3, [1, 2]))
    history.append(frame(2, 4, [3], epoch=1))
    with pytest.raises(BadFrame) as refused:
        history.append(lie)
    assert refused.value.field == named
    history.append(frame(3, 5, [4, 5], epoch=1))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 3), plain(3, 4), plain(4, 5)])


def test_nothing_rewinds_into_a_chunk_that_is_closed():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3, 4, 5]))
    history.close(0)
    history.close(1)
    with pytest.raises(BadFrame):
        history.append(frame(2, 6, [9], epoch=1))
    history.append(frame(2, 7, [9], epoch=1))


def test_a_chunk_is_closed_in_its_turn_and_when_all_its_positions_have_rows():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3]))
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
    history.append(without_rows("hidden", frame(1, 3, [1, 2]), "float32", WIDTH))
    history.append(without_rows("hidden", frame(2, 5, [3]), "float32", WIDTH))
    with pytest.raises(BadFrame):
        history.append(frame(3, 6, [4]))  # as if they had been
    history.append(frame(3, 3, [4], epoch=1))
    assert not history.lacks(1, 1)


def test_rows_of_one_chunk_are_bounded_whoever_makes_them():
    history, seq = begun(lookahead=2), 0
    with pytest.raises(BadFrame) as refused:
        while True:
            seq += 1
            history.append(frame(seq, 3, [seq, seq], epoch=seq))
    assert refused.value.field == "lookahead"
    assert seq == (2 * CHUNK + 64) // 2 + 1
    empty, seq = begun(lookahead=2), 0
    with pytest.raises(BadFrame):
        while True:
            seq += 1
            empty.append(without_rows("hidden", frame(seq, 3, [1], epoch=seq), "float32", WIDTH))
    assert seq == 2 * CHUNK + 64 + 1


def test_what_was_not_computed_counts_to_the_chunk_of_what_it_stands_for():
    """Else a stage that leaves out what is void could be over the bound where who sent it is not."""
    came, made = begun(lookahead=2), begun(lookahead=2)
    for history in (came, made):
        history.append(frame(1, 3, [1, 2]))
        history.append(frame(2, 5, [3, 4]))
    for seq in range(3, 2 * CHUNK + 64):
        one = frame(seq, 6 + seq % 2, [1], epoch=seq)
        came.append(one)
        made.append(without_rows("hidden", one, "float32", WIDTH) if seq % 2 else one)
        assert all(made._counted[chunk] <= came._counted[chunk] for chunk in made._counted)


def test_a_tree_is_no_deeper_than_guesses_may_be():
    history = begun(lookahead=2)
    history.append(frame(1, 3, [1, 2], parents=[-1, 0]))
    history.append(frame(2, 3, [3, 4], parents=[1, 2]))
    with pytest.raises(BadFrame) as refused:
        history.append(frame(3, 3, [5], parents=[3]))
    assert refused.value.field == "parents"
    history.append(frame(3, 3, [5], parents=[2]))


def test_no_row_lies_far_beyond_what_is_closed():
    history, far = begun(lookahead=2), 4 * CHUNK + 4
    for pos in range(3, 3 + far):
        history.append(frame(pos - 2, pos, [pos]))
    with pytest.raises(BadFrame) as refused:
        history.append(frame(far + 1, 3 + far, [1]))
    assert refused.value.field == "pos"
    history.close(0)
    history.close(1)
    history.append(frame(far + 1, 3 + far, [1]))


def test_what_stands_for_a_frame_that_was_not_computed_rewinds_as_that_did():
    history = begun()
    history.append(frame(1, 3, [1, 2, 3]))
    history.append(frame(2, 4, [], epoch=1))
    assert history.lacks(1, 2)
    with pytest.raises(BadFrame):
        history.append(frame(3, 6, [4], epoch=1))
    history.append(frame(3, 4, [4, 5, 6], epoch=2))
    history.close(0)
    assert closed(history, 1) == shown([plain(1, 1), plain(2, 4), plain(3, 5), plain(4, 6)])
    with pytest.raises(BadFrame):
        history.append(frame(4, 6, [], epoch=3))


def test_a_return_is_the_frame_that_was_sent_or_has_no_rows():
    sent = step_of(frame(4, 7, [1, 2], epoch=3, parents=[-1, 0], keep=[1]), 8)
    assert sent.answers(sent)
    for other in (
        frame(4, 7, [1, 2], epoch=3, parents=[-1, 0], keep=[0]),
        frame(4, 7, [1, 2], epoch=3, parents=[-1, -1], keep=[1]),
        frame(4, 7, [1, 2], epoch=3, parents=[-1, 0]),
        frame(4, 7, [], epoch=3),
        frame(4, 8, [1, 2], epoch=3, parents=[-1, 0], keep=[1]),
        frame(4, 7, [1, 2], epoch=2, parents=[-1, 0], keep=[1]),
        frame(5, 7, [1, 2], epoch=3, parents=[-1, 0], keep=[1]),
    ):
        assert not step_of(other, 8).answers(sent)
    guess = step_of(frame(4, 7, [1, 2], epoch=3, parents=[-1, 0]), 8)
    assert step_of(frame(4, 7, [], epoch=3), 8).answers(guess)
    assert not step_of(frame(4, 7, [], epoch=4), 8).answers(guess)
    first = step_of(prompt(), 8)
    assert step_of(frame(0, 2, [903], chunk=0), 8).answers(first)
    assert not first.answers(first)


def test_what_is_kept_in_memory_is_the_rows_of_open_chunks():
    history, seq = begun(), 0
    history.close(0)
    for chunk in range(1, 200):
        for offset in range(CHUNK):
            pos = PROMPT + (chunk - 1) * CHUNK + offset
            history.append(frame(seq + 1, pos, [1, 2, 3], epoch=2 * seq))
            history.append(frame(seq + 2, pos, [1], epoch=2 * seq + 1))
            seq += 2
        history.close(chunk)
        assert len(history._run) + len(history._live) <= CHUNK


@st.composite
def admitted(draw):
    """Frames that no honest first stage refuses, and no honest driver need have sent."""
    first, epoch, sent = begun(), 0, []
    for kind, back, more in draw(
        st.lists(
            st.tuples(
                st.sampled_from(["row", "row", "rows", "void", "tree", "grown", "keep", "kept rows"]),
                st.integers(-6, 1),
                st.sampled_from([0, 0, 1]),
            ),
            min_size=10,
            max_size=60,
        )
    ):
        seq, end = first.last_seq + 1, first._first + len(first._run)
        n = {"void": 0, "keep": 0, "rows": 3, "tree": 2}.get(kind, 1)
        parents = {"tree": [-1, 0], "grown": [len(first._live) - 1], "kept rows": [-1]}.get(kind)
        keep = [0] if kind.startswith("k") else None
        pos = end + 1 if keep else max(0, end + min(back, 0))
        chunk = 1 + (pos - 1 - PROMPT) // CHUNK if kind == "keep" else None
        one = frame(seq, pos, [seq] * n, epoch=epoch + more, parents=parents, keep=keep, chunk=chunk)
        try:
            first.append(one)
        except BadFrame:
            continue
        epoch += more
        sent.append(one)
        if seq % 3 == 0 and not first.lacks(first.closed + 1):
            first.close(first.closed + 1)
    return sent


@settings(max_examples=500, deadline=None)
@given(admitted(), st.data())
def test_whatever_a_driver_sends_a_stage_can_compute_what_is_left_of_it_and_nothing_of_its_own(sent, data):
    """It leaves out what waiting frames make void, as far as it looks, and so may the next. Its neighbour has passed
    on nothing that is false, so none of it is refused; at any moment all rows behind it are of the very frames that
    they are of before it, and live cells have the same names."""
    for _ in range(2):
        came, made, waiting, outs, fences = begun(), begun(), deque(), [], Fences()
        for one in [*sent, *[None] * len(sent)]:
            if one is not None:
                waiting.append(one)
                fences.note(one)
            if one is not None and data.draw(st.booleans()):
                continue
            for _ in range(min(len(waiting), data.draw(st.integers(0, 2)) if one is not None else 1)):
                taken = waiting.popleft()
                is_void = not is_computed(taken) or fences.void(taken)
                came.append(taken)
                outs.append(without_rows("hidden", taken, "float32", WIDTH) if is_void else taken)
                made.append(outs[-1])
                assert agree(came, made)
                assert is_void or live(came) == live(made)
                assert all(made._counted[chunk] <= came._counted[chunk] for chunk in made._counted)
                chunk = came.closed + 1
                if taken.seq % 3 == 0 and not came.lacks(chunk) and not made.lacks(chunk):
                    assert came.came_in(chunk) == made.came_in(chunk)
                    assert closed(came, chunk) == closed(made, chunk)
        sent = outs


def agree(came, made):
    """Behind a stage is the beginning of what is before it, but for what the frame makes void that it is at."""
    before = [row.seq for row in came._run]
    behind = [row.seq for row in made._run]
    return all(a == b or a > made.last_seq for a, b in zip(before, behind, strict=False))


def live(history):
    return [(row.seq, row.data, row.follows(None) or row.parent.data) for row in history._live]


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


def test_what_stands_before_a_keep_is_computed_whatever_rewinds_behind_it():
    """Else who leaves it out has no cell to keep, and its honest neighbour is called the liar."""
    guess, keep = frame(7, 5, [1, 2], parents=[-1, 0]), frame(8, 6, [], chunk=1, keep=[0])
    below = frame(9, 5, [3], epoch=1)
    assert void(guess, below)
    assert not void(guess, keep, below)
    assert void(frame(9, 6, [3]), frame(10, 6, [4], epoch=1), frame(11, 7, [], chunk=1, keep=[0]))


def test_only_the_first_frame_of_an_epoch_makes_what_is_before_it_void():
    """Another one of it makes void what it does not say so of, which builds on what would be left out."""
    assert not void(frame(7, 5, [1]), frame(8, 6, [2], epoch=1), frame(9, 5, [3], epoch=1))
    assert void(frame(7, 5, [1]), frame(8, 6, [2], epoch=1), frame(9, 5, [3], epoch=2))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 9), st.sampled_from([None, None, [0]])), max_size=20))
def test_what_is_void_is_what_any_first_frame_of_an_epoch_makes_void_before_the_next_keep(steps):
    epoch, waiting, firsts = 0, [], []
    for seq, (more, pos, keep) in enumerate(steps, 1):
        epoch += more
        waiting.append(frame(seq, pos, [1], epoch=epoch, keep=keep))
        firsts += [waiting[-1]] * (more > 0)
    fences = Fences()
    for one in waiting:
        fences.note(one)
    for i, one in enumerate(waiting):
        keep = next((w.seq for w in waiting[i:] if "keep" in w.meta), len(waiting) + 1)
        behind = [w for w in firsts if one.seq < w.seq < keep and w.meta["epoch"] > one.meta["epoch"]]
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
        if pos < PROMPT + len(self.run) or (numbers and parents is None):
            del self.run[pos - PROMPT :]
            self.live = []
        if parents is None:
            self.run += numbers
        else:
            for number, parent in zip(numbers, parents, strict=True):
                self.live.append((*(self.live[parent] if parent >= 0 else ()), number))


@st.composite
def speculated(draw):
    """Frames and closes in a good order: (frame, None), or (None, chunk)."""
    model, number, epoch, chunk, events = Model(), 0, 0, 1, []
    for seq in range(1, draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["chain", "rewind", "empty", "tree", "keep"]))
        n = draw(st.integers(1, 5))
        numbers = list(range(number, number + n))
        number += n
        parents, keep, fresh, end = None, None, False, PROMPT + len(model.run)
        pos, first = end, PROMPT + (chunk - 1) * CHUNK
        if kind == "empty":
            pos = draw(st.integers(first, end + 3))
            events.append((frame(seq, pos, [], epoch=epoch), None))
            model.take(pos, [], None, None)
            continue
        if kind == "rewind":
            epoch, pos = epoch + 1, draw(st.integers(first, end))
        if kind == "keep" and model.live:
            keep = []
            last = draw(st.integers(0, len(model.live) - 1))
            keep = [model.live.index(model.live[last][:k]) for k in range(1, len(model.live[last]) + 1)]
            numbers = numbers * draw(st.booleans())
            keep = keep[: CHUNK - len(model.run) % CHUNK - bool(numbers)]  # no further than its chunk goes
            pos = end + len(keep)
        if kind == "tree" or (keep and numbers and draw(st.booleans())):
            fresh = not keep and draw(st.booleans())
            left = [w for w in model.live if keep and w[: len(keep)] == model.live[keep[-1]] and len(w) > len(keep)]
            depths = [len(w) - len(keep) for w in left] if keep else [] if fresh else [len(w) for w in model.live]
            epoch += fresh
            parents = []
            for _ in range(n):
                parent = draw(st.integers(-1, len(depths) - 1))
                parents.append(parent if parent < 0 or depths[parent] < 2 * LOOKAHEAD else -1)
                depths.append(1 + (depths[parents[-1]] if parents[-1] >= 0 else 0))
        keep = keep or None
        in_chunk = 1 + (pos - (not numbers) - PROMPT) // CHUNK
        events.append((frame(seq, pos, numbers, epoch=epoch, parents=parents, keep=keep, chunk=in_chunk), None))
        model.take(pos, numbers, parents, keep, fresh)
        while len(model.run) >= chunk * CHUNK and (len(model.run) > (chunk + 2) * CHUNK or draw(st.booleans())):
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
            history.append(one)
        else:
            chunk, numbers = close
            first = 1 + (chunk - 1) * CHUNK
            assert closed(history, chunk) == shown(plain(first + i, number) for i, number in enumerate(numbers))
