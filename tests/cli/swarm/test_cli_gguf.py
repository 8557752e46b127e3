"""A GGUF file in place of a model's folder: every command that takes one."""

import json
import sys
from dataclasses import replace

import pytest

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz.hostile_gguf import F32, TEXT, U32
from nodewire import cli
from nodewire.cli.model.cut import CutOptions, cut
from nodewire.cli.swarm import swarm_cut
from nodewire.llm.local.reference import generate
from nodewire.protocol.market.static_swarm import Swarm


def run(monkeypatch, *words):
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["nodewire", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "Tiny-Q8.gguf"
    path.write_bytes(hostile.small().encode())
    return path


def test_it_generates_as_it_does_when_it_is_called(model, monkeypatch, capfd):
    asked = ("--max-tokens", 6, "--temperature", 0, "--json")
    assert run(monkeypatch, "generate", "the end", "--local", model, *asked) == 0
    assert json.loads(capfd.readouterr().out)["text"] == "".join(generate(model, "the end", 6, temperature=0))


def test_it_is_foreseen_and_cut_with_its_template_and_under_its_name(model, tmp_path, monkeypatch, capfd):
    assert run(monkeypatch, "register", model, "--dry-run", "--json") == 0
    foreseen = json.loads(capfd.readouterr().out)
    assert run(monkeypatch, "register", model, "--out", tmp_path / "out", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["name"] == "tiny-q8" and said["mode"] == "generate" and not said["lacks"]
    assert [task["memory_bytes"] for task in said["tasks"]] == [task["memory_bytes"] for task in foreseen["tasks"]]
    assert cut(model, CutOptions(10**9, "one"), tmp_path / "again").manifest.chat is not None


def test_it_is_quantized(model, tmp_path, monkeypatch, capfd):
    assert run(monkeypatch, "quantize", model, tmp_path / "int8", "--to", "int8", "--json") == 0
    assert json.loads(capfd.readouterr().out)["files"] == ["model.safetensors"]
    assert run(monkeypatch, "generate", "the", "--local", tmp_path / "int8", "--max-tokens", 3, "--json") == 0


async def test_a_swarms_node_cuts_its_part_and_anew_when_the_file_has_changed(model, tmp_path):
    mine, other = "aa" * 32, "bb" * 32
    nodes = [{"public": mine}, {"public": other}]
    file = hostile.small().saying("llama.block_count", U32, 2)
    more = [
        replace(one, name=one.name.replace("blk.0", "blk.1")) for one in file.tensors if one.name.startswith("blk.0")
    ]
    file = replace(file, tensors=(*file.tensors, *more))
    model.write_bytes(file.encode())
    swarm = Swarm.from_document({"v": 1, "name": "tiny", "driver": mine, "nodes": nodes})
    manifest, blobs, folder = await swarm_cut.cut(swarm, mine, model, tmp_path / "cut")
    whole = cut(model, CutOptions(10**9, "tiny", split=((0, 0), (1, 1))), tmp_path / "whole").manifest
    assert [(one.program, one.weights) for one in manifest.tasks] == [(one.program, one.weights) for one in whole.tasks]
    assert manifest.chat == whole.chat
    assert manifest.chat.sha256 in blobs and all(path.is_file() for path in blobs.values())
    assert (await swarm_cut.cut(swarm, mine, model, tmp_path / "cut"))[2] == folder
    model.write_bytes(file.saying("llama.rope.freq_base", F32, 5e5).encode())
    assert (await swarm_cut.cut(swarm, mine, model, tmp_path / "cut"))[2] != folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("register", "{model}", "--as-tensors", "--dry-run"), "--as-tensors"),
        (("register", "{folder}/none.gguf", "--dry-run"), "none.gguf: not in"),
        (("register", "{folder}", "--dry-run"), "holds no config.json, but 1 GGUF files: name one"),
        (("generate", "x", "--local", "{folder}"), "name one, as"),
        (("generate", "x", "--local", "{folder}/a-00001-of-00002.gguf"), "a-00001-of-00002.gguf"),
        (("quantize", "{folder}/none", "{folder}/out", "--to", "int8"), "not there"),
        (("embed", "x", "--local", "{model}"), "GGUF"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_do(model, monkeypatch, capfd, words, said):
    filled = [word.format(model=model, folder=model.parent) for word in words]
    assert run(monkeypatch, *filled) == 1
    shown = capfd.readouterr()
    assert said in (shown.err + shown.out).replace("\n", " ")


def test_a_header_that_lies_is_one_line(model, monkeypatch, capfd):
    model.write_bytes(hostile.small().saying("general.architecture", TEXT, "rwkv7").encode())
    assert run(monkeypatch, "register", model, "--dry-run") == 1
    assert "rwkv7 is not one of llama" in capfd.readouterr().err.replace("\n", " ")
