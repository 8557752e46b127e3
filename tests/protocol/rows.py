"""Programs whose rows may be apart, and what that means on real tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter, bind
from nodewire.graph.program.whitelist import Ref
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.taskgraph import batch_axis
from nodewire.taskgraph.program import GraphProgram
from tests.customer.call_models import manifest

F32, I64 = torch.float32, torch.int64
ROWS, INNER, WIDTH = 6, 5, 4
X, Y, IDS, W, BIAS, TABLE = (Ref(name) for name in ("x", "y", "ids", "w", "bias", "table"))
B, S = Ref("b"), Ref("s")
SIZES = ((ROWS, INNER), (4, 4), (2, 3), (3, 2), (1, 4), (2, 1))
"""Of b and s: what holds where they differ may not where they are alike, or 1."""


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
        outputs=(Output("out", out, dtype, ("b",), "out"),),
    )


def flat(*nodes: tuple) -> Program:
    """x [b, 4] through `nodes` (operator, *arguments), named n0, n1 ..., the last of which comes out."""
    made = [Node(f"n{k}", op, tuple(args)) for k, (op, *args) in enumerate(nodes)]
    return program(*made, shape=("b", WIDTH), out=made[-1].name)


def read(one: Program) -> tuple[Manifest, dict[str, GraphProgram]]:
    data = one.encode()
    made = manifest({"only": data}, {"customer.to.only": (CUSTOMER, "only"), "out": ("only", CUSTOMER)})
    return made, {"only": GraphProgram.decode(data)}


def axis_of(one: Program) -> int:
    """As a customer asks. Raises Unproven."""
    return batch_axis.axes(*read(one), "b")["out"]


def batch_of(one: Program) -> str | None:
    """As a provider asks."""
    return batch_axis.batch_dim(GraphProgram.decode(one.encode()))


def run(one: Program, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What comes out, whatever its shape."""
    generator = torch.Generator().manual_seed(3)
    weights = {w.name: torch.randn(w.shape, generator=generator) for w in one.weights}
    made = {}
    inner = replace(one, outputs=())  # whose shapes are nobody's business here
    Interpreter(inner, weights)(
        inputs, bind(one, inputs), lambda node, _, __, result, ___: made.update({node.name: result})
    )
    return made[one.outputs[0].value]


def drawn(one: Program, rows: int, inner: int, seed: int = 1) -> dict[str, torch.Tensor]:
    generator, sizes = torch.Generator().manual_seed(seed), {"b": rows, "s": inner}
    return {
        i.name: torch.randn([sizes.get(n, n) for n in i.shape], generator=generator)
        if i.dtype is F32
        else torch.randint(0, 3, [sizes.get(n, n) for n in i.shape], generator=generator)
        for i in one.inputs
    }


def parts_are_the_whole(one: Program, axis: int, inputs: Mapping[str, torch.Tensor]) -> bool:
    """As far as additions in another order allow: of fewer rows a product rounds otherwise."""
    rows, whole = len(inputs["ids"]), run(one, inputs)
    for cut in {1, 2, rows - 2} & set(range(1, rows)):
        parts = [
            run(one, {name: tensor[at : at + cut] for name, tensor in inputs.items()}) for at in range(0, rows, cut)
        ]
        if not torch.allclose(torch.cat(parts, axis).float(), whole.float(), atol=1e-4, rtol=1e-4, equal_nan=True):
            return False
    return True


def rows_see_nothing_of_others(one: Program, axis: int, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Bit by bit: with another row in the place of one, all others' results are what they were."""
    rows, whole = len(inputs["ids"]), run(one, inputs)
    others = drawn(one, rows, inputs["ids"].shape[1], seed=2)
    for row in range(rows):
        changed = {name: tensor.clone() for name, tensor in inputs.items()}
        for name, tensor in changed.items():
            tensor[row] = others[name][row]
        kept = torch.tensor([k for k in range(rows) if k != row], dtype=I64)
        before, after = (_bits(one.index_select(axis, kept)) for one in (whole, run(one, changed)))
        if not torch.equal(before, after):
            return False
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor
