"""`nodewire register --dry-run`: what registering a folder would make; nobody reads its weights, if it has any."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import nodewire
from bench.market.dag_models import CLIP, EXPERTS, _made
from nodewire import cli
from nodewire.cli.model.cut import CutOptions, cut, registration_report
from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.training.engine.families import initial
from nodewire.training.engine.models import directory, vocabulary
from nodewire.weights.blob_folder import UNREAD
from tests.kinds.digits import RECIPE
from tests.kinds.llama import make_llama
from tests.market.tiny_models import make_encoder

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
ASKED = {
    "decoder": CutOptions(1_600_000, "one", slots=2),
    "tensors": CutOptions(300_000, "one", as_tensors=True),
    "mixture": CutOptions(3_000_000, "one"),
    "encoder": CutOptions(400_000, "one"),
    "classifier": CutOptions(100_000, "one"),
    "experts": CutOptions(2_000_000, "one", as_tensors=True, expert_groups=4),
    "sharded": CutOptions(2_000_000, "one", as_tensors=True, expert_groups=2),
    "branches": CutOptions(3_000_000, "one", most={"batch": 2, "images": 2}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    make_llama(made / "decoder")
    shutil.copytree(made / "decoder", made / "tensors")
    make_encoder(made / "encoder")
    (made / "classifier").mkdir()
    directory.save(made / "classifier", RECIPE, initial(RECIPE))
    _made({**EXPERTS, **SMALL}, made / "experts")
    shard(made / "experts", made / "sharded")
    shutil.copytree(made / "experts", made / "mixture")
    (made / "mixture" / "tokenizer.json").write_bytes(vocabulary.of_bytes())
    _made({**CLIP, "text_config": CLIP["text_config"] | SMALL, "vision_config": CLIP["vision_config"] | SMALL},
          made / "branches")  # fmt: skip
    return made


@pytest.fixture(scope="module")
def foreseen(folders):
    """A folder's dry run, by name; each is made once."""
    return functools.cache(lambda name: cut(folders / name, ASKED[name], None))


