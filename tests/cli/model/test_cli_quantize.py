"""`nodewire quantize`: from a folder to one that is registered and generates."""

import json
import sys

import pytest

from nodewire import cli
from nodewire.cli.model.cut import CutOptions, cut
from tests.kinds.llama import make_llama


def run(monkeypatch, *words):
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["nodewire", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def test_a_folder_is_quantized_cut_and_generates(tmp_path, monkeypatch, capfd):
    make_llama(tmp_path / "plain")
    assert run(monkeypatch, "quantize", tmp_path / "plain", tmp_path / "int8", "--to", "int8", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["scheme"] == "int8"
    assert said["matrices"] > 0
    assert said["bytes"] == sum(path.stat().st_size for path in (tmp_path / "int8").glob("*.safetensors"))
    foreseen, made = (
        cut(tmp_path / "int8", CutOptions(2_000_000, "one"), out).manifest for out in (None, tmp_path / "b")
    )
    assert [task.memory_bytes for task in foreseen.tasks] == [task.memory_bytes for task in made.tasks]
    assert made.edges[1].tensors[0].dtype == "bfloat16"
    assert run(monkeypatch, "generate", "ab", "--local", tmp_path / "int8", "--max-tokens", 4, "--json") == 0
    assert json.loads(capfd.readouterr().out)["ids"]


def test_what_it_has_done_is_said_in_words(tmp_path, monkeypatch, capfd):
    make_llama(tmp_path / "plain")
    assert run(monkeypatch, "quantize", tmp_path / "plain", tmp_path / "out", "--to", "int4") == 0
    said = capfd.readouterr().out
    assert "int4" in said
    assert "nodewire register" in said
    assert run(monkeypatch, "quantize", tmp_path / "plain", tmp_path / "out", "--to", "int4") == 1
    assert "an empty one" in capfd.readouterr().err
    assert run(monkeypatch, "quantize", tmp_path / "none", tmp_path / "other", "--to", "int4") == 1
    assert not (tmp_path / "other").exists()
