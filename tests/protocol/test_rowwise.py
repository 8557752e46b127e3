"""A batch is split only where parts make the whole: what is proven is tried on real tensors, mixing is never proven."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from nodewire.errors import BadInput, BadTask
from nodewire.graph.classifier import program_of
from nodewire.graph.format import Input, Node, Output, Program, Weight
from nodewire.graph.interpret import Interpreter, bind
from nodewire.graph.whitelist import OPS, Ref
from nodewire.protocol import canonical, rowwise
from nodewire.protocol.families import Cnn, Linear, Mlp
from nodewire.protocol.graph_program import GraphProgram
from nodewire.protocol.manifest import CUSTOMER, Manifest
from nodewire.protocol.row_rules import ELEMENTWISE
from tests.customer.models import manifest

F32, I64 = torch.float32, torch.int64
ROWS, INNER, WIDTH = 6, 5, 4
X, Y, IDS = Ref("x"), Ref("y"), Ref("ids")
B, S = Ref("b"), Ref("s")


def program(*nodes: Node, shape=("b", "s", WIDTH), out: str = "out", dtype=F32) -> Program:
    """One task: x and y of `shape`, ids [b, s], a square weight, a bias, a table; its last node's value comes out."""
    return Program(
        dims={"b": 64, "s": 64},
        volume=4_096,
        inputs=(
            Input("x", F32, shape, "customer.to.only"),
            Input("y", F32, shape, "customer.to.only"),
            Input("ids", I64, ("b", "s"), "customer.to.only", 3),
        ),
        weights=(
            Weight("w", F32, (WIDTH, WIDTH)),
            Weight("bias", F32, (WIDTH,)),
            Weight("table", F32, (3, WIDTH)),
            Weight("positions", F32, (ROWS, 1, WIDTH)),
        ),
        nodes=(*nodes[:-1], replace(nodes[-1], name=out)),
        outputs=(Output("out", out, dtype, (), "out"),),
    )


