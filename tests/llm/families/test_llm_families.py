"""Every family says what transformers says: whole, in a ring, beyond its sliding window, a prompt in parts."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from bench.tasks.tiny_decoders import FAMILIES, LONG, classes, make_family
from nodewire.errors import BadTask
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.llm.families import (
    ALIASES,
    ARCHITECTURES,
    end_tensors,
    layer_pieces,
    multimodal,
    parse_config,
    stage_tensors,
)
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs import memory_estimate
from nodewire.llm.spec.config import LATER, DecoderConfig
from nodewire.llm.spec.parameters import of_layer
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.tensors.frame import Frame
from nodewire.weights import mxfp4
from tests.llm.llm_models import ROOMY, Ring

PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]  # more than a block, and than a window
COUNT = 56
CLOSE = 1e-5
"""What transformers may be undecided by between its two best tokens, so that another first difference says nothing."""


def reference(name, directory):
    return classes(FAMILIES[name][0])[1].from_pretrained(directory, dtype=torch.float32).eval()


def greedy(model, prompt, count):
    """Its tokens, and by how much each was better than the second best."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [step[0].topk(2).values for step in out.logits]
    return out.sequences[0, len(prompt) :].tolist(), [float(top[0] - top[1]) for top in best]


def assert_same(ours, theirs, gaps):
    """Up to an end token, or to where transformers itself was undecided."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            assert gaps[i] < CLOSE, f"token {i}: {a}, not {b}"
            return
    assert len(ours) == len(theirs) or ours[-1] == 0


def split(directory, out):
    """In as many stages as there can be."""
    checkpoint = open_checkpoint(directory)
    config, data = checkpoint.config, len(checkpoint.tokenizer)
    sizes = {"positions": config.max_position_embeddings, "dtype": "float32"}
    lanes = memory_estimate.LaneSpec(slots=1, block=64, **sizes)
    needs = [memory_estimate.stage(config, n, n + 1, lanes).total for n in range(config.num_hidden_layers)]
    target = max(*needs, memory_estimate.driver(config, tokenizer_bytes=data, **sizes).total)
    registration = split_decoder(directory, target, out, slots=1, options=DecoderOptions(dtype="float32"))
    assert len(registration.manifest.tasks) >= 3
    return registration


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_a_family_says_what_transformers_says_whole_and_in_a_ring(made, name, tmp_path):
    directory = made(name)
    model = reference(name, directory)
    whole = LocalDecoder(directory)
    logits = model(torch.tensor([PROMPT])).logits[0]
    for length in (1, 20, len(PROMPT)):
        assert (whole.logits(PROMPT[:length]) - logits[length - 1]).abs().max() <= 1e-4
    tokens, gaps = greedy(model, PROMPT, COUNT)
    assert len(set(tokens)) > 5  # the model wanders, so that equality says something
    ours = list(whole.tokens(PROMPT, Sampling(COUNT)))
    assert_same(ours, tokens, gaps)
    ids, _, _ = Ring(split(directory, tmp_path)).generate(PROMPT, max_tokens=COUNT)
    assert ids == ours


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_tensors_are_those_of_its_checkpoint_and_make_up_its_parameters(made, name):
    checkpoint = open_checkpoint(made(name))
    config = checkpoint.config
    named = [*end_tensors(config), *stage_tensors(config, 0, config.num_hidden_layers)]
    assert checkpoint.pick(named).keys() == checkpoint.tensors.keys()
    for layer in range(config.num_hidden_layers):
        pieces, parameters = layer_pieces(config, layer), of_layer(config, layer)
        assert {role: sum(piece.count for piece in found) for role, found in pieces.items()} == {
            role: parameter.count for role, parameter in parameters.items()
        }


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss", "qwen2_moe"])
def test_a_prompt_in_parts_is_a_prompt_and_an_earlier_pos_rewinds(made, name, tmp_path):
    """Prefixes shorter and longer than the window, single positions, and speculation that is rejected."""
    task = split(made(name), tmp_path)
    stage_task = task.manifest.tasks[1]
    program = task.blobs[stage_task.program.sha256].read_bytes()
    stage = load(stage_task.engine, program, [task.blobs[ref.sha256] for ref in stage_task.weights], ROOMY)
    stage.open("s", {})
    states = torch.randn(1, 90, 64, generator=torch.Generator().manual_seed(3))

    def out(start, end):
        frame = Frame("hidden.0", 0, (states[:, start:end].clone(),), {"pos": start, "chunk": 0})
        return stage.receive("s", frame)[0].tensors[0]

    expected = out(0, 90)
    parts = [out(start, end) for start, end in ((0, 10), (10, 11), (11, 50), (50, 51), (51, 52), (50, 51), (51, 90))]
    del parts[3:5]
    assert (torch.cat(parts, 1) - expected).abs().max() < 1e-4


def packed(matrices):
    """[experts, in, out] as MXFP4: blocks along `in`, the nearest numbers under a power of two below the largest."""
    rows = matrices.transpose(1, 2).unflatten(-1, (-1, mxfp4.GROUP))
    exponents = rows.abs().amax(-1, keepdim=True).log2().floor().sub(2).clamp(-127, 127)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = ((rows / 2**exponents)[..., None] - table).abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents[..., 0] + 127).to(torch.uint8)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A gpt-oss in MXFP4, and the same with its blocks multiplied out by transformers."""
    plain, folder = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("mxfp4")
    make_family(plain, "gpt_oss")
    tensors, rounded = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales = packed(tensor)
            rounded[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
            assert rounded[name].shape == tensor.shape
            assert (rounded[name] - tensor).abs().max() < 0.3 * tensor.abs().max()
        else:
            tensors[name] = rounded[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file(rounded, plain / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    (folder / "tokenizer.json").write_bytes((plain / "tokenizer.json").read_bytes())
    return folder, plain


@torch.inference_mode()
def test_mxfp4_is_what_transformers_makes_of_it_and_travels_packed(quantized, tmp_path):
    folder, plain = quantized
    model = reference("gpt_oss", plain)
    assert (LocalDecoder(folder).logits(PROMPT) - model(torch.tensor([PROMPT])).logits[0, -1]).abs().max() <= 1e-4
    tokens, gaps = greedy(model, PROMPT, COUNT)
    assert open_checkpoint(folder).arithmetic == "bfloat16"
    registration = split(folder, tmp_path)
    ids, _, _ = Ring(registration).generate(PROMPT, max_tokens=COUNT)
    assert_same(ids, tokens, gaps)
    with safe_open(registration.blobs[registration.manifest.tasks[1].weights[0].sha256], "pt") as file:
        assert file.get_tensor("model.layers.0.mlp.experts.down_proj_blocks").dtype == torch.uint8


def test_a_scale_of_mxfp4_that_is_no_number_and_one_too_large_are_refused():
    blocks = torch.full((1, 16), 0x77, dtype=torch.uint8)
    with pytest.raises(BadTask, match="no number"):
        mxfp4.decoded(blocks, torch.tensor([255], dtype=torch.uint8))
    assert not torch.isfinite(mxfp4.decoded(blocks, torch.tensor([254], dtype=torch.uint8))).any()
    assert torch.equal(mxfp4.decoded(blocks, torch.tensor([0], dtype=torch.uint8)), torch.full((1, 32), 6 * 2.0**-127))


def test_every_family_is_tried():
    assert {classes(stem)[1].__name__ for stem, _ in FAMILIES.values()} == (
        ARCHITECTURES - multimodal.ARCHITECTURES - ALIASES.keys()
    )


def saved(made, name):
    return json.loads((made(name) / "config.json").read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_field_that_nothing_reads_is_refused_by_its_name(made, name):
    config = saved(made, name)
    parse_config(json.dumps(config | {"use_cache": False, "of_tomorrow": None}).encode())
    with pytest.raises(BadTask, match="of_tomorrow"):
        parse_config(json.dumps(config | {"of_tomorrow": 1.5}).encode())


HOSTILE = [
    ("mistral", "sliding_window", 0),
    ("mistral", "sliding_window", "wide"),
    ("mistral", "layer_types", ["full_attention"] * 4),
    ("mistral", "num_key_value_heads", None),
    ("qwen2", "use_mrope", True),
    ("qwen2", "layer_types", ["linear_attention"] * 4),
    ("qwen2", "layer_types", ["full_attention"] * 3),
    ("qwen2", "layer_types", ["sliding_attention"] * 4),
    ("qwen2", "max_window_layers", -1),
    ("qwen2", "use_sliding_window", "yes"),
    ("qwen3", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}),
    ("qwen3", "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "of_tomorrow": 1}),
    ("qwen3", "rope_parameters", {"rope_type": "yarn", "factor": "2"}),
    ("qwen3", "rope_parameters", {"rope_type": ["yarn"]}),
    ("qwen3", "rope_parameters", {"partial_rotary_factor": 0.0}),
    ("qwen3", "rope_parameters", {"partial_rotary_factor": 1.5}),
    ("phi3", "rope_parameters", LONG | {"long_factor": [1.0]}),
    ("phi3", "rope_parameters", LONG | {"long_factor": 1.0}),
    ("phi3", "rope_parameters", LONG | {"short_factor": [-1.0] * 8}),
    ("phi3", "rope_parameters", LONG | {"short_factor": [1.0] * 10**4}),
    ("phi3", "lm_head_bias", True),
    ("gemma", "use_bidirectional_attention", True),
    ("gemma", "hidden_activation", "relu"),
    ("gemma2", "attn_logit_softcapping", -1.0),
    ("gemma2", "query_pre_attn_scalar", 0),
    ("gemma3", "rope_parameters", {"rope_theta": 1.0}),
    ("gemma3", "rope_parameters", {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}),
    ("gemma3", "attn_logit_softcapping", 5.0),
    ("mixtral", "num_local_experts", 10**6),
    ("mixtral", "num_local_experts", 1),
    ("mixtral", "num_experts_per_tok", 0),
    ("mixtral", "num_experts_per_tok", 2.5),
    ("qwen2_moe", "decoder_sparse_step", 0),
    ("qwen2_moe", "mlp_only_layers", "none"),
    ("qwen3_moe", "moe_intermediate_size", 10**7),
    ("qwen3_moe", "num_hidden_layers", 10**9),
    ("gpt_oss", "swiglu_alpha", 1.5),
    ("gpt_oss", "swiglu_limit", -7.0),
    ("gpt_oss", "quantization_config", {"quant_method": "awq"}),
    ("gpt_oss", "hidden_size", 2_000),
    ("glm4_moe", "n_group", 3),
    ("glm4_moe", "n_group", 8),
    ("glm4_moe", "topk_group", 5),
    ("glm4_moe", "n_shared_experts", 0),
    ("glm4_moe", "quantization_config", {"quant_method": "bitsandbytes"}),
    ("smollm3", "no_rope_layers", [1]),
    ("smollm3", "layer_types", ["chunked_attention"] * 4),
    ("granite", "logits_scaling", 0.0),
    ("granite", "attention_multiplier", -1.0),
    ("stablelm", "layer_norm_eps", 0.0),
    ("starcoder2", "mlp_type", "gated"),
    ("starcoder2", "norm_epsilon", "small"),
    ("cohere", "logit_scale", 0.0),
    ("cohere2", "sliding_window_pattern", 0),
    ("gpt_neox", "hidden_act", "relu"),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "n_embd", 10**9),
    ("gpt2", "hidden_size", 32),
    ("falcon, few keys", "alibi", "yes"),
    ("falcon, in groups", "parallel_attn", False),
    ("falcon, in groups", "num_kv_heads", 3),
]


@pytest.mark.parametrize(
    ("name", "field", "value"), HOSTILE, ids=[f"{n}-{f}-{i}" for i, (n, f, _) in enumerate(HOSTILE)]
)
def test_what_the_layers_do_not_compute_is_refused(made, name, field, value):
    config = saved(made, name)
    changed = config | {field: value} | ({"quantization_config": {"quant_method": "mxfp4"}} if value == 2_000 else {})
    with pytest.raises(BadTask):
        parse_config(json.dumps(changed).encode())


def test_older_files_say_the_same_as_newer_ones(made):
    """Angles beside each other, as files had them before `rope_parameters`."""
    gemma = saved(made, "gemma3, scaled")
    older = {
        k: v
        for k, v in gemma.items()
        if "sliding_window_pattern" not in k and k not in ("rope_parameters", "layer_types")
    } | {
        "sliding_window_pattern": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    }
    assert parse_config(json.dumps(older).encode()) == parse_config(json.dumps(gemma).encode())
    glm = saved(made, "glm4_moe")
    older = {k: v for k, v in glm.items() if k != "rope_parameters"} | {"partial_rotary_factor": 0.5, "rope_theta": 1e4}
    assert parse_config(json.dumps(older).encode()) == parse_config(json.dumps(glm).encode())
    oss = saved(made, "gpt_oss")
    rope = dict(oss["rope_parameters"])
    older = {k: v for k, v in oss.items() if k != "rope_parameters"} | {
        "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": rope,
        "initial_context_length": 64,
        "experts_per_token": 2,
    }
    assert parse_config(json.dumps(older).encode()) == parse_config(json.dumps(oss).encode())


GEMMA_2_9B = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3_584,
    "initializer_range": 0.02,
    "intermediate_size": 14_336,
    "max_position_embeddings": 8_192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10_000.0,
    "sliding_window": 4_096,
    "sliding_window_size": 4_096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.0.dev0",
    "use_cache": True,
    "vocab_size": 256_000,
}


def test_the_configuration_of_gemma_2_9b_is_read_as_its_authors_wrote_it():
    assert parse_config(json.dumps(GEMMA_2_9B).encode()).sliding_window == 4_096
    with pytest.raises(BadTask, match="sliding_window_size: another value than sliding_window"):
        parse_config(json.dumps(GEMMA_2_9B | {"sliding_window_size": 2_048}).encode())


@pytest.mark.parametrize("name", FAMILIES)
def test_flags_of_older_and_newer_libraries_that_change_nothing_are_read_over(made, name):
    """Those that every config.json of transformers 4 was saved with, and those of transformers 5."""
    flags = {
        "is_encoder_decoder": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "cross_attention_hidden_size": None,
        "pruned_heads": {},
        "tie_encoder_decoder": False,
        "torchscript": False,
        "output_hidden_states": False,
        "do_sample": True,
        "temperature": 0.6,
        "max_length": 20,
        "hidden_dropout": 0.1,
        "task_specific_params": None,
        "attn_implementation": "sdpa",
    }
    config = saved(made, name)
    assert parse_config(json.dumps(config | flags).encode()) == parse_config(json.dumps(config).encode())
    with pytest.raises(BadTask, match="add_cross_attention"):
        parse_config(json.dumps(config | {"add_cross_attention": True}).encode())


def test_a_llama_s_document_has_no_field_that_came_later(made):
    document = open_checkpoint(made("llama, yarn")).config.document()
    assert set(document) == set(DecoderConfig.model_fields) - set(LATER)
    assert DecoderConfig.from_document(document).document() == document


def test_files_of_gpt_2_without_their_prefix_are_the_same_model(made, tmp_path):
    again = shutil.copytree(made("gpt2"), tmp_path / "again")
    stored = load_file(again / "model.safetensors")
    first = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    first |= {"h.0.attn.bias": torch.ones(1, 1, 8, 8)}
    save_file(first, again / "model.safetensors")
    assert torch.equal(LocalDecoder(again).logits(PROMPT), LocalDecoder(made("gpt2")).logits(PROMPT))
