"""Slabs never overlap, and what is freed is whole again."""

import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker.ipc import arena, message

SIZE = 4096


@given(st.lists(st.one_of(st.integers(0, 1500), st.none())))
def test_slabs_do_not_overlap_and_freeing_all_restores_the_arena(steps):
    slabs, taken = arena.Slabs(SIZE), {}
    for nbytes in steps:
        if nbytes is None:
            if taken:
                slabs.free(offset := min(taken))
                del taken[offset]
        elif (offset := slabs.allocate(nbytes)) is not None:
            taken[offset] = max(nbytes, 1)
    ends = 0
    for offset, nbytes in sorted(taken.items()):
        assert offset % arena.ALIGN == 0
        assert offset >= ends
        ends = offset + nbytes
        slabs.free(offset)
    assert ends <= SIZE
    assert slabs.allocate(SIZE) == 0


def test_a_slab_is_freed_once():
    slabs = arena.Slabs(SIZE)
    slabs.free(slabs.allocate(1))
    with pytest.raises(KeyError):
        slabs.free(0)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux")
def test_an_arena_cannot_be_shrunk():
    descriptor = arena.create(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    os.close(descriptor)


def take(fields):
    return message.take_frame(fields, memoryview(bytes(SIZE)), lambda a: Array(a.dtype, a.shape, bytes(a.data)))


def test_a_frame_is_taken_as_it_was_put():
    frame = Frame("hidden.0", 3, (Array("int32", (2,), bytes(8)),), {"pos": 4, "end": True})
    assert take(message.put_frame(frame, 64, [("int32", (2,), 64)])) == frame


GOOD = message.put_frame(Frame("e", 0), None, [("uint8", (4,), 0)])


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        GOOD | {"edge": 1},
        GOOD | {"seq": -1},
        GOOD | {"seq": True},
        GOOD | {"meta": {"a": []}},
        GOOD | {"tensors": {}},
        GOOD | {"tensors": [["uint8", [4], SIZE - 3]]},
        GOOD | {"tensors": [["uint8", [4], -1]]},
        GOOD | {"tensors": [["object", [4], 0]]},
        GOOD | {"tensors": [["uint8", [-4], 0]]},
        GOOD | {"tensors": [["uint8", [2.0], 0]]},
        GOOD | {"tensors": [["uint8", [1] * 9, 0]]},
        GOOD | {"tensors": [["uint8", [2**39] * 8, 0]]},
        GOOD | {"tensors": [["uint8", [1], 0]] * 65},
    ],
)
def test_a_worker_that_lies_about_a_frame_is_caught(fields):
    with pytest.raises((BadFrame, TooLarge)):
        take(fields)


def test_messages_are_capped_in_both_directions():
    with pytest.raises(TooLarge):
        message.pack({"x": bytes(message.MAX_MESSAGE_BYTES)})
    with pytest.raises(TooLarge):
        message.body_length(b"\xff\xff\xff\xff")
    with pytest.raises(BadFrame):
        message.unpack(b"\xc1")
