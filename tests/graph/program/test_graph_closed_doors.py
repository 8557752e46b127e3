"""Why tasks are not `.pt2` files, and that nothing between a task's bytes and its result executes any of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadTask, NodewireError
from nodewire.graph import entry
from nodewire.graph.program.verification import verify_weights
from nodewire.kind import Limits
from tests.graph.program.test_graph_hostile import GOOD

LOAD = """
import builtins, json, pathlib, pickle, sys
import sympy, torch, torch._dynamo
from kinds import k8843_worker
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame

folder = pathlib.Path(sys.argv[1])
touched = []

def closed(owner, name):
    def refuse(*args, **kwargs):
        touched.append(f"{getattr(owner, '__name__', owner)}.{name}")
        raise SystemExit("a door was opened: " + touched[-1])
    setattr(owner, name, refuse)

def load_and_run():
    loaded = k8843_worker.load("graph", (folder / "program").read_bytes(), [folder / "weights"], Limits(2**22))
    loaded.open("s", {})
    return loaded.receive("s", Frame("in", 0, (torch.ones(2, 4), torch.tensor([0, 9])), {}))

load_and_run()  # what is imported late
opened = []
def hook(event, arguments):
    if event in ("exec", "compile", "import", "pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system"):
        opened.append(event)
    if event == "open" and str(arguments[0]) not in (str(folder / "program"), str(folder / "weights")):
        opened.append(f"open {arguments[0]}")
for owner, names in (
    (pickle, ("load", "loads", "Unpickler")),
    (torch, ("load",)),
    (torch.export, ("load",)),
    (torch.jit, ("load",)),
    (builtins, ("eval", "exec", "compile")),
    (sympy, ("sympify", "parse_expr")),
):
    for name in names:
        closed(owner, name)
sys.addaudithook(hook)
(frame,) = load_and_run()
print(json.dumps({"touched": touched, "opened": opened, "shape": list(frame.tensors[0].shape)}))
"""


@pytest.fixture(scope="module")
def attacks(tmp_path_factory) -> tuple[Path, dict[str, bool]]:
    """The two files, and which of them ran its payload when torch loaded it."""
    folder = tmp_path_factory.mktemp("pt2")
    script = Path(__file__).parents[1] / "pt2_attacks.py"
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=120, check=True)
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("attack", ["pickled", "sympified"])
def test_loading_a_pt2_file_runs_what_its_author_wrote(attacks, attack):
    assert attacks[1][attack], "torch has closed this door; the rule stands until all of them are"


@pytest.mark.parametrize("attack", ["pickled", "sympified"])
def test_the_same_file_is_neither_a_program_nor_weights_to_nodewire(attacks, attack):
    folder, _ = attacks
    marker = folder / f"{attack}.ran"
    if marker.exists():
        marker.rmdir()
    data = (folder / f"{attack}.pt2").read_bytes()
    with pytest.raises(NodewireError):
        entry.load("graph", data, [], Limits(2**22))
    with pytest.raises(NodewireError):
        verify_weights(GOOD, [folder / f"{attack}.pt2"])
    assert not marker.exists()


def test_a_task_is_loaded_and_run_without_pickle_torch_load_eval_or_sympify_and_opens_its_own_files_only(tmp_path):
    (tmp_path / "program").write_bytes(GOOD.encode())
    save_file({"table": torch.ones(10, 4)}, tmp_path / "weights")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"touched": [], "opened": [], "shape": [2, 4]}


def test_weights_whose_bytes_are_no_booleans_are_read_as_booleans(tmp_path):
    flags = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    header = json.dumps({"f": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "weights"
    path.write_bytes(len(header).to_bytes(8, "little") + header + flags.numpy().tobytes())
    program = _counting()
    loaded = entry.load("graph", program.encode(), [path], Limits(2**20))
    loaded.open("s", {})
    (frame,) = loaded.receive("s", entry.Frame("in", 0, (torch.zeros(1, 4),), {}))
    assert frame.tensors[0].tolist() == [[0.0, 1.0, 1.0, 1.0]]


def _counting():
    from nodewire.graph.program.format import Input, Node, Output, Program, Weight
    from nodewire.graph.program.whitelist import Ref

    return Program(
        dims={"b": 8},
        volume=8,
        inputs=(Input("x", torch.float32, ("b", 4), "in"),),
        weights=(Weight("f", torch.bool, (4,)),),
        nodes=(
            Node("n", "aten._to_copy.default", (Ref("f"),), {"dtype": torch.float32}),
            Node("out", "aten.add.Tensor", (Ref("x"), Ref("n"))),
        ),
        outputs=(Output("out", "out", torch.float32, ("b", 4), "result"),),
    )


@pytest.mark.parametrize("name", ["\ud800", "", "x\x00" * 300])
def test_a_name_that_no_message_can_carry_is_refused_by_one_that_any_can(tmp_path, name):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "weights").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(BadTask) as refused:
        verify_weights(GOOD, [tmp_path / "weights"])
    assert refused.value.field.encode().decode().isprintable()
    assert len(str(refused.value)) < 400
