"""An array whose type, shape and bytes do not agree is refused before anything is made of it."""

import pytest

from nodewire.errors import BadFrame, TooLarge
from nodewire.protocol.tensors.frame import Array


@pytest.mark.parametrize(
    ("array", "error", "field"),
    [
        (Array("complex64", (1,), b"\0" * 8), BadFrame, "dtype"),
        (Array("float32", (1,) * 9, b"\0" * 4), BadFrame, "shape"),
        (Array("float32", (-1,), b""), BadFrame, "shape"),
        (Array("float32", (2**40,), b""), BadFrame, "shape"),
        (Array("float32", (True,), b"\0" * 4), BadFrame, "shape"),
        (Array("float32", (2,), b"\0" * 4), BadFrame, "shape"),
        (Array("float32", (100,), b"\0" * 400), TooLarge, "tensor"),
    ],
)
def test_an_array_is_refused_by_the_field_at_fault(array, error, field):
    with pytest.raises(error) as raised:
        array.check(max_bytes=399)
    assert raised.value.field == field


def test_an_array_that_agrees_is_taken():
    Array("float32", (3, 0), b"").check(max_bytes=0)
    Array("mxint8", (2, 33), b"\0" * 70).check(max_bytes=70)
