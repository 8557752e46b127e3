"""A mixture of experts as tasks: who is not selected is sent an empty frame, and puts out an empty one."""

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadTask, TooLarge
from nodewire.graph import actor
from nodewire.graph.format import Input, Node, Output, Program, Weight
from nodewire.graph.interpret import bind
from nodewire.graph.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.frame import Frame

F32, I64 = torch.float32, torch.int64
WIDTH, MOST = 4, 64


def expert(edge_in: str, edge_out: str) -> Program:
    """x W for the rows that it is sent."""
    return Program(
        dims={"n": MOST},
        volume=MOST,
        inputs=(Input("x", F32, ("n", WIDTH), edge_in),),
        weights=(Weight("w", F32, (WIDTH, WIDTH)),),
        nodes=(Node("y", "aten.mm.default", (Ref("x"), Ref("w"))),),
        outputs=(Output("y", "y", F32, ("n", WIDTH), edge_out),),
    )


def joiner() -> Program:
    """The rows of both experts, in the order that the router says."""
    return Program(
        dims={"n": MOST, "m": MOST, "t": MOST},
        volume=MOST**3,
        inputs=(
            Input("a", F32, ("n", WIDTH), "made.0"),
            Input("b", F32, ("m", WIDTH), "made.1"),
            Input("order", I64, ("t",), "order"),
        ),
        weights=(),
        nodes=(
            Node("rows", "aten.cat.default", ([Ref("a"), Ref("b")], 0)),
            Node("out", "aten.index_select.default", (Ref("rows"), 0, Ref("order"))),
        ),
        outputs=(Output("out", "out", F32, ("t", WIDTH), "joined"),),
    )


@pytest.fixture
def tasks(tmp_path):
    """By the edges that lead to it, each task's actor."""
    found = {}
    for k in range(2):
        save_file({"w": torch.full((WIDTH, WIDTH), float(k + 1))}, tmp_path / f"w{k}")
        made = actor.load("graph", expert(f"rows.{k}", f"made.{k}").encode(), [tmp_path / f"w{k}"], Limits(10**6))
        found[f"rows.{k}"] = made
    found |= dict.fromkeys(("made.0", "made.1", "order"), actor.load("graph", joiner().encode(), [], Limits(10**6)))
    for one in found.values():
        one.open("s", {})
    return found


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
    narrow = Program(
        **{**{f: getattr(program, f) for f in ("dims", "inputs", "weights", "nodes", "outputs")}, "volume": 8}
    )
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
    loaded = actor.load("graph", program.encode(), [], Limits(10**6))
    loaded.open("s", {})
    with pytest.raises(BadTask, match=r"^y:"):
        loaded.receive("s", Frame("in", 0, (torch.zeros(0, WIDTH),), {}))
    assert loaded.receive("s", Frame("in", 1, (torch.ones(1, WIDTH),), {}))[0].tensors[0].tolist() == [1.0] * WIDTH
