"""The jobs of `bench.network.transition`: DAGs of small graph tasks, written down as programs, weights and a
manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import Ref
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from nodewire.protocol.tensors.frame import Array

ROWS, WIDTH = 8, 256
Dag = Mapping[str, Sequence[str]]
"""By task, in topological order, where its inputs come from; what nobody takes goes to the customer."""

CHAIN: Dag = {f"t{n}": [f"t{n - 1}" if n else CUSTOMER] for n in range(10)}
BRANCHES: Dag = {
    "fork": [CUSTOMER],
    "left.0": ["fork"], "middle": ["fork"], "right": ["fork"],
    "left.1": ["left.0"], "left.2": ["left.1"],
    "join": ["left.2", "middle", "right"],
}  # fmt: skip
"""Three branches, one of them longer, and what joins them."""
SIDE, LONG = 7, 6
URGENT: Dag = {
    **{f"side.{n}": [CUSTOMER] for n in range(SIDE // 2)},
    "head": [CUSTOMER],
    **{f"side.{n}": [CUSTOMER] for n in range(SIDE // 2, SIDE)},
    **{f"long.{n}": ["head" if not n else f"long.{n - 1}"] for n in range(LONG)},
}
"""Calls that are ready at once, and one of them, which comes in their middle, begins a long path."""


def edges(dag: Dag) -> list[tuple[str, str, str]]:
    """(name, source, target) of each edge."""
    taken = {source for sources in dag.values() for source in sources}
    found = [(f"{source}.to.{task}", source, task) for task, sources in dag.items() for source in sources]
    return found + [(f"{task}.to.{CUSTOMER}", task, CUSTOMER) for task in dag if task not in taken]


def write(dag: Dag, folder: Path, *, times: int = 1, rows: int = ROWS, width: int = WIDTH) -> Manifest:
    """Programs and weights of tasks that multiply the sum of their inputs with a matrix, `times` times."""
    torch.manual_seed(3)
    all_edges, tensor = edges(dag), Tensor(name="x", dtype="float32", shape=("n", width))
    tasks = []
    for task in dag:
        program = _program([e for e, _, to in all_edges if to == task], [e for e, of, _ in all_edges if of == task],
                           times, rows, width)  # fmt: skip
        (folder / f"{task}.program").write_bytes(program.encode())
        save_file({"w": torch.randn(width, width) / width**0.5}, folder / f"{task}.weights")
        blob = BlobRef(sha256="ab" * 32, bytes=10)
        tasks.append(
            Task(
                name=task,
                engine="graph",
                program=blob,
                weights=(blob,),
                memory_bytes=10**7,
                slots=8,
                flops=2 * times * width**2,
            )
        )
    made = tuple(
        Edge(name=n, source=s, target=t, tensors=(tensor,), dims={"n": rows}, bytes_per_position=4 * width)
        for n, s, t in all_edges
    )
    return Manifest(name="transition", mode="run", tasks=tuple(tasks), edges=made)


def _program(ins: Sequence[str], outs: Sequence[str], times: int, rows: int, width: int) -> Program:
    f32, nodes, value = torch.float32, [], "x0"
    for k in range(1, len(ins)):
        nodes.append(Node(f"sum{k}", "aten.add.Tensor", (Ref(value), Ref(f"x{k}"))))
        value = f"sum{k}"
    for k in range(times):
        nodes.append(Node(f"mm{k}", "aten.mm.default", (Ref(value), Ref("w"))))
        value = f"mm{k}"
    return Program(
        dims={"n": rows},
        volume=rows,
        slots=8,
        inputs=tuple(Input(f"x{k}", f32, ("n", width), edge) for k, edge in enumerate(ins)),
        weights=(Weight("w", f32, (width, width)),),
        nodes=tuple(nodes),
        outputs=tuple(Output("x", value, f32, ("n", width), edge) for edge in outs),
    )


def given(rows: int = ROWS, width: int = WIDTH) -> Array:
    """What a customer sends on each of its edges."""
    torch.manual_seed(5)
    return Array("float32", (rows, width), torch.randn(rows, width).numpy().tobytes())
