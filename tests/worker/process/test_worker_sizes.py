"""Tasks that fit a worker one by one, and not together, are refused when they are loaded: calls would fail there."""

import mmap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import NotFound, OverMemory
from nodewire.graph.entry import load
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits
from nodewire.worker.process.serve import Server
from nodewire.worker.sandbox.rights import RESERVE_BYTES

WIDTH, ROWS = 1_024, 4_096
PROGRAM = Program(
    dims={"n": ROWS},
    volume=ROWS,
    inputs=(Input("x", torch.float32, ("n", WIDTH), "in"),),
    weights=(Weight("w", torch.float32, (WIDTH, WIDTH)),),
    nodes=(Node("y", "aten.linear.default", (Ref("x"), Ref("w"))),),
    outputs=(Output("y", "y", torch.float32, ("n", WIDTH), "out"),),
)


@pytest.fixture
def server(tmp_path):
    """A function that makes a server with so much memory, and one that has it load a task from a file."""
    (tmp_path / "program").write_bytes(PROGRAM.encode())
    save_file({"w": torch.zeros(WIDTH, WIDTH)}, str(tmp_path / "weights"))

    def make(memory_bytes: int):
        made = Server(0, mmap.mmap(-1, 4096), mmap.mmap(-1, 4096), load, Limits(memory_bytes))

        def loads(task: str) -> None:
            made._load_task(task, "graph", Path(tmp_path / "program"), [tmp_path / "weights"])

        return made, loads

    return make


def test_the_weights_of_all_and_one_call_must_fit(server):
    one = verify(PROGRAM, 10**9)
    assert one.live_bytes > 4 * RESERVE_BYTES >= one.weight_bytes > 0
    made, loads = server(one.peak_bytes + one.weight_bytes)
    loads("a")
    loads("b")
    loads("c")  # for which there is what every worker has besides
    with pytest.raises(OverMemory, match=r"^d: 4 tasks would hold 16777216 bytes, a call of a takes"):
        loads("d")
    held = one.weight_bytes * len(made._actors)
    assert held + one.live_bytes <= one.peak_bytes + one.weight_bytes + RESERVE_BYTES


def test_what_is_refused_takes_no_room_from_what_comes_after_it(server):
    one = verify(PROGRAM, 10**9)
    made, loads = server(one.peak_bytes + one.weight_bytes)
    for name in "abc":
        loads(name)
    for _ in range(5):
        with pytest.raises(OverMemory):
            loads("d")
    assert [*made._taken_bytes] == [*made._actors] == ["a", "b", "c"]


def test_an_unloaded_task_makes_room_for_another_of_its_size(server):
    one = verify(PROGRAM, 10**9)
    made, loads = server(one.peak_bytes + one.weight_bytes)
    for task in "abc":
        loads(task)
    with pytest.raises(OverMemory):
        loads("d")
    made._serve({"op": "unload", "task": "b"})
    loads("d")
    with pytest.raises(NotFound):
        made._serve({"op": "unload", "task": "b"})
