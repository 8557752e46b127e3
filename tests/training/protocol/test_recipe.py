"""A recipe is one canonical document, capped number by number and as a whole, and says what it costs."""

from __future__ import annotations

import tomllib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadRecipe, BadVersion, TooLarge
from nodewire.training.protocol.recipe import MAX_MEMORY_BYTES, MAX_PARAMETERS, MAX_ROUND_FLOPS, Recipe

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


def test_a_late_result_weighs_half_and_one_that_is_later_nothing():
    recipe = Recipe.from_toml(DIGITS).model_copy(update={"batch": 25})
    assert [recipe.weight(3, late) for late in range(4)] == [75, 37, 0, 0]


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


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("compression", "bits", 8.0),
        ("compression", "block", 256.0),
        ("profile", "threads", 1.0),
        ("profile", "threads", True),
    ],
)
def test_what_equals_an_integer_and_is_none_is_refused(table, field, value):
    document = Recipe.from_toml(DIGITS).document()
    document[table][field] = value
    with pytest.raises(BadRecipe, match=rf"{table}\.{field}"):
        Recipe.from_document(document)


def test_what_is_no_recipe_is_refused():
    with pytest.raises(TooLarge):
        Recipe.from_toml("#" * 40_000)
    with pytest.raises(BadRecipe, match="not TOML"):
        Recipe.from_toml("]")
    with pytest.raises(BadVersion):
        Recipe.from_toml("v = 2\n" + DIGITS)


DECODER = """
name = "bytes"
loss = "next_token"
steps = 20
batch = 16
rounds = 40
precision = "bf16"
[family]
name = "decoder"
tokens = "byte"
width = 128
inner = 352
layers = 2
heads = 4
kv_heads = 2
head_dim = 32
positions = 64
start = { sha256 = "0000000000000000000000000000000000000000000000000000000000000000", bytes = 9 }
[adapter]
rank = 4
alpha = 8
targets = ["q_proj"]
[data]
layout = "bytes"
window = 64
[inner]
optimizer = "muon"
lr = 1
momentum = 0.95
[outer]
method = "nesterov"
lr = 0.7
momentum = 0.9
aggregate = "trimmed"
tolerated = 1
[compression]
method = "topk"
bits = 2
"""


@pytest.mark.parametrize(
    ("said", "instead", "reason"),
    [
        ("kv_heads = 2", "kv_heads = 3", "kv_heads"),
        ("window = 64", "window = 65", "window"),
        ("window = 64", "window = 1", "window"),
        ("head_dim = 32", "head_dim = 31", "head_dim"),
        ('tokens = "byte"', 'tokens = "bpe"', "tokenizer"),
        ('tokens = "byte"', 'tokens = "byte"\nvocabulary = 255', "vocabulary"),
        ('tokens = "byte"', 'tokens = "byte"\nends = [256]', "ends"),
        ('targets = ["q_proj"]', 'targets = ["q_proj", "query"]', "query"),
        ('targets = ["q_proj"]', "targets = []", "targets"),
        ("tolerated = 1", "tolerated = 0", "tolerated"),
        ("bits = 2", "bits = 3", "bits"),
        ("bits = 2", "fraction = 0.0", "fraction"),
        ("rounds = 40", "rounds = 40\ndeadline = 0", "deadline"),
        ("batch = 16", "batch = 65536\nseed = -1", "seed"),
    ],
)
def test_what_contradicts_itself_is_named(said, instead, reason):
    assert Recipe.from_toml(DECODER).inner.lr == "1.0"
    with pytest.raises(BadRecipe, match=reason):
        Recipe.from_toml(DECODER.replace(said, instead, 1))


@pytest.mark.parametrize(
    ("changes", "product"),
    [
        ({"width": 65_536, "inner": 262_144, "layers": 256}, "parameters"),
        ({"vocabulary": 2**20, "width": 65_536}, "parameters"),
        ({"layers": 256, "positions": 2**17, "window": 2**17, "batch": 65_536, "steps": 1}, "memory_bytes"),
        ({"batch": 65_536, "steps": 100_000}, "samples"),
    ],
)
def test_products_are_bounded_not_only_numbers(changes, product):
    document = tomllib.loads(DECODER) | {"v": 1}
    document["inner"]["lr"], document["inner"]["momentum"] = "1.0", "0.95"
    document["outer"] |= {"lr": "0.7", "momentum": "0.9"}
    assert Recipe.from_document(document)
    for name, value in changes.items():
        part = document if name in ("batch", "steps") else document["data" if name == "window" else "family"]
        part[name] = value
    with pytest.raises(BadRecipe, match=product):
        Recipe.from_document(document)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**16, 2**20, 2**31, 2**53, 2**62, 2**63]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["1e308", "nan", "inf", "-0.0", "1e-400", "0x10", "１.0", "1_0.0", "decoder", "encoder", "texts"]),
    st.lists(st.integers(0, 2**64), max_size=70),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner)),
)


@settings(max_examples=60)
@given(st.data())
def test_a_mangled_recipe_is_refused_or_within_all_caps_and_takes_no_memory(given_data):
    document = Recipe.from_toml(given_data.draw(st.sampled_from([DIGITS, DECODER]))).document()
    for _ in range(given_data.draw(st.integers(1, 3))):
        at = document
        while True:
            name = given_data.draw(st.sampled_from(sorted(at)))
            if not isinstance(at[name], dict) or not at[name] or given_data.draw(st.integers(0, 4)) == 0:
                break
            at = at[name]
        at[name] = given_data.draw(VALUES)
    tracemalloc.start()
    try:
        recipe = Recipe.from_document(document)
    except BadInput:
        pass
    else:
        assert recipe.parameters() <= MAX_PARAMETERS
        assert recipe.memory_bytes() <= MAX_MEMORY_BYTES
        assert recipe.flops_per_round() <= MAX_ROUND_FLOPS
        assert recipe.upload_bytes() <= 2 * recipe.state_bytes() + 64 * recipe.compression.block
        assert Recipe.unpack(recipe.pack()) == recipe
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 * 2**20


@settings(max_examples=100)
@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_bytes_raise_a_typed_error(data):
    for read in (Recipe.unpack, Recipe.parse, lambda raw: Recipe.from_toml(raw.decode(errors="replace"))):
        with pytest.raises(BadInput):
            read(data)
