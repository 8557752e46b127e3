"""Numbers in blocks: how far they are moved, and that the kernels multiply with what is stored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nodewire.llm.quant import matrix, onnx_session
from nodewire.llm.quant.blocks import MOST, activations, packed, rounded, unpacked, widened
from nodewire.llm.quant.kernel_choice import adds_bytes
from nodewire.llm.quant.kernels import InColumns, InPanels
from nodewire.llm.quant.matrix import BlockMatrix
from nodewire.llm.spec.config import Blocks

CPU = torch.device("cpu")
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


@st.composite
def matrices(draw):
    size = draw(st.sampled_from([16, 32, 64]))
    shape = (draw(st.integers(1, 3)), size * draw(st.integers(1, 3)))
    return torch.from_numpy(draw(arrays.arrays("float32", shape, elements=FLOATS))), size


@settings(deadline=None)
@given(matrices(), st.sampled_from([4, 8]))
def test_no_number_is_moved_further_than_half_a_step_of_its_block(made, bits):
    numbers, size = made
    codes, scales = rounded(numbers, bits, size)
    back = widened(codes, scales.float())
    largest = numbers.unflatten(-1, (-1, size)).abs().amax(-1)
    # A scale is rounded up in 8 bits: it is at most one 128th more than it would be exactly.
    most = (largest / MOST[bits] / 2 * (1 + 2**-7)).clamp_min(torch.finfo(torch.bfloat16).tiny)
    moved = (back - numbers).unflatten(-1, (-1, size)).abs().amax(-1)
    assert (moved <= most * (1 + 1e-5)).all()
    assert codes.abs().max() <= MOST[bits]


@settings(deadline=None)
@given(matrices(), st.sampled_from([4, 8]))
def test_codes_come_back_from_their_bytes(made, bits):
    codes, _ = rounded(made[0], bits, made[1])
    words = packed(codes, bits)
    assert words.dtype == torch.int32
    assert words.shape[-1] * 32 == codes.shape[-1] * bits
    assert torch.equal(unpacked(words, bits), codes)


@settings(deadline=None)
@given(matrices())
def test_activations_are_moved_by_less_than_a_254th_of_their_blocks_largest(made):
    x, size = made
    largest = x.unflatten(-1, (-1, size)).abs().amax(-1)
    moved = (activations(x, size) - x).unflatten(-1, (-1, size)).abs().amax(-1)
    assert (moved <= largest / 254 * (1 + 1e-4) + 1e-37).all()


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("rows", [16, 64, 192, 208, 40])
@pytest.mark.parametrize("size", [16, 32, 64, 192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_with_a_matrix_in_blocks_is_that_with_the_same_matrix_widened(scheme, rows, size, dtype):
    """Whatever lies in memory: with rows in panels or not, put in one go or panel by panel."""
    torch.manual_seed(3)
    codes, scales = rounded(torch.randn(rows, 384), 8 if scheme == "int8" else 4, size)
    octets = packed(codes, 8 if scheme == "int8" else 4).view(torch.uint8)
    wide = widened(codes, scales.float())
    bias = torch.randn(rows).to(dtype)
    for step in (64, 256):
        matrix = BlockMatrix((rows, 384), Blocks(scheme, size), dtype, CPU)
        for first in range(0, rows, step):
            matrix.put(first, octets[first : first + step], scales[first : first + step].float())
        for n in (1, 3, 70):
            x = torch.randn(n, 384).to(dtype)
            exact = x.double() @ wide.double().T + bias.double()
            off = (matrix.linear(x, bias).double() - exact).norm() / exact.norm()
            assert off < (1e-6 if dtype == torch.float32 else 8e-3)


@pytest.mark.parametrize("rows", [16, 208])
@pytest.mark.parametrize(("size", "width"), [(32, 96), (64, 384)])
@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("w8a8", InPanels),
        ("w4a8", InPanels),
        ("w8a8", onnx_session.InSession),
        ("w4a8", onnx_session.InSession),
        pytest.param("w8a8", InColumns, marks=pytest.mark.skipif(not adds_bytes(), reason="the processor lacks it")),
    ],
)
def test_a_product_in_eight_bits_is_that_of_what_both_are_rounded_to(monkeypatch, rows, size, width, scheme, kind):
    """Block by block, or with inputs that are widened again."""
    blocks = Blocks(scheme, size)
    monkeypatch.setattr(matrix, "kernel", lambda shape, blocks, *_, **__: kind(shape, blocks))
    torch.manual_seed(5)
    codes, scales = rounded(torch.randn(rows, width), blocks.bits, size)
    octets = packed(codes, blocks.bits).view(torch.uint8)
    made = BlockMatrix((rows, width), blocks, torch.bfloat16, CPU)
    for first in range(0, rows, 64):
        made.put(first, octets[first : first + 64], scales[first : first + 64].float())
    wide = widened(codes, scales.float()).double()
    for n in (1, 3, 70):
        x = torch.randn(n, width).bfloat16()
        x[0] = 0
        exact = activations(x.float(), size).double() @ wide.T
        found = made.linear(x, None).double()
        assert (found - exact).norm() <= (1e-2 if kind is InPanels else 2e-3) * exact.norm()
        assert torch.equal(found[0], torch.zeros(rows).double())
        x[-1, 5], x[-1, -1] = torch.nan, torch.inf
        assert not made.linear(x, None)[-1].isfinite().any()
