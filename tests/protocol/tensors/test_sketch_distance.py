"""How far apart two sketches are, whatever bytes somebody committed to as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.tensors.fingerprint import COLUMNS, MILLION, distance_ppm


@pytest.mark.parametrize("size", [1, 3, 4, 127, 130, 8_191])
def test_what_is_not_whole_rows_is_as_far_as_can_be(size):
    assert distance_ppm("float32", bytes(size), b"\1" * size) == MILLION


def test_no_sketch_at_all_is_not_apart_from_none():
    assert distance_ppm("float32", b"", b"") == 0


def test_of_rows_the_furthest_counts():
    mine = np.ones((2, COLUMNS), "<f4")
    theirs = mine.copy()
    theirs[1] *= 1.5
    assert distance_ppm("float32", mine.tobytes(), theirs.tobytes()) == 500_000


@given(st.sampled_from(["float32", "bfloat16", "int64", "bool", "?"]), st.binary(max_size=300), st.binary(max_size=300))
def test_every_two_have_a_distance(dtype, mine, theirs):
    assert 0 <= distance_ppm(dtype, mine, theirs) <= MILLION
    assert distance_ppm(dtype, mine, theirs[: len(mine)].ljust(len(mine))) <= MILLION
