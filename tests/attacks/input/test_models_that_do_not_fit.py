"""A model run here whose parts do not fit, or whose numbers run over, says so and gives no text in place of it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodewire.errors import BadTask, TooLarge
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.families.fields.compressed_tensors import _GroupChoice
from nodewire.llm.layers.rope import Rope
from nodewire.llm.local import arithmetic
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.local.speculative import LocalSpeculation
from nodewire.llm.tokens.sampling_params import Sampling
from tests.llm.llm_models import PLAIN, make_model


@pytest.fixture
def folder(tmp_path):
    return make_model(tmp_path / "model", PLAIN, torch.float32)


def test_a_token_that_has_no_row_in_the_embedding_is_refused(folder):
    said = json.loads((folder / "tokenizer.json").read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    more = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    said["added_tokens"].append({"id": size, "content": "<more>", **more})
    (folder / "tokenizer.json").write_text(json.dumps(said))
    whole = LocalDecoder(folder)
    with pytest.raises(BadTask, match=f"token {size} has no row"):
        list(whole.steps("a<more>", Sampling(2)))
    assert len(list(whole.tokens(whole.tokenizer.encode("ab"), Sampling(2)))) > 0


@pytest.mark.parametrize("sampling", [Sampling(4), Sampling(4, temperature=1.0, seed=1), Sampling(4, logprobs=2)])
def test_numbers_that_run_over_make_no_text(folder, sampling):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"].fill_(3e38)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadTask, match="not finite"):
        list(LocalDecoder(folder).steps("abc", sampling))


@pytest.mark.parametrize("said", [[{}], [[]], [None], [7], {"0": "LlamaForCausalLM"}], ids=str)
def test_an_architecture_that_is_no_word_is_refused(tmp_path, said):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": said}))
    with pytest.raises(BadTask, match="architectures"):
        split_decoder(tmp_path, 10**9, None, slots=1)


def test_positions_that_a_model_only_says_it_has_take_a_bounded_table(folder, monkeypatch):
    size = PLAIN["hidden_size"] // PLAIN["num_attention_heads"]
    monkeypatch.setattr(arithmetic, "MAX_ANGLES_BYTES", 4 * size * 100)
    whole = LocalDecoder(folder)
    assert (whole.positions, LocalDecoder(folder, context=64).positions) == (100, 64)
    with pytest.raises(TooLarge, match="the context is 100"):
        list(whole.tokens([1] * 100, Sampling(1)))
    assert LocalSpeculation(folder)._stage.program.positions == 100


def test_a_table_of_angles_is_made_in_its_own_place():
    frequencies = torch.rand(8)
    angles = torch.arange(5).float()[:, None] * frequencies
    for tables in ([(frequencies, 1.5, 5)], [(frequencies, 1.5, 3), (frequencies, 1.5, 5)]):
        cos, sin = Rope(tables, torch.device("cpu")).at(torch.arange(5) + (3 if len(tables) > 1 else 0))
        assert torch.equal(cos[:, 0, 0], angles.cos() * 1.5) and torch.equal(sin[:, 0, 1], angles.sin() * 1.5)


WEIGHTS = {"type": "int", "num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 32}
MODULE = "model.layers.0.self_attn.q_proj"


def group_of(*ignored):
    said = {"format": "pack-quantized", "ignore": [f"re:{one}" for one in ignored]}
    return _GroupChoice(said, {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}).size(MODULE)


@pytest.mark.parametrize(
    "expression",
    [
        r"([\w.]+)+!",
        r"(?:model|[\w.]+){1,40}!",
        r"(?P<a>[\w.]+)*!",
        ".*" * 7 + "!",
        ".?" * 30 + "!",
        "(.|.)" * 30 + "!",
        "a{99999999999}",
        "(" * 900,
        "a" * 2_000,
    ],
    ids=lambda one: one[:20],
)
def test_an_expression_that_goes_back_without_end_is_not_looked_for(expression):
    with pytest.raises(BadTask, match="ignore"):
        group_of(expression)


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        (r".*lm_head", 32),
        (r"^model\.layers\.\d+\.self_attn\.(q|k|v)_proj$", None),
        (r"^(?!.*lm_head).*$", None),
        (r".*model.layers.*.block_sparse_moe.experts.*.w.*", 32),
        (r"(?i).*[Q?*]_PROJ$", None),
        (r"model\.layers\.(?:[0-9]|1[0-9])\.self_attn.*", None),
    ],
)
def test_expressions_that_models_have_are_looked_for(expression, size):
    assert group_of(expression) == size


def test_names_and_expressions_of_too_many_are_given_up(monkeypatch):
    monkeypatch.setattr("nodewire.llm.families.fields.compressed_tensors._MATCHING_S", 0.0)
    with pytest.raises(TooLarge, match="fewer expressions"):
        group_of(*[".*.*.*.*x"] * 50)
