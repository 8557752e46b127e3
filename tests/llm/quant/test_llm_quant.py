"""Quantized directories: written, read, cut and decoded; every family as the same model with its weights widened."""

import json
import math
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.tasks.tiny_decoders import FAMILIES, make_family
from nodewire.errors import BadInput, BadTask, Unsupported
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.families import modules_of
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.quant.blocks import rounded, unpacked, widened
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.llm.spec.config import Quantization
from nodewire.llm.tokens.sampling_params import Sampling
from tests.llm.families.test_llm_families import PROMPT, split
from tests.llm.llm_models import PLAIN, Ring, make_model

DECODER = Path(__file__).parents[3] / "demo" / "model" / "pycoder"
MIXES = {"num_experts", "num_local_experts", "n_routed_experts"}
SCHEMES = ("int8", "int4", "w8a8", "w4a8")


def widen(folder, plain, out):
    """The quantized directory with plain weights again, by what its files say; `plain` is what it was made of."""
    config = json.loads((folder / "config.json").read_text())
    bits = config.pop("quantization_config")["config_groups"]["group_0"]["weights"]["num_bits"]
    found, before = load_file(folder / "model.safetensors"), load_file(plain / "model.safetensors")
    tensors = {name: tensor for name, tensor in found.items() if name in before}
    for name in before.keys() - tensors.keys():
        at = f"{name.removesuffix('.weight')}.weight".replace(".Wqkv.", ".wqkv.")  # tasks' names have no capitals
        codes = unpacked(found[f"{at}_packed"], bits)
        wide = widened(codes, found[f"{at}_scale"].float())
        if not name.endswith(".weight") or config["model_type"] == "gpt2":  # stored in rows: experts, GPT-2
            wide = wide.transpose(-2, -1).contiguous()
        assert wide.shape == before[name].shape
        tensors[name] = wide
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_bytes((plain / "tokenizer.json").read_bytes())
    return out


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_quantized_family_says_what_its_weights_widened_say(made, name, scheme, tmp_path):
    folder = tmp_path / scheme
    report = quantize(made(name), folder, scheme)
    assert report.matrices > 0
    wide = LocalDecoder(widen(folder, made(name), tmp_path / "wide"))
    exact = LocalDecoder(folder, dtype="float32")
    for length in (1, 20, len(PROMPT)):
        expected = wide.logits(PROMPT[:length])
        assert (exact.logits(PROMPT[:length]) - expected).abs().max() <= 1e-4
    assert open_checkpoint(folder).arithmetic == "bfloat16"
    if wide.config.experts is not None:
        return  # where a router is undecided, the last bits choose other experts
    narrow = LocalDecoder(widen(folder, made(name), tmp_path / "wide"), dtype="bfloat16").logits(PROMPT)
    off = (LocalDecoder(folder).logits(PROMPT) - expected).norm() / expected.norm()
    assert off <= 2 * (narrow - expected).norm() / expected.norm() + 0.01  # no more than that arithmetic costs


@pytest.mark.parametrize(("rounding", "plain"), [("w8a8", "int8"), ("w4a8", "int4")])
@pytest.mark.parametrize("name", [name for name in FAMILIES if not MIXES & FAMILIES[name][1].keys()])
def test_a_family_with_rounded_activations_says_about_what_it_says_without(made, name, rounding, plain, tmp_path):
    quantize(made(name), tmp_path / rounding, rounding)
    quantize(made(name), tmp_path / plain, plain)
    for length in (1, len(PROMPT)):
        exact = LocalDecoder(tmp_path / plain, dtype="float32").logits(PROMPT[:length])
        off = (LocalDecoder(tmp_path / rounding, dtype="float32").logits(PROMPT[:length]) - exact).norm() / exact.norm()
        assert 0 < off < 0.25


