"""`nodewire register` with a real relay and store: which way a folder is cut, and what is then on the market."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import nodewire
from bench.market.dag_models import EXPERTS, _made
from bench.tools.task_chain import Carved
from nodewire import cli
from nodewire.cli.common.manifest_file import read_manifest
from nodewire.cli.model.register import serve_block
from nodewire.config import Serve
from nodewire.kind import Registration
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol import kinds
from nodewire.protocol.model import manifest_event
from nodewire.store.blobs import Blobs
from nodewire.training.engine.models import vocabulary
from nodewire.weights import blob_folder
from tests.market.tiny_models import make_encoder

logging.getLogger("torch.__trace").disabled = True  # thousands of records, which pytest would keep
NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
MIXTRAL = {**EXPERTS, **SMALL}
LLAMA = {
    **{name: value for name, value in MIXTRAL.items() if "experts" not in name},
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
}


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    """The options that name a relay and its store."""
    folder = tmp_path_factory.mktemp("relay")
    command = ["relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs"), "--json"]
    process = subprocess.Popen([*NODEWIRE, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    ready = json.loads(process.stdout.readline())
    yield ["--relay", ready["url"], "--blossom", ready["blossom"]]
    process.terminate()
    process.wait(10)
    process.stdout.close()


@pytest.fixture
def servers(relay, tmp_path_factory):
    """The same, and an author who has published nothing."""
    return [*relay, "--key", str(tmp_path_factory.mktemp("author") / "author.nsec")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for name, config in (("llama", LLAMA), ("mixtral", MIXTRAL)):
        _made(config, made / name)
    return made


@pytest.fixture
def register(monkeypatch, capfd, servers):
    """`nodewire register ARGUMENTS --json` in this process: exit code, and what it says."""

    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["nodewire", "register", *arguments, *servers, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, json.loads(capfd.readouterr().out)

    return run


def test_a_decoder_is_cut_at_its_operators_where_that_is_asked_for(register, folders):
    code, done = register(str(folders / "llama"), "--as-tensors", "--target-vram", "300kB")
    assert code == 0, done
    assert {task["engine"] for task in done["tasks"]} == {"graph"}
    assert len(done["tasks"]) > 1
    assert all(task["memory_bytes"] <= 300_000 for task in done["tasks"])
    assert done["name"] == "llama"


def test_experts_are_in_as_many_tasks_as_is_asked_for(register, folders):
    counted = {}
    for groups in (1, 2, 4):
        how = ["--as-tensors", "--target-vram", "2MB", "--expert-groups", str(groups), "--replace"]
        code, done = register(str(folders / "mixtral"), *how)
        assert code == 0, done
        counted[groups] = sum(task["name"].startswith("experts.") for task in done["tasks"])
    assert counted == {1: 0, 2: 2, 4: 4}


def test_a_decoder_with_experts_is_cut_to_generate_text_where_it_has_a_tokenizer(register, folders, tmp_path):
    folder = shutil.copytree(folders / "mixtral", tmp_path / "speaks")
    code, said = register(str(folder), "--target-vram", "3MB")
    assert (code, said["error"]["field"]) == (1, "tokenizer.json")
    (folder / "tokenizer.json").write_bytes(vocabulary.of_bytes())
    code, done = register(str(folder), "--target-vram", "3MB")
    assert code == 0, done
    assert [task["engine"] for task in done["tasks"]][:2] == ["decoder.driver", "decoder.stage"]


@pytest.mark.parametrize(
    ("how", "field"), [([], "--expert-groups"), (["--as-tensors"], "expert_groups")], ids=["text", "tensors"]
)
def test_groups_of_experts_are_refused_where_there_are_none(register, folders, how, field):
    code, said = register(str(folders / "llama"), *how, "--target-vram", "2MB", "--expert-groups", "2")
    assert (code, said["error"]["code"], said["error"]["field"]) == (1, "bad-input", field)


@pytest.fixture(scope="module")
def own():
    torch.manual_seed(4)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return nn.Sequential(*layers).eval()


@pytest.fixture
def written(own, tmp_path):
    """What `nodewire.register` leaves of a module of one's own."""
    examples = [torch.zeros(n, 3, 16, 16) for n in (1, 4)]
    nodewire.register(own, examples, target_vram="2MB", out=tmp_path / "blobs", name="own")
    return tmp_path / "blobs"


