"""Calls of several customers are one batch only where every operator keeps their rows apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from nodewire.errors import BadInput, NodewireError
from nodewire.graph import actor
from nodewire.graph.apart import batch_dim
from nodewire.graph.format import Input, Node, Output, Program, Weight
from nodewire.graph.interpret import Interpreter
from nodewire.graph.split_encoder import split_encoder
from nodewire.graph.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.frame import Frame
from tests.graph.conftest import Chain

F32, I64 = torch.float32, torch.int64
X, W = Ref("x"), Ref("w")


def program(*nodes: tuple, shape=("b", 4), out=("b", 4), dims=None) -> Program:
    """x [b, 4] through `nodes` (operator, *arguments), named n0, n1 ..., the last of which goes out."""
    made = [Node(f"n{k}", op, tuple(args)) for k, (op, *args) in enumerate(nodes)]
    return Program(
        dims=dims or {"b": 16, "s": 8},
        volume=128,
        slots=8,
        inputs=(Input("x", F32, shape, "in"),),
        weights=(Weight("w", F32, (4, 4)),),
        nodes=tuple(made),
        outputs=(Output("y", made[-1].name, F32, out, "out"),),
    )


APART = {
    "a product with weights": [("aten.linear.default", X, W)],
    "a product from the left": [("aten.mm.default", X, W)],
    "attention within a row": [
        ("aten.view.default", X, [Ref("b"), 2, 2]), ("aten.transpose.int", Ref("n0"), 1, 2),
        ("aten.matmul.default", Ref("n0"), Ref("n1")), ("aten.softmax.int", Ref("n2"), -1),
        ("aten.bmm.default", Ref("n3"), Ref("n0")), ("aten.reshape.default", Ref("n4"), [Ref("b"), 4]),
    ],
    "a norm of a row": [("aten.layer_norm.default", X, [4])],
    "what is the same for all": [("aten.select.int", W, 0, 0), ("aten.add.Tensor", X, Ref("n0"))],
    "a mean over a row": [("aten.mean.dim", X, [-1], True), ("aten.sub.Tensor", X, Ref("n0"))],
    "parts of a row": [("aten.split.Tensor", X, 2, 1), ("py.getitem", Ref("n0"), 0), ("py.getitem", Ref("n0"), 1),
                       ("aten.cat.default", [Ref("n2"), Ref("n1")], 1)],
    "zeros for every row": [("aten.zeros.default", [Ref("b"), 4]), ("aten.add.Tensor", X, Ref("n0"))],
    "each row, picked by its number": [
        ("aten.arange.default", Ref("b")), ("aten.unsqueeze.default", Ref("n0"), 1), ("aten.arange.default", 4),
        ("aten.index.Tensor", X, [Ref("n1"), Ref("n2")]),
    ],
    "one row for all": [("aten.slice.Tensor", W, 0, 0, 1), ("aten.expand.default", Ref("n0"), [Ref("b"), 4]),
                        ("aten.mul.Tensor", X, Ref("n0"))],
}  # fmt: skip
MIXED = {
    "a sum over the batch": [("aten.sum.dim_IntList", X, [0], True), ("aten.add.Tensor", X, Ref("n0"))],
    "a sum over everything": [("aten.sum.dim_IntList", X, [], True), ("aten.add.Tensor", X, Ref("n0"))],
    "a softmax over the batch": [("aten.softmax.int", X, 0)],
    "a softmax over the batch, from behind": [("aten.softmax.int", X, -2)],
    "the batch turned round": [("aten.flip.default", X, [0])],
    "the batch shifted": [("aten.slice.Tensor", X, 0, 1), ("aten.slice.Tensor", X, 0, 0, 1),
                          ("aten.cat.default", [Ref("n0"), Ref("n1")], 0)],
    "rows of other lengths": [("aten.reshape.default", X, [4, Ref("b")]), ("aten.transpose.int", Ref("n0"), 0, 1)],
    "rows of other lengths, in between": [("aten.reshape.default", X, [2, -1]), ("aten.flip.default", Ref("n0"), [0]),
                                          ("aten.reshape.default", Ref("n1"), [Ref("b"), 4])],
    "products of rows": [("aten.t.default", X), ("aten.mm.default", X, Ref("n0")), ("aten.mm.default", Ref("n1"), X)],
    "as many as there are rows": [("aten.arange.default", Ref("b")), ("aten._to_copy.default", Ref("n0")),
                                  ("aten.unsqueeze.default", Ref("n1"), 1), ("aten.add.Tensor", X, Ref("n2"))],
    "another's row, picked by a number": [
        ("aten.arange.default", Ref("b")), ("aten.flip.default", Ref("n0"), [0]), ("aten.index.Tensor", X, [Ref("n1")]),
    ],
    "all rows for each": [
        ("aten.arange.default", Ref("b")), ("aten.unsqueeze.default", Ref("n0"), 0),
        ("aten.index.Tensor", X, [Ref("n1")]), ("aten.select.int", Ref("n2"), 0, 0),
    ],
    "weights by the rows' numbers": [
        ("aten.arange.default", Ref("b")), ("aten.index.Tensor", W, [Ref("n0")]), ("aten.add.Tensor", X, Ref("n1")),
    ],
    "the number of rows": [("py.mul", Ref("b"), 1), ("aten.mul.Tensor", X, Ref("n0"))],
    "the batch as its columns": [("aten.mm.default", W, W), ("aten.slice.Tensor", X, 1, 0, 1),
                                 ("aten.transpose.int", Ref("n1"), 0, 1), ("aten.add.Tensor", X, X),
                                 ("aten.sum.dim_IntList", Ref("n2"), [1]), ("aten.add.Tensor", Ref("n3"), Ref("n4"))],
    "what does not depend on it": [("aten.mm.default", W, W)],
    "a running sum": [("aten.cumsum.default", X, 0)],
    "one row's maximum": [("aten.amax.default", X, [0]), ("aten.sub.Tensor", X, Ref("n0"))],
    "another dim that happens to be as large": [("aten.reshape.default", X, [Ref("b"), Ref("s"), -1]),
                                                ("aten.reshape.default", Ref("n0"), [Ref("s"), -1])],
}  # fmt: skip


@pytest.mark.parametrize("nodes", APART.values(), ids=APART)
def test_rows_that_are_computed_by_themselves_are_apart(nodes):
    made = program(*nodes)
    assert batch_dim(made) == "b"
    weights = {"w": torch.arange(16, dtype=F32).reshape(4, 4) / 16}
    x = torch.randn(6, 4)
    whole = Interpreter(made, weights)({"x": x}, {"b": 6, "s": 1})
    torch.testing.assert_close(
        torch.cat([Interpreter(made, weights)({"x": part}, {"b": len(part), "s": 1})[f"n{len(nodes) - 1}"]
                   for part in x.split([1, 3, 2])]),
        whole[f"n{len(nodes) - 1}"],
    )  # fmt: skip


@pytest.mark.parametrize("nodes", MIXED.values(), ids=MIXED)
def test_what_mixes_rows_or_may_is_no_batch(nodes):
    assert batch_dim(program(*nodes)) is None


def test_a_batch_stands_first_on_every_edge_and_nowhere_else():
    assert batch_dim(program(("aten.neg.default", X), shape=("b", "b"), out=("b", "b"))) is None
    assert batch_dim(program(("aten.neg.default", X), shape=(4, "b"), out=(4, "b"))) is None
    assert batch_dim(program(("aten.select.int", X, 1, 0), out=("b",))) == "b"
    assert batch_dim(program(("aten.neg.default", X), dims={"b": 1})) is None


def _takes_one(node: tuple) -> bool:
    return node[1] == X and not any(name.startswith("n") for name in Node("k", node[0], tuple(node[1:])).refs())


STEPS = st.lists(
    st.sampled_from([node for nodes in (*APART.values(), *MIXED.values()) for node in nodes if _takes_one(node)]),
    max_size=4,
)


@given(STEPS)
def test_whatever_is_said_to_be_apart_changes_in_no_row_but_its_own(steps):
    """Chains of operators of which any may mix rows: one row's change is seen in no other, or it is no batch."""
    nodes = [(op, Ref(f"n{k - 1}") if k else X, *args) for k, (op, _, *args) in enumerate(steps)]
    made = program(*nodes, ("aten.neg.default", Ref(f"n{len(nodes) - 1}") if nodes else X))
    if batch_dim(made) is None:
        return
    weights, x = {"w": torch.eye(4) + 1}, torch.randn(5, 4)
    other = x.clone()
    other[2] += 1
    one, two = (Interpreter(made, weights)({"x": of}, {"b": 5, "s": 1})[f"n{len(nodes)}"] for of in (x, other))
    untouched = [0, 1, 3, 4]
    assert torch.equal(one[untouched], two[untouched])


