"""Models that also see are registered as text: the language part says what transformers says of ids alone."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.tasks.tiny_decoders import SEEING, make_seeing, seeing_class
from nodewire.errors import BadTask
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.families import parse_config
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import Sampling
from tests.llm.families.test_llm_families import COUNT, PROMPT, assert_same, greedy, split
from tests.llm.llm_models import Ring


@pytest.fixture(scope="module", params=SEEING)
def seeing(request, tmp_path_factory):
    return request.param, make_seeing(tmp_path_factory.mktemp("seeing"), request.param)


@torch.inference_mode()
def test_a_model_that_also_sees_says_of_text_what_transformers_says(seeing, tmp_path):
    name, directory = seeing
    model = seeing_class(name).from_pretrained(directory, dtype=torch.float32).eval()
    whole = LocalDecoder(directory)
    logits = model(torch.tensor([PROMPT])).logits[0]
    for length in (1, 20, len(PROMPT)):
        assert (whole.logits(PROMPT[:length]) - logits[length - 1]).abs().max() <= 1e-4
    tokens, gaps = greedy(model, PROMPT, COUNT)
    assert len(set(tokens)) > 5
    ours = list(whole.tokens(PROMPT, Sampling(COUNT)))
    assert_same(ours, tokens, gaps)
    ids, _, _ = Ring(split(directory, tmp_path)).generate(PROMPT, max_tokens=COUNT)
    assert ids == ours


def test_its_registration_leaves_out_what_it_sees_with_and_says_so(seeing, tmp_path):
    _, directory = seeing
    made = split_decoder(directory, 1_500_000, tmp_path / "out", slots=1, name="one")
    bare = shutil.copytree(directory, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    dry = split_decoder(bare, 1_500_000, None, slots=1, name="one")
    assert "the language model alone: what it sees with is left out" in made.report[-1]
    assert dry.report == made.report
    assert not any("vision" in tensor for tensor in open_checkpoint(directory).tensors)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_older_and_newer_names_of_tensors_are_one_model(seeing, prefix, tmp_path):
    _, directory = seeing
    again = shutil.copytree(directory, tmp_path / "again")
    stored = load_file(directory / "model.safetensors")
    head = "language_model.lm_head.weight" if prefix == "language_model.model." else "lm_head.weight"
    named = {}
    for name, tensor in stored.items():
        for before in ("language_model.model.", "model.language_model."):
            name = prefix + name.removeprefix(before) if name.startswith(before) else name
        named[head if name.endswith("lm_head.weight") else name] = tensor
    save_file(named, again / "model.safetensors")
    assert torch.equal(LocalDecoder(again).logits(PROMPT), LocalDecoder(directory).logits(PROMPT))


def test_what_gemma_3_leaves_out_of_its_files_is_as_transformers_has_it():
    """The whole of what google/gemma-3-4b-it says of its language model."""
    text = {
        "hidden_size": 2_560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1_024,
    }
    said = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255_999,
        "eoi_token_index": 256_000,
        "eos_token_id": [1, 106],
        "image_token_index": 262_144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": text,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1_152, "model_type": "siglip_vision_model"},
    }
    found = parse_config(json.dumps(said).encode())
    heads = (found.vocab_size, found.num_attention_heads, found.num_key_value_heads, found.head_dim)
    assert heads == (262_208, 8, 4, 256)
    assert (found.max_position_embeddings, found.eos_token_id, found.family) == (131_072, (1, 106), "gemma3")
    assert [found.slides(layer) for layer in range(6)] == [True] * 5 + [False]
    with pytest.raises(BadTask, match="of_tomorrow"):
        parse_config(json.dumps(said | {"of_tomorrow": 1}).encode())
    with pytest.raises(BadTask, match="text_config: no object of the model_type gemma3_text"):
        parse_config(json.dumps(said | {"text_config": {"model_type": "llama"}}).encode())


@pytest.mark.parametrize("architectures", [[["x"]], [{"x": 1}], [None], "LlamaForCausalLM", {"0": "x"}])
def test_architectures_of_another_type_are_refused_by_their_name(architectures):
    with pytest.raises(BadTask, match="architectures"):
        parse_config(json.dumps({"architectures": architectures}).encode())
