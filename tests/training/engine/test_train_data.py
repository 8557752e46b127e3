"""Data: files in, shards out, and for every step of every round the same samples wherever it is computed."""

from __future__ import annotations

import hashlib
import json

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file

from nodewire.errors import BadData, BadInput, NotFound, TooLarge
from nodewire.store import folder
from nodewire.training.customer.dataset import look
from nodewire.training.engine import data, draw, sample_files, state
from nodewire.training.engine.data import Shard
from nodewire.training.engine.models import vocabulary
from tests.training.engine.recipes import NAMES, made, recipe


def test_draws_are_fixed_for_ever():
    """Any other implementation must draw these."""
    stream = hashlib.shake_256(b"nodewire/stream/1\0" + msgpack.packb(["rows", 7, 0, 1, 2])).digest(24)
    words = [int.from_bytes(stream[at : at + 8], "little") for at in (0, 8, 16)]
    assert words == [5529578504602218626, 6614960211242037205, 16522162295722767068]
    assert draw.words(3, "rows", 7, 0, 1, 2).tolist() == words
    assert draw.order(6, "rows", 7, 0, 1, 2).tolist() == [4, 0, 5, 1, 3, 2]
    drawn = draw.uniform(3, 0.5, "theta", 7, "weight", 0).tolist()
    assert drawn == [-0.481548547744751, -0.10340776294469833, -0.3891623318195343]


@pytest.mark.parametrize("name", NAMES)
def test_a_shard_comes_back_from_its_bytes(name):
    of = recipe(name)
    shards, held_out = data.split(made(of)[0], 3, of)
    for shard in [*shards, held_out]:
        again = Shard.unpack(shard.packed, of)
        assert again.digest == shard.digest
        assert all(torch.equal(again.tensors[name], tensor) for name, tensor in shard.tensors.items())
        assert load(shard.packed).keys() == shard.tensors.keys()


@pytest.mark.parametrize("deal", ["shuffled", "contiguous"])
@pytest.mark.parametrize("name", ["mlp", "decoder"])
def test_shards_and_what_is_held_out_are_the_data_once(name, deal):
    of = recipe(name)
    of = of.model_copy(update={"data": of.data.model_copy(update={"deal": deal, "held_out": 5})})
    dataset = made(of)[0]
    shards, held_out = data.split(dataset, 3, of)
    column = "ids" if name == "decoder" else "x"
    parts = torch.cat([part.tensors[column] for part in (*shards, held_out)])
    assert sorted(map(str, parts.tolist())) == sorted(map(str, dataset[column].tolist()))
    assert len(held_out) == pytest.approx(len(parts) / 5, rel=0.1)
    assert max(map(len, shards)) - min(map(len, shards)) <= (2 * of.data.block if name == "decoder" else 1)
    if deal == "contiguous" and name == "mlp":
        kept = [row for i, row in enumerate(dataset["x"]) if i % 5 != 2]
        assert torch.equal(torch.cat([shard.tensors["x"] for shard in shards]), torch.stack(kept))