async def _fetched(servers, address, folder):
    """A model as a provider gets it: its manifest from the relay, its blobs from the store."""
    relay, blossom = servers[1], servers[3]
    async with Pool([relay]) as pool, Blobs([blossom], folder) as blobs:
        events = await pool.fetch([Filter(kinds=frozenset({kinds.MANIFEST}))], timeout_s=10)
        (manifest,) = (manifest_event.parse(one) for one in events if manifest_event.address(one) == address)
        cited = [blob for task in manifest.tasks for blob in (task.program, *task.weights)]
        return Registration(manifest, {blob.sha256: await blobs.get(blob) for blob in cited}, ())


def test_a_module_of_ones_own_goes_from_python_to_the_market(register, servers, own, written, tmp_path):
    code, done = register(str(written))
    assert code == 0, done
    assert (done["name"], done["digest"]) == ("own", read_manifest(written).digest())
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(
            Carved(asyncio.run(_fetched(servers, done["address"], tmp_path)))({"input": images})["output"], own(images)
        )


def test_a_folders_model_is_cut_into_another_folder_and_registered_from_there(register, folders, tmp_path):
    out, how = tmp_path / "cut", ["--as-tensors", "--target-vram", "300kB"]
    code, kept = register(str(folders / "llama"), *how, "--out", str(out))
    assert code == 0, kept
    assert "address" not in kept
    assert read_manifest(out).name == "llama"
    code, done = register(str(out))
    assert code == 0, done
    assert (done["address"].rpartition(":")[2], done["tasks"][0]["name"]) == ("llama", kept["tasks"][0]["name"])
    for wrong in (
        [str(out), "--out", str(tmp_path / "more")],
        [str(folders / "llama"), *how, "--out", str(folders / "llama")],
    ):
        code, said = register(*wrong)
        assert (code, said["error"]["field"]) == (1, "--out")
    assert not (folders / "llama" / "manifest.msgpack").exists()


