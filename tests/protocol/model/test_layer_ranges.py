"""Where a decoder is cut, as text."""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.model import layer_ranges


@pytest.mark.parametrize(
    ("text", "borders"),
    [("0-7,8-15", ((0, 7), (8, 15))), ("0, 1-2 ,3", ((0, 0), (1, 2), (3, 3))), ("0-9999", ((0, 9999),))],
)
def test_ranges_are_read_as_they_are_written(text, borders):
    assert layer_ranges.parse(text) == borders
    assert layer_ranges.written(borders) == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not layers such as"),
        ("0-7;8-15", "is not layers such as"),
        ("0-10000", "is not layers such as"),
        (",".join(map(str, range(257))), "is not layers such as"),
        ("0-7,9-8", "9-8 ends before it begins"),
        ("1-7", "layer 0 stands in no stage"),
        ("0-3,6-7", "layers 4-5 stand in no stage"),
        ("0-3,3-7", "layer 3 stands in two stages"),
        ("0-7,2-4", "layers 2-4 stand in two stages"),
    ],
)
def test_what_leaves_a_layer_out_or_has_it_twice_is_refused(text, reason):
    with pytest.raises(BadInput, match=reason):
        layer_ranges.parse(text)


@pytest.mark.parametrize(
    ("layers", "reason"),
    [(9, "layer 8 stands in no stage: the model has 9"), (6, "ends with layer 7, and the model's")],
)
def test_the_last_layer_is_the_models(layers, reason):
    layer_ranges.check(((0, 3), (4, 7)), 8)
    with pytest.raises(BadInput, match=reason):
        layer_ranges.check(((0, 3), (4, 7)), layers)