@pytest.mark.parametrize("name", ["mlp", "decoder", "encoder"])
@pytest.mark.parametrize("gathered", [1, 4_000, data.GATHERED_BYTES])
def test_a_steps_batch_does_not_depend_on_where_one_begins(name, gathered, monkeypatch):
    of = recipe(name, steps=30)
    shard = data.split(made(of)[0], 2, of).shards[1]
    whole = list(data.batches(shard, of, 3, 1))
    monkeypatch.setattr(data, "GATHERED_BYTES", gathered)
    for first, last in ((0, 30), (7, 8), (13, 30), (29, 30)):
        part = list(data.batches(shard, of, 3, 1, first, last))
        assert len(part) == last - first
        for mine, theirs in zip(part, whole[first:last], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    others = [next(data.batches(shard, of, *at)) for at in ((2, 1), (3, 0))]
    assert not any(torch.equal(other[0], whole[0][0]) for other in others)


def test_an_epoch_sees_every_row_once():
    of = recipe("mlp", steps=50)
    shard = data.split(made(of)[0], 2, of).shards[0]
    rows = torch.cat([x for x, _ in data.batches(shard, of, 0, 0)])
    n = len(shard)
    for epoch in range(len(rows) // n):
        seen = rows[epoch * n : (epoch + 1) * n]
        assert torch.equal(seen.sort(0).values, shard.tensors["x"].sort(0).values)


def test_windows_lie_within_the_shard_and_reach_its_ends():
    of = recipe("decoder")
    ids = torch.arange(of.data.window + 3).to(torch.uint8)
    starts = {int(row[0]) for batch in data.batches(Shard({"ids": ids}), of, 0, 0) for row in batch[0]}
    assert starts == {0, 1, 2}
    exact = Shard({"ids": ids[: of.data.window + 1]})
    assert torch.equal(next(data.batches(exact, of, 0, 0))[0][3], exact.tensors["ids"].long())


def test_samples_are_spread_over_the_whole_shard():
    of = recipe("decoder")
    shard = Shard({"ids": (torch.arange(1_000) % 256).to(torch.uint8)})
    (few,) = data.samples(shard, of, 4)
    assert few[:, 0].tolist() == [0, 246, 492 % 256, 738 % 256]
    (all_,) = data.samples(shard, of, 10**6)
    assert all_.shape == (1_000 - of.data.window, of.data.window + 1)


BAD = {
    "empty": ("mlp", {"x": torch.zeros(0, 16), "y": torch.zeros(0, dtype=torch.int64)}),
    "unlike lengths": ("mlp", {"x": torch.zeros(3, 16), "y": torch.zeros(2, dtype=torch.int64)}),
    "a class beyond": ("mlp", {"x": torch.zeros(2, 16), "y": torch.tensor([0, 4])}),
    "a negative class": ("mlp", {"x": torch.zeros(2, 16), "y": torch.tensor([0, -1])}),
    "nan": ("mlp", {"x": torch.full((2, 16), torch.nan), "y": torch.tensor([0, 1])}),
    "infinite target": ("regression", {"x": torch.zeros(2, 16), "y": torch.full((2, 4), torch.inf)}),
    "other width": ("mlp", {"x": torch.zeros(2, 15), "y": torch.tensor([0, 1])}),
    "other dtype": ("mlp", {"x": torch.zeros(2, 16), "y": torch.tensor([0, 1]).int()}),
    "other names": ("mlp", {"x": torch.zeros(2, 16), "z": torch.tensor([0, 1])}),
    "one tensor more": ("mlp", {"x": torch.zeros(2, 16), "y": torch.tensor([0, 1]), "z": torch.tensor([0, 1])}),
    "one tensor less": ("mlp", {"x": torch.zeros(2, 16)}),
    "too short": ("decoder", {"ids": torch.zeros(16, dtype=torch.uint8)}),
    "a token beyond": ("decoder-bpe", {"ids": torch.full((40,), 300, dtype=torch.int32)}),
    "other rank": ("decoder", {"ids": torch.zeros(5, 40, dtype=torch.uint8)}),
    "a text without tokens": ("encoder", {k: torch.zeros(2, 8, dtype=torch.int32) for k in ("first", "second")}),
}


@pytest.mark.parametrize("what", BAD)
def test_a_shard_that_does_not_fit_its_recipe_is_refused(what):
    name, tensors = BAD[what]
    with pytest.raises(BadData):
        Shard.unpack(save(tensors), recipe(name))


def test_few_data_for_many_shards_are_refused():
    of = recipe("decoder")
    dataset = made(of)[0]
    for k in (0, 31, data.MAX_SHARDS + 1):
        with pytest.raises(BadData):
            data.split(dataset, k, of)
    with pytest.raises(BadData):
        data.split({"ids": dataset["ids"][:40]}, 1, of)


SHARD = {"x": torch.arange(32).view(2, 16).float(), "y": torch.tensor([0, 3])}


@settings(max_examples=150)
@given(st.data())
def test_mangled_bytes_raise_a_typed_error_or_fit(given_data):
    of, packed = recipe("mlp"), bytearray(save(SHARD))
    for _ in range(given_data.draw(st.integers(1, 3))):
        at = given_data.draw(st.integers(0, len(packed) - 1))
        packed[at] = given_data.draw(st.integers(0, 255))
    cut = given_data.draw(st.integers(0, len(packed)))
    for mangled in (bytes(packed), bytes(packed[:cut]), bytes(packed) + b"\0" * given_data.draw(st.integers(1, 9))):
        try:
            shard = Shard.unpack(mangled, of)
        except BadInput:
            continue
        assert shard.tensors["x"].shape == (2, 16)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40, 16], "data_offsets": [0, 2**46]},
        {"dtype": "F32", "shape": [2**60, 16], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1, 16], "data_offsets": [0, -64]},
        {"dtype": "F32", "shape": [True, 16], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [1.0, 16], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [1, 16], "data_offsets": [16, 80]},
        {"dtype": "F32", "shape": [1, 16], "data_offsets": [0]},
        {"dtype": ["F32"], "shape": [1, 16], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": {"a": 1}, "data_offsets": [0, 64]},
        {"dtype": "F32"},
        7,
        None,
    ],
)
def test_a_header_is_not_believed(entry):
    text = json.dumps({"x": entry}).encode()
    with pytest.raises(BadInput):
        state.unpack(len(text).to_bytes(8, "little") + text + b"\0" * 64, {"x": (torch.float32, (-1, 16))})


@pytest.mark.parametrize(
    "start", [b"", b"\xff" * 8, (2**40).to_bytes(8, "little"), b"\5\0\0\0\0\0\0\0[1,2]", b"\0" * 8]
)
def test_what_is_no_safetensors_is_refused(start):
    with pytest.raises(BadInput):
        state.unpack(start, {"x": (torch.float32, (-1, 16))})


