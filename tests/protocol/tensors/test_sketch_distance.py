"""How far apart two sketches are, whatever bytes somebody committed to as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.tensors.fingerprint import COLUMNS, MILLION, ROWS, distance_ppm, row_distances, sketch
from nodewire.protocol.tensors.frame import Array


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


def rows(values):
    return np.repeat(np.asarray(values, "<f4")[:, None], COLUMNS, axis=1).tobytes()


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_as_far_as_can_be(odd):
    assert row_distances(rows([1, 1]), rows([1, odd])) is None
    assert distance_ppm("float32", rows([1, 1]), rows([1, odd])) == MILLION


def test_sketches_of_other_forms_have_no_distances():
    assert row_distances(rows([1]), rows([1, 1])) is None
    assert row_distances(b"\0" * 5, b"\0" * 5) is None


def test_of_nothing_but_zeros_each_row_is_equal_or_wholly_apart():
    assert row_distances(rows([0, 0]), rows([0, 3])) == [0.0, 1.0]


def test_a_sketch_of_many_rows_has_no_more_than_64_and_holds_every_row():
    def sketched(numbers):
        return sketch("ab" * 32, "stage.0.hidden", 0, Array("float32", numbers.shape, numbers.tobytes()))

    numbers = np.linspace(1, 2, (2 * ROWS + 2) * 8, dtype="<f4").reshape(2 * ROWS + 2, 8)
    whole = sketched(numbers)
    assert len(whole) == 4 * ROWS * COLUMNS
    for row in (0, ROWS, 2 * ROWS + 1):
        changed = numbers.copy()
        changed[row] += 1
        assert distance_ppm("float32", whole, sketched(changed)) > 1_000
