"""Packed updates: what is lost, what is refused, and that the bytes follow from the numbers alone."""

import json
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nodewire.errors import BadUpdate, TooLarge
from nodewire.training.engine.update.compression import LARGEST, most_bytes, pack, unpack
from nodewire.training.protocol.recipe import Compression, Recipe

torch.set_num_threads(1)

F32 = Compression()
INT8 = Compression(method="int8")
INT4 = Compression(method="int4")
TOP8 = Compression(method="topk", bits=8)
TOP2 = Compression(method="topk", bits=2)
FORMS = [F32, INT8, INT4, TOP8, TOP2, Compression(method="topk", bits=2, block=128, fraction="0.013")]
CODED = FORMS[1:]


def named(form):
    return f"{form.method}-{form.block}-{form.bits}" if form.method == "topk" else form.method


def update(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes or {"weight": (37, 29), "bias": (37,), "a": (3, 5, 7)}
    return {name: torch.randn(shape, generator=generator) * 0.01 for name, shape in shapes.items()}


def shapes_of(state):
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def there_and_back(delta, form):
    return unpack(pack(delta, form)[0], shapes_of(delta), form)


def row(state):
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_names_shapes_and_order_survive(form):
    delta = update()
    data, residual = pack(delta, form)
    assert len(data) <= most_bytes(shapes_of(delta), form) and residual is None
    back = unpack(data, shapes_of(delta), form)
    assert list(back) == list(delta) and shapes_of(back) == shapes_of(delta)
    assert {tensor.dtype for tensor in back.values()} == {torch.float32}


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_any_reader_of_safetensors_reads_it(form):
    data, _ = pack(update(), form)
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    assert set(safetensors.torch.load(data)) == set(entries)


def test_f32_is_exact_and_what_the_library_of_safetensors_writes():
    delta = update()
    data, _ = pack(delta, F32)
    assert data == safetensors.torch.save(delta)
    assert all(torch.equal(a, b) for a, b in zip(there_and_back(delta, F32).values(), delta.values(), strict=True))


@pytest.mark.parametrize(("form", "limit"), [(INT8, 127), (INT4, 7)], ids=["int8", "int4"])
@settings(max_examples=50, deadline=None)
@given(numbers=hnp.arrays(np.float32, st.integers(1, 600), elements=st.floats(-(2.0**64), 2.0**64, width=32)))
def test_no_number_is_off_by_more_than_half_a_step(form, limit, numbers):
    delta = {"x": torch.from_numpy(numbers)}
    back = there_and_back(delta, form)["x"].double().numpy()
    for start in range(0, len(numbers), 256):
        block = numbers[start : start + 256].astype(np.float64)
        step = np.abs(block).max() / limit
        room = step * (0.5 + 1e-5) if step >= 2.0**-126 else np.abs(block).max()
        assert (np.abs(back[start : start + 256] - block) <= room).all()


def test_the_codes_are_those_that_the_rule_gives_in_numpy():
    delta = update(x=(1000,))
    data, _ = pack(delta, INT8)
    parts = safetensors.torch.load(data)
    blocks = np.pad(delta["x"].numpy(), (0, 24)).reshape(-1, 256)
    scales = np.abs(blocks).max(1) / np.float32(127)
    assert np.array_equal(parts["scales"].numpy(), scales)
    assert np.array_equal(parts["codes"].numpy(), np.rint(blocks / scales[:, None]).astype(np.int8).reshape(-1)[:1000])


def test_four_bits_stand_two_to_a_byte_the_earlier_one_low():
    delta = {"x": torch.tensor([7.0, -7.0, 1.0, -1.0, 3.4])}
    assert safetensors.torch.load(pack(delta, INT4)[0])["codes"].tolist() == [0x97, 0xF1, 0x03]


MODEL = {
    "name": "digits",
    "family": {"name": "mlp", "inputs": 64, "hidden": (128,), "classes": 10},
    "loss": "cross_entropy",
    "data": {"layout": "arrays"},
    "inner": {"optimizer": "sgd", "lr": "0.1"},
    "steps": 1,
    "batch": 1,
    "rounds": 1,
}


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_the_tensors_take_what_the_recipe_says(form):
    recipe = Recipe.from_document({"v": 1, **MODEL, "compression": form.document()})
    data, _ = pack(update(**recipe.shapes()), form)
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + recipe.upload_bytes()


@pytest.mark.parametrize("shapes", [{"w": (128, 64), "b": (128,), "v": (10, 128), "c": (10,)}, {"w": (700, 700)}])
def test_int4_takes_less_than_a_seven_and_a_halfth_of_f32(shapes):
    delta = update(**shapes)
    assert len(pack(delta, F32)[0]) >= 7.5 * len(pack(delta, INT4)[0])


@pytest.mark.parametrize("form", [TOP8, TOP2], ids=named)
def test_topk_keeps_the_largest_of_every_block(form):
    delta = update(x=(4, 256))
    back = there_and_back(delta, form)["x"]
    for mine, theirs in zip(delta["x"], back, strict=True):
        kept = set(theirs.nonzero().view(-1).tolist())
        assert kept == set(mine.abs().topk(16).indices.tolist())
        assert (torch.sign(theirs) == torch.sign(mine) * (theirs != 0)).all()


def test_topk_takes_the_earlier_of_equals():
    delta = {"x": torch.ones(256) * -0.5}
    assert there_and_back(delta, TOP2)["x"].nonzero().view(-1).tolist() == list(range(16))


def test_two_bits_keep_the_means_below_and_above():
    numbers = torch.zeros(256)
    numbers[:16] = torch.tensor([1.0] * 8 + [-2.0] * 4 + [10.0] * 4)
    back = there_and_back({"x": numbers}, TOP2)["x"]
    assert back[:16].tolist() == pytest.approx([4 / 3] * 8 + [-4 / 3] * 4 + [10.0] * 4)


@pytest.mark.parametrize("form", FORMS, ids=named)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 2.0**-119, LARGEST, -LARGEST, 1.0])
def test_blocks_of_one_number_survive_at_both_ends_of_the_range(form, value):
    back = there_and_back({"x": torch.full((300,), value)}, form)["x"]
    if form.method == "f32":
        assert (back == value).all()
    else:
        assert set(back.tolist()) <= {0.0} | set(
            torch.tensor([value]).mul(torch.tensor([1, 1 + 1e-7, 1 - 1e-7])).tolist()
        )
        if abs(value) >= 2.0**-119:
            assert back.any()