@pytest.mark.skipif(not DECODER.is_dir(), reason="is made by demo/model/make.py")
@pytest.mark.parametrize(("scheme", "most"), [("int8", 0.005), ("w8a8", 0.01), ("int4", 0.06), ("w4a8", 0.07)])
@torch.inference_mode()
def test_a_trained_decoder_loses_little(scheme, most, tmp_path):
    """Perplexity of Python's own library, fed as one text."""
    quantize(DECODER, tmp_path / scheme, scheme)
    losses = {}
    for folder in (DECODER, tmp_path / scheme):
        whole = LocalDecoder(folder)
        found = []
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:6]:
            ids = whole.tokenizer.encode(path.read_text())[:64]
            logits = torch.stack([whole.logits([token], pos) for pos, token in enumerate(ids[:-1])])
            found.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])))
        losses[folder] = float(torch.stack(found).mean())
    assert abs(math.exp(losses[tmp_path / scheme] - losses[DECODER]) - 1) < most


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_ring_says_what_the_whole_says(plain, scheme, tmp_path):
    folder = tmp_path / scheme
    quantize(plain, folder, scheme)
    registration = split_decoder(folder, 1_300_000 if scheme == "w8a8" else 1_010_000, tmp_path / "blobs", slots=1)
    assert len(registration.manifest.tasks) >= 3
    assert {t.dtype for e in registration.manifest.edges for t in e.tensors} == {"bfloat16", "int64"}
    ids, _, _ = Ring(registration).generate(PROMPT, max_tokens=40)
    assert ids == list(LocalDecoder(folder).tokens(PROMPT, Sampling(40)))


def test_shards_stay_shards_and_all_else_is_copied(tmp_path):
    source = make_model(tmp_path / "plain", PLAIN, torch.bfloat16, max_shard_size="60KB")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    before = open_checkpoint(source)
    said = []
    made = quantize(source, tmp_path / "out", "int8", lambda done, of: said.append((done, of)))
    assert [path.name for path in sorted((tmp_path / "out").glob("*.safetensors"))] == list(made.files)
    assert len(made.files) > 2
    stored = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert said[-1] == (stored, stored) and made.read_bytes == stored
    assert sorted(said) == said
    after = open_checkpoint(tmp_path / "out")
    assert after.tokenizer == before.tokenizer
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    plain = load_file(source / before.tensors["model.norm.weight"].path.name)["model.norm.weight"]
    stored = after.tensors["model.norm.weight"]
    assert torch.equal(load_file(stored.path)["model.norm.weight"], plain)
    assert after.config.model_copy(update={"quantization": None}) == before.config
    whole = LocalDecoder(tmp_path / "out").logits(PROMPT)
    assert torch.isfinite(whole).all()


def test_rows_that_64_does_not_divide_back_off_to_32_and_others_stay(tmp_path):
    shape = PLAIN | {"intermediate_size": 96, "head_dim": 20}
    source = make_model(tmp_path / "plain", shape, torch.float32)
    made = quantize(source, tmp_path / "out", "int8")
    how = open_checkpoint(tmp_path / "out").config
    sizes = {
        role: how.blocks_of(0, role, pieces[0].width) for _, role, pieces in modules_of(open_checkpoint(source).config)
    }
    assert (sizes["qkv"].size, sizes["down"].size, sizes["o"]) == (64, 32, None)
    assert made.plain == shape["num_hidden_layers"]
    codes, scales = rounded(load_file(source / "model.safetensors")["model.layers.0.mlp.down_proj.weight"], 8, 32)
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(unpacked(kept["model.layers.0.mlp.down_proj.weight_packed"], 8), codes)
    assert torch.equal(kept["model.layers.0.mlp.down_proj.weight_scale"], scales)


