"""A model of two branches that are joined: inputs on three edges, outputs of two tasks, four dtypes, no row for some.

left ──▶ left ──┬─▶ join ──▶ joined, rounded
                └────────────▶ large
right ─▶ right ───▶ join
order ────────────▶ join
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from nodewire.graph.program.format import NAMES, Input, Node, Output, Program, Weight
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Registration
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Task, Tensor
from nodewire.weights.blob_folder import BlobFolder
from nodewire.weights.tensorfile import AssembledTensor

F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool
WIDTH, MOST, SLOTS = 4, 64, 8
LEFT, RIGHT = 1.0, 2.0
"""Every number of the branches' weights: a row of ones becomes WIDTH times that."""
NAME = "branches"


def programs() -> dict[str, tuple[Program, dict[str, torch.Tensor]]]:
    """By task, its program and weights."""
    rows = {"n": MOST}, {"m": MOST}
    left = Program(
        dims=rows[0],
        volume=MOST,
        slots=SLOTS,
        inputs=(Input("left", F32, ("n", WIDTH), "customer.to.left"),),
        weights=(Weight("w", F32, (WIDTH, WIDTH)),),
        nodes=(
            Node("a", "aten.mm.default", (Ref("left"), Ref("w"))),
            Node("large", "aten.gt.Scalar", (Ref("a"), float(WIDTH))),
        ),
        outputs=(
            Output("a", "a", F32, ("n", WIDTH), "left.to.join"),
            Output("large", "large", BOOL, ("n", WIDTH), "left.to.customer"),
        ),
    )
    right = Program(
        dims=rows[1],
        volume=MOST,
        slots=SLOTS,
        inputs=(Input("right", F32, ("m", WIDTH), "customer.to.right"),),
        weights=(Weight("w", F32, (WIDTH, WIDTH)),),
        nodes=(Node("b", "aten.mm.default", (Ref("right"), Ref("w"))),),
        outputs=(Output("b", "b", F32, ("m", WIDTH), "right.to.join"),),
    )
    join = Program(
        dims={"n": MOST, "m": MOST, "t": 2 * MOST},
        volume=2 * MOST**3,
        slots=SLOTS,
        inputs=(
            Input("a", F32, ("n", WIDTH), "left.to.join"),
            Input("b", F32, ("m", WIDTH), "right.to.join"),
            Input("order", I64, ("t",), "customer.to.join", 2 * MOST),
        ),
        weights=(),
        nodes=(
            Node("rows", "aten.cat.default", ([Ref("a"), Ref("b")], 0)),
            Node("joined", "aten.index_select.default", (Ref("rows"), 0, Ref("order"))),
            Node("rounded", "aten._to_copy.default", (Ref("joined"),), {"dtype": BF16}),
        ),
        outputs=(
            Output("joined", "joined", F32, ("t", WIDTH), "join.to.customer"),
            Output("rounded", "rounded", BF16, ("t", WIDTH), "join.to.customer"),
        ),
    )
    square = (WIDTH, WIDTH)
    return {
        "left": (left, {"w": torch.full(square, LEFT)}),
        "right": (right, {"w": torch.full(square, RIGHT)}),
        "join": (join, {}),
    }


def register(out: Path, name: str = NAME) -> Registration:
    out.mkdir()
    blobs, tasks, edges = BlobFolder(out), [], []
    made = programs()
    for task, (program, weights) in made.items():
        tasks.append(
            Task(
                name=task,
                engine="graph",
                program=blobs.blob(program.encode()),
                weights=blobs.weights(_assembled(weights)) if weights else (),
                memory_bytes=2 * verify(program, 10**7).peak_bytes + 10**5,
                slots=SLOTS,
                flops=WIDTH * WIDTH,
            )
        )
        for edge in dict.fromkeys(port.edge for port in program.inputs):
            source = edge.partition(".to.")[0]
            edges.append(_edge(edge, source, task, program, [port for port in program.inputs if port.edge == edge]))
        edges += [
            _edge(edge, task, CUSTOMER, program, [port for port in program.outputs if port.edge == edge])
            for edge in dict.fromkeys(port.edge for port in program.outputs if port.edge.endswith(f".to.{CUSTOMER}"))
        ]
    manifest = Manifest(name=name, mode="run", tasks=tuple(tasks), edges=tuple(edges))
    return Registration(manifest, blobs.paths, ())


def _assembled(weights: Mapping[str, torch.Tensor]) -> dict[str, AssembledTensor]:
    return {name: AssembledTensor(one.dtype, tuple(one.shape), (one,)) for name, one in weights.items()}


def _edge(name: str, source: str, target: str, program: Program, ports: list[Input] | list[Output]) -> Edge:
    tensors = tuple(Tensor.from_document({"name": p.name, "dtype": NAMES[p.dtype], "shape": p.shape}) for p in ports)
    dims = {n: most for n, most in program.dims.items() if any(n in port.shape for port in ports)}
    return Edge(name=name, source=source, target=target, tensors=tensors, dims=dims, bytes_per_position=4 * WIDTH)


def call(left: int, right: int, seed: int = 0) -> dict[str, np.ndarray]:
    """So many rows for each branch, and an order that mixes them."""
    random = np.random.default_rng(seed)
    return {
        "left": random.integers(-3, 4, (left, WIDTH)).astype(np.float32),
        "right": random.integers(-3, 4, (right, WIDTH)).astype(np.float32),
        "order": random.permutation(left + right).astype(np.int64),
    }


def expected(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model makes of it; integers, so that nothing rounds."""
    sums = (given["left"].sum(1) * LEFT, given["right"].sum(1) * RIGHT)
    a, b = (np.repeat(one[:, None], WIDTH, 1).astype(np.float32) for one in sums)
    joined = np.concatenate([a, b])[given["order"]]
    return {"large": a > WIDTH, "joined": joined, "rounded": joined}