# Through an actor


@pytest.fixture
def loaded(tmp_path):
    save_file({"w": torch.randn(4, 4)}, tmp_path / "w")
    made = actor.load(
        "graph", program(("aten.linear.default", X, W), dims={"b": 16}).encode(), [tmp_path / "w"], Limits(10**6)
    )
    for session in "abcde":
        made.open(session, {})
    return made


def call(session: str, seq: int, rows: int, **meta):
    return session, [Frame("in", seq, (torch.randn(rows, 4),), meta)]


def alone(loaded, calls):
    return [loaded.receive(session, frames[0]) for session, frames in calls]


def same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert [(f.edge, f.seq, f.meta) for f in mine] == [(f.edge, f.seq, f.meta) for f in theirs]
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.tensors[0], b.tensors[0], rtol=1e-5, atol=1e-6)


def test_calls_together_answer_as_each_alone(loaded):
    assert loaded.batches
    calls = [call("a", 3, 2, chunk=3), call("b", 9, 1, chunk=9), call("c", 0, 5)]
    same(loaded.receive_together(calls), alone(loaded, calls))


def test_more_rows_than_the_program_admits_are_several_batches(loaded):
    calls = [call(session, 0, 7) for session in "abcde"]
    same(loaded.receive_together(calls), alone(loaded, calls))


def test_what_is_wrong_with_one_call_costs_the_others_nothing(loaded):
    calls = [call("a", 0, 2), call("b", 0, 17), call("c", 0, 1), call("nobody", 0, 1), ("d", [Frame("else", 0, ())])]
    found = loaded.receive_together(calls)
    same([found[0], found[2]], alone(loaded, [calls[0], calls[2]]))
    assert all(isinstance(found[k], NodewireError) for k in (1, 3, 4))
    assert isinstance(found[1], BadInput)


def test_tasks_of_an_encoder_batch(tiny_directory, tmp_path):
    chain = Chain(split_encoder(tiny_directory, 40_000, tmp_path))
    graphs = [task.name for task in chain.manifest.tasks if task.engine == "graph"]
    assert [name for name in graphs if chain.actors[name].batches] == graphs
