"""ALiBi's slopes are those of BLOOM, Falcon and MPT for any number of heads, and so is what is added to scores."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as of_bloom
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as of_falcon
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor as of_mpt

from bench.tasks.tiny_decoders import FAMILIES, classes, make_family
from nodewire.errors import BadTask
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.families import parse_config
from nodewire.llm.kv.alibi import slopes_of
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.spec.config import DecoderConfig

POSITIONS = 700
PROMPT = [(7 * i * i + 3 * i) % 298 + 1 for i in range(70)]


def slopes(made, heads, scale=1.0, **said):
    """Those of a model of so many heads."""
    document = open_checkpoint(made("bloom")).config.document()
    document |= {"num_attention_heads": heads, "num_key_value_heads": heads, "alibi": said}
    return slopes_of(DecoderConfig.from_document(document), scale, torch.device("cpu"))


def added(of):
    """What is added to the scores of the last position, float32 [heads, positions]."""
    stand = torch.arange(POSITIONS)
    return of.bias(stand, stand[-1:], None)[:, 0]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20, 32, 64, 71, 112])
def test_slopes_of_any_number_of_heads_are_those_of_the_libraries(made, heads):
    """A softmax does not know what is added to all of its row, so each row is less its last."""
    mask = torch.ones(1, POSITIONS, dtype=torch.int64)
    bloom = of_bloom(mask, heads, torch.float32).view(heads, -1)
    assert (added(slopes(made, heads)) - (bloom - bloom[:, -1:])).abs().max() < 1e-3
    for most in (8, 16):
        ours = added(slopes(made, heads, bias_max=f"{most}.0"))
        assert torch.allclose(ours, of_mpt(heads, POSITIONS, most)[:, 0], rtol=1e-6)
    falcon = of_falcon(mask, heads, torch.float32).view(heads, -1) * 0.125
    assert torch.equal(added(slopes(made, heads, 0.125, rounded=True)), falcon - falcon[:, -1:])


def test_a_falcon_s_are_rounded_and_others_are_not(made):
    """32 heads have slopes that bfloat16 rounds."""
    exact, rounded = (added(slopes(made, 32, rounded=one)) for one in (False, True))
    assert (exact - rounded).abs().max() > 0.1


def test_of_what_a_row_does_not_see_nothing_is_left(made):
    stand, rows = torch.arange(5), torch.arange(3, 5)
    sees = stand <= rows[:, None]
    bias = slopes(made, 4).bias(stand, rows, sees)
    assert bias.shape == (4, 2, 5)
    assert torch.equal(bias == -torch.inf, ~sees.expand(4, -1, -1))
    assert torch.equal(bias[:, 0, 3], torch.zeros(4)) and torch.equal(bias[0, 1], -0.25 * (4 - stand))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bloom", {"hidden_size": 96, "num_attention_heads": 6}),
        ("mpt", {"hidden_size": 96, "num_attention_heads": 6}),
        ("falcon, alibi", {"hidden_size": 96, "num_attention_heads": 12, "max_position_embeddings": 512}),
    ],
)
@torch.inference_mode()
def test_heads_that_are_no_power_of_two_say_what_transformers_says(name, changes, tmp_path):
    folder = make_family(tmp_path / "model", name, **changes)
    model = classes(FAMILIES[name][0])[1].from_pretrained(folder, dtype=torch.float32).eval()
    assert (LocalDecoder(folder).logits(PROMPT) - model(torch.tensor([PROMPT])).logits[0, -1]).abs().max() <= 1e-4


@torch.inference_mode()
def test_the_largest_bias_of_an_mpt_is_its_file_s(made, tmp_path):
    """`transformers` 5 takes 8 whatever the file says, so here it is told."""
    folder = make_family(tmp_path / "model", "mpt", attn_config={"alibi_bias_max": 16})
    model = classes("Mpt")[1].from_pretrained(folder, dtype=torch.float32).eval()
    ours, ids = LocalDecoder(folder).logits(PROMPT), torch.tensor([PROMPT])
    assert (ours - model(ids).logits[0, -1]).abs().max() > 1e-3
    model.transformer.build_mpt_alibi_tensor = lambda heads, length, bias_max=16, device=None: of_mpt(
        heads, length, bias_max, device
    )
    assert (ours - model(ids).logits[0, -1]).abs().max() <= 1e-4


def test_a_class_of_its_authors_own_code_is_the_same_model(made):
    saved = json.loads((made("mpt") / "config.json").read_text())
    own = saved | {"architectures": ["MPTForCausalLM"]}
    assert parse_config(json.dumps(own).encode()) == parse_config(json.dumps(saved).encode())


def test_files_of_bloom_without_their_prefix_are_the_same_model(made, tmp_path):
    folder = make_family(tmp_path / "again", "bloom")
    stored = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("transformer."): one for name, one in stored.items()}, folder / "model.safetensors")
    assert torch.equal(LocalDecoder(folder).logits(PROMPT), LocalDecoder(made("bloom")).logits(PROMPT))


@pytest.mark.parametrize("field", ["attention_sinks", "attn_logit_softcapping"])
def test_scores_with_alibi_are_neither_capped_nor_beside_sinks(made, field):
    document = open_checkpoint(made("bloom")).config.document()
    with pytest.raises(BadTask, match="alibi: "):
        DecoderConfig.from_document(document | {field: True if field == "attention_sinks" else "4.0"})