def test_what_cannot_be_quantized_says_what_to_do(plain, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    with pytest.raises(BadInput, match="a folder that is not, or an empty one") as refused:
        quantize(plain, out, "int8")
    assert refused.value.field == str(out)
    (out / "mine").unlink()
    quantize(plain, out, "int8")
    with pytest.raises(Unsupported, match="the one that it was made of") as refused:
        quantize(out, tmp_path / "again", "int4")
    assert refused.value.field == str(out)
    assert not (tmp_path / "again").exists()
    for scheme in ("w8a8", "w4a8"):
        quantize(plain, tmp_path / scheme, scheme)
        with pytest.raises(BadTask, match="tolerance"):
            split_decoder(
                tmp_path / scheme, 20_000_000, tmp_path / "blobs", slots=1, options=DecoderOptions(dtype="float32")
            )


def test_a_file_cut_short_leaves_nothing_behind(plain, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in plain.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    with pytest.raises(BadTask, match="cut short"):
        quantize(source, tmp_path / "out", "int8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


NUMBERS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}


def said(plain, tmp_path, **changes):
    """The plain model's configuration, quantized as said."""
    group = {"targets": ["Linear"], "weights": NUMBERS | changes.pop("weights", {}), "input_activations": None}
    how = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    } | changes
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": how}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return open_checkpoint(tmp_path, is_dry=True).config.quantization


def test_foreign_configurations_are_read(plain, tmp_path):
    """As other makers write them: other sizes, whole rows, parts left out by name and by pattern."""
    assert said(plain, tmp_path, weights={"group_size": 32}) == Quantization(scheme="int4", group_size=32)
    rows = {"strategy": "channel", "group_size": None, "num_bits": 8}
    assert said(plain, tmp_path, weights=rows) == Quantization(scheme="int8", group_size=0)
    numbers = NUMBERS | {"group_size": 32}
    inputs = numbers | {"num_bits": 8, "dynamic": True}
    group = {"targets": ["Linear"], "weights": numbers, "input_activations": inputs}
    assert said(plain, tmp_path, config_groups={"group_0": group}) == Quantization(scheme="w4a8", group_size=32)
    mlp = ["lm_head", "re:.*mlp.*", "model.layers.2.self_attn.o_proj"]
    assert said(plain, tmp_path, ignore=mlp).plain == ("down", "gate_up", "2.o")


GROUPS = {str(size): {"targets": ["Linear"], "weights": NUMBERS | {"group_size": size}} for size in (32, 64, 128)}


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_scheme": {"num_bits": 8}},
        {"sparsity_config": {"format": "dense"}},
        {"format": "marlin-24"},
        {"weights": {"symmetric": False}},
        {"weights": {"strategy": "block"}},
        {"config_groups": GROUPS},
        {"config_groups": {"group_0": {"targets": ["Linear"], "weights": NUMBERS, "output_activations": NUMBERS}}},
        {"ignore": ["model.layers.0.self_attn.k_proj"]},
    ],
    ids=str,
)
def test_a_scheme_that_is_not_computed_is_refused_with_what_to_do(plain, tmp_path, changes):
    with pytest.raises(BadTask, match="take the model unquantized, which `nodewire quantize` makes smaller"):
        said(plain, tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "marlin-24"},
        {"weights": {"symmetric": False}},
        {"weights": {"actorder": "group"}},
        {"weights": {"num_bits": 3}},
        {"weights": {"group_size": 7}},
        {"weights": {"strategy": "block"}},
        {"config_groups": {}},
        {"config_groups": 3},
        {"kv_cache_scheme": {"num_bits": 8}},
        {"ignore": ["re:("]},
        {"ignore": ["model.layers.0.self_attn.k_proj"]},  # one of three that are kept in one
    ],
    ids=str,
)
def test_schemes_that_are_not_computed_are_refused_by_name(plain, tmp_path, changes):
    with pytest.raises(BadTask, match="quantization_config"):
        said(plain, tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"group_size": 4},
        {"group_size": 2**19},
        {"back_off": -8},
        {"plain": ["../x"]},
        {"scheme": "nvfp4", "group_size": 64},
        {"scheme": "int2"},
    ],
    ids=str,
)
def test_a_quantization_out_of_bounds_is_refused(plain, changes):
    config = open_checkpoint(plain).config
    how = {"scheme": "int8", "group_size": 64} | changes
    with pytest.raises(BadTask):
        type(config).from_document(config.document() | {"quantization": how})


