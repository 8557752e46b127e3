"""A batch is cut, or several made one, only where rows are apart: what is proven is tried on real tensors."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadInput
from nodewire.graph.program.format import DTYPES, Node, Output
from nodewire.graph.program.whitelist import OPS, Ref
from nodewire.graph.registration.classifier import program_of
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.families import Cnn, Linear, Mlp
from nodewire.protocol.model.manifest import Manifest
from nodewire.taskgraph import batch_axis
from nodewire.taskgraph.batch_axis_rules import ELEMENTWISE, RULES
from nodewire.taskgraph.program import GraphProgram
from tests.protocol.rows import (
    BIAS,
    F32,
    I64,
    IDS,
    INNER,
    ROWS,
    TABLE,
    WIDTH,
    B,
    S,
    W,
    X,
    Y,
    axis_of,
    batch_of,
    drawn,
    flat,
    parts_are_the_whole,
    program,
    read,
    rows_see_nothing_of_others,
)


def _numbered(dtype: str) -> list[Node]:
    """Each row's pick is its number, if the number is what it was."""
    return [
        Node("r", "aten.arange.default", (B,)),
        Node("n", "aten._to_copy.default", (Ref("r"),), {"dtype": DTYPES[dtype]}),
        Node("i", "aten._to_copy.default", (Ref("n"),), {"dtype": I64}),
        Node("a", "aten.index.Tensor", (X, [Ref("i")])),
    ]


