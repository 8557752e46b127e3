"""`nodewire train` before anything is bought: recipes, data and quotes, and what is said of them."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from nodewire.cli.train.quote import show_quote
from nodewire.cli.train.recipe import read_recipe
from nodewire.errors import BadConfig, BadData, BadRecipe, NoProvider, NotFound, OverBudget
from nodewire.protocol.model import families
from nodewire.training.customer.api import _made, kind_of
from nodewire.training.customer.dataset import look
from nodewire.training.customer.machine.state import Outer, State
from nodewire.training.customer.quote import Quote, quote
from nodewire.training.engine import bare_loop, data, sample_files, state
from nodewire.training.engine.models import initial_weights
from nodewire.training.protocol import recipe as recipes
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.round import check_supported
from nodewire.training.protocol.trainer_ad import Trainer
from tests.cli.here import run_here
from tests.kinds.digits import RECIPE, TOML, dataset

ADA = Trainer(
    name="ada",
    kinds=(8840, 8841),
    families=("mlp", "decoder"),
    msat_per_pflop=1,
    least_msat=7_001,
    gflops=10,
    memory_bytes=10**9,
    most_bytes=10**8,
    concurrency=1,
    deposit_ppm=250_000,
    lnurl="https://ada.example/pay",
)
BYTES = """
name = "bytes"
loss = "next_token"
steps = 10
batch = 2
rounds = 2
[family]
name = "decoder"
tokens = "byte"
width = 16
inner = 32
layers = 1
heads = 2
kv_heads = 2
head_dim = 8
positions = 64
[data]
layout = "bytes"
window = 32
block = 64
[inner]
optimizer = "adamw"
lr = 0.001
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    (made / "digits.safetensors").write_bytes(state.pack(dataset()))
    return made


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


