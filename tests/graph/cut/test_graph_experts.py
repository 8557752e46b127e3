"""A mixture of experts as tasks: who is not selected is sent an empty frame, and puts out an empty one."""

from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadTask, TooLarge
from nodewire.graph import entry
from nodewire.graph.program.format import Input, Node, Output, Program
from nodewire.graph.program.interpreter import bind
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from tests.kinds.experts import F32, I64, MOST, WIDTH, joiner, loaded


@pytest.fixture
def tasks(tmp_path):
    """By the edges that lead to it, each task's actor."""
    actors = loaded(tmp_path)
    for one in actors.values():
        one.open("s", {})
    join = dict.fromkeys(("made.0", "made.1", "order"), actors["join"])
    return {"rows.0": actors["expert.0"], "rows.1": actors["expert.1"]} | join


def joined(tasks, chosen: list[int]):
    """What comes of rows of ones, each sent to the expert that was chosen for it."""
    own = {k: [i for i, expert in enumerate(chosen) if expert == k] for k in range(2)}
    order = torch.tensor([*own[0], *own[1]], dtype=I64).argsort()
    waiting = [Frame(f"rows.{k}", 0, (torch.ones(len(own[k]), WIDTH),), {"chunk": 0}) for k in range(2)]
    waiting.append(Frame("order", 0, (order,), {"chunk": 0}))
    while waiting:
        frame = waiting.pop(0)
        if frame.edge == "joined":
            return frame.tensors[0]
        waiting += tasks[frame.edge].receive("s", frame)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("chosen", [[0, 1, 1, 0], [1, 1, 1], [0], []])
def test_rows_come_back_from_their_experts_whether_all_were_selected_or_none(tasks, chosen):
    assert joined(tasks, chosen).tolist() == [[WIDTH * (k + 1.0)] * WIDTH for k in chosen]


def test_a_size_of_0_hides_no_other_from_the_volume():
    program = joiner()
    many = torch.zeros(MOST + 1, dtype=I64)
    with pytest.raises(TooLarge, match=r"^t:"):
        bind(program, {"a": torch.zeros(0, WIDTH), "b": torch.zeros(0, WIDTH), "order": many})
    narrow = replace(program, volume=8)
    with pytest.raises(TooLarge, match="at most 8"):
        bind(narrow, {"a": torch.zeros(0, WIDTH), "b": torch.zeros(3, WIDTH), "order": torch.zeros(3, dtype=I64)})


def test_an_operator_that_needs_a_number_says_so_of_an_empty_edge():
    program = Program(
        dims={"n": MOST},
        volume=MOST,
        inputs=(Input("x", F32, ("n", WIDTH), "in"),),
        weights=(),
        nodes=(Node("y", "aten.amax.default", (Ref("x"), [0])),),
        outputs=(Output("y", "y", F32, (WIDTH,), "out"),),
    )
    loaded = entry.load("graph", program.encode(), [], Limits(10**6))
    loaded.open("s", {})
    with pytest.raises(BadTask, match=r"^in: y:"):
        loaded.receive("s", Frame("in", 0, (torch.zeros(0, WIDTH),), {}))
    assert loaded.receive("s", Frame("in", 1, (torch.ones(1, WIDTH),), {}))[0].tensors[0].tolist() == [1.0] * WIDTH