SAFE = {
    "a sum of inputs": [Node("a", "aten.add.Tensor", (X, Y))],
    "a linear layer": [Node("a", "aten.linear.default", (X, W, BIAS))],
    "pools of each picture": [
        Node("a", "aten.reshape.default", (X, [B, S, 2, 2])),
        Node("m", "aten.max_pool2d.default", (Ref("a"), [1, 2])),
        Node("v", "aten.avg_pool2d.default", (Ref("m"), [2, 1])),
        Node("b1", "aten.adaptive_avg_pool2d.default", (Ref("v"), [1, 1])),
        Node("c", "aten.flatten.using_ints", (Ref("b1"), 2)),
    ],
    "norms by the training's means, and of groups": [
        Node("t", "aten.transpose.int", (X, 1, 2)),
        Node("n", "aten._native_batch_norm_legit_no_training.default", (Ref("t"), BIAS, BIAS, BIAS, BIAS, 0.1, 1e-5)),
        Node("a", "py.getitem", (Ref("n"), 0)),
        Node("b1", "aten.group_norm.default", (Ref("a"), 2, BIAS, BIAS)),
    ],
    "resized, and convolved back": [
        Node("t", "aten.reshape.default", (X, [B, 1, S, WIDTH])),
        Node("k", "aten.reshape.default", (W, [1, 1, WIDTH, WIDTH])),
        Node("u", "aten.conv_transpose2d.input", (Ref("t"), Ref("k"))),
        Node("v", "aten.upsample_nearest2d.vec", (Ref("u"), None, [2.0, 2.0])),
        Node("f", "aten.upsample_bilinear2d.vec", (Ref("v"), [3, 2], False, None)),
        Node("a", "aten.fmod.Scalar", (Ref("f"), 2.0)),
    ],
    "heads apart": [
        Node("a", "aten.reshape.default", (X, [B, S, 2, 2])),
        Node("b1", "aten.transpose.int", (Ref("a"), 1, 2)),
        Node("c", "aten.scaled_dot_product_attention.default", (Ref("b1"), Ref("b1"), Ref("b1"))),
        Node("d", "aten.transpose.int", (Ref("c"), 1, 2)),
        Node("e", "aten.reshape.default", (Ref("d"), [B, S, WIDTH])),
    ],
    "batch by batch": [Node("t", "aten.transpose.int", (Y, 1, 2)), Node("a", "aten.bmm.default", (X, Ref("t")))],
    "layer norm": [Node("a", "aten.layer_norm.default", (X, [WIDTH], BIAS))],
    "softmax inside": [Node("a", "aten.softmax.int", (X, -1))],
    "a mean inside": [Node("a", "aten.mean.dim", (X, [1], True))],
    "a maximum that drops what is inside": [Node("a", "aten.amax.default", (X, [1]))],
    "looked up": [Node("a", "aten.embedding.default", (TABLE, IDS))],
    "positions from a constant": [
        Node("r", "aten.arange.default", (S,)),
        Node("u", "aten.unsqueeze.default", (Ref("r"), 0)),
        Node("m", "aten.gt.Scalar", (Ref("u"), 1)),
        Node("f", "aten._to_copy.default", (Ref("m"),), {"dtype": F32}),
        Node("v", "aten.unsqueeze.default", (Ref("f"), -1)),
        Node("a", "aten.mul.Tensor", (X, Ref("v"))),
    ],
    "ones of the batch's size": [
        Node("o", "aten.ones.default", ([B, S, WIDTH],)),
        Node("a", "aten.add.Tensor", (X, Ref("o"))),
    ],
    "one row for all": [
        Node("e", "aten.expand.default", (BIAS, [B, S, WIDTH])),
        Node("a", "aten.add.Tensor", (X, Ref("e"))),
    ],
    "the row's own pick": [
        Node("r", "aten.arange.default", (B,)),
        Node("i", "aten.argmax.default", (IDS, 1)),
        Node("a", "aten.index.Tensor", (X, [Ref("r"), Ref("i")])),
    ],
    "transposed, so that rows are columns": [Node("a", "aten.transpose.int", (X, 0, 1))],
    "stacked inside": [Node("a", "aten.stack.default", ([X, Y], 2))],
    "joined inside": [Node("a", "aten.cat.default", ([X, Y], -1))],
    "cut inside": [
        Node("p", "aten.split.Tensor", (X, 2, -1)),
        Node("q", "py.getitem", (Ref("p"), 1)),
        Node("a", "aten.neg.default", (Ref("q"),)),
    ],
    "all rows sliced": [Node("a", "aten.slice.Tensor", (X, 0, 0, 2**63 - 1))],
    "flattened inside": [Node("a", "aten.flatten.using_ints", (X, 1, -1))],
    "gathered inside": [
        Node("u", "aten.unsqueeze.default", (IDS, -1)),
        Node("a", "aten.gather.default", (X, 2, Ref("u"))),
    ],
    "weights from the left": [
        Node("t", "aten.transpose.int", (X, 1, 2)),
        Node("a", "aten.matmul.default", (W, Ref("t"))),
    ],
    "a product with a vector": [Node("a", "aten.matmul.default", (X, BIAS))],
    "a vector's product": [
        Node("t", "aten.transpose.int", (X, 1, 2)),
        Node("a", "aten.matmul.default", (BIAS, Ref("t"))),
    ],
    "rows of a table, each by its own number": [
        Node("i", "aten.select.int", (IDS, 1, 0)),
        Node("a", "aten.index_select.default", (TABLE, 0, Ref("i"))),
    ],
    "the row's own pick, with all between": [
        Node("r", "aten.arange.default", (B,)),
        Node("i", "aten.argmax.default", (IDS, 1)),
        Node("c", "aten.clamp_max.default", (Ref("i"), WIDTH - 1)),
        Node("a", "aten.index.Tensor", (X, [Ref("r"), None, Ref("c")])),
    ],
    "picked inside, all rows": [
        Node("r", "aten.arange.default", (3,)),
        Node("a", "aten.index.Tensor", (X, [None, None, Ref("r")])),
    ],
    "arguments by their names": [Node("a", "aten.transpose.int", (X,), {"dim0": 1, "dim1": 2})],
    "filtered inside": [
        Node("u", "aten.unsqueeze.default", (W, -1)),
        Node("t", "aten.transpose.int", (X, 1, 2)),
        Node("a", "aten.conv1d.default", (Ref("t"), Ref("u"), BIAS)),
    ],
    "repeated inside": [Node("a", "aten.repeat.default", (X, [2, 1, 1, 3]))],
    "one row for all, repeated": [
        Node("r", "aten.repeat.default", (BIAS, [B, 1, 1])),
        Node("a", "aten.add.Tensor", (X, Ref("r"))),
    ],
    "no gate but a hard one": [Node("a", "aten.hardswish.default", (X,))],
}
MIXING = {
    "scattered by a mask": [
        Node("m", "aten.gt.Scalar", (X, 0)),
        Node("a", "aten.masked_scatter.default", (X, Ref("m"), X)),
    ],
    "softmax over rows": [Node("a", "aten.softmax.int", (X, 0))],
    "a mean over rows, subtracted": [
        Node("m", "aten.mean.dim", (X, [0], True)),
        Node("a", "aten.sub.Tensor", (X, Ref("m"))),
    ],
    "a mean over everything": [
        Node("m", "aten.mean.dim", (X, None)),
        Node("a", "aten.sub.Tensor", (X, Ref("m"))),
    ],
    "cumulative over rows": [Node("a", "aten.cumsum.default", (X, 0))],
    "the other way round": [Node("a", "aten.flip.default", (X, [0]))],
    "a batch against a batch": [
        Node("f", "aten.flatten.using_ints", (X, 1, -1)),
        Node("g", "aten.flatten.using_ints", (Y, 1, -1)),
        Node("t", "aten.t.default", (Ref("g"),)),
        Node("a", "aten.mm.default", (Ref("f"), Ref("t"))),
    ],
    "attention over rows": [
        Node("t", "aten.transpose.int", (X, 0, 1)),
        Node("a", "aten.scaled_dot_product_attention.default", (Ref("t"), Ref("t"), Ref("t"))),
    ],
    "rows numbered": [
        Node("r", "aten.arange.default", (B,)),
        Node("f", "aten._to_copy.default", (Ref("r"),), {"dtype": F32}),
        Node("u", "aten.reshape.default", (Ref("f"), [B, 1, 1])),
        Node("a", "aten.add.Tensor", (X, Ref("u"))),
    ],
    "the batch's size as a number": [Node("a", "aten.mul.Scalar", (X, B))],
    "a number made of the batch's size": [
        Node("n", "py.mul", (B, 2)),
        Node("a", "aten.mul.Scalar", (X, Ref("n"))),
    ],
    "what a norm keeps beside its result": [
        Node("t", "aten.transpose.int", (X, 1, 2)),
        Node("n", "aten._native_batch_norm_legit_no_training.default", (Ref("t"), BIAS, BIAS, BIAS, BIAS, 0.1, 1e-5)),
        Node("a", "py.getitem", (Ref("n"), 1)),
    ],
    "rows run together": [Node("a", "aten.reshape.default", (X, [S, B, WIDTH]))],
    "the first row only": [
        Node("f", "aten.select.int", (X, 0, 0)),
        Node("a", "aten.add.Tensor", (X, Ref("f"))),
    ],
    "some rows": [Node("a", "aten.slice.Tensor", (X, 0, 1, 2**63 - 1))],
    "a constant that has rows": [Node("a", "aten.add.Tensor", (X, Ref("positions")))],
    "a constant that has rows, by its name": [Node("a", "aten.add.Tensor", (X,), {"other": Ref("positions")})],
    "rows joined to rows": [Node("a", "aten.cat.default", ([X, Y], 0))],
    "rows chosen": [
        Node("i", "aten.argmax.default", (IDS, 1)),
        Node("a", "aten.index.Tensor", (X, [Ref("i")])),
    ],
    "padded with rows": [Node("a", "aten.constant_pad_nd.default", (X, [0, 0, 0, 0, 1, 0]))],
    "an output without rows": [Node("a", "aten.mul.Scalar", (BIAS, 2))],
    "a maximum over rows beside them": [
        Node("m", "aten.amax.default", (X, [-3], True)),
        Node("a", "aten.maximum.default", (X, Ref("m"))),
    ],
    "another input's rows as columns": [
        Node("t", "aten.transpose.int", (Y, 0, 1)),
        Node("a", "aten.add.Tensor", (X, Ref("t"))),
    ],
    "filtered over rows": [
        Node("u", "aten.unsqueeze.default", (W, -1)),
        Node("t", "aten.permute.default", (X, [1, 2, 0])),
        Node("a", "aten.conv1d.default", (Ref("t"), Ref("u"))),
    ],
    "rows more than once": [Node("a", "aten.repeat.default", (X, [2, 1, 1]))],
    "all rows of a constant, repeated": [
        Node("r", "aten.repeat.default", (W, [B, 1])),
        Node("a", "aten.add.Tensor", (X, Ref("r"))),
    ],
    "repeated as often as there are rows": [
        Node("r", "aten.repeat.default", (X, [1, B, 1])),
        Node("a", "aten.softmax.int", (Ref("r"), 1)),
    ],
    "rows' numbers, each picked by itself": [
        Node("r", "aten.arange.default", (B,)),
        Node("n", "aten.index.Tensor", (Ref("r"), [Ref("r")])),
        Node("u", "aten.reshape.default", (Ref("n"), [B, 1, 1])),
        Node("a", "aten.add.Tensor", (X, Ref("u"))),
    ],
    "rows numbered up to 256": _numbered("uint8"),
    "rows numbered up to 2": _numbered("bool"),
    "rows numbered as long as floats are exact": _numbered("bfloat16"),
    "rows numbered from the start in another type": [
        Node("r", "aten.arange.default", (B,), {"dtype": torch.uint8}),
        Node("i", "aten._to_copy.default", (Ref("r"),), {"dtype": I64}),
        Node("a", "aten.index.Tensor", (X, [Ref("i")])),
    ],
    "rows numbered from the last": [
        Node("r", "aten.arange.start", (B, 10)),
        Node("a", "aten.index.Tensor", (X, [Ref("r")])),
    ],
    "transposed by names": [
        Node("t", "aten.transpose.int", (X,), {"dim0": 0, "dim1": 2}),
        Node("a", "aten.softmax.int", (Ref("t"),), {"dim": 2}),
    ],
    "as long as there are rows": [
        Node("v", "aten.reshape.default", (X, [B, B, -1])),
        Node("a", "aten.softmax.int", (Ref("v"), -1)),
    ],
    "filled with the number of rows": [
        Node("n", "aten.new_full.default", (X, [B, 1, 1]), {"fill_value": B}),
        Node("a", "aten.add.Tensor", (X, Ref("n"))),
    ],
    "a bias with rows": [
        Node("f", "aten.select.int", (X, 1, 0)),
        Node("p", "aten.select.int", (Ref("positions"), 1, 0)),
        Node("a", "aten.linear.default", (Ref("f"), W, Ref("p"))),
    ],
    # What a rank or a size is taken for decides what lies where: each of these would show rows to others.
    "a vector of weights for a matrix": [
        Node("l", "aten.linear.default", (X, BIAS)),
        Node("f", "aten.select.int", (Ref("l"), 1, 0)),
        Node("g", "aten.select.int", (Y, 1, 0)),
        Node("a", "aten.add.Tensor", (Ref("f"), Ref("g"))),
    ],
    "dropped where one size is 1 and kept where it is not": [
        Node("n", "py.sub", (S, 2)),
        Node("f", "aten.slice.Tensor", (X, 1, 0, Ref("n"))),
        Node("g", "aten.select.int", (Ref("f"), 2, 0)),
        Node("u", "aten.squeeze.dim", (Ref("g"), 1)),
        Node("v", "aten.unsqueeze.default", (Ref("u"), 1)),
        Node("h", "aten.select.int", (Y, 1, 0)),
        Node("a", "aten.add.Tensor", (Ref("v"), Ref("h"))),
        Node("z", "aten.sum.dim_IntList", (Ref("a"), [1])),
    ],
    "nothing joined to something of another rank": [
        Node("e", "aten.zeros.default", ([0],)),
        Node("o", "aten.ones.default", ([1, 1],)),
        Node("c", "aten.cat.default", ([Ref("e"), Ref("o")], 0)),
        Node("f", "aten.select.int", (X, 1, 0)),
        Node("g", "aten.select.int", (Ref("f"), 1, 0)),
        Node("h", "aten.add.Tensor", (Ref("g"), Ref("c"))),
        Node("a", "aten.unsqueeze.default", (Ref("h"), 1)),
    ],
    "one of a number, which stays a number": [
        Node("o", "aten.scalar_tensor.default", (1.0,)),
        Node("i", "aten.zeros.default", ([1],), {"dtype": I64}),
        Node("c", "aten.index_select.default", (Ref("o"), 0, Ref("i"))),
        Node("u", "aten.unsqueeze.default", (Ref("c"), -1)),
        Node("f", "aten.select.int", (X, 1, 0)),
        Node("g", "aten.select.int", (Ref("f"), 1, 0)),
        Node("h", "aten.add.Tensor", (Ref("g"), Ref("u"))),
        Node("a", "aten.sum.dim_IntList", (Ref("h"), [0])),
    ],
    "nothing against one is nothing": [
        Node("n", "aten.slice.Tensor", (X, 1, 0, 0)),
        Node("o", "aten.ones.default", ([1, 1],)),
        Node("m", "aten.mul.Tensor", (Ref("n"), Ref("o"))),
        Node("u", "aten.squeeze.dim", (Ref("m"), 1)),
        Node("s", "aten.sum.dim_IntList", (Ref("u"), [1])),
        Node("f", "aten.select.int", (X, 1, 0)),
        Node("a", "aten.add.Tensor", (Ref("f"), Ref("s"))),
    ],
}
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
    "columns of a product": [("aten.t.default", X), ("aten.mm.default", W, Ref("n0")),
                             ("aten.softmax.int", Ref("n1"), 0)],
    "columns of several products": [("aten.t.default", X), ("aten.unsqueeze.default", W, 0),
                                    ("aten.matmul.default", Ref("n1"), Ref("n0")),
                                    ("aten.sum.dim_IntList", Ref("n2"), [0])],
    "columns, turned back": [("aten.t.default", X), ("aten.mm.default", W, Ref("n0")), ("aten.t.default", Ref("n1"))],
    "all rows, picked by their numbers": [
        ("aten.arange.default", Ref("b")), ("aten.unsqueeze.default", Ref("n0"), 0),
        ("aten.index.Tensor", X, [Ref("n1")]), ("aten.select.int", Ref("n2"), 0, 0),
    ],
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
    "weights by the rows' numbers": [
        ("aten.arange.default", Ref("b")), ("aten.index.Tensor", W, [Ref("n0")]), ("aten.add.Tensor", X, Ref("n1")),
    ],
    "the number of rows": [("py.mul", Ref("b"), 1), ("aten.mul.Tensor", X, Ref("n0"))],
    "the batch as its columns": [("aten.mm.default", W, W), ("aten.slice.Tensor", X, 1, 0, 1),
                                 ("aten.transpose.int", Ref("n1"), 0, 1), ("aten.add.Tensor", X, X),
                                 ("aten.sum.dim_IntList", Ref("n2"), [1]), ("aten.add.Tensor", Ref("n3"), Ref("n4"))],
    "what does not depend on it": [("aten.mm.default", W, W)],
    "a sum over columns that are rows": [("aten.t.default", X), ("aten.mm.default", W, Ref("n0")),
                                         ("aten.softmax.int", Ref("n1"), 1)],
    "a running sum": [("aten.cumsum.default", X, 0)],
    "one row's maximum": [("aten.amax.default", X, [0]), ("aten.sub.Tensor", X, Ref("n0"))],
    "another dim that happens to be as large": [("aten.reshape.default", X, [Ref("b"), Ref("s"), -1]),
                                                ("aten.reshape.default", Ref("n0"), [Ref("s"), -1])],
}  # fmt: skip


PROVEN = {name: program(*nodes) for name, nodes in SAFE.items()} | {name: flat(*nodes) for name, nodes in APART.items()}
REFUSED = {name: program(*nodes) for name, nodes in MIXING.items()} | {
    f"{name} ({WIDTH})": flat(*nodes) for name, nodes in MIXED.items()
}


@pytest.mark.parametrize("case", PROVEN)
def test_what_keeps_rows_apart_is_proven_and_is_so_on_real_tensors(case):
    one = PROVEN[case]
    axis, inputs = axis_of(one), drawn(one, ROWS, INNER)
    assert parts_are_the_whole(one, axis, inputs)
    assert rows_see_nothing_of_others(one, axis, inputs)


@pytest.mark.parametrize("case", PROVEN)
def test_customers_and_providers_are_told_the_same(case):
    """But that a provider puts rows below each other, and so they must lie first."""
    assert batch_of(PROVEN[case]) == ("b" if axis_of(PROVEN[case]) == 0 else None)


@pytest.mark.parametrize("case", REFUSED)
def test_what_mixes_rows_is_not_proven(case):
    with pytest.raises(batch_axis.Unproven):
        axis_of(REFUSED[case])
    assert batch_of(REFUSED[case]) is None


def test_a_provider_batches_what_stands_first_on_every_edge_and_nowhere_else():
    one = flat(("aten.neg.default", X))
    assert batch_of(one) == "b"

    def shaped(*shape: str | int) -> list:
        return [replace(port, shape=shape) for port in one.inputs]

    assert batch_of(replace(one, inputs=(*shaped("b", "b"),))) is None
    assert batch_of(replace(one, inputs=(*shaped(4, "b"),))) is None
    assert batch_of(replace(one, inputs=(*one.inputs[:2], *shaped("s")[2:]))) is None
    assert batch_of(replace(one, inputs=(*one.inputs[:2], *shaped("some")[2:]), dims={"b": 64})) is None
    assert batch_of(replace(one, dims={"b": 1, "s": 64})) is None
    assert batch_of(replace(one, outputs=(replace(one.outputs[0], shape=("s",)),))) is None


