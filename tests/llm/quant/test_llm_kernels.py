"""Which kernel a matrix goes to: of those that there are the one that was quickest, and in a market's tasks none whose
memory is not foreseen."""

import subprocess
import sys

import pytest
import torch

from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.quant import kernel_choice, onnx_session, row_product
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.llm.quant.kernels import InPanels
from nodewire.llm.quant.onnx_session import InSession
from nodewire.llm.quant.row_product import Exact, Row
from nodewire.llm.spec.config import Blocks, Quantization
from nodewire.llm.spec.parameters import BOTH, Ends, of_ends
from tests.llm.llm_models import PLAIN, make_model

CPU = torch.device("cpu")
FOUR = Blocks("int4", 64)


class Slow(InPanels):
    """Takes many times as long: it multiplies so often."""

    NAME = "slow"
    products = 0

    def multiply(self, x):
        for _ in range(30):
            Slow.products += 1
            found = super().multiply(x)
        return found


@pytest.fixture
def measured(monkeypatch):
    """Have the choice be among these kinds, and made anew."""

    def among(*kinds):
        makes = [lambda shape, kind=kind: kind(shape, FOUR) for kind in kinds]
        monkeypatch.setattr(kernel_choice, "_makes", lambda *_: makes)
        kernel_choice._quickest.cache_clear()

    yield among
    kernel_choice._quickest.cache_clear()


def _kernel(shape=(512, 256)):
    return kernel_choice.kernel(shape, FOUR, torch.bfloat16, CPU, alone=False)


@pytest.mark.parametrize("kinds", [(Slow, InPanels), (InPanels, Slow)])
def test_the_quickest_kernel_is_chosen_wherever_it_stands(measured, kinds):
    measured(*kinds)
    assert type(_kernel()) is InPanels


def test_a_shape_is_measured_once(measured):
    measured(InPanels, Slow)
    _kernel()
    products = Slow.products
    assert products
    _kernel()
    assert Slow.products == products
    _kernel((256, 512))
    assert Slow.products > products


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_what_a_market_computes_goes_to_no_kernel_whose_memory_is_not_foreseen(scheme):
    def kinds(alone):
        makes = kernel_choice._makes((256, 256), Blocks(scheme, 64), torch.bfloat16, CPU, alone)
        return {type(make((256, 256))) for make in makes}

    assert InSession not in kinds(alone=False)
    assert kinds(alone=True) == kinds(alone=False) | {InSession}


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_inputs_that_are_not_to_be_rounded_never_are(scheme):
    makes = kernel_choice._makes((256, 256), Blocks(scheme, 64), torch.bfloat16, CPU, True)
    assert not any(make((256, 256)).ROUNDS for make in makes)


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_a_model_alone_says_what_a_ring_of_it_says_up_to_rounding_and_names_its_kernels(
    plain, scheme, tmp_path, threads
):
    threads(2)
    quantize(plain, tmp_path / scheme, scheme)
    ring, alone = LocalDecoder(tmp_path / scheme), LocalDecoder(tmp_path / scheme, alone=True)
    assert alone.kernels.keys() == ring.kernels.keys()
    assert {what.split()[0] for what in alone.kernels} == {"qkv", "o", "gate_up", "down", "head"}
    ids = [(11 * i) % 290 + 1 for i in range(40)]
    quantize(plain, tmp_path / "unrounded", "int8" if scheme == "w8a8" else "int4")
    exact = LocalDecoder(tmp_path / "unrounded", dtype="float32").logits(ids)
    off, alone_off = (float((whole.logits(ids) - exact).norm() / exact.norm()) for whole in (ring, alone))
    assert off < 0.25
    assert alone_off < 0.25


SHARED = """
import os, sys, torch
from nodewire.llm.quant import onnx_session
from nodewire.llm.spec.config import Blocks

def session(rows):
    torch.manual_seed(rows)
    made = onnx_session.InSession((rows, 256), Blocks("w4a8", 64))
    made.put(0, torch.randint(256, (rows, 128), dtype=torch.uint8), torch.rand(rows, 4))
    return made

def products(made):
    torch.manual_seed(7)
    return [made.multiply(torch.randn(count, 256)) for count in (1, 5)]

torch.set_num_threads(2)
alone = products(session(1024))
onnx_session.take_threads()
assert torch.get_num_threads() == 1
shared = products(session(1024))
before = len(os.listdir("/proc/self/task"))
many = [session(512) for _ in range(20)]
assert len(os.listdir("/proc/self/task")) == before, "a session has threads of its own"
assert all(map(torch.equal, alone, shared))
torch.set_num_threads(3)
onnx_session.take_threads()
assert torch.get_num_threads() == 1
"""


def test_all_sessions_share_the_threads_that_pytorch_had_and_no_bit_changes():
    ran = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "ignored" not in ran.stderr  # the library warns of options that it does not follow


