"""What attention by latents keeps is the latents, in lanes and manifests; what makes none is refused by its name."""

import json

import pytest
import torch

from bench.tasks.tiny_decoders import FAMILIES, classes, make_family
from nodewire.errors import BadTask
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.families import parse_config
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs import memory_estimate
from nodewire.llm.programs.programs import StageProgram
from nodewire.llm.spec.config import DecoderConfig
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.model.kv_pages import PAGE
from tests.llm.llm_lanes import frame, whole_stage
from tests.llm.llm_models import ROOMY, Ring

PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]
KINDS = [name for name in FAMILIES if name.startswith("deepseek")]


@pytest.mark.parametrize("name", KINDS)
def test_a_position_takes_one_latent_and_one_key_of_a_layer(made, name, tmp_path):
    """Of 4 heads, whose keys of 24 and values of 12 would be 144 numbers, 32 and 8 are kept."""
    stage = whole_stage(made(name), tmp_path, slots=2, context=192)
    config = stage.program.config
    page = memory_estimate.page_bytes(config, config.num_hidden_layers, dtype="float32")
    assert page == config.num_hidden_layers * PAGE * (32 + 8) * 4
    assert sum(cells.nbytes for cells in stage._lanes.cells) == 2 * 3 * page
    task = split_decoder(made(name), 2**30, None, slots=2, options=DecoderOptions(context=192)).manifest.tasks[1]
    assert task.page_bytes == page


@torch.inference_mode()
def test_what_is_kept_is_what_transformers_keeps(made, tmp_path):
    """Its cache has latent and key apart, and the key's pairs beside each other."""
    folder = made("deepseek_v2")
    model = classes("DeepseekV2")[1].from_pretrained(folder, dtype=torch.float32).eval()
    cache = model(torch.tensor([PROMPT]), use_cache=True).past_key_values
    whole = LocalDecoder(folder)
    whole.logits(PROMPT)
    (lane,) = whole._lanes._lanes
    for layer, theirs in enumerate(cache.layers):
        kept, again = lane.read(layer, 0, len(PROMPT))
        assert kept.data_ptr() == again.data_ptr()
        key = theirs.values[0].unflatten(2, (-1, 2)).transpose(2, 3).flatten(2)
        assert (kept - torch.cat((key, theirs.keys[0]), 2)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["deepseek_v2, lite", "deepseek_v3"])
def test_a_prompt_that_is_found_again_is_what_was_computed(made, name, tmp_path):
    stage = whole_stage(made(name), tmp_path, slots=3, context=192)
    answers = []
    for _ in range(2):
        stage.open("s", {"positions": 2 * PAGE, "prefixes": "mia"})
        found = stage.receive("s", frame([n % 50 for n in range(PAGE)], 0, seq=0))
        answers.append([found[0].tensors[0].clone(), *(stage.receive("s", frame([3], PAGE))[0].tensors)])
        stage.close("s")
    assert len(stage._prefixes) == 1
    assert all(map(torch.equal, *answers))


def test_latents_in_8_bits_say_about_the_same(made, tmp_path):
    folder = made("deepseek_v2, lite")
    narrow = split_decoder(
        folder, 2**30, tmp_path, slots=1, options=DecoderOptions(context=192, dtype="bfloat16", kv="int8"), split=2
    )
    ids, _, _ = Ring(narrow, ROOMY).generate(PROMPT, max_tokens=8)
    assert ids[0] == next(LocalDecoder(folder, dtype="bfloat16").tokens(PROMPT, Sampling(1)))


def test_norms_of_latents_have_their_own_epsilon(tmp_path):
    """The library's, too, take 1e-6 whatever the file says of the others."""
    folder = make_family(tmp_path / "model", "deepseek_v3", rms_norm_eps=0.01)
    model = classes("DeepseekV3")[1].from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0, -1]
        assert (LocalDecoder(folder).logits(PROMPT) - expected).abs().max() <= 1e-4


