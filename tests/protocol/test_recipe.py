"""A recipe is one canonical document, capped number by number and as a whole, and says what it costs."""

from __future__ import annotations

import pytest

from nodewire.errors import BadRecipe, BadVersion, TooLarge
from nodewire.protocol.recipe import Recipe

DIGITS = """
name = "digits"
loss = "cross_entropy"
steps = 12
batch = 32
rounds = 20
[family]
name = "mlp"
inputs = 64
hidden = [128]
classes = 10
[data]
layout = "arrays"
[inner]
optimizer = "sgd"
lr = 0.1
momentum = 0.9
"""


def test_toml_json_and_msgpack_are_one_recipe():
    recipe = Recipe.from_toml(DIGITS)
    assert Recipe.parse(recipe.to_json()) == Recipe.unpack(recipe.pack()) == recipe
    assert recipe.digest() == Recipe.parse(recipe.to_json()).digest()
    assert recipe.inner.lr == "0.1"


def test_a_recipe_says_what_it_costs():
    recipe = Recipe.from_toml(DIGITS)
    assert recipe.parameters() == recipe.trained() == 64 * 128 + 128 + 128 * 10 + 10
    assert recipe.flops_per_round() == 12 * (32 * 3 * 2 * (64 * 128 + 1280) + 20 * recipe.trained())
    assert recipe.state_bytes() == recipe.upload_bytes() == 4 * recipe.trained()
    assert recipe.total_steps() == 240


@pytest.mark.parametrize(
    ("said", "instead", "field"),
    [
        ("lr = 0.1", 'lr = "0.10"', "inner.lr"),
        ("lr = 0.1", "lr = 1e300", "inner.lr"),
        ("lr = 0.1", "lr = nan", "inner.lr"),
        ("lr = 0.1", "lr = -1.0", "inner.lr"),
        ("momentum = 0.9", "momentum = 1.0", "inner.momentum"),
        ("steps = 12", "steps = 1000000000", "steps"),
        ("hidden = [128]", "hidden = [1048577]", "family.mlp.hidden.0"),
        ("hidden = [128]", "hidden = []", "family.mlp.hidden"),
        ('name = "mlp"', 'name = "python"', "family"),
        ("rounds = 20", "rounds = 20\ncode = 'import os'", "code"),
        ('loss = "cross_entropy"', 'loss = "next_token"', "recipe"),
        ('layout = "arrays"', 'layout = "arrays"\nwindow = 8', "recipe"),
        ("hidden = [128]", "hidden = [1048576, 1048576]", "recipe"),
    ],
)
def test_what_is_outside_its_caps_is_named(said, instead, field):
    with pytest.raises(BadRecipe) as error:
        Recipe.from_toml(DIGITS.replace(said, instead))
    assert error.value.field == field


def test_numbers_without_quotes_are_for_toml_only():
    document = Recipe.from_toml(DIGITS).document()
    document["inner"]["lr"] = 0.1
    with pytest.raises(BadRecipe, match=r"inner\.lr"):
        Recipe.from_document(document)


def test_what_is_no_recipe_is_refused():
    with pytest.raises(TooLarge):
        Recipe.from_toml("#" * 40_000)
    with pytest.raises(BadRecipe, match="not TOML"):
        Recipe.from_toml("]")
    with pytest.raises(BadVersion):
        Recipe.from_toml("v = 2\n" + DIGITS)
