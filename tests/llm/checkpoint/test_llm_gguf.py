"""A GGUF file of every family, and of every type of block, says what transformers says of the same numbers."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.local.reference import LocalDecoder
from tests.llm.gguf_files import LEGACY, K, in_gguf, made
from tests.llm.llm_models import LLAMA3, PLAIN, make_model

PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]
FAMILIES = {
    "llama, biased, linear rope": {},
    "llama, yarn": {},
    "mistral": {},
    "mistral, no window": {"head_dim": 24},
    "qwen2": {},
    "qwen3": {},
    "phi3": {},
    "phi3, part turns": {},
    "phi3, longrope, short": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "gemma3, scaled": {"query_pre_attn_scalar": 16},
    "mixtral": {},
    "qwen2_moe": {"decoder_sparse_step": 1, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96},
    "qwen3_moe": {"moe_intermediate_size": 64},
    "gpt_oss": {},
}
THEIRS = ("llama, yarn", "qwen2", "qwen3", "gemma2", "gemma3", "qwen2_moe", "qwen3_moe")
"""Those whose files transformers reads itself, with the configuration of the folder."""


@torch.inference_mode()
def assert_same(path, reference):
    theirs = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).eval()
    expected = theirs(torch.tensor([PROMPT])).logits[0, -1]
    found = LocalDecoder(path, dtype="float32").logits(PROMPT)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_file_says_what_transformers_says_of_its_numbers(tmp_path, family, kind):
    assert_same(*made(tmp_path, family, kind, FAMILIES[family]))


@pytest.mark.parametrize("kind", ["F16", "BF16", *LEGACY, *K])
def test_a_type_of_block_is_the_numbers_that_the_library_makes_of_it(tmp_path, kind):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
    assert_same(*made(tmp_path, "mistral, no window", kind, sizes))


@pytest.mark.parametrize("family", THEIRS)
@torch.inference_mode()
def test_transformers_reads_the_same_out_of_the_file(tmp_path, family):
    path, reference = made(tmp_path, family, "Q4_0", FAMILIES[family])
    theirs = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).eval()
    for parameter in theirs.parameters():
        parameter.zero_()
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"]
    missing, unexpected = theirs.load_state_dict(read, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    found = LocalDecoder(path, dtype="float32").logits(PROMPT)
    torch.testing.assert_close(found, theirs(torch.tensor([PROMPT])).logits[0, -1], atol=2e-4, rtol=2e-4)


def test_llama_3s_factors_turn_positions_as_its_scaling_does(tmp_path):
    folder = make_model(tmp_path / "plain", PLAIN | {"rope_parameters": LLAMA3}, torch.float32)
    path, reference = in_gguf(folder, tmp_path / "made")
    assert open_checkpoint(path).config.rope_scaling.rope_type == "longrope"
    assert_same(path, reference)
