"""Sentence encoders of every family that is registered to embed text answer as the library's own class does."""

import shutil

import pytest

from bench.tasks.tiny_encoders import ENCODERS, TEXTS, batch, eager, make_encoder
from nodewire.cli.model.cut import CutOptions, cut
from nodewire.errors import NotFound
from nodewire.graph import reference

TARGET = 60_000


@pytest.fixture(scope="module", params=ENCODERS)
def registered(request, tmp_path_factory):
    """A family, its directory, and what is made of that by default."""
    folder = make_encoder(tmp_path_factory.mktemp("encoder") / "model", request.param)
    made = cut(folder, CutOptions(TARGET, "one"), tmp_path_factory.mktemp("out"))
    return request.param, folder, made


def test_texts_are_embedded_as_the_whole_model_embeds_them(registered, load_chain):
    _, folder, made = registered
    assert made.manifest.mode == "embed"
    assert len(made.manifest.tasks) > 2
    vectors = load_chain(made).embed(TEXTS)
    assert (vectors - reference.embed(folder, TEXTS)).abs().max() <= 1e-6
    assert (vectors[0] - vectors[1]).abs().max() > 0.01


@pytest.mark.parametrize(("rows", "length"), [(1, 2), (1, 24), (3, 7), (4, 6)])
def test_a_batch_is_what_the_library_makes_of_it(registered, load_chain, rows, length):
    name, folder, made = registered
    ids, mask = batch(name, rows, length)
    found = load_chain(made).embed_ids(ids, mask)
    assert (found - eager(folder, name, ids, mask)).abs().max() <= 1e-6


def test_the_longest_text_is_as_long_as_there_are_positions(registered):
    """Those of some families begin after the id that pads."""
    assert registered[2].manifest.context == 24


def test_pickled_weights_of_an_encoder_are_told_as_such(registered, tmp_path):
    """As many have them that people embed with."""
    again = shutil.copytree(registered[1], tmp_path / "again", ignore=shutil.ignore_patterns("*.safetensors"))
    (again / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(NotFound, match=r"weights are pickled .*save_pretrained"):
        cut(again, CutOptions(TARGET, "one"), tmp_path / "out")