def test_a_model_that_is_not_quantized_says_nothing_of_it(plain):
    assert "quantization" not in open_checkpoint(plain).config.document()


def test_scales_that_are_no_numbers_are_refused(plain, tmp_path):
    quantize(plain, tmp_path / "out", "int8")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for value in (torch.nan, 3e38):
        tensors["model.layers.0.self_attn.o_proj.weight_scale"][0, 0] = value
        save_file(tensors, tmp_path / "out" / "model.safetensors")
        with pytest.raises(BadTask, match=r"finite|too large"):
            LocalDecoder(tmp_path / "out")


@pytest.mark.parametrize("name", ["mistral", "qwen3_moe", "glm4_moe"])
def test_nvfp4_is_read_as_it_is_defined(made, name, tmp_path):
    """A family's matrices in blocks of 16, as compressed-tensors stores them, beside the same multiplied out."""
    source = open_checkpoint(made(name))
    tensors = load_file(made(name) / "model.safetensors")
    chosen = {piece.name for _, _, pieces in modules_of(source.config) for piece in pieces}
    packed, wide = {}, {}
    for place, (tensor_name, tensor) in enumerate(tensors.items()):
        if tensor_name not in chosen:
            packed[tensor_name] = wide[tensor_name] = tensor
            continue
        codes, scales, divisor, numbers = nvfp4(tensor, 3.0 + place)
        packed |= {
            f"{tensor_name}_packed": codes,
            f"{tensor_name}_scale": scales,
            f"{tensor_name}_global_scale": divisor,
        }
        wide[tensor_name] = numbers
    numbers = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    group = {"targets": ["Linear"], "weights": numbers, "input_activations": numbers | {"dynamic": "local"}}
    how = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
    }
    config = json.loads((made(name) / "config.json").read_text())
    for folder, held, more in (("packed", packed, {"quantization_config": how}), ("wide", wide, {})):
        (tmp_path / folder).mkdir()
        save_file(held, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(json.dumps(config | more))
        (tmp_path / folder / "tokenizer.json").write_bytes((made(name) / "tokenizer.json").read_bytes())
    expected = LocalDecoder(tmp_path / "wide").logits(PROMPT)
    assert (LocalDecoder(tmp_path / "packed").logits(PROMPT) - expected).abs().max() <= 1e-4
    checkpoint = open_checkpoint(tmp_path / "packed")
    assert (checkpoint.arithmetic, checkpoint.lossless_arithmetic) == ("bfloat16", "float32")
    ids, _, _ = Ring(split(tmp_path / "packed", tmp_path / "blobs")).generate(PROMPT, max_tokens=20)
    assert ids == list(LocalDecoder(tmp_path / "packed").tokens(PROMPT, Sampling(20)))


LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4(matrix, divisor):
    """Codes, scales and the divisor as they are stored; and the numbers that these stand for."""
    blocks = matrix.unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) / 6 * divisor).to(torch.float8_e4m3fn)
    real = scales.float()[..., None] / divisor
    codes = ((blocks / real.clamp_min(1e-9))[..., None] - LEVELS).abs().argmin(-1).to(torch.uint8).flatten(-2)
    octets = codes[..., ::2] | codes[..., 1::2] << 4
    return octets, scales, torch.tensor([divisor]), (LEVELS[codes.int()].unflatten(-1, (-1, 16)) * real).flatten(-2)


def test_a_quantized_model_of_another_layout_is_not_taken(tmp_path):
    make_family(tmp_path / "made", "glm4_moe, one group")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    for method in ("bitsandbytes", "hqq", "modelopt"):
        (tmp_path / "made" / "config.json").write_text(
            json.dumps(config | {"quantization_config": {"quant_method": method}})
        )
        with pytest.raises(BadTask, match="compressed-tensors"):
            open_checkpoint(tmp_path / "made")
