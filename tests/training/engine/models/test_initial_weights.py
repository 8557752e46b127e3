"""What a model starts from: read whatever way it is kept, refused when it is anything else than was cited."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadData, BadFrame, BadHash, BadInput, BadRecipe, BadTask, NodewireError, NotFound, TooLarge
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine import state
from nodewire.training.engine.actors import pieces
from nodewire.training.engine.actors.frozen_weights import FrozenIn
from nodewire.training.engine.families import initial
from nodewire.training.engine.models import directory, initial_weights, vocabulary
from nodewire.training.protocol import initial_weights as cited
from tests.training.engine.recipes import NAMES, blob, made, recipe


@pytest.fixture
def given(tmp_path):
    """A recipe with an adapter, what it starts from, and the folder with it."""
    of = recipe("encoder-lora")
    tensors, tokenizer = made(of)[1], vocabulary.of_bytes()
    family = of.family.model_copy(update={"start": initial_weights.cited(tensors), "tokenizer": blob(tokenizer)})
    of = of.model_copy(update={"family": family})
    (tmp_path / "model.safetensors").write_bytes(state.pack(tensors))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer)
    return of, tensors, tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_the_form_that_is_hashed_is_that_of_packed_tensors(name):
    of = recipe(name)
    plain = of.model_copy(update={"adapter": None})
    if cited.find_weights(plain) is not None:
        plain = plain.model_copy(update={"family": plain.family.model_copy(update={"start": None})})
    tensors = initial(plain)
    packed = state.pack(tensors)
    assert packed.startswith(cited.header(of.family.shapes()))
    assert len(packed) == cited.file_bytes(of.family.shapes())
    assert initial_weights.cited(tensors) == blob(packed)


def test_weights_have_one_hash_however_they_are_kept(given):
    of, tensors, folder = given
    assert same(initial_weights.read(of, folder).tensors, tensors)
    assert same(initial_weights.read(of, folder / "model.safetensors").tensors, tensors)
    # In shards with an index, below `bert.`, and with tensors that are not asked for.
    names = list(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({f"bert.{name}": tensors[name].clone() for name in some} | {file: torch.zeros(2)}, folder / file)
    index = {"weight_map": {f"bert.{name}": file for file, some in parts.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    assert same(initial_weights.read(of, folder).tensors, tensors)


def test_weights_in_half_precision_are_hashed_as_what_they_are(given):
    of, tensors, folder = given
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors")
    widened = {name: tensor.float() for name, tensor in halves.items()}
    of = of.model_copy(update={"family": of.family.model_copy(update={"start": initial_weights.cited(widened)})})
    assert same(initial_weights.read(of, folder).tensors, widened)


def test_what_cites_nothing_needs_nothing():
    assert initial_weights.read(recipe("mlp"), None) == initial_weights.Start()


def without(folder, tensors):
    tensors.pop("embeddings.LayerNorm.weight")
    (folder / "model.safetensors").write_bytes(state.pack(tensors))


def reshaped(folder, tensors):
    tensors["embeddings.LayerNorm.weight"] = torch.ones(31)
    (folder / "model.safetensors").write_bytes(state.pack(tensors))


def retyped(folder, tensors):
    tensors["embeddings.LayerNorm.weight"] = torch.ones(32, dtype=torch.int32)
    (folder / "model.safetensors").write_bytes(state.pack(tensors))


def infinite(folder, tensors):
    tensors["embeddings.LayerNorm.weight"] = torch.full((32,), float("inf"))
    (folder / "model.safetensors").write_bytes(state.pack(tensors))


def changed(folder, tensors):
    tensors["embeddings.LayerNorm.weight"] = torch.full((32,), 2.0)
    (folder / "model.safetensors").write_bytes(state.pack(tensors))


def header_too_long(folder, tensors):
    file = folder / "model.safetensors"
    file.write_bytes((2**40).to_bytes(8, "little") + file.read_bytes()[8:])


def cut_off(folder, tensors):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def pickled(folder, tensors):
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")


def other_tokenizer(folder, tensors):
    (folder / "tokenizer.json").write_bytes(vocabulary.of_bytes() + b" ")


def no_tokenizer(folder, tensors):
    (folder / "tokenizer.json").unlink()


def huge_tokenizer(folder, tensors):
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(cited.MAX_TOKENIZER_BYTES + 1)


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (without, BadTask, "weights.embeddings.LayerNorm.weight: missing"),
        (reshaped, BadTask, r"float32 \[31\], not \[32\]"),
        (retyped, BadTask, r"I32 \[32\]"),
        (infinite, BadTask, "not finite"),
        (changed, BadHash, r"family.start: .* holds [0-9a-f]{64}, the recipe cites [0-9a-f]{64}"),
        (header_too_long, TooLarge, "a header of 1099511627776 bytes"),
        (cut_off, BadTask, "tensors end at"),
        (pickled, NotFound, "model.safetensors"),
        (other_tokenizer, BadHash, r"family.tokenizer: .*tokenizer.json holds [0-9a-f]{64}, the recipe cites"),
        (no_tokenizer, NotFound, "tokenizer.json"),
        (huge_tokenizer, TooLarge, "tokenizer.json"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_anything_else_is_refused_by_name(given, spoil, error, said):
    of, tensors, folder = given
    spoil(folder, dict(tensors))
    with pytest.raises(error, match=said):
        initial_weights.read(of, folder)


def test_a_recipe_that_cites_needs_a_path_that_is_there(given):
    of, _, folder = given
    with pytest.raises(BadInput, match="--start"):
        initial_weights.read(of, None)
    with pytest.raises(NotFound, match="--start"):
        initial_weights.read(of, folder / "missing")


@pytest.mark.parametrize("size", [0, 1_000, 2**40])
def test_a_size_that_the_models_tensors_do_not_have_is_refused_before_anything_is_read(given, size):
    of, _, folder = given
    family = of.family.model_copy(update={"start": BlobRef(sha256="00" * 32, bytes=size)})
    of = of.model_copy(update={"family": family})
    with pytest.raises(BadRecipe, match=r"family\.start"):
        initial_weights.read(of, folder)
    with pytest.raises(BadRecipe, match=r"family\.start"):
        FrozenIn(of)


def sent(into: FrozenIn, data: bytes, size: int = 100_000):
    """All of what `take` says, of pieces of this size."""
    said = []
    for seq, at in enumerate(range(0, len(data), size)):
        piece = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8)
        said.append(into.feed(Frame("start", seq, (piece,), {"end": at + size >= len(data)})))
    return said


@pytest.mark.parametrize("size", [7, 1_000, pieces.PIECE_BYTES])
def test_frozen_weights_come_in_pieces_of_any_size(given, size):
    of, tensors, _ = given
    into = FrozenIn(of)
    *before, found = sent(into, state.pack(tensors), size)
    assert before == [None] * len(before)
    assert list(found) == list(of.family.shapes()) and same(found, tensors)
    *_, again = sent(into, state.pack(tensors), size)  # whatever was broken off
    assert same(again, tensors)


def test_frozen_weights_of_another_model_are_refused_at_their_header(given):
    of, tensors, _ = given
    other = {name.replace("query", "kuery"): tensor for name, tensor in tensors.items()}
    with pytest.raises(BadData, match="not the tensors"):
        sent(FrozenIn(of), state.pack(other))
    with pytest.raises(BadData, match="more bytes"):
        sent(FrozenIn(of), state.pack(tensors) + b"\0" * 4)
    with pytest.raises(BadData, match="the model has more"):
        sent(FrozenIn(of), state.pack(tensors)[:-4])
    broken = dict(tensors) | {"embeddings.LayerNorm.bias": torch.full((32,), float("nan"))}
    with pytest.raises(BadData, match="finite"):
        sent(FrozenIn(of), state.pack(broken))
    with pytest.raises(BadFrame):
        FrozenIn(of).feed(Frame("start", 0, (torch.zeros(4),), {}))
    with pytest.raises(BadRecipe, match="nothing is frozen"):
        FrozenIn(of.model_copy(update={"adapter": None}))


def test_a_folder_says_what_a_recipe_has_to_cite(given):
    of, tensors, folder = given
    directory.save(folder, of.model_copy(update={"adapter": None}), tensors, tokenizer=vocabulary.of_bytes())
    assert directory.family_of(folder) == of.family.model_copy(update={"temperature": "0.05"})
    (folder / "config.json").write_text("[]")
    with pytest.raises(NodewireError, match=r"config\.json"):
        directory.family_of(folder)


def test_a_byte_decoders_folder_is_a_byte_decoder(tmp_path):
    of = recipe("decoder")
    theta = initial(of)
    directory.save(tmp_path, of, theta)
    assert directory.family_of(tmp_path) == of.family.model_copy(update={"start": initial_weights.cited(theta)})


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