def read(one: Program) -> tuple[Manifest, dict[str, GraphProgram]]:
    data = one.encode()
    made = manifest({"only": data}, {"customer.to.only": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    return made, {"only": GraphProgram.decode(data)}


def axis_of(one: Program) -> int:
    return rowwise.axes(*read(one), "b")["out"]


def run(one: Program, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    weights = {w.name: torch.randn(w.shape, generator=generator) for w in one.weights}
    made = {}
    inner = replace(one, outputs=())  # whose shapes are nobody's business here
    Interpreter(inner, weights)(
        inputs, bind(one, inputs), lambda node, _, __, result, ___: made.update({node.name: result})
    )
    return made[one.outputs[0].value]


def parts_are_the_whole(one: Program) -> bool:
    torch.manual_seed(1)
    sizes = {"b": ROWS, "s": INNER}
    inputs = {
        i.name: torch.randn([sizes.get(n, n) for n in i.shape])
        if i.dtype is F32
        else torch.randint(0, 3, [sizes.get(n, n) for n in i.shape])
        for i in one.inputs
    }
    whole, axis = run(one, inputs), axis_of(one)
    lies = {i.name: i.shape.index("b") for i in one.inputs}
    for cut in (1, 2, 4):
        parts = [
            run(one, {name: tensor.split(cut, lies[name])[k] for name, tensor in inputs.items()})
            for k in range(-(-ROWS // cut))
        ]
        if not torch.allclose(torch.cat(parts, axis), whole, atol=1e-5):  # of fewer rows a product rounds otherwise
            return False
    return True


SAFE = {
    "a sum of inputs": [Node("a", "aten.add.Tensor", (X, Y))],
    "a linear layer": [Node("a", "aten.linear.default", (X, Ref("w"), Ref("bias")))],
    "heads apart": [
        Node("a", "aten.reshape.default", (X, [B, S, 2, 2])),
        Node("b1", "aten.transpose.int", (Ref("a"), 1, 2)),
        Node("c", "aten.scaled_dot_product_attention.default", (Ref("b1"), Ref("b1"), Ref("b1"))),
        Node("d", "aten.transpose.int", (Ref("c"), 1, 2)),
        Node("e", "aten.reshape.default", (Ref("d"), [B, S, WIDTH])),
    ],
    "batch by batch": [Node("t", "aten.transpose.int", (Y, 1, 2)), Node("a", "aten.bmm.default", (X, Ref("t")))],
    "layer norm": [Node("a", "aten.layer_norm.default", (X, [WIDTH], Ref("bias")))],
    "softmax inside": [Node("a", "aten.softmax.int", (X, -1))],
    "a mean inside": [Node("a", "aten.mean.dim", (X, [1], True))],
    "a maximum that drops what is inside": [Node("a", "aten.amax.default", (X, [1]))],
    "looked up": [Node("a", "aten.embedding.default", (Ref("table"), IDS))],
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
        Node("e", "aten.expand.default", (Ref("bias"), [B, S, WIDTH])),
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
}
MIXING = {
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
    "an output without rows": [Node("a", "aten.mul.Scalar", (Ref("bias"), 2))],
    "a maximum over rows beside them": [
        Node("m", "aten.amax.default", (X, [-3], True)),
        Node("a", "aten.maximum.default", (X, Ref("m"))),
    ],
    "another input's rows as columns": [
        Node("t", "aten.transpose.int", (Y, 0, 1)),
        Node("a", "aten.add.Tensor", (X, Ref("t"))),
    ],
}


@pytest.mark.parametrize("case", SAFE)
def test_what_keeps_rows_apart_is_proven_and_its_parts_are_the_whole(case):
    assert parts_are_the_whole(program(*SAFE[case]))


@pytest.mark.parametrize("case", MIXING)
def test_what_mixes_rows_is_not_proven(case):
    with pytest.raises(rowwise.Unproven):
        axis_of(program(*MIXING[case]))


def test_every_pair_of_operators_that_is_proven_is_so_on_real_tensors():
    """What a rule says of its value is believed by the next one: shapes, the axis, and that rows are not numbered."""
    steps = {
        "aten.softmax.int": (1,),
        "aten.transpose.int": (0, 1),
        "aten.permute.default": ([2, 0, 1],),
        "aten.unsqueeze.default": (0,),
        "aten.flatten.using_ints": (1, -1),
        "aten.sum.dim_IntList": ([1],),
        "aten.amax.default": ([0], True),
        "aten.select.int": (1, 0),
        "aten.slice.Tensor": (0, 0, 1),
        "aten.matmul.default": (Ref("w"),),
        "aten.linear.default": (Ref("w"),),
        "aten.add.Tensor": (Ref("bias"),),
        "aten.mul.Tensor": (Ref("positions"),),
        "aten.maximum.default": (Y,),
        "aten.cumsum.default": (0,),
        "aten.reshape.default": ([B, -1],),
        "aten.flip.default": ([1],),
        "aten.tril.default": (),
        "aten.t.default": (),
    }
    proven = 0
    for (first, one), (second, two) in itertools.product(steps.items(), repeat=2):
        made = program(Node("a", first, (X, *one)), Node("z", second, (Ref("a"), *two)))
        with suppress(rowwise.Unproven, BadTask):  # or no program at all: shapes that do not fit
            assert parts_are_the_whole(made), (first, second)
            proven += 1
    assert proven > 30


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
    assert rowwise.axes(*read(replace(one, inputs=inputs, outputs=outputs)), "rows") == {"scores": 0}


def test_elementwise_operators_are_of_the_whitelist():
    assert set(OPS) >= ELEMENTWISE


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
    with pytest.raises(rowwise.Unproven):
        rowwise.axes(made, {"only": GraphProgram.decode(canonical.encode(document))}, "b")


@pytest.mark.parametrize("change", [{"nodes": [[1]]}, {"inputs": [{}]}, {"dims": []}, {"volume": "many"}, {"v": 2}])
def test_what_is_no_program_is_refused(change):
    document = canonical.decode(program(Node("a", "aten.neg.default", (X,))).encode(), max_bytes=2**20)
    with pytest.raises(BadInput):
        GraphProgram.decode(canonical.encode({**document, **change}))
