"""Random programs, many of which mix rows, or would if a rule took a rank or a size for another."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch

from nodewire.errors import NodewireError
from nodewire.graph.program.format import Node, Program
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.whitelist import Ref
from nodewire.taskgraph import batch_axis
from tests.protocol.rows import (
    BIAS,
    SIZES,
    WIDTH,
    B,
    S,
    W,
    X,
    Y,
    axis_of,
    drawn,
    parts_are_the_whole,
    program,
    rows_see_nothing_of_others,
)

NODES, TRIES = 7, 12
_ROWS, _INNER = 3, 2
"""At which nodes are drawn so that they fit: few enough for sizes to be alike by chance."""


class Drawn:
    """A program that runs at those sizes, drawn node by node."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.nodes: list[Node] = []
        empty = program(Node("n", "aten.neg.default", (X,)))
        self._made: dict[str, Any] = {"b": _ROWS, "s": _INNER, **drawn(empty, _ROWS, _INNER)}
        self._made |= {w.name: torch.ones(w.shape) for w in empty.weights}
        for _ in range(NODES):
            self._add()
        while self.nodes and not isinstance(self._made[self.nodes[-1].name], torch.Tensor):
            self.nodes.pop()

    def program(self) -> Program:
        return program(*self.nodes, out="last")

    def _add(self) -> None:
        for _ in range(TRIES):
            name = f"n{len(self.nodes)}"
            operator, args, named = self._random.choice(CALLS)(self)
            node = Node(name, operator, tuple(args), named)
            if (value := self._value(node)) is not None:
                self.nodes.append(node)
                self._made[name] = value
                return

    def _value(self, node: Node) -> Any:
        """What it makes, None if it makes nothing."""
        found: dict[str, Any] = {}
        one = Interpreter(Program({}, 1, (), (), (node,), ()), self._made)
        with suppress(NodewireError):
            one({}, {}, lambda node, _, __, result, ___: found.update({node.name: result}))
        return found.get(node.name)

    def tensor(self, least: int = 0) -> Ref:
        """One made before, the later the likelier."""
        found = [k for k, v in self._made.items() if isinstance(v, torch.Tensor) and v.dim() >= least]
        return Ref(self._random.choice([*found, *found[-3:], *found[-1:]] if found else ["x"]))

    def integers(self) -> Ref:
        found = [k for k, v in self._made.items() if isinstance(v, torch.Tensor) and v.dtype == torch.int64]
        return Ref(self._random.choice(found))

    def pieces(self) -> Ref:
        found = [k for k, v in self._made.items() if isinstance(v, list)]
        return Ref(self._random.choice(found or ["x"]))

    def size(self) -> Any:
        numbers = [Ref(k) for k, v in self._made.items() if isinstance(v, int)]
        return self._random.choice([B, B, S, -1, 0, 1, 1, 2, WIDTH, *numbers[-2:]])

    def sizes(self, most: int = 3) -> list[Any]:
        return [self.size() for _ in range(self._random.randint(1, most))]

    def dim(self) -> int:
        return self._random.choice((-2, -1, 0, 0, 1, 1, 2))

    def one_of(self, *values: Any) -> Any:
        return self._random.choice(values)


Call = Callable[["Drawn"], tuple[str, list[Any], dict[str, Any]]]
"""One way to call an operator: its name, arguments, and arguments by name."""


def _call(operator: str, args: Callable[[Drawn], list[Any]], **named: Callable[[Drawn], Any]) -> Call:
    return lambda d: (f"aten.{operator}", args(d), {name: draw(d) for name, draw in named.items()})


def _dtype(d: Drawn) -> torch.dtype:
    return d.one_of(torch.int64, torch.int64, torch.float32, torch.bfloat16, torch.uint8, torch.bool)


def _arithmetic() -> Iterator[Call]:
    """Of elements, rows and matrices."""
    for name in ("neg", "relu", "clone", "t", "zeros_like", "tril"):
        yield _call(f"{name}.default", lambda d: [d.tensor()])
    yield _call("_to_copy.default", lambda d: [d.tensor()], dtype=_dtype)
    for name in ("add.Tensor", "mul.Tensor", "maximum.default", "matmul.default", "mm.default", "bmm.default"):
        yield _call(name, lambda d: [d.tensor(), d.tensor()])
    yield _call("add.Tensor", lambda d: [d.tensor(), d.tensor()])
    yield _call("mul.Scalar", lambda d: [d.tensor(), d.one_of(2, S, B)])
    yield _call("where.self", lambda d: [d.tensor(), d.tensor(), d.tensor()])
    yield _call("addmm.default", lambda d: [d.tensor(), d.tensor(), d.tensor()])
    yield _call("linear.default", lambda d: [d.tensor(), d.one_of(W, W, BIAS, d.tensor())])
    yield _call("linear.default", lambda d: [d.tensor(), W], bias=lambda d: d.one_of(BIAS, d.tensor()))
    yield _call("scaled_dot_product_attention.default", lambda d: [d.tensor(2), d.tensor(2), d.tensor(2)])
    yield _call("layer_norm.default", lambda d: [d.tensor(), [WIDTH]])


def _reductions() -> Iterator[Call]:
    """Over an axis."""
    for name in ("sum.dim_IntList", "amax.default", "mean.dim"):
        yield _call(name, lambda d: [d.tensor(), [d.dim()], d.one_of(True, False)])
    yield _call("sum.dim_IntList", lambda d: [d.tensor(), [d.dim()]])
    yield _call("argmax.default", lambda d: [d.tensor(), d.dim()])
    for name in ("softmax.int", "cumsum.default"):
        yield _call(name, lambda d: [d.tensor(), d.dim()])


