"""`nodewire register` with a real relay and store: which way a folder is cut, and what is then on the market."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from bench.dag_models import EXPERTS, _made
from nodewire import cli

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
def servers(tmp_path_factory):
    """The options that name a relay and its store."""
    folder = tmp_path_factory.mktemp("relay")
    command = ["relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs"), "--json"]
    process = subprocess.Popen([*NODEWIRE, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    ready = json.loads(process.stdout.readline())
    yield ["--relay", ready["url"], "--blossom", ready["blossom"], "--key", str(folder / "author.nsec")]
    process.terminate()
    process.wait(10)
    process.stdout.close()


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
        code, done = register(str(folders / "mixtral"), "--target-vram", "2MB", "--expert-groups", str(groups))
        assert code == 0, done
        counted[groups] = sum(task["name"].startswith("experts.") for task in done["tasks"])
    assert counted == {1: 0, 2: 2, 4: 4}


@pytest.mark.parametrize(
    ("how", "field"), [([], "--expert-groups"), (["--as-tensors"], "expert_groups")], ids=["text", "tensors"]
)
def test_groups_of_experts_are_refused_where_there_are_none(register, folders, how, field):
    code, said = register(str(folders / "llama"), *how, "--target-vram", "2MB", "--expert-groups", "2")
    assert (code, said["error"]["code"], said["error"]["field"]) == (1, "bad-input", field)