def test_what_is_finite():
    assert state.is_finite(torch.zeros(0)) and state.is_finite(torch.tensor([3e38, -3e38]))
    assert not any(
        state.is_finite(torch.tensor([[0.0, bad], [1.0, 2.0]])) for bad in (torch.nan, torch.inf, -torch.inf)
    )


def test_a_state_comes_back_bit_for_bit():
    tensors = {"b": torch.tensor([[1e-45, -0.0], [3.4e38, 1.0]]), "a": torch.zeros(0), "c": torch.tensor(2.0)}
    types = {name: (torch.float32, tuple(tensor.shape)) for name, tensor in tensors.items()}
    again = state.unpack(state.pack(tensors), types)
    assert list(again) == ["b", "a", "c"]
    assert state.digest(again) == state.digest(tensors) != state.digest({"b": tensors["b"]})
    assert load(state.pack(tensors)).keys() == tensors.keys()


def test_files_of_every_layout_are_read(tmp_path):
    arrays = tmp_path / "digits.safetensors"
    save_file({"x": torch.arange(32).view(2, 4, 4).to(torch.uint8), "y": torch.tensor([0, 3]).to(torch.int16)}, arrays)
    found = sample_files.read(recipe("mlp"), arrays)
    assert found["x"].dtype == torch.float32 and found["x"].shape == (2, 16) and found["y"].tolist() == [0, 3]

    folder = tmp_path / "text"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "2.txt").write_text("second file, quite long")
    (folder / "1.txt").write_text("first ")
    (folder / ".git").write_text("hidden")
    found = sample_files.read(recipe("decoder"), folder)
    assert bytes(found["ids"].tolist()) == b"first second file, quite long"

    tokenized = recipe("decoder-bpe")
    tokenized = tokenized.model_copy(
        update={
            "data": tokenized.data.model_copy(update={"layout": "texts"}),
            "family": tokenized.family.model_copy(update={"ends": (299,)}),
        }
    )
    ids = sample_files.read(tokenized, folder, vocabulary.of_bytes())["ids"]
    assert ids.tolist() == [*b"first ", 299, *b"second file, quite long", 299]

    save_file({"ids": torch.arange(40)}, tmp_path / "ids.safetensors")
    assert sample_files.read(recipe("decoder-bpe"), tmp_path / "ids.safetensors")["ids"].dtype == torch.int32


def test_long_texts_are_tokenized_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_files, "PIECE_CHARS", 7)
    text = "one line\nand another\n\n" + "x" * 40 + "\nend"
    assert "".join(sample_files._pieces(text)) == text
    assert len(list(sample_files._pieces(text))) > 4


def test_files_that_are_no_data_are_refused(tmp_path):
    with pytest.raises(NotFound):
        sample_files.read(recipe("decoder"), tmp_path / "nothing")
    with pytest.raises(BadData, match="empty"):
        sample_files.read(recipe("decoder"), tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe not text")
    with pytest.raises(BadData, match="safetensors"):
        sample_files.read(recipe("mlp"), tmp_path)
    encoder = recipe("encoder")
    with pytest.raises(BadData, match="tokenizer"):
        sample_files.read(encoder, tmp_path)
    with pytest.raises(BadData, match="UTF-8"):
        sample_files.read(encoder, tmp_path, vocabulary.of_bytes())
    (tmp_path / "x").write_text("only one text\n")
    with pytest.raises(BadData, match="x:1"):
        sample_files.read(encoder, tmp_path, vocabulary.of_bytes())


def test_a_huge_folder_is_refused_before_it_is_read(tmp_path):
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(folder.MAX_BYTES + 1)  # sparse: no disk is taken
    with pytest.raises(TooLarge, match="data"):
        sample_files.read(recipe("decoder"), huge)


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        ({"x": torch.zeros(2, 16)}, "y"),
        ({"x": torch.zeros(2, 15), "y": torch.tensor([0, 1])}, "x"),
        ({"x": torch.zeros(16), "y": torch.tensor([0])}, "x"),
        ({"x": torch.zeros(2, 16), "y": torch.tensor([0.5, 1.0])}, "y"),
        ({"x": torch.zeros(2, 16), "y": torch.tensor([[0], [1]])}, "y"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tensors, field, tmp_path):
    save_file(tensors, tmp_path / "data.safetensors")
    with pytest.raises(BadData, match=field):
        sample_files.read(recipe("mlp"), tmp_path)


@pytest.mark.parametrize("read_", [sample_files.read, look])
def test_a_link_out_of_the_folder_is_no_data(tmp_path, read_):
    """A folder that somebody else has packed must not have its customer's own files sold to strangers."""
    (tmp_path / "secret").write_bytes(b"key" * 2_000)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text").write_bytes(b"text" * 2_000)
    (folder / "more").symlink_to("text")
    read_(recipe("decoder"), folder)
    (folder / "other").symlink_to(tmp_path / "secret")
    with pytest.raises(BadData, match="out of the folder"):
        read_(recipe("decoder"), folder)