@pytest.mark.parametrize("form", FORMS, ids=named)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2 * LARGEST])
def test_what_no_training_makes_is_not_packed(form, value):
    delta = update()
    delta["bias"][3] = value
    with pytest.raises(BadUpdate, match="bias"):
        pack(delta, form)


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_packing_twice_gives_the_same_bytes(form):
    assert pack(update(), form)[0] == pack(update(), form)[0]


@pytest.mark.parametrize("method", ["int4", "topk"])
def test_error_feedback_carries_on_what_was_lost(method):
    form = Compression(method=method, error_feedback="1.0")
    delta, residual, sent = update(), None, torch.zeros_like(row(update()))
    for _ in range(40):
        data, residual = pack(delta, form, residual)
        sent += row(unpack(data, shapes_of(delta), form))
    once = row(there_and_back(delta, form))
    wanted = row(delta)
    assert (sent / 40 - wanted).norm() < 0.25 * (once - wanted).norm()
    assert torch.allclose(sent + row(residual), 40 * wanted, atol=1e-5)


def test_half_of_a_residual_is_carried_if_the_recipe_says_so():
    form = Compression(method="int4", error_feedback="0.5")
    delta = update()
    residual = {name: torch.full_like(tensor, 0.25) for name, tensor in delta.items()}
    data, _ = pack(delta, form, residual)
    assert data == pack({name: tensor + 0.125 for name, tensor in delta.items()}, INT4)[0]


# What peers may send instead.


def rewritten(data, change):
    """`data` with its header's entries changed, padded as it was if that is possible."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * max(0, length - len(text))
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_cut_or_lengthened_file_is_refused(form):
    delta = update()
    data, _ = pack(delta, form)
    for cut in (0, 1, 7, 8, 9, len(data) // 2, len(data) - 1):
        with pytest.raises(BadUpdate, match="update"):
            unpack(data[:cut], shapes_of(delta), form)
    with pytest.raises(BadUpdate):
        unpack(data + b"\0", shapes_of(delta), form)
    with pytest.raises(TooLarge):
        unpack(data + bytes(5_000), shapes_of(delta), form)


@pytest.mark.parametrize("form", FORMS, ids=named)
@pytest.mark.parametrize("length", [0, 1, 2**20, 2**32, 2**63, 2**64 - 1])
def test_a_header_of_any_other_length_is_refused(form, length):
    delta = update()
    data, _ = pack(delta, form)
    with pytest.raises((BadUpdate, TooLarge)):
        unpack(struct.pack("<Q", length) + data[8:], shapes_of(delta), form)


def _overlap(entries):
    for entry in entries.values():
        entry["data_offsets"][0] = 0


def _swap(entries):
    names = list(entries)
    entries[names[0]], entries[names[1]] = entries[names[1]], entries[names[0]]


def _rename(entries):
    name = next(iter(entries))
    entries["x" * len(name)] = entries.pop(name)


def _retype(entries):
    next(iter(entries.values()))["dtype"] = "I32"


def _reshape(entries):
    entry = next(iter(entries.values()))
    entry["shape"] = [*entry["shape"], 1]


def _enlarge(entries):
    next(iter(entries.values()))["shape"] = [2**40]


def _negative(entries):
    next(iter(entries.values()))["data_offsets"][0] = -1


def _nothing(entries):
    entries.clear()


@pytest.mark.parametrize("change", [_overlap, _swap, _rename, _retype, _reshape, _enlarge, _negative, _nothing])
@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_header_that_says_anything_else_is_refused(form, change):
    delta = update()
    data = rewritten(pack(delta, form)[0], change)
    with pytest.raises((BadUpdate, TooLarge)):
        unpack(data, shapes_of(delta), form)


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_an_update_of_another_model_or_form_is_refused(form):
    delta = update()
    data, _ = pack(delta, form)
    others = [{**shapes_of(delta), "more": (999,)}, {"weight": (3, 29)}]
    if form.method == "f32":  # the other forms hold one row of numbers, whatever their names
        others += [{**shapes_of(delta), "bias": (25,)}, {**shapes_of(delta), "a": (3, 7, 5)}]
    for other in others:
        with pytest.raises((BadUpdate, TooLarge)):
            unpack(data, other, form)
    for another in FORMS:
        if another != form:
            with pytest.raises((BadUpdate, TooLarge)):
                unpack(data, shapes_of(delta), another)


def altered(data, name, numbers):
    """`data` with one tensor's raw bytes replaced from its start."""
    length = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    at, raw = 8 + length + start, numbers.tobytes()
    return data[:at] + raw + data[at + len(raw) :]


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 1e-45, 2.0**-127, 2.0**65, 3e38])
@pytest.mark.parametrize("form", CODED, ids=named)
def test_a_scale_that_packing_does_not_make_is_refused(form, scale):
    delta = update()
    data = altered(pack(delta, form)[0], "scales", np.array([scale], "<f4"))
    with pytest.raises(BadUpdate, match="scales"):
        unpack(data, shapes_of(delta), form)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_number_out_of_range_is_refused_in_f32(value):
    delta = update()
    data = altered(pack(delta, F32)[0], "bias", np.array([value], "<f4"))
    with pytest.raises(BadUpdate, match="bias"):
        unpack(data, shapes_of(delta), F32)


