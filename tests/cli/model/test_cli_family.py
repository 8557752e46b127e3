"""What a recipe has to cite is printed as it has to be written."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from nodewire.cli import app
from nodewire.training.engine.models import initial_weights
from nodewire.training.protocol.recipe import Recipe
from tests.training import models
from tests.training.models import MAKERS

RUN = CliRunner()


@pytest.mark.parametrize("name", ["bpe-decoder-tuned", "encoder-tuned"])
def test_a_models_folder_is_printed_as_a_recipes_family(name, tmp_path):
    given = models.given(name, tmp_path)
    printed = RUN.invoke(app, ["family", str(given.start)])
    assert printed.exit_code == 0, printed.output
    table = tomllib.loads(printed.stdout)["family"]
    recipe = Recipe.from_document({**given.recipe.document(), "family": table})
    assert recipe.family == given.recipe.family
    assert initial_weights.read(recipe, given.start).tensors.keys() == given.tensors.keys()


def test_a_vocabulary_is_learned_and_cited(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "start").mkdir()
    document = MAKERS["bpe-decoder"](tmp_path)
    (tmp_path / "start" / "tokenizer.json").unlink()
    command = ["vocabulary", str(tmp_path / "data"), "--size", "270", "--out", str(tmp_path / "start")]
    printed = RUN.invoke(app, command)
    assert printed.exit_code == 0, printed.output
    said = tomllib.loads(printed.stdout)
    assert said == {name: document["family"][name] for name in said}
    assert 257 < said["vocabulary"] <= 270
    nowhere = RUN.invoke(app, [*command[:-1], str(tmp_path / "missing")])
    assert "--out" in str(nowhere.exception)
