"""Results lie in memory on a CPU as verification says: whether a copy is made of one depends on that."""

from itertools import product

import pytest
import torch

from nodewire.graph.program.format import DTYPES
from nodewire.graph.program.whitelist import OPS
from nodewire.graph.program.workspace import RELAID, as_on_cpu

ROWS = 5
LAYOUTS = {
    "plain": lambda one: one(ROWS, 4, 2, 4),
    "turned": lambda one: one(ROWS, 2, 4, 4).transpose(1, 2),
    "permuted": lambda one: one(4, ROWS, 4, 2).permute(1, 2, 3, 0),
    "repeated": lambda one: one(1, 4, 1, 4).expand(ROWS, 4, 2, 4),
    "a column": lambda one: one(4, 1, 4).transpose(0, 2),
    "a row": lambda one: one(4),
    "a number": lambda one: one(),
}


def laid(layout, dtype, device):
    return LAYOUTS[layout](lambda *shape: torch.ones(shape, dtype=dtype, device=device))


def strides(tensor):
    """Of the dimensions where they say something."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@pytest.mark.parametrize("name", sorted(op for op in RELAID if "attention" not in op and "transpose" not in op))
def test_a_result_of_two_operands_lies_as_it_is_said_to_in_all_dtypes_and_layouts(name):
    op, compared = OPS[name], 0
    for (one, other), (first, second) in product(product(LAYOUTS, repeat=2), product(DTYPES.values(), repeat=2)):
        given = {"self": laid(one, first, "meta"), "other": laid(other, second, "meta")}
        try:
            made = op.call(laid(one, first, "cpu"), laid(other, second, "cpu"))
        except RuntimeError:
            continue  # no kernel takes these dtypes
        said = as_on_cpu(op, given, op.call(**given))
        assert (said.dtype, said.shape, strides(said)) == (made.dtype, made.shape, strides(made)), (one, other, given)
        compared += 1
    assert compared > 500