def test_rules_ask_for_arguments_by_the_names_that_operators_have():
    for operator, rule in RULES.items():
        parameters = OPS[operator].parameters
        assert rule.formals == tuple(p.name for p in parameters if not p.keyword)[: len(rule.formals)], operator
        required = {name for name, p in inspect.signature(rule.call).parameters.items() if p.default is p.empty}
        assert required <= {p.name for p in parameters}, operator
        assert len(rule.formals) == sum(not p.keyword for p in parameters), operator


@pytest.mark.parametrize(
    "family",
    [
        Linear(name="linear", inputs=64, classes=3),
        Mlp(name="mlp", inputs=64, classes=3, hidden=(8, 8), activation="gelu"),
        Cnn(name="cnn", channels=1, height=8, width=8, classes=3, filters=(4, 4), kernel=3, pool=True),
    ],
    ids=lambda family: family.name,
)
def test_classifiers_take_any_number_of_rows(family):
    one, _ = program_of(family, 64, 1)
    inputs = tuple(replace(i, edge="customer.to.only") for i in one.inputs)
    outputs = tuple(replace(o, edge="out") for o in one.outputs)
    assert batch_axis.axes(*read(replace(one, inputs=inputs, outputs=outputs)), "rows") == {"scores": 0}


def _besides(*nodes: Node) -> tuple[Manifest, dict[str, GraphProgram]]:
    """x + y, along the batch, and beside it what the last node makes."""
    one = program(*nodes, Node("z", "aten.add.Tensor", (X, Y)))
    return read(replace(one, outputs=(*one.outputs, Output("besides", nodes[-1].name, F32, ("s",), "out"))))