@pytest.mark.parametrize(
    ("quantization", "device", "are_taken"),
    [
        (Quantization(scheme="w4a8", group_size=64), "cpu", True),
        (Quantization(scheme="int4", group_size=64), "cpu", False),
        (Quantization(scheme="w4a8", group_size=0), "cpu", False),
        (Quantization(scheme="w4a8", group_size=64), "cuda", False),
        (None, "cpu", False),
    ],
)
def test_pytorch_keeps_its_threads_unless_another_library_may_multiply(monkeypatch, quantization, device, are_taken):
    taken = []
    monkeypatch.setattr(onnx_session, "take_threads", lambda: taken.append(1))
    kernel_choice.prepare_alone(quantization, torch.device(device))
    assert bool(taken) == are_taken


@pytest.mark.parametrize("own", [True, False])
def test_a_row_is_multiplied_by_the_one_that_was_quicker(monkeypatch, own):
    monkeypatch.setattr(row_product, "_is_own_quicker", {})
    monkeypatch.setattr(row_product, "_measured", lambda matrices: own)
    matrix, x = torch.randn(96, 64).bfloat16(), torch.randn(1, 64).bfloat16()
    made = Row(matrix)
    row_product.choose([made])
    assert ("without oneDNN" in made.name) == own
    exact = x.double() @ matrix.double().T
    assert (made.times(x).double() - exact).norm() < 8e-3 * exact.norm()
    assert torch.backends.mkldnn.enabled


def test_the_quicker_one_is_found_by_its_time(monkeypatch):
    matrices, product = [torch.randn(256, 256).bfloat16()], torch.nn.functional.linear

    def often(x, matrix):
        for _ in range(50):
            found = product(x, matrix)
        return found

    monkeypatch.setattr(row_product, "_own", often)
    assert not row_product._measured(matrices)
    monkeypatch.setattr(row_product, "_own", product)
    monkeypatch.setattr(row_product.F, "linear", often)
    assert row_product._measured(matrices)


@pytest.fixture
def threads():
    """Sets how many there are; afterwards they are as many as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("shape", "parts"), [((960, 576), 2), ((576, 1_536), 2), ((513, 512), None), ((64, 64), None)])
def test_threads_share_a_row_s_product_and_no_bit_of_it_changes(shape, parts, threads):
    threads(2)
    matrix, x = torch.randn(shape[::-1]).t(), torch.randn(shape[1])
    found, made, bias = row_product._parts(matrix), Exact(matrix), torch.randn(shape[0])
    assert (found is None) == (parts is None)
    if found is not None:
        assert list(found.shape) == [parts, shape[1], shape[0] // parts]
        assert found.data_ptr() == matrix.data_ptr()
    assert torch.equal(made.product(x), torch.mv(matrix, x))
    assert torch.equal(made.added(bias, x), torch.addmv(bias, matrix, x))
    out = torch.empty(shape[0])
    made.times(x, bias, out)
    assert torch.equal(out, torch.addmv(bias, matrix, x))


def test_one_thread_and_a_matrix_in_rows_have_no_parts(threads):
    threads(1)
    assert row_product._parts(torch.empty(576, 960).t()) is None
    threads(2)
    assert row_product._parts(torch.empty(960, 576)) is None


def test_every_matrix_of_float32_that_makes_a_row_lies_in_columns(tmp_path):
    whole = LocalDecoder(make_model(tmp_path, PLAIN, torch.float32))
    weights = whole._layers.layers[0]._weights
    for role in ("qkv", "o", "gate_up", "down"):
        assert weights[role].t().is_contiguous(), role


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_lies_in_columns_and_what_is_looked_up_in_rows(tied, tmp_path):
    whole = LocalDecoder(make_model(tmp_path, PLAIN | {"tie_word_embeddings": tied}, torch.float32))
    weights = whole.vocabulary.weights
    if tied:
        assert not weights["embedding"].is_contiguous()
    else:
        assert not weights["head"].is_contiguous()
        assert weights["embedding"].is_contiguous()
    assert whole.kernels[f"head {list(whole.vocabulary.row.matrix.shape)}"].endswith("in columns")
    bare = LocalDecoder(tmp_path, dtype="bfloat16").vocabulary.weights  # in rows
    for name, matrix in weights.items():
        assert torch.equal(matrix.bfloat16(), bare[name])


def test_a_driver_that_lends_its_head_keeps_its_embedding_in_rows(tmp_path):
    config = LocalDecoder(make_model(tmp_path, PLAIN | {"tie_word_embeddings": True}, torch.float32)).config
    assert of_ends(config, BOTH)["embedding"].looked_up is False
    assert of_ends(config, Ends(True, False))["embedding"].looked_up is True
