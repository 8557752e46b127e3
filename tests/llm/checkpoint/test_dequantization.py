"""Checkpoints of GPTQ, AWQ and FP8: tiny ones by the formats' published packing, beside the same multiplied out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.tasks.tiny_checkpoints import AWQ, CHANNELS, DEEPSEEK, FLOATS, GPTQ, PER_TENSOR, WAYS, write
from nodewire.errors import BadTask, NodewireError
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.local.arithmetic import arithmetic_here
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.llm.tokens.sampling_params import Sampling
from tests.llm.families.test_llm_families import PROMPT
from tests.llm.llm_models import Ring


def changed(folder, **changes):
    """The folder with other tensors; None takes one away."""
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama, biased, linear rope", "phi3", "qwen3_moe", "falcon, in groups", "cohere"])
def test_a_checkpoint_says_what_its_weights_widened_say(made, name, way, tmp_path):
    said, scheme = WAYS[way]
    packed, wide = write(made(name), tmp_path, said)
    checkpoint = open_checkpoint(packed)
    how = checkpoint.config.quantization
    assert (how.scheme if how else None) == scheme
    assert said["quant_method"].removeprefix("fbgemm_").replace("compressed-tensors", "fp8") in checkpoint.note
    expected = LocalDecoder(wide, dtype="float32").logits(PROMPT)
    assert (LocalDecoder(packed, dtype="float32").logits(PROMPT) - expected).abs().max() <= 1e-4
    plain = LocalDecoder(made(name), dtype="float32").logits(PROMPT)
    assert (expected - plain).abs().max() > 1e-3  # the numbers are others than those it was made of


@pytest.mark.parametrize("way", ["gptq", "awq", "fp8, blocks"])
def test_a_ring_is_cut_of_a_checkpoint_and_says_what_the_whole_says(made, way, tmp_path):
    said, _ = WAYS[way]
    packed, _ = write(made("mistral"), tmp_path, said)
    options = DecoderOptions(dtype="float32")
    registration = split_decoder(packed, None, tmp_path / "blobs", slots=1, split=2, options=options)
    assert any(f"method {said['quant_method']}" in line for line in registration.report)
    ids, _, _ = Ring(registration).generate(PROMPT, max_tokens=20)
    assert ids == list(LocalDecoder(packed, dtype="float32").tokens(PROMPT, Sampling(20)))


@pytest.mark.parametrize("way", WAYS)
def test_a_registration_computes_in_bfloat16_and_a_machine_alone_in_what_loses_nothing(made, way, tmp_path):
    said, scheme = WAYS[way]
    packed, wide = write(made("mistral"), tmp_path, said)
    sizes = {}
    for dtype in ("float32", "bfloat16", None):
        options = DecoderOptions(dtype=dtype)
        manifest = split_decoder(packed, None, None, slots=1, split=1, options=options).manifest
        sizes[dtype] = [task.memory_bytes for task in manifest.tasks]
    assert sizes[None] == sizes["bfloat16"] != sizes["float32"]
    assert arithmetic_here(open_checkpoint(packed), torch.device("cuda")) == ("bfloat16" if scheme else "float32")
    assert open_checkpoint(wide).arithmetic == "float32"


@pytest.mark.parametrize("way", WAYS)
def test_a_dry_run_of_a_config_alone_counts_what_the_weights_take(made, way, tmp_path):
    packed, _ = write(made("mistral"), tmp_path, WAYS[way][0])
    whole = split_decoder(packed, None, None, slots=1, split=2).manifest
    (packed / "model.safetensors").unlink()
    alone = split_decoder(packed, None, None, slots=1, split=2).manifest
    assert [task.memory_bytes for task in alone.tasks] == [task.memory_bytes for task in whole.tasks]
    assert [task.weights[0].bytes for task in alone.tasks] == [task.weights[0].bytes for task in whole.tasks]


def test_a_parameter_of_which_one_matrix_is_plain_is_widened(made, tmp_path):
    said = AWQ | {"modules_to_not_convert": ["layers.1.self_attn.k_proj", "down_proj"]}
    packed, wide = write(made("mistral"), tmp_path, said, left=said["modules_to_not_convert"])
    checkpoint = open_checkpoint(packed)
    assert set(checkpoint.config.quantization.plain) == {"down", "1.qkv"}
    expected = LocalDecoder(wide, dtype="float32").logits(PROMPT)
    assert (LocalDecoder(packed, dtype="float32").logits(PROMPT) - expected).abs().max() <= 1e-4
    (packed / "model.safetensors").unlink()
    alone = open_checkpoint(packed, is_dry=True)
    assert alone.config == checkpoint.config


@pytest.mark.parametrize("way", ["gptq", "awq", "fp8, blocks"])
def test_it_is_quantized_anew_by_way_of_numbers(made, way, tmp_path):
    packed, wide = write(made("mistral"), tmp_path, WAYS[way][0])
    quantize(packed, tmp_path / "anew", "int8")
    quantize(wide, tmp_path / "once", "int8")
    expected = LocalDecoder(tmp_path / "once", dtype="float32").logits(PROMPT)
    assert torch.equal(LocalDecoder(tmp_path / "anew", dtype="float32").logits(PROMPT), expected)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (GPTQ | {"bits": 3}, "bits"),
        (GPTQ | {"bits": True}, "bits"),
        (GPTQ | {"group_size": 0}, "group_size"),
        (GPTQ | {"group_size": 7}, "group_size"),
        (GPTQ | {"group_size": 2**40}, "group_size"),
        (GPTQ | {"group_size": "32"}, "group_size"),
        (GPTQ | {"sym": "yes"}, "sym"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic"),
        (AWQ | {"bits": 8}, "bits"),
        (AWQ | {"version": "gemv"}, "version"),
        (AWQ | {"zero_point": False}, "zero_point"),
        (AWQ | {"modules_to_not_convert": 3}, "modules_to_not_convert"),
        (DEEPSEEK | {"weight_block_size": [0, 128]}, "weight_block_size"),
        (DEEPSEEK | {"weight_block_size": [128, 2**60]}, "weight_block_size"),
        (DEEPSEEK | {"weight_block_size": 128}, "weight_block_size"),
        (DEEPSEEK | {"fmt": "e5m2"}, "fmt"),
        (CHANNELS | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (CHANNELS | {"config_groups": {"a": {"weights": FLOATS | {"num_bits": 4}}}}, "config_groups"),
        (CHANNELS | {"config_groups": {"a": 3}}, "config_groups"),
        ({"quant_method": "bitsandbytes"}, None),
    ],
    ids=str,
)
def test_what_is_not_read_is_refused_by_its_field_with_what_to_do(made, said, field, tmp_path):
    config = json.loads((made("mistral") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    with pytest.raises(BadTask) as refused:
        open_checkpoint(tmp_path, is_dry=True)
    assert refused.value.field == (f"quantization_config.{field}" if field else "quantization_config")
    if field not in ("sym", "modules_to_not_convert", "config_groups"):
        assert "take" in refused.value.reason.lower()


AT = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("said", "changes", "named"),
    [
        (GPTQ, {f"{AT}.scales": None}, f"weights.{AT}.scales: missing"),
        (GPTQ, {f"{AT}.qzeros": None}, f"weights.{AT}.qzeros: missing"),
        (GPTQ | {"desc_act": True}, {f"{AT}.g_idx": None}, f"weights.{AT}.g_idx: missing"),
        (GPTQ, {f"{AT}.scales": torch.ones(2, 64, dtype=torch.float16)}, f"weights.{AT}.scales: float16"),
        (GPTQ, {f"{AT}.scales": torch.ones(3, 64, dtype=torch.int32)}, f"weights.{AT}.scales: I32"),
        (GPTQ, {f"{AT}.qweight": torch.ones(12, dtype=torch.int32)}, f"weights.{AT}.qweight: .* no matrix"),
        (GPTQ, {f"{AT}.qweight": torch.ones(0, 64, dtype=torch.int32)}, f"weights.{AT}.qweight: .* no matrix"),
        (GPTQ, {f"{AT}.qweight": torch.ones(11, 64, dtype=torch.int32)}, f"weights.{AT}."),
        (GPTQ, {f"{AT}.qweight": torch.ones(12, 64)}, f"weights.{AT}.qweight: float32"),
        (GPTQ, {f"{AT}.g_idx": torch.ones(95, dtype=torch.int32)}, f"weights.{AT}.g_idx: I32"),
        (GPTQ | {"group_size": 128}, {f"{AT}.scales": torch.ones(3, 64).half()}, f"weights.{AT}.scales"),
        (AWQ, {f"{AT}.qweight": torch.ones(96, 7, dtype=torch.int32)}, f"weights.{AT}."),
        (AWQ, {"model.layers.0.mlp.act.scales": torch.ones(96)}, "act.scales: activations are scaled"),
        (DEEPSEEK, {f"{AT}.weight_scale_inv": None}, f"weights.{AT}.weight_scale: missing"),
        (DEEPSEEK, {f"{AT}.weight_scale_inv": torch.ones(2, 3)}, f"weights.{AT}.weight_scale_inv: .* scales no"),
        (PER_TENSOR, {f"{AT}.weight_scale": torch.ones(2)}, f"weights.{AT}.weight_scale: .* scales no"),
        (PER_TENSOR, {f"{AT}.weight_scale": torch.ones((), dtype=torch.int32)}, "scales no"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_together_are_refused_by_name(made, said, changes, named, tmp_path):
    packed, _ = write(made("mistral"), tmp_path, said)
    with pytest.raises(BadTask, match=named):
        split_decoder(changed(packed, **changes), None, None, slots=1, split=1)


@pytest.mark.parametrize(
    ("said", "changes", "named"),
    [
        (GPTQ | {"desc_act": True}, {f"{AT}.g_idx": torch.full((96,), 3)}, rf"{AT}.g_idx: group 3 of 3"),
        (GPTQ | {"desc_act": True}, {f"{AT}.g_idx": torch.full((96,), -1)}, rf"{AT}.g_idx: group -1 of 3"),
        (GPTQ, {f"{AT}.g_idx": torch.arange(96) % 3}, r'"desc_act": true in quantization_config'),
        (GPTQ, {f"{AT}.qzeros": torch.full((3, 8), 0x66666666)}, r'"sym": false'),
        (GPTQ, {f"{AT}.scales": torch.full((3, 64), torch.nan).half()}, "not finite"),
        (DEEPSEEK, {f"{AT}.weight_scale_inv": torch.full((3, 3), torch.inf)}, "not finite"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused_when_they_are_read(made, said, changes, named, tmp_path):
    packed, _ = write(made("mistral"), tmp_path, said)
    changes = {name: one.int() if one.dtype == torch.int64 else one for name, one in changes.items()}
    with pytest.raises(NodewireError, match=named):
        LocalDecoder(changed(packed, **changes))
