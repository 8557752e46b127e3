"""What is remembered of torch's answers agrees to the byte with a walk that asks for each of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadTask
from nodewire.graph.cut.courses import Calls, Plan
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.whitelist import Ref

F32 = torch.float32


def compare(program, sizes, calls):
    plan = Plan(program, calls)
    course, walked = calls.course(plan, sizes), walk(program, sizes, 2**40)
    assert tuple(course.live_bytes) == (*walked.live_bytes, walked.leaving_bytes)
    assert sum(course.flops) == walked.flops
    for name, value in plan.number.items():
        kind = course.type(value) if value < plan.count else None
        if kind is not None:
            assert walked.types[name] == kind, name


def attention(layers):
    """Layers with views of one product, a list of pieces, a mask of the sizes, a transposed weight, a copy."""
    nodes, x = [Node("rows", "py.mul", (Ref("b"), Ref("s")))], "x"
    for k in range(layers):
        made = [
            (f"qkv{k}", "aten.linear.default", (Ref(x), Ref(f"w{k}"))),
            (f"parts{k}", "aten.split.Tensor", (Ref(f"qkv{k}"), 8, -1)),
            (f"q{k}", "py.getitem", (Ref(f"parts{k}"), 0)),
            (f"k{k}", "py.getitem", (Ref(f"parts{k}"), 1)),
            (f"v{k}", "py.getitem", (Ref(f"parts{k}"), 2)),
            (f"flat{k}", "aten.reshape.default", (Ref(f"v{k}"), [Ref("rows"), -1])),
            (f"back{k}", "aten.reshape.default", (Ref(f"flat{k}"), [Ref("b"), Ref("s"), 8])),
            (f"seen{k}", "aten.ones.default", ([Ref("s"), Ref("s")],)),
            (f"mask{k}", "aten.gt.Scalar", (Ref(f"seen{k}"), 0)),
            (f"mixed{k}", "aten.scaled_dot_product_attention.default", (Ref(f"q{k}"), Ref(f"k{k}"), Ref(f"back{k}"))),
            (f"turned{k}", "aten.t.default", (Ref(f"o{k}"),)),
            (f"out{k}", "aten.matmul.default", (Ref(f"mixed{k}"), Ref(f"turned{k}"))),
            (f"wide{k}", "aten.expand.default", (Ref(f"out{k}"), [-1, -1, -1])),
            (f"sum{k}", "aten.add.Tensor", (Ref(f"wide{k}"), Ref(x))),
        ]
        nodes += [Node(*one, {"attn_mask": Ref(f"mask{k}")} if "attention" in one[1] else {}) for one in made]
        x = f"sum{k}"
    nodes.append(Node("unused", "aten.neg.default", (Ref(x),)))
    return Program(
        dims={"b": 4, "s": 8},
        volume=16,
        inputs=(Input("x", F32, ("b", "s", 8)),),
        weights=tuple(w for k in range(layers) for w in (Weight(f"w{k}", F32, (24, 8)), Weight(f"o{k}", F32, (8, 8)))),
        nodes=tuple(nodes),
        outputs=(
            Output("y", x, F32, ("b", "s", 8)),
            Output("mask", "mask0", torch.bool, ("s", "s")),
            Output("query", "q0", F32, ("b", "s", 8)),
        ),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))
def test_views_lists_masks_and_copies_are_counted_as_they_are_walked(batch, length, layers):
    compare(attention(layers), {"b": batch, "s": length}, Calls())


def test_a_deep_program_asks_torch_no_more_often_than_a_shallow_one(monkeypatch):
    asked, calls = [], Calls()
    ask = Calls._ask
    monkeypatch.setattr(Calls, "_ask", lambda self, node, given: asked.append(node.name) or ask(self, node, given))
    for layers in (2, 12):
        program = attention(layers)
        for sizes in corners(program):
            compare(program, sizes, calls)
    assert {name.rstrip("0123456789") for name in asked} >= {"qkv", "mixed", "sum"}
    assert all(
        not name.rstrip("0123456789") or int(name.strip("abcdefghijklmnopqrstuvwxyz") or 0) < 2 for name in asked
    )


def test_one_and_true_and_one_point_zero_are_three_different_arguments():
    nodes = (
        Node("whole", "aten.add.Scalar", (Ref("x"), 1)),
        Node("broken", "aten.add.Scalar", (Ref("x"), 1.0)),
    )
    outputs = (Output("a", "whole", torch.int64, ("b",)), Output("b", "broken", F32, ("b",)))
    compare(Program({"b": 4}, 4, (Input("x", torch.int64, ("b",)),), (), nodes, outputs), {"b": 4}, Calls())


def test_an_operator_that_refuses_is_named():
    nodes = (Node("wrong", "aten.mm.default", (Ref("x"), Ref("x"))),)
    program = Program({"b": 4}, 4, (Input("x", F32, ("b", 3)),), (), nodes, (Output("y", "wrong", F32, ("b", 3)),))
    with pytest.raises(BadTask, match=r"^wrong:"):
        calls = Calls()
        calls.course(Plan(program, calls), {"b": 4})


def test_a_program_without_nodes_takes_its_inputs():
    program = Program({"b": 4}, 4, (Input("x", F32, ("b",)),), (), (), ())
    calls = Calls()
    assert calls.course(Plan(program, calls), {"b": 4}).live_bytes == [16]