@pytest.mark.parametrize("form", CODED, ids=named)
def test_codes_beside_a_scale_of_zero_are_refused(form):
    delta = {"x": torch.linspace(-1, 1, 512)}
    data = altered(pack(delta, form)[0], "scales", np.zeros(2 if form.bits == 2 else 1, "<f4"))
    with pytest.raises(BadUpdate):
        unpack(data, shapes_of(delta), form)


def test_the_code_beyond_the_largest_is_refused():
    delta = {"x": torch.linspace(-1, 1, 256)}
    with pytest.raises(BadUpdate, match="codes"):
        unpack(altered(pack(delta, INT8)[0], "codes", np.array([-128], "i1")), {"x": (256,)}, INT8)
    with pytest.raises(BadUpdate, match="codes"):
        unpack(altered(pack(delta, INT4)[0], "codes", np.array([0x88], "u1")), {"x": (256,)}, INT4)


def test_a_smaller_code_with_a_larger_scale_is_refused():
    data, _ = pack({"x": torch.full((256,), 1.0)}, INT8)
    data = altered(data, "codes", np.full(256, 1, "i1"))
    with pytest.raises(BadUpdate, match="codes"):
        unpack(data, {"x": (256,)}, INT8)


def test_bits_behind_the_last_number_are_refused():
    data, _ = pack({"x": torch.ones(3)}, INT4)
    with pytest.raises(BadUpdate, match="behind"):
        unpack(altered(data, "codes", np.array([0x77, 0x17], "u1")), {"x": (3,)}, INT4)


@pytest.mark.parametrize("places", [[1, 0], [5, 5], [0, 256], [-1, 0]])
@pytest.mark.parametrize("form", [TOP8, TOP2], ids=named)
def test_places_that_do_not_ascend_within_their_block_are_refused(form, places):
    delta = {"x": torch.linspace(-1, 1, 256)}
    data = altered(pack(delta, form)[0], "places", np.array(places, "<i2"))
    with pytest.raises(BadUpdate, match="places"):
        unpack(data, {"x": (256,)}, form)


def test_a_number_behind_the_last_is_refused():
    form = Compression(method="topk", bits=8, block=128, fraction="0.01")
    data, _ = pack({"x": torch.ones(100)}, form)
    with pytest.raises(BadUpdate, match="behind"):
        unpack(altered(data, "places", np.array([120], "<u2")), {"x": (100,)}, form)


@settings(max_examples=50, deadline=None)
@given(form=st.sampled_from(FORMS), at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_one_byte_changed_is_refused_or_still_numbers_in_range(form, at, byte):
    delta = update()
    data = bytearray(pack(delta, form)[0])
    data[at % len(data)] = byte
    try:
        back = unpack(bytes(data), shapes_of(delta), form)
    except (BadUpdate, TooLarge):
        return
    assert (row(back).abs() <= LARGEST * (1 + 1e-6)).all()


def test_what_fills_up_a_block_may_be_kept_in_two_bits():
    """Fewer numbers than are kept of a block: all of them are, and they come back."""
    form = Compression(method="topk", bits=2, block=128, fraction="0.1")
    delta = {"x": torch.tensor([11.0, 1.0])}
    back = unpack(pack(delta, form)[0], {"x": (2,)}, form)
    assert bool((back["x"] > 0).all()) and back["x"].shape == (2,)
