"""Frames of hidden states in parts: nothing is lost, and a tree's rows keep their parents."""

from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.tensors.frame import MXINT8, Array, Frame, bytes_of
from nodewire.protocol.tensors.position_split import count, cut, joined


def frame(n: int, dtype: str = "float32", width: int = 40, **meta) -> Frame[Array]:
    data = bytes(i % 251 for i in range(bytes_of(dtype, (1, n, width))))
    return Frame("hidden.0", 3, (Array(dtype, (1, n, width), data),), {"pos": 7, "chunk": 2, "tokens": n} | meta)


@given(st.integers(0, 50), st.integers(1, 20), st.sampled_from(("float32", "bfloat16", MXINT8)), st.booleans())
def test_parts_joined_are_the_whole(n, most, dtype, is_tree):
    parents = {"parents": bytes(i % 256 for i in range(2 * n)), "keep": b"\0\0", "epoch": 4} if is_tree else {}
    whole = frame(n, dtype, **parents)
    parts = cut(whole, most)
    assert [count(part) for part in parts] == [min(most, n - i) for i in range(0, n, most)] or parts == [whole]
    assert [part.meta["pos"] for part in parts] == [7 if is_tree else 7 + i for i in range(0, max(n, 1), most)]
    assert ["keep" in part.meta for part in parts] == [is_tree, *(False for _ in parts[1:])]
    for part in parts:
        part.tensors[0].check(2**20)
    (array,) = (again := joined(parts, parts)).tensors
    assert (array.dtype, array.shape, bytes(array.data)) == (dtype, (1, n, 40), whole.tensors[0].data)
    assert (again.edge, again.seq, again.meta) == (whole.edge, whole.seq, whole.meta)


def test_where_each_part_is_answered_by_its_last_row_the_last_is_the_answer():
    parts = cut(frame(10), 4)
    answers = [frame(1, pos=part.meta["pos"] + count(part) - 1) for part in parts]
    assert joined(parts, answers) is answers[-1]


def test_what_was_found_of_some_parts_is_said_of_the_whole():
    parts = cut(frame(10), 4)
    found = [frame(count(part), pos=part.meta["pos"], cached=count(part)) for part in parts[:2]]
    assert joined(parts, [*found, parts[2]]).meta["cached"] == 8
    assert joined(parts, [parts[0], found[1], parts[2]]).meta["cached"] == 4
    last = [frame(1, pos=3, cached=4), frame(1, pos=7, cached=4), frame(1, pos=9)]
    assert joined(parts, last).meta == last[2].meta | {"cached": 8}


def test_what_is_no_frame_of_positions_stays_whole():
    whole = frame(10)
    for other in (
        Frame("x", 0, (), {"pos": 0}),
        Frame("x", 0, whole.tensors * 2, whole.meta),
        Frame("x", 0, (Array("float32", (2, 10, 4), bytes(320)),), whole.meta),
        Frame("x", 0, whole.tensors, {"pos": "7"}),
        Frame("x", 0, whole.tensors, {"chunk": 0}),
        frame(10, parents=b"\0"),
        frame(10, parents=5),
    ):
        assert cut(other, 4) == [other]
