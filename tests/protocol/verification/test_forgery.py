"""A sketch that is not of the bytes whose hash stands beside it."""

import numpy as np
import pytest

from nodewire.protocol.job.chunk import leaf_of
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.forgery import forged

DIGEST = "ab" * 32


def leaf(values, *, seq=0, dtype="float32"):
    data = np.asarray(values, "<f4" if dtype == "float32" else "<i8")
    return leaf_of(DIGEST, Frame("stage.0.hidden", seq, (Array(dtype, data.shape, data.tobytes()),), {}))


def resketched(one, sketch):
    (tensor,) = one.tensors
    return one.model_copy(update={"tensors": (tensor.model_copy(update={"sketch": sketch}),)})


TRUE = leaf(np.linspace(0.5, 2, 64).reshape(2, 32))
SKETCH = np.frombuffer(TRUE.tensors[0].sketch, "<f4")


@pytest.mark.parametrize(
    ("sketch", "is_forged"),
    [
        (SKETCH, False),
        (SKETCH * np.float32(1 + 1e-6), False),
        (SKETCH * np.float32(1.01), True),
        (SKETCH[:32], True),
        (SKETCH * np.float32("nan"), True),
    ],
    ids=["its own", "rounded", "one percent off", "a row short", "not finite"],
)
def test_a_sketch_is_forged_if_it_is_not_that_of_the_bytes_beside_it(sketch, is_forged):
    said = resketched(TRUE, sketch.astype("<f4").tobytes())
    assert forged([said], [TRUE]) == ((said,) if is_forged else ())


def test_leaves_of_other_bytes_or_frames_are_passed_over():
    wrong = SKETCH.astype("<f4")[::-1].tobytes()
    others = leaf(np.ones((2, 32))), leaf(np.linspace(0.5, 2, 64).reshape(2, 32), seq=1)
    assert forged([resketched(one, wrong) for one in others], [TRUE]) == ()


def test_numbers_that_are_not_finite_have_no_sketch_that_could_be_forged():
    true = leaf(np.full((2, 32), np.inf))
    assert forged([resketched(true, b"\0" * len(true.tensors[0].sketch))], [true]) == ()


def test_whole_numbers_are_their_own_sketch():
    true = leaf([[5]], dtype="int64")
    said = resketched(true, np.asarray([6], "<i8").tobytes())
    assert forged([said], [true]) == (said,)
