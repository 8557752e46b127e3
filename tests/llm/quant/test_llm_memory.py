"""The memory that a manifest states covers what PyTorch allocates while a task loads and serves its longest prompt."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bench.tasks.tiny_decoders import make_family
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import PLAIN, ROOMY, make_model

WIDE_MLP = PLAIN | {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 512}
MANY_HEADS = WIDE_MLP | {"intermediate_size": 64, "num_attention_heads": 16, "num_key_value_heads": 16}


def peak_bytes(run, trace):
    """The most bytes that were allocated at one moment of `run()`, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


@pytest.mark.parametrize("shape", [WIDE_MLP, MANY_HEADS], ids=["wide mlp", "many heads"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_stays_within_its_stated_memory(tmp_path, shape, dtype):
    shape = shape | {"max_position_embeddings": 1024}
    directory = make_model(tmp_path / "model", shape, torch.bfloat16)
    assert_covered(directory, dtype, tmp_path)


SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
SHARED = {"head_dim": None}
"""Of models whose heads share the width."""
EXPERTS = {"num_experts": 8, "moe_intermediate_size": 256}
LATENTS = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "moe_intermediate_size": 256,
}
ONLY_HEADS = {"num_key_value_heads": None, "intermediate_size": None, "max_position_embeddings": None}


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("mistral", {}),
        ("phi3", {}),
        ("gemma2", {}),
        ("gemma3", {}),
        ("mixtral", {}),
        ("qwen2_moe", {"decoder_sparse_step": 2, **EXPERTS}),
        ("gpt_oss", {}),
        ("smollm3", SHARED),
        ("olmo2", SHARED),
        ("granite", SHARED),
        ("stablelm, parallel, normed", SHARED),
        ("starcoder2", SHARED),
        ("cohere, normed, biased", SHARED),
        ("gpt_neox", SHARED | {"num_key_value_heads": None}),
        ("gpt2", SHARED | {"num_key_value_heads": None, "intermediate_size": None, "n_inner": 256}),
        ("falcon, in groups", SHARED | {"num_key_value_heads": None, "ffn_hidden_size": 256}),
        ("glm4_moe", {"first_k_dense_replace": 1, "n_routed_experts": 8, "moe_intermediate_size": 256}),
        ("deepseek_v2, lite", SHARED | LATENTS),
        ("deepseek_v3", SHARED | LATENTS | {"q_lora_rank": 96}),
        ("bloom", SHARED | ONLY_HEADS | {"seq_length": 1024}),
        ("mpt", SHARED | ONLY_HEADS | {"max_seq_len": 1024}),
        ("falcon, alibi", SHARED | {"num_key_value_heads": None, "ffn_hidden_size": 256}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_so_does_a_stage_of_every_kind_of_layer(tmp_path, family, more, dtype):
    directory = make_family(tmp_path / "model", family, torch.bfloat16, **SIZES | more)
    assert_covered(directory, dtype, tmp_path)


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [("int8", None), ("int4", None), ("w8a8", None), ("w4a8", None), ("int8", "float32"), ("int4", "float32")],
)
@pytest.mark.parametrize("family", ["llama, yarn", "qwen2_moe"])
def test_so_does_a_quantized_stage(tmp_path, family, scheme, dtype):
    more = EXPERTS if family == "qwen2_moe" else {"intermediate_size": 1_024}
    plain = make_family(tmp_path / "plain", family, torch.bfloat16, **SIZES | more)
    quantize(plain, tmp_path / "model", scheme)
    assert_covered(tmp_path / "model", dtype, tmp_path)


def test_so_does_one_that_keeps_keys_and_values_in_8_bits(tmp_path):
    directory = make_family(tmp_path / "model", "mistral, no window", torch.bfloat16, **SIZES)
    assert_covered(directory, "bfloat16", tmp_path, kv="int8")


def assert_covered(directory, dtype, tmp_path, kv=None):
    """What loading and serving the longest prompt takes is what the manifest says, or somewhat less."""
    options = DecoderOptions(dtype=dtype, kv=kv)
    registration = split_decoder(directory, 20_000_000, tmp_path / "out", slots=2, options=options)
    for task in registration.manifest.tasks[1:]:
        program = registration.blobs[task.program.sha256].read_bytes()
        weights = [registration.blobs[blob.sha256] for blob in task.weights]
        edge = registration.manifest.inputs(task.name)[0].name
        hidden = torch.randn(1, 1024, 128).to(getattr(torch, dtype or "bfloat16"))
        frame_bytes = hidden.nbytes  # the input is there already

        cells = []  # of keys and values, which PyTorch does not allocate

        def serve(task=task, program=program, weights=weights, edge=edge, hidden=hidden, cells=cells):
            stage = load(task.engine, program, weights, ROOMY)
            cells += stage._lanes.cells
            stage.open("s", {})
            stage.receive("s", Frame(edge, 0, (hidden,), {"pos": 0, "chunk": 0}))

        used = peak_bytes(serve, tmp_path / "trace.json") + frame_bytes + sum(cell.nbytes for cell in cells)
        assert 0.6 * task.memory_bytes < used <= task.memory_bytes