def shard(folder, into, count=3):
    """The same model with its weights in several files."""
    shutil.copytree(folder, into)
    with safe_open(into / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (into / "model.safetensors").unlink()
    names, where = sorted(tensors), {}
    for k in range(count):
        own = names[k::count]
        where |= dict.fromkeys(own, f"model-{k}.safetensors")
        save_file({name: tensors[name] for name in own}, into / f"model-{k}.safetensors")
    (into / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def unhashed(manifest):
    """A manifest's document with each blob of weights by when it first appears, instead of its hash."""
    said = json.loads(manifest.to_json())
    seen: dict[str, str] = {}
    for task in said["tasks"]:
        for blob in task["weights"]:
            blob["sha256"] = seen.setdefault(blob["sha256"], str(len(seen)))
    return said


@pytest.mark.parametrize("name", ASKED)
def test_it_says_of_everything_but_the_weights_hashes_what_a_registration_makes(folders, foreseen, tmp_path, name):
    real, dry = cut(folders / name, ASKED[name], tmp_path / "blobs"), foreseen(name)
    assert unhashed(dry.manifest) == unhashed(real.manifest)
    assert dry.report == tuple(line for line in real.report if not line.startswith("beside the model itself"))
    assert (dry.pieces, dry.lacks) == (real.pieces, ())
    assert len(real.manifest.tasks) > 1 or name == "classifier"
    assert dry.upload_bytes == real.upload_bytes
    assert dry.upload_bytes == sum(path.stat().st_size for path in real.blobs.values()) + len(real.manifest.pack())
    assert not dry.blobs
    weights = [blob.sha256 for task in dry.manifest.tasks for blob in task.weights]
    assert weights and (name in ("decoder", "mixture") or all(one.startswith(UNREAD) for one in weights))
    assert set(dry.pieces) == {task.name for task in dry.manifest.tasks}


@pytest.mark.parametrize("name", ASKED)
def test_a_configuration_alone_is_enough_and_what_is_lacking_is_named(folders, foreseen, tmp_path, name):
    for file in ("config.json", "recipe.json"):
        if (folders / name / file).exists():
            shutil.copy(folders / name / file, tmp_path / file)
    whole, bare = foreseen(name), cut(tmp_path, ASKED[name], None)
    assert bare.lacks[0] == "model.safetensors"
    assert ("tokenizer.json" in bare.lacks) == (name in ("decoder", "mixture", "encoder"))
    for task, other in zip(whole.manifest.tasks, bare.manifest.tasks, strict=True):
        if not task.name.startswith("driver"):  # which holds the tokenizer
            assert (task.name, task.memory_bytes, task.flops) == (other.name, other.memory_bytes, other.flops)
            assert [blob.bytes for blob in task.weights] == [blob.bytes for blob in other.weights]
    assert whole.manifest.edges == bare.manifest.edges


def test_a_chat_template_is_counted_in_what_would_be_uploaded(folders, foreseen, tmp_path):
    talks = shutil.copytree(folders / "decoder", tmp_path / "talks")
    (talks / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    dry, real = cut(talks, ASKED["decoder"], None), cut(talks, ASKED["decoder"], tmp_path / "blobs")
    assert unhashed(dry.manifest) == unhashed(real.manifest)
    assert real.manifest.chat is not None and real.manifest.chat.sha256 in real.blobs
    assert dry.report == real.report and "chat template" in dry.report[-1]
    assert dry.pieces == real.pieces and not dry.blobs
    assert dry.upload_bytes == sum(path.stat().st_size for path in real.blobs.values()) + len(real.manifest.pack())
    assert registration_report(dry)["blobs"] == registration_report(foreseen("decoder"))["blobs"] + 1


@pytest.fixture
def said(monkeypatch, capfd, tmp_path):
    """`nodewire register ARGUMENTS --dry-run`, in an empty folder that stays so: exit code and output."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["nodewire", "register", *arguments, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not list(here.iterdir())
        out = capfd.readouterr()
        return ended.value.code, json.loads(out.out) if "--json" in arguments else out.out + out.err

    return run


def test_the_command_needs_no_relay_no_store_and_no_key(said, folders, monkeypatch):
    def no(*_):
        raise AssertionError("a key was asked for")

    monkeypatch.setattr(Keys, "from_file", no)
    how = ["--as-tensors", "--target-vram", "2MB", "--expert-groups", "4"]
    code, done = said(str(folders / "experts"), *how, "--json")
    assert code == 0
    experts = [task for task in done["tasks"] if task["name"].startswith("experts.")]
    assert len({task["step"] for task in experts}) == 1
    assert [task["holds"][0].split(" of ")[0] for task in experts] == [f"rows {k} to {k}" for k in range(4)]
    assert all(task["memory_bytes"] >= task["peak_bytes"] > task["loaded_bytes"] for task in done["tasks"])
    assert any(task["most_at"] for task in done["tasks"])
    assert {"source", "target", "tensors", "bytes_per_position"} <= set(done["edges"][0])
    assert done["upload_bytes"] > sum(task["weights_bytes"] for task in done["tasks"]) > 0
    assert "address" not in done and "digest" not in done


def test_a_model_without_weights_is_placed_from_its_configuration_alone(said, folders, tmp_path, monkeypatch, capfd):
    """And what was written so is no registration, which has pieces."""
    shutil.copytree(folders / "tensors", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    plan = tmp_path / "plan"
    code, done = said(str(tmp_path / "bare"), "--as-tensors", "--target-vram", "300kB", "--out", str(plan), "--json")
    assert (code, done["out"]) == (0, str(plan))
    assert [one.name for one in plan.iterdir()] == ["manifest.msgpack"]
    machines = {"nodes": [{"name": "a", "memory": "1MB"}, {"name": "b", "memory": "1MB"}]}
    (tmp_path / "machines.json").write_text(json.dumps(machines))
    monkeypatch.setattr(
        sys, "argv", ["nodewire", "place", str(plan), "--nodes", str(tmp_path / "machines.json"), "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    placed = json.loads(capfd.readouterr().out)
    assert ended.value.code == 0, placed
    held = [task for tasks in placed["placements"][0]["nodes"].values() for task in tasks]
    assert {task["name"] for task in done["tasks"]} <= set(held)
    code, refused = said(str(plan), "--json", "--dry-run")
    assert (code, refused["error"]["code"]) == (1, "not-found")


def test_people_see_a_table_what_is_to_be_uploaded_and_what_is_missing(said, folders, tmp_path):
    shutil.copytree(folders / "branches", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    code, text = said(str(tmp_path / "bare"), "--target-vram", "3MB")
    assert code == 0
    assert "nothing published" in text
    assert "to upload, in" in text
    assert "lacks model.safetensors" in text
    assert "merge" in text and "vision" in text
    assert re.search(r"^vision\S* takes most at \S+ \(\S+\).*; sends float32 \[.*\] to \S+ \(", text, re.MULTILINE)


def test_what_does_not_fit_is_named_with_a_target_that_would(said, folders):
    code, done = said(str(folders / "tensors"), "--as-tensors", "--target-vram", "20kB", "--json")
    assert (code, done["error"]["code"]) == (1, "over-memory")
    assert "needs a target of" in done["error"]["reason"]
    code, done = said(str(folders / "decoder"), "--target-vram", "20kB", "--json")
    assert (code, done["error"]["code"]) == (1, "over-memory")


def test_of_shards_nothing_is_read_but_their_headers(folders, tmp_path):
    """Their bytes are holes in files of 4 GiB each, which nobody reads in this test's time."""
    from nodewire.weights.tensorfile import read_header

    shutil.copytree(folders / "sharded", tmp_path / "large")
    config = json.loads((tmp_path / "large" / "config.json").read_text())
    config |= {"vocab_size": 2**25}
    (tmp_path / "large" / "config.json").write_text(json.dumps(config))
    for path in sorted((tmp_path / "large").glob("*.safetensors")):
        header, end = {}, 0
        for name, one in read_header(path).items():
            shape = [2**25 if size == EXPERTS["vocab_size"] else size for size in one.shape]
            nbytes = 4 * torch.Size(shape).numel()
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + nbytes]}
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        with path.open("r+b") as file:
            file.truncate(8 + len(text) + end)
    made = cut(tmp_path / "large", CutOptions(2**35, "one", as_tensors=True), None)
    assert made.upload_bytes > 2 * 2**25 * 32 * 4
    assert not made.lacks


def test_a_checkpoint_that_is_of_another_shape_is_refused_before_anything_is_read(folders, tmp_path):
    shutil.copytree(folders / "sharded", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"vocab_size": 1_000}))
    with pytest.raises(BadInput, match="the model makes it"):
        cut(tmp_path / "other", CutOptions(2**24, "one", as_tensors=True), None)