def _shapes() -> Iterator[Call]:
    """The same elements in another shape, or some of them."""
    for name in ("view.default", "reshape.default", "expand.default"):
        yield _call(name, lambda d: [d.tensor(), d.sizes()])
    yield _call("view.default", lambda d: [d.tensor(), [B, *d.sizes(2)]])
    yield _call("expand.default", lambda d: [d.tensor(), [B, *d.sizes(2)]])
    yield _call("repeat.default", lambda d: [d.tensor(), d.sizes()])
    yield _call("conv1d.default", lambda d: [d.tensor(2), d.tensor(2)])
    yield _call("permute.default", lambda d: [d.tensor(), d.one_of([1, 0], [2, 0, 1], [0, 2, 1])])
    yield _call("transpose.int", lambda d: [d.tensor(), d.dim(), d.dim()])
    yield _call("transpose.int", lambda d: [d.tensor()], dim0=Drawn.dim, dim1=Drawn.dim)
    for name in ("unsqueeze.default", "squeeze.dim", "unbind.int"):
        yield _call(name, lambda d: [d.tensor(), d.dim()])
        yield _call(name, lambda d: [d.tensor(), d.dim()])
    yield _call("select.int", lambda d: [d.tensor(), d.dim(), d.one_of(0, 1, -1)])
    yield _call("select.int", lambda d: [d.tensor(), 1, 0])
    yield _call("slice.Tensor", lambda d: [d.tensor(), d.dim(), d.one_of(None, 0, 1, B), d.one_of(d.size(), 2**63 - 1)])
    yield _call("cat.default", lambda d: [[d.tensor(), d.tensor()], d.dim()])
    yield _call("stack.default", lambda d: [[d.tensor(), d.tensor()], d.dim()])
    yield _call("flatten.using_ints", lambda d: [d.tensor(), d.dim(), d.dim()])
    yield _call("split.Tensor", lambda d: [d.tensor(), d.one_of(1, 2), d.dim()])
    yield lambda d: ("py.getitem", [d.pieces(), d.one_of(0, 1)], {})
    yield _call("constant_pad_nd.default", lambda d: [d.tensor(), [d.one_of(0, 1, -1) for _ in range(d.one_of(2, 4))]])
    yield _call("flip.default", lambda d: [d.tensor(), [d.dim()]])


def _lookups() -> Iterator[Call]:
    """By indices that are drawn, too."""
    yield _call("embedding.default", lambda d: [d.tensor(2), d.integers()])
    for _ in range(3):
        yield _call("index.Tensor", lambda d: [d.tensor(), [d.one_of(None, d.integers()), d.integers()]])
        yield _call("index.Tensor", lambda d: [d.tensor(), [d.integers()]])
    yield _call("index_select.default", lambda d: [d.tensor(), d.dim(), d.integers()])
    yield _call("gather.default", lambda d: [d.tensor(), d.dim(), d.integers()])


def _creations() -> Iterator[Call]:
    """Of nothing but sizes, and sums of these."""
    for _ in range(2):
        yield _call("arange.default", lambda d: [d.one_of(B, B, S, 2)])
    yield _call("arange.default", lambda d: [d.one_of(B, S)], dtype=_dtype)
    yield _call("arange.start", lambda d: [d.one_of(0, B, 1), d.one_of(B, S, 4)])
    for name in ("zeros.default", "ones.default"):
        yield _call(name, lambda d: [d.sizes()])
        yield _call(name, lambda d: [d.sizes()], dtype=lambda d: torch.int64)
    yield _call("new_ones.default", lambda d: [d.tensor(), d.sizes()])
    yield _call("new_full.default", lambda d: [d.tensor(), d.sizes()], fill_value=Drawn.size)
    for name in ("sub", "mul"):
        yield lambda d, name=name: (f"py.{name}", [d.one_of(S, B, 2), d.one_of(1, 2, B)], {})


CALLS = [*_arithmetic(), *_reductions(), *_shapes(), *_lookups(), *_creations()]


def check(one: Program) -> int:
    """At how many sizes it was tried, which is none where nothing is proven."""
    try:
        axis = axis_of(one)
    except batch_axis.Unproven:
        return 0
    tried = 0
    for rows, inner in SIZES:
        inputs = drawn(one, rows, inner)
        with suppress(NodewireError):  # it does not run at these sizes, whole or in parts
            assert rows_see_nothing_of_others(one, axis, inputs), (rows, inner)
            tried += 1
            assert parts_are_the_whole(one, axis, inputs), (rows, inner)
    return tried


@pytest.mark.parametrize("part", range(2))
def test_whatever_is_proven_of_random_programs_is_so_on_real_tensors(part):
    tried = [check(one) for seed in range(part, 400, 2) if (one := Drawn(seed).program()).nodes]
    assert sum(n > 0 for n in tried) > len(tried) / 30


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
        "aten.matmul.default": (W,),
        "aten.linear.default": (W,),
        "aten.add.Tensor": (BIAS,),
        "aten.mul.Tensor": (Ref("positions"),),
        "aten.maximum.default": (Y,),
        "aten.cumsum.default": (0,),
        "aten.reshape.default": ([B, -1],),
        "aten.flip.default": ([1],),
        "aten.tril.default": (),
        "aten.t.default": (),
    }
    tried = [
        check(program(Node("a", first, (X, *one)), Node("z", second, (Ref("a"), *two))))
        for (first, one), (second, two) in product(steps.items(), repeat=2)
    ]
    assert sum(n > 0 for n in tried) > 30
