"""Frames wait for those of other edges, within bounds, and leave nothing when their session ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker.joined_frames import MAX_CALLS, JoinedBytes, JoinedFrames

EDGES = frozenset({"a", "b", "c"})


def frame(edge: str, seq: int, nbytes: int = 4) -> Frame[Array]:
    return Frame(edge, seq, (Array("uint8", (nbytes,), b"\0" * nbytes),))


@given(st.permutations([(edge, seq) for edge in sorted(EDGES) for seq in range(4)]))
def test_a_call_is_made_by_its_last_frame_whatever_came_before(order):
    everywhere = JoinedBytes()
    made, came = JoinedFrames(everywhere, EDGES), {seq: [] for seq in range(4)}
    for edge, seq in order:
        came[seq].append(edge)
        frames = made.add(frame(edge, seq))
        assert [one.edge for one in frames] == (came[seq] if len(came[seq]) == 3 else [])
        assert {one.seq for one in frames} <= {seq}
    assert everywhere.nbytes == 0


def test_another_edge_and_the_same_frame_twice_are_refused():
    made = JoinedFrames(JoinedBytes(), EDGES)
    with pytest.raises(BadFrame, match="does not lead here"):
        made.add(frame("z", 0))
    made.add(frame("a", 0))
    with pytest.raises(BadFrame, match="came twice"):
        made.add(frame("a", 0))


def test_no_more_waits_than_its_bounds():
    made = JoinedFrames(JoinedBytes(max_bytes=40_000), EDGES)
    for seq in range(4):
        made.add(frame("a", seq, 1_000))
    with pytest.raises(TooLarge, match="bytes wait"):
        made.add(frame("a", 4, 1_000))
    many = JoinedFrames(JoinedBytes(), EDGES)
    for seq in range(MAX_CALLS):
        many.add(frame("a", seq))
    with pytest.raises(TooLarge, match="calls already wait"):
        many.add(frame("a", MAX_CALLS))
    assert many.add(frame("b", 0)) == ()


def test_a_session_that_ends_leaves_nothing():
    everywhere = JoinedBytes()
    made = JoinedFrames(everywhere, EDGES)
    for seq in range(5):
        made.add(frame("a", seq))
    made.forget()
    made.forget()
    assert everywhere.nbytes == 0


def test_customers_who_fill_the_room_leave_some_for_the_next():
    everywhere, refused = JoinedBytes(max_bytes=400_000), 0
    sessions = [JoinedFrames(everywhere, EDGES, customer) for customer in "123" for _ in range(4)]
    for session in sessions:
        for seq in range(40):
            try:
                session.add(frame("a", seq, 1_000))
            except TooLarge:
                refused += 1
    assert refused
    assert everywhere.free_bytes > 400_000 // 10
    modest = JoinedFrames(everywhere, EDGES, "modest")
    modest.add(frame("a", 0, 10_000))
    for session in (*sessions, modest):
        session.forget()
    assert everywhere.nbytes == 0