def test_what_is_cut_already_is_told_too(said, tmp_path):
    made = nodewire.register(
        nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).eval(),
        [torch.zeros(1, 64), torch.zeros(4, 64)],
        target_vram="20kB",
        out=tmp_path / "blobs",
        name="own",
    )
    code, done = said(str(tmp_path / "blobs"), "--json")
    assert (code, done["name"], done["upload_bytes"]) == (0, "own", made.upload_bytes)
    code, text = said(str(tmp_path / "blobs"), "--context", "64")
    assert code == 1 and "is cut already. Cut the model's own folder again" in " ".join(text.split())


def test_from_python_a_module_without_weights_is_told_as_one_with_them(tmp_path):
    def layers(device):
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).to(device).eval()

    def register(device, **how):
        examples = [torch.zeros(n, 64) for n in (1, 4)]
        return nodewire.register(layers(device), examples, target_vram="20kB", name="own", **how)

    dry, real = register("meta", dry_run=True), register("cpu", out=tmp_path / "blobs")
    assert unhashed(dry.manifest) == unhashed(real.manifest)
    assert not register("cpu", dry_run=True, out=tmp_path / "none").blobs
    assert not (tmp_path / "none").exists()
    with pytest.raises(BadInput, match="only a dry run"):
        register("cpu")


def test_a_decoders_context_sessions_and_numbers_are_what_is_asked_for(said, folders):
    def stage(done):
        return next(task for task in done["tasks"] if task["name"] == "stage.0")

    folder, how = str(folders / "decoder"), ["--target-vram", "1GB", "--json"]
    _, plain = said(folder, *how)
    assert (plain["context"], {task["slots"] for task in plain["tasks"]}) == (160, {4})
    _, asked = said(folder, *how, "--context", "64", "--sessions", "2", "--dtype", "bfloat16", "--kv", "int8")
    assert (asked["context"], {task["slots"] for task in asked["tasks"]}) == (64, {2})
    assert asked["edges"][1]["tensors"][0]["dtype"] == "bfloat16"
    assert stage(asked)["memory_bytes"] < stage(plain)["memory_bytes"]
    assert stage(asked)["page_bytes"] < stage(plain)["page_bytes"] / 3
    code, refused = said(folder, *how, "--kv", "int8")
    assert (code, refused["error"]["field"]) == (1, "--kv") and "bfloat16" in refused["error"]["reason"]
    for option in (["--kv", "int4"], ["--dtype", "float16"]):
        code, refused = said(folder, *how, *option)
        assert (code, refused["error"]["field"]) == (1, option[0])


@pytest.mark.parametrize("option", [["--context", "64"], ["--dtype", "bfloat16"], ["--kv", "int8"]])
def test_what_only_decoders_have_is_refused_of_others(said, folders, option):
    code, refused = said(str(folders / "encoder"), *option, "--json")
    assert (code, refused["error"]["field"]) == (1, option[0])
    assert "decoders that generate text" in refused["error"]["reason"]


def test_the_table_names_the_change_that_would_fit(said, tmp_path):
    """Of a model that people have, with all of its context."""
    shutil.copy(Path(__file__).parents[3] / "bench" / "configs" / "llama-3.1-8b.json", tmp_path / "config.json")
    code, text = said(str(tmp_path), "--target-vram", "24GB", "--context", "131072")
    assert code == 0
    assert "with 4 sessions of 131072 positions" in text
    assert re.search(r"^ +4GB +- +- +--context 65536 would fit 4GB", text, re.MULTILINE)
    assert re.search(r"^ +24GB +\d+ +\d+ x 131072", text, re.MULTILINE)
    code, done = said(str(tmp_path), "--target-vram", "4GB", "--context", "131072", "--json")
    assert (code, done["error"]["code"]) == (1, "over-memory")
    assert done["error"]["reason"].endswith("--context 65536 would fit")