def test_an_output_that_does_not_depend_on_the_batch_is_the_same_of_every_part():
    fixed = _besides(Node("a", "aten.mm.default", (TABLE, W)), Node("b", "aten.sum.dim_IntList", (Ref("a"), [0])))
    assert batch_axis.axes(*fixed, "b") == {"out": 0, "besides": None}
    other = _besides(Node("a", "aten.ones.default", ([S],)))
    assert batch_axis.axes(*other, "b") == {"out": 0, "besides": None}


@pytest.mark.parametrize(
    "nodes",
    [
        (Node("a", "aten.sum.dim_IntList", (X, [0])),),
        (Node("a", "aten.full.default", ([3], B)),),
        (Node("n", "py.mul", (B, 2)), Node("a", "aten.ones.default", ([Ref("n")],))),
        (Node("n", "aten.arange.default", (B,)), Node("a", "aten.amax.default", (Ref("n"), [0]))),
        (Node("n", "aten.arange.default", (B,)),),
        (Node("a", "aten.topk.default", (BIAS, 2)),),
    ],
    ids=lambda nodes: nodes[-1].op,
)
def test_what_depends_on_the_batch_or_on_its_size_or_is_not_known_is_no_such_output(nodes):
    with pytest.raises(batch_axis.Unproven):
        batch_axis.axes(*_besides(*nodes), "b")