def test_a_model_in_a_folder_is_measured_before_anybody_has_it(written, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["nodewire", "profile", "--manifest", str(written), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = json.loads(capfd.readouterr().out)
    assert ended.value.code == 0, said
    assert [(task["task"], task["refused"]) for task in said["tasks"]] == [("graph.0", "")]
    assert said["tasks"][0]["calls"][0]["us"] > 0


def test_a_model_in_a_folder_is_run_here_as_it_would_be_by_strangers(own, written, tmp_path, monkeypatch, capfd):
    def run(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["nodewire", "run", *arguments, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, json.loads(capfd.readouterr().out)

    images, out = torch.rand(3, 3, 16, 16), tmp_path / "out.safetensors"
    save_file({"input": images}, tmp_path / "in.safetensors")
    save_file({"input": images[:, :2].contiguous()}, tmp_path / "wrong.safetensors")
    code, said = run(str(written), "--input", str(tmp_path / "in.safetensors"), "--out", str(out))
    assert code == 0, said
    with torch.no_grad():
        assert torch.equal(load_file(out)["output"], own(images))
    assert said["outputs"]["output"]["shape"] == [3, 5]
    code, said = run(str(written), "--input", str(tmp_path / "wrong.safetensors"))
    assert (code, said["error"]["field"]) == (1, "input")
    code, said = run(str(written), "--input", str(tmp_path / "in.safetensors"), "--wait")
    assert (code, said["error"]["field"]) == (1, "--wait")


def test_who_registers_is_told_what_a_provider_says_to_serve_it(servers, written):
    said = subprocess.run([*NODEWIRE, "register", str(written), *servers], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    address = re.search(r"^registered (38840:\S+)$", said.stdout, re.MULTILINE)[1]
    (served,) = tomllib.loads(said.stderr[said.stderr.index("[[serve]]") :])["serve"]
    assert Serve.model_validate(served).manifest == address
    assert served["tasks"] == ["graph.0"]


@pytest.mark.parametrize(
    ("mode", "price"), [("generate", {"price_per_million": 46_875}), ("embed", {"price_msat": 1000})]
)
def test_all_tasks_are_named_with_an_example_of_the_price_that_they_have(mode, price):
    names = [f"stage.{k}" for k in range(80)]
    manifest = SimpleNamespace(mode=mode, tasks=[SimpleNamespace(name=name) for name in names])
    said = serve_block("38840:ab:one", manifest)
    (served,) = tomllib.loads(said)["serve"]
    assert served["tasks"] == names
    read = Serve.model_validate({**served, "manifest": f"38840:{'ab' * 32}:one"}).model_dump()
    assert {name: read[name] for name in ("price_per_million", "price_msat") if read[name] is not None} == price
    assert "an example" in said and "`nodewire models`" in said


@pytest.fixture
def speaking(folders, tmp_path):
    folder = shutil.copytree(folders / "llama", tmp_path / "speaking")
    (folder / "tokenizer.json").write_bytes(vocabulary.of_bytes())
    return folder


@pytest.fixture
def uncut(monkeypatch):
    """No weight is written."""

    def write(*_):
        raise AssertionError("it was cut before it was checked")

    monkeypatch.setattr(blob_folder, "write", write)


def test_a_template_that_cannot_be_published_is_known_before_the_cut(register, speaking, uncut):
    (speaking / "chat_template.jinja").write_text("x" * 200_000)
    assert register(str(speaking))[1]["error"]["field"] == "chat_template"


def test_a_key_and_a_relay_are_tried_before_the_cut(monkeypatch, capfd, servers, speaking, uncut, tmp_path):
    (tmp_path / "bad.nsec").write_text("no key")
    gone = ["--relay", "ws://127.0.0.1:9", "--blossom", "http://127.0.0.1:9", "--key", str(tmp_path / "new.nsec")]
    for how in ([*servers[:-1], str(tmp_path / "bad.nsec")], gone):
        monkeypatch.setattr(sys, "argv", ["nodewire", "register", str(speaking), *how, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1
        assert json.loads(capfd.readouterr().out)["error"]["field"]


def test_what_would_be_replaced_is_asked_before_the_cut(register, speaking, monkeypatch):
    code, done = register(str(speaking), "--name", "taken")
    assert code == 0, done
    monkeypatch.setattr(blob_folder, "write", None)
    code, said = register(str(speaking), "--name", "taken", "--context", "16")
    assert (code, said["error"]["field"]) == (1, "--replace")


def test_pieces_lie_once_in_the_scratch_folder(register, speaking, tmp_path, monkeypatch):
    scratch, seen = tmp_path / "scratch", {}
    upload = Blobs.upload

    async def seeing(blobs, source, *more):
        seen[source.name] = [path for path in scratch.rglob("*") if path.name == source.name]
        assert source.parent.parent == scratch
        return await upload(blobs, source, *more)

    monkeypatch.setattr(Blobs, "upload", seeing)
    code, done = register(str(speaking), "--scratch", str(scratch))
    assert code == 0, done
    assert len(seen) + 1 == done["blobs"]
    assert all(len(found) == 1 for found in seen.values())
    assert not list(scratch.iterdir())
    monkeypatch.setattr(blob_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    code, said = register(str(speaking), "--scratch", str(scratch), "--name", "more")
    assert code == 1 and str(scratch) in said["error"]["field"] and "--scratch" in said["error"]["reason"]


def test_it_is_published_under_another_name_and_drawn_before(register, written, tmp_path):
    code, done = register(str(written), "--name", "other")
    assert (code, done["name"]) == (0, "other")
    assert done["address"].endswith(":other")
    drawn = subprocess.run([*NODEWIRE, "graph", str(written), "-o", str(tmp_path / "own.svg")], capture_output=True)
    assert drawn.returncode == 0, drawn.stderr
    assert "graph.0" in (tmp_path / "own.svg").read_text()


def test_of_what_is_cut_no_cut_is_asked_for_and_every_blob_is_as_it_was(register, written):
    code, said = register(str(written), "--target-vram", "1MB")
    assert (code, said["error"]["field"]) == (1, "--target-vram")
    largest = max((one for one in written.iterdir() if len(one.name) == 64), key=lambda one: one.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 1
    largest.write_bytes(data)
    assert register(str(written))[1]["error"]["code"] == "bad-hash"
    largest.write_bytes(data[:-1])
    assert register(str(written))[1]["error"]["field"] == str(largest)
    largest.unlink()
    assert register(str(written))[1]["error"]["code"] == "not-found"


def test_the_most_of_a_call_is_chosen_by_name(register, folders):
    code, done = register(str(folders / "llama"), "--as-tensors", "--target-vram", "2MB", "--most", "batch=3")
    assert code == 0, done
    assert "batch up to 3," in done["report"][0]
    for said, part in (("batch", "NAME=SIZE"), ("rows=3", "batch, sequence"), ("sequence=999999", "from 1 to")):
        code, refused = register(str(folders / "llama"), "--as-tensors", "--target-vram", "2MB", "--most", said)
        assert part in refused["error"]["reason"]


def test_a_target_that_is_too_small_is_answered_with_the_module_the_calls_and_a_remedy(register, folders):
    code, said = register(str(folders / "llama"), "--as-tensors", "--target-vram", "20kB")
    assert (code, said["error"]["code"]) == (1, "over-memory")
    assert "(" in said["error"]["field"], "the module's path, and the operator in it"
    assert re.search(
        r"^needs a target of [\d.]+[kM]B, 20 kB given, for calls of \d+ positions", said["error"]["reason"]
    )
    assert "--most sequence=" in said["error"]["reason"]


def test_one_position_that_does_not_fit_is_not_told_of_smaller_calls(register, tmp_path):
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vit = {"model_type": "vit", "architectures": ["ViTModel"], "image_size": 16, "patch_size": 8, **small}
    _made(vit, tmp_path / "vit")
    code, said = register(str(tmp_path / "vit"), "--target-vram", "10kB")
    assert (code, said["error"]["code"]) == (1, "over-memory")
    assert re.search(r"^needs a target of [\d.]+kB, 10 kB given, for calls of 1 position$", said["error"]["reason"])


def test_an_architecture_that_is_not_known_is_told_of_the_way_that_any_module_goes(register, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}))
    code, said = register(str(tmp_path), "--dry-run")
    assert (code, said["error"]["code"]) == (1, "unsupported")
    assert "nodewire.register" in said["error"]["reason"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "name a model's folder or a GGUF file"),
        ("{", "names no architecture"),
        ('{"architectures": []}', "names no architecture"),
        ('{"architectures": [["LlamaForCausalLM"]]}', "those that generate text are"),
        (" " * 2**20 + "{}", "more than 1048576 bytes"),
    ],
)
def test_a_folder_whose_architecture_cannot_be_read_is_told_so(register, tmp_path, config, reason):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code, said = register(str(tmp_path), "--dry-run")
    assert code == 1
    assert reason in said["error"]["reason"]


def test_pickled_weights_are_told_as_such(register, folders, tmp_path):
    shutil.copytree(folders / "llama", tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"")
    code, said = register(str(tmp_path / "old"), "--as-tensors")
    assert (code, said["error"]["field"]) == (1, "model.safetensors")
    assert "save_pretrained" in said["error"]["reason"]


def test_an_encoder_without_a_tokenizer_is_cut_to_be_called_with_tensors_or_not_at_all(register, tmp_path):
    folder = make_encoder(tmp_path / "bert")
    (folder / "tokenizer.json").unlink()
    code, said = register(str(folder), "--target-vram", "1MB")
    assert (code, said["error"]["field"]) == (1, "tokenizer.json")
    assert "--as-tensors" in said["error"]["reason"]


def test_what_is_missing_or_cut_short_is_named_before_the_model_is_built(register, folders, tmp_path):
    said = register(str(tmp_path / "nothing"))[1]["error"]
    assert (said["code"], said["field"]) == ("not-found", str(tmp_path / "nothing"))
    assert "--as-tensors" in register(str(folders / "llama"))[1]["error"]["reason"]
    shutil.copytree(folders / "mixtral", tmp_path / "short")
    weights = tmp_path / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    said = register(str(tmp_path / "short"), "--as-tensors")[1]["error"]
    assert said["field"] == "model.safetensors"
    assert said["reason"].startswith("cut short: tensors end at byte")