REFUSED = [
    ("deepseek_v3", "kv_lora_rank", 0, "kv_lora_rank: 0 is not from 1 to 1024"),
    ("deepseek_v3", "kv_lora_rank", 1_024, "kv_lora_rank: 1024 numbers beside a key of 8: .* 1024 at most of both"),
    ("deepseek_v3", "kv_lora_rank", 31, "kv_lora_rank: 31 .* an even number is needed"),
    ("deepseek_v3", "kv_lora_rank", "wide", "kv_lora_rank: not a whole number"),
    ("deepseek_v3", "q_lora_rank", 0, "latent.q_lora_rank: "),
    ("deepseek_v3", "q_lora_rank", 2.5, "q_lora_rank: not a whole number"),
    ("deepseek_v3", "qk_rope_head_dim", 7, "qk_rope_head_dim: 7 dimensions are no pairs"),
    ("deepseek_v3", "qk_nope_head_dim", 10**6, "qk_nope_head_dim: 1000000 is not from 1"),
    ("deepseek_v3", "v_head_dim", -1, "v_head_dim: not a whole number"),
    ("deepseek_v3", "head_dim", 16, "head_dim: 16 is not supported, only 8"),
    ("deepseek_v3", "qk_head_dim", 16, "qk_head_dim: 16 is not supported, only 24"),
    ("deepseek_v3", "num_key_value_heads", 2, "num_key_value_heads: another number .* may be left out"),
    ("deepseek_v3", "attention_bias", True, "attention_bias: True is not supported, only False"),
    ("deepseek_v3", "hidden_act", "gelu", "hidden_act: gelu is not supported, only silu"),
    ("deepseek_v3", "scoring_func", "softmax", "scoring_func: softmax is not supported, only sigmoid"),
    ("deepseek_v3", "topk_method", "greedy", "topk_method: greedy is not supported, only noaux_tc"),
    ("deepseek_v3", "moe_layer_freq", 2, "moe_layer_freq: 2 is not supported, only 1"),
    ("deepseek_v3", "n_group", 3, "n_group: does not divide num_experts"),
    ("deepseek_v3", "n_group", 8, "topk_group: more than there are, or too few"),
    ("deepseek_v3", "topk_group", 1, "topk_group: more than there are, or too few"),
    ("deepseek_v3", "rope_interleave", "no", "rope_interleave: neither true nor false"),
    ("deepseek_v3", "rope_parameters", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: .* may be left out"),
    ("deepseek_v3", "rope_parameters", {"rope_type": "yarn", "factor": "4", "mscale_all_dim": 1}, "factor: not a numb"),
    ("deepseek_v3", "rope_parameters", {"rope_type": "yarn", "factor": 4, "mscale_all_dim": "1"}, "mscale_all_dim: "),
    ("deepseek_v2", "norm_topk_prob", True, "norm_topk_prob: True is not supported, only False"),
    ("deepseek_v2", "topk_method", "noaux_tc", "topk_method: noaux_tc is not supported, only greedy or"),
    ("deepseek_v2", "num_experts_per_tok", None, "num_experts_per_tok: missing"),
    ("deepseek_v2", "mlp_bias", True, "mlp_bias: True is not supported, only False"),
    ("bloom", "apply_residual_connection_post_layernorm", True, "apply_residual_connection_post_layernorm: "),
    ("bloom", "n_inner", 96, "intermediate_size: 96 is not supported, only 256"),
    ("bloom", "hidden_size", None, "hidden_size: missing"),
    ("mpt", "attn_config", {"alibi": False}, "attn_config.alibi: .* take one that has ALiBi"),
    ("mpt", "attn_config", {"qk_ln": True}, "attn_config.qk_ln: True is not supported, only False"),
    ("mpt", "attn_config", {"clip_qkv": -1.0}, "clip_qkv: "),
    ("mpt", "attn_config", {"alibi_bias_max": 0}, "alibi.bias_max: "),
    ("mpt", "attn_config", {"softmax_scale": 0.0}, "attn_config.softmax_scale: not above 0: leave it out"),
    ("mpt", "attn_config", {"of_tomorrow": 1}, "attn_config.of_tomorrow: "),
    ("mpt", "attn_config", 5, "attn_config: not an object"),
    ("mpt", "no_bias", False, "no_bias: False is not supported, only True"),
    ("mpt", "logit_scale", "inv_sqrt_d_model", "logit_scale: inv_sqrt_d_model is not supported"),
    ("mpt", "expansion_ratio", 2, "expansion_ratio: 2 is not supported, only 4"),
]


@pytest.mark.parametrize(("name", "field", "value", "said"), REFUSED, ids=[f"{n}-{f}-{v}" for n, f, v, _ in REFUSED])
def test_what_is_not_computed_is_refused_by_its_name_and_what_to_do(made, name, field, value, said):
    config = json.loads((made(name) / "config.json").read_text()) | {field: value}
    with pytest.raises(BadTask, match=said):
        parse_config(json.dumps(config).encode())


BROKEN = [
    ({"num_key_value_heads": 2}, "latent: head_dim is not"),
    ({"head_dim": 32}, "latent: head_dim is not"),
    ({"rotary_dim": 16}, "latent: rotary_dim is not"),
    ({"attention_bias": True}, "latent: without biases"),
    ({"qk_norm": True}, "latent: without biases"),
    ({"clip_qkv": "1.0"}, "latent: without biases"),
    ({"family": "llama"}, "tensors: "),
    (
        {"latent": None, "num_key_value_heads": 4, "head_dim": 16, "rotary_dim": None},
        "make up no such|is not one|missing",
    ),
]


@pytest.mark.parametrize(("part", "said"), BROKEN)
def test_a_document_whose_latents_fit_nothing_is_refused(made, part, said, tmp_path):
    document = open_checkpoint(made("deepseek_v2, lite")).config.document() | part
    program = whole_stage(made("deepseek_v2, lite"), tmp_path, slots=1, context=192).program
    with pytest.raises(BadTask, match=said):
        config = DecoderConfig.from_document(document)
        StageProgram.from_document(program.document() | {"config": config.document()})