# Recipes.


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (TOML.replace("steps = 20", "setps = 20"), 4, "setps: unknown field; did you mean steps?"),
        (TOML.replace("hidden", "hiden"), 11, "family.hiden: unknown field; did you mean hidden?"),
        (TOML.replace("lr = 0.1", "lr = -1"), 17, "inner.lr: not from 0.0 to 10000.0"),
        (TOML.replace("classes = 10\n", ""), 8, "family.classes: missing"),
        (TOML.replace('"arrays"', '"bytes"'), 14, "data.layout: mlp is trained on arrays"),
        (TOML.replace("batch = 32", "batch = 0"), 5, "batch: Input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_said_with_its_line(tmp_path, text, line, said):
    path = written(tmp_path, text)
    with pytest.raises(BadRecipe) as caught:
        read_recipe(path)
    assert str(caught.value) == f"{path}, line {line}: {said}"


def test_a_recipe_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(BadConfig, match=r"nowhere\.toml: cannot be read"):
        read_recipe(tmp_path / "nowhere.toml")
    with pytest.raises(BadRecipe, match="not TOML"):
        read_recipe(written(tmp_path, "name = "))


# Data.


def test_sizes_seen_from_outside_are_those_of_the_shards(folder):
    found = look(RECIPE, folder)
    shards, _ = data.split(sample_files.read(RECIPE, folder), 3, RECIPE)
    packed = max(len(shard.packed) for shard in shards)
    assert packed - 200 < found.shard_bytes(RECIPE, 3) <= packed


def test_sizes_of_bytes_are_those_of_the_shards(tmp_path):
    recipe = Recipe.from_toml(BYTES)
    for i in range(5):
        (tmp_path / f"{i}.txt").write_bytes(bytes(range(256)) * 3)
    shards, _ = data.split(sample_files.read(recipe, tmp_path), 2, recipe)
    assert look(recipe, tmp_path).shard_bytes(recipe, 2) == max(map(len, shards))


@pytest.mark.parametrize("recipe", [RECIPE, Recipe.from_toml(BYTES)], ids=["arrays", "bytes"])
def test_an_empty_folder_is_refused_before_anything_happens(tmp_path, recipe):
    with pytest.raises(BadData, match="empty"):
        look(recipe, tmp_path)


def test_data_of_another_layout_are_refused_with_what_was_found(tmp_path, folder):
    (folder / "more.csv").write_text("1,2,3\n")
    with pytest.raises(
        BadData, match=r"found digits\.safetensors .* more\.csv \(6 bytes\); data\.layout = 'arrays' is one"
    ):
        look(RECIPE, folder)
    (folder / "digits.safetensors").unlink()
    with pytest.raises(BadData, match=r"found more\.csv"):
        look(RECIPE, folder)
    (folder / "more.csv").unlink()
    (folder / "a.safetensors").write_bytes(state.pack({"pixels": torch.zeros(3, 64)}))
    with pytest.raises(BadData, match="no tensor x in it, but pixels"):
        look(RECIPE, folder)
    (folder / "a.safetensors").write_bytes(state.pack({"x": torch.zeros(3, 28), "y": torch.zeros(3).long()}))
    with pytest.raises(
        BadData, match=r"x in a\.safetensors is \[3, 28\], the recipe's family takes rows of 64 numbers"
    ):
        look(RECIPE, folder)


def test_too_few_rows_for_the_shards_are_said_before_a_worker_starts(folder):
    with pytest.raises(BadData, match="600 rows are too few for 600 shards"):
        look(RECIPE, folder).shard_bytes(RECIPE, 600)
    with pytest.raises(BadData):
        data.split(dataset(), 600, RECIPE)


# Quotes.


def quoted(folder: Path, market: dict[str, Trainer], shards: int = 2, **more) -> Quote:
    return quote(RECIPE, 8840, look(RECIPE, folder), shards, market, servers=1, **more)


def test_a_quote_adds_up(folder):
    dear = ADA.model_copy(update={"name": "bea", "least_msat": 9_000, "gflops": 40})
    made = quoted(folder, {"a" * 64: ADA, "b" * 64: dear})
    assert made.round_msat == 7_001 + 9_000
    assert made.total_msat == 3 * made.round_msat
    assert made.deposit_msat == 1_751 + 2_250
    assert (made.parameters, made.memory_bytes > RECIPE.memory_bytes()) == (RECIPE.parameters(), True)
    made.check(made.total_msat)


def test_a_budget_that_does_not_cover_it_is_told_what_it_would_do_for(folder):
    made = quoted(folder, {"a" * 64: ADA, "b" * 64: ADA})
    with pytest.raises(
        OverBudget, match="42006 msat for 3 rounds on 2 shards, at most 30000 msat; it would do for 2 rounds"
    ):
        made.check(30_000)


def test_what_is_trained_already_needs_no_trainer_and_no_budget(folder):
    made = quoted(folder, {}, state=State(rounds=3, round=3))
    assert (made.left, made.total_msat) == (0, 0)
    made.check(0)


def test_who_does_not_fit_is_said_with_the_reason(folder):
    small = ADA.model_copy(update={"name": "small", "memory_bytes": 10**6})
    other = ADA.model_copy(update={"name": "other", "families": ("decoder",)})
    far = ADA.model_copy(update={"name": "far", "kinds": (8841,)})
    slim = ADA.model_copy(update={"name": "slim", "most_bytes": 1_000})
    made = quoted(folder, {"a" * 64: ADA, "b" * 64: small, "c" * 64: other, "d" * 64: far, "e" * 64: slim})
    refusals = {offer.name: offer.refusal for offer in made.offers}
    assert refusals["ada"] == ""
    assert "memory" in refusals["small"]
    assert refusals["other"] == "trains no mlp, only decoder"
    assert refusals["far"] == "takes no rounds of kind 8840"
    assert "fetches at most" in refusals["slim"]
    assert next(offer.shards for offer in made.offers if offer.name == "ada") == 2
    assert made.seconds == pytest.approx(3 * 2 * made.offers[0].seconds)  # one after the other
    with pytest.raises(NoProvider, match="far takes no rounds of kind 8840; other trains no mlp, only decoder"):
        quoted(folder, {"c" * 64: other, "d" * 64: far}).check(10**9)
    with pytest.raises(NoProvider, match="nobody on these relays trains"):
        quoted(folder, {}).check(10**9)


def test_a_quote_is_a_table_for_people(folder):
    out = io.StringIO()
    small = ADA.model_copy(update={"name": "small", "memory_bytes": 10**6})
    show_quote(
        quoted(folder, {"a" * 64: ADA, "b" * 64: ADA, "c" * 64: small}), Console(file=out, width=140), budget_msat=10**6
    )
    said = out.getvalue()
    assert "2,410 parameters; 3 rounds on 2 shards" in said
    assert "42.006 sat for all rounds" in said
    assert "small" in said and "has 1 MB of memory" in said
    assert "budget 1,000.000 sat" in said


def test_outer_steps_that_are_bought_are_in_the_total_and_no_budget_is_refused_for_them(folder):
    steps = ADA.model_copy(update={"name": "pia", "kinds": (8842,), "families": ("mlp",), "least_msat": 1_000})
    market = {"a" * 64: ADA, "b" * 64: steps}
    alone, made = quoted(folder, market), quoted(folder, market, buys_steps=True)
    assert (made.step_msat, made.steps_msat) == (1_000, 3_000)
    assert made.total_msat == alone.total_msat + 3_000
    assert made.fees_msat > alone.fees_msat and made.round_msat == alone.round_msat
    made.check(alone.total_msat)  # what the budget has no room for is made here
    with pytest.raises(OverBudget, match="42006 msat for 3 rounds"):
        made.check(alone.total_msat - 1)
    assert quoted(folder, {"a" * 64: ADA}, buys_steps=True).total_msat == alone.total_msat
    asked = State(rounds=3, round=1, outer=Outer(bought=True, status="working"))
    assert quoted(folder, market, buys_steps=True, state=asked).steps_msat == 1_000  # one is committed already
    out = io.StringIO()
    show_quote(made, Console(file=out, width=140), budget_msat=10**6, buys_steps=True)
    assert "45.006 sat for all rounds: 14.002 sat a round, 1.000 sat its outer step" in out.getvalue()
    assert "as far as the budget has room" in out.getvalue()


# The command.


def test_a_single_file_is_taken_as_data_for_a_quote_and_for_a_training(folder, tmp_path):
    file = folder / "digits.safetensors"
    assert look(RECIPE, file) == look(RECIPE, folder)
    assert _made(tmp_path / "made", file) == tmp_path / "made"
    with pytest.raises(NotFound, match="--data: nothing at"):
        _made(tmp_path / "made", folder / "none")


def test_help_does_not_load_torch_or_matplotlib():
    code = (
        "import sys; from nodewire.cli import app\n"
        "try: app(['train', '--help'])\n"
        "except SystemExit: print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def customer(folder: Path) -> Path:
    """A customer's file, of a market that nobody answers in."""
    role = folder / "customer.toml"
    role.write_text(
        'key = "key"\nstate = "state"\nrelays = ["ws://127.0.0.1:1"]\nblossom = ["http://127.0.0.1:1"]\n'
        f'committee = "38841:{"0" * 64}:main"\n[wallet]\nurl = "http://127.0.0.1:1"\ntoken_file = "token"\n'
    )
    return role


def test_a_training_without_a_budget_is_told_how_to_find_one(tmp_path, folder):
    role = str(customer(tmp_path))
    command = ["train", str(written(tmp_path, TOML)), "--data", str(folder), "--config", role, "--json"]
    done = run_here(*command, cwd=tmp_path)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["field"] == "--budget"
    assert "--quote" in error["reason"]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({}, "start: nothing at"),
        ({"y": 10}, "y: row 7 (the first is 0) is out of range: not from 0 to 9"),
        ({"x": float("nan")}, "x: row 7 (the first is 0) has a number that is not finite"),
    ],
    ids=["start", "labels", "numbers"],
)
def test_a_quote_refuses_what_a_training_would_refuse_before_it_asks_a_relay(tmp_path, folder, spoilt, said):
    found = dataset()
    for name, value in spoilt.items():
        found[name][7] = value
    (folder / "digits.safetensors").write_bytes(state.pack(found))
    start_at = [] if spoilt else ["--start", str(tmp_path / "none")]
    command = ["train", str(written(tmp_path, TOML)), "--data", str(folder), "--quote", *start_at, "--json"]
    command += ["--config", str(customer(tmp_path))]
    done = run_here(*command, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    error = json.loads(done.stdout)["error"]
    assert said in f"{error['field']}: {error['reason']}"


# The recipes in docs.

RECIPES = sorted((Path(__file__).parents[3] / "docs" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_in_the_docs_is_one_and_can_be_bought(path):
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    check_supported(recipe)
    assert kind_of(recipe).request == (8840 if recipe.outer.method == "average" else 8841)
    assert recipe.memory_bytes() < 2 * 10**9
    assert -(-recipe.steps // recipe.audit.segment) >= 2


@pytest.mark.parametrize(
    ("heading", "tables"),
    [
        ("The recipe", [Recipe]),
        ("`[family]`", [families.Decoder, families.Encoder, families.Cnn, families.Mlp, families.Linear]),
        ("`[adapter]`", [families.Lora]),
        ("`[data]`", [recipes.Data]),
        ("`[inner]`", [recipes.Inner]),
        ("`[outer]`", [recipes.Outer]),
        ("`[compression]`", [recipes.Compression]),
        ("`[validation]`", [recipes.Validation]),
        ("`[audit]`", [recipes.Audit]),
        ("`[profile]` and `[hardware]`", [recipes.Profile, recipes.Hardware]),
    ],
)
def test_every_field_of_a_recipe_is_in_the_docs_with_its_default(heading, tables):
    page = (RECIPES[0].parent.parent / "reference" / "recipes.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    said = {name.strip("| `").rpartition(".")[2]: row[-2] for row in rows for name in row[0].split(", ")}
    fields: dict[str, object] = {}
    for table in tables:
        fields = {name: field.default for name, field in table.model_fields.items()} | fields
    assert said.keys() == fields.keys()
    for name, default in fields.items():
        if isinstance(default, str | int | tuple):
            assert re.sub(r"[^\w.+-]", "", said[name]).lower() == re.sub(r"[^\w.+-]", "", str(default)).lower(), name


def test_the_adapters_recipe_starts_from_the_decoder_in_the_repository():
    (path,) = (path for path in RECIPES if path.stem == "pycoder-lora")
    pycoder = path.parent.parent.parent / "demo" / "model" / "pycoder"
    read = initial_weights.read(read_recipe(path), pycoder)
    assert read.tokenizer == (pycoder / "tokenizer.json").read_bytes()
    assert read.tensors is not None


@pytest.mark.parametrize("path", RECIPES[:2], ids=lambda path: path.stem)
def test_the_small_recipes_learn(path, folder, tmp_path):
    recipe = read_recipe(path)
    recipe = recipe.model_copy(update={"rounds": 2})
    if recipe.name == "bytes":
        (tmp_path / "text").write_bytes(Path(json.__file__).with_name("decoder.py").read_bytes())
    found = {"digits": folder, "bytes": tmp_path}[recipe.name]
    _, curve = bare_loop.run(recipe, sample_files.read(recipe, found), 2)
    assert curve[-1].held_out < curve[0].held_out