def test_elementwise_operators_are_of_the_whitelist():
    assert set(OPS) >= ELEMENTWISE
    assert not ELEMENTWISE & set(RULES)


ODD = [
    ["n", "aten.neg.default", [{"ref": ["x"]}], {}],
    ["n", "aten.neg.default", [{"ref": "later"}], {}],
    ["n", "aten.softmax.int", [{"ref": "x"}, {"ref": "b"}], {}],
    ["n", "aten.reshape.default", [{"ref": "x"}, None], {}],
    ["n", "aten.permute.default", [{"ref": "x"}, [9, 9, 9]], {}],
    ["n", "aten.cat.default", [[], 0], {}],
    ["n", "aten.unsqueeze.default", [{"ref": "x"}, 2**60], {}],
    ["n", "aten.constant_pad_nd.default", [{"ref": "x"}, [1] * 99], {}],
    ["n", "no.such.operator", [{"ref": "x"}], {"dim": {"a": [[[1]]]}}],
]


@pytest.mark.parametrize("node", ODD, ids=str)
def test_programs_that_make_no_sense_prove_nothing(node):
    document = canonical.decode(program(Node("a", "aten.neg.default", (X,))).encode(), max_bytes=2**20)
    document["nodes"], document["outputs"][0]["value"] = [node], "n"
    made, _ = read(program(Node("a", "aten.neg.default", (X,))))
    with pytest.raises(batch_axis.Unproven):
        batch_axis.axes(made, {"only": GraphProgram.decode(canonical.encode(document))}, "b")


@pytest.mark.parametrize("change", [{"nodes": [[1]]}, {"inputs": [{}]}, {"dims": []}, {"volume": "many"}, {"v": 2}])
def test_what_is_no_program_is_refused(change):
    document = canonical.decode(program(Node("a", "aten.neg.default", (X,))).encode(), max_bytes=2**20)
    with pytest.raises(BadInput):
        GraphProgram.decode(canonical.encode({**document, **change}))
