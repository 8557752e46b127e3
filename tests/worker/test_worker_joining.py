"""Frames wait for those of other edges, within bounds, and leave nothing when their session ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.frame import Array, Frame
from nodewire.worker.joining import MAX_CALLS, Joining

EDGES = frozenset({"a", "b", "c"})


def frame(edge: str, seq: int, nbytes: int = 4) -> Frame[Array]:
    return Frame(edge, seq, (Array("uint8", (nbytes,), b"\0" * nbytes),))


def joining(**options) -> Joining:
    made = Joining(**options)
    made.open("t", "s", EDGES)
    return made


@given(st.permutations([(edge, seq) for edge in sorted(EDGES) for seq in range(4)]))
def test_a_call_is_made_by_its_last_frame_whatever_came_before(order):
    made, came = joining(), {seq: [] for seq in range(4)}
    for edge, seq in order:
        came[seq].append(edge)
        frames = made.add("t", "s", frame(edge, seq))
        assert [one.edge for one in frames] == (came[seq] if len(came[seq]) == 3 else [])
        assert {one.seq for one in frames} <= {seq}
    assert made.nbytes == 0


def test_where_nothing_goes_together_every_frame_is_a_call():
    made = joining()
    made.open("other", "s", frozenset({"a"}))
    assert len(made.add("other", "s", frame("a", 0))) == len(made.add("unknown", "s", frame("z", 0))) == 1


def test_another_edge_and_the_same_frame_twice_are_refused():
    made = joining()
    with pytest.raises(BadFrame, match="does not lead here"):
        made.add("t", "s", frame("z", 0))
    made.add("t", "s", frame("a", 0))
    with pytest.raises(BadFrame, match="came twice"):
        made.add("t", "s", frame("a", 0))


def test_no_more_waits_than_its_bounds():
    made = joining(max_bytes=40_000)
    for seq in range(4):
        made.add("t", "s", frame("a", seq, 1_000))
    with pytest.raises(TooLarge, match="bytes wait"):
        made.add("t", "s", frame("a", 4, 1_000))
    many = joining()
    for seq in range(MAX_CALLS):
        many.add("t", "s", frame("a", seq))
    with pytest.raises(TooLarge, match="calls already wait"):
        many.add("t", "s", frame("a", MAX_CALLS))
    assert many.add("t", "s", frame("b", 0)) == ()


def test_a_session_that_ends_leaves_nothing():
    made = joining()
    for seq in range(5):
        made.add("t", "s", frame("a", seq))
    made.close("t", "s")
    made.close("t", "s")
    assert made.nbytes == 0
    assert made.add("t", "s", frame("a", 0)) != (), "no session, no edges to wait for"


def test_customers_who_fill_the_room_leave_some_for_the_next():
    made, refused = joining(max_bytes=400_000), 0
    for customer in "123":
        for session in "abcd":
            made.open("t", customer + session, EDGES, customer)
            for seq in range(40):
                try:
                    made.add("t", customer + session, frame("a", seq, 1_000))
                except TooLarge:
                    refused += 1
    assert refused
    made.open("t", "s", EDGES, "modest")
    assert made.free_bytes > 400_000 // 10
    made.add("t", "s", frame("a", 0, 10_000))
    for customer in "123":
        for session in "abcd":
            made.close("t", customer + session)
    made.close("t", "s")
    assert made.nbytes == 0
