"""Excess over a float32 reference: what is said of results in narrower arithmetic than was sold."""

import numpy as np
import pytest

from nodewire.protocol.job.chunk import Leaf, leaf_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.arithmetic import LEAST_ROWS, excess_ppm, is_suspect, outcome

ROWS, WIDTH = 64, 256


def result(random: np.random.Generator, exact: np.ndarray, noise: float) -> list[Leaf]:
    """Leaves of rows in bfloat16, one a frame, that are off by `noise` of their size before they are rounded."""
    wrong = exact * (1 + noise * random.normal(size=exact.shape))
    return leaves(wrong.astype("<f4"), "bfloat16")


def leaves(rows: np.ndarray, dtype: str) -> list[Leaf]:
    found = []
    for number, row in enumerate(rows):
        raw = (row.astype("<f4").view("<u4") + 0x8000 >> 16).astype("<u2") if dtype == "bfloat16" else row
        array = Array(dtype, (1, 1, len(row)), raw.tobytes())
        found.append(leaf_of("00" * 32, Frame("hidden.1", number + 1, (array,), {})))
    return found


@pytest.fixture
def exact() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype("<f4")


@pytest.mark.parametrize("depth_noise", [0.002, 0.006, 0.02])
def test_two_honest_results_are_equally_far_from_the_reference_at_every_depth(exact, depth_noise):
    random = np.random.default_rng(2)
    reference = leaves(exact, "float32")
    for _ in range(20):
        ppm = excess_ppm(reference, result(random, exact, depth_noise), result(random, exact, depth_noise))
        assert ppm is not None
        assert outcome(ppm) == "pass"


@pytest.mark.parametrize("depth_noise", [0.002, 0.006, 0.02])
def test_a_result_with_as_much_error_again_fails_at_every_depth(exact, depth_noise):
    random = np.random.default_rng(3)
    reference = leaves(exact, "float32")
    ppm = excess_ppm(reference, result(random, exact, depth_noise), result(random, exact, 1.6 * depth_noise))
    assert ppm is not None
    assert outcome(ppm) == "fail"


def test_nothing_is_said_of_few_rows_of_wide_numbers_or_of_other_frames(exact):
    random = np.random.default_rng(4)
    reference, mine = leaves(exact, "float32"), result(random, exact, 0.01)
    assert excess_ppm(reference[: LEAST_ROWS - 1], mine[: LEAST_ROWS - 1], mine[: LEAST_ROWS - 1]) is None
    assert excess_ppm(reference, reference, reference) is None
    assert excess_ppm(reference, mine, mine[1:]) is None
    assert not is_suspect(mine[1:], mine[:-1])


def test_a_sketch_that_is_no_number_says_nothing_and_raises_nothing(exact):
    random = np.random.default_rng(5)
    reference, mine = leaves(exact, "float32"), result(random, exact, 0.01)
    tensor = mine[3].tensors[0].model_copy(update={"sketch": b"\xff" * 128})
    broken = [*mine[:3], mine[3].model_copy(update={"tensors": (tensor,)}), *mine[4:]]
    assert excess_ppm(reference, mine, broken) is None


def test_results_far_apart_are_suspect_and_close_ones_are_not(exact):
    random = np.random.default_rng(6)
    assert is_suspect(result(random, exact, 0.02), result(random, exact, 0.02))
    assert not is_suspect(result(random, exact, 0.0), result(random, exact, 0.0))
