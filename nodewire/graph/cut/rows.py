"""An operator too large for one task, split by the rows of its weight.

Of an embedding each part looks up the ids of its own range, and a sum joins. A part is zero for the ids of others. For
every id exactly one part is not zero, and x + 0 = x, so the sum equals the unsplit lookup bit for bit (a negative zero
becomes a positive one, which compares equal).

Of a linear layer (a vocabulary's head) each part makes its own columns of the result, and whoever uses it puts them
beside each other. How a library sums up one column may depend on how many there are: the last digits may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.graph.program.format import Node, Program, Shape, Weight
from nodewire.graph.program.whitelist import Ref

if TYPE_CHECKING:
    from collections.abc import Mapping

EMBEDDING, LINEAR = "aten.embedding.default", "aten.linear.default"


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [first, last) of the weight `source`."""

    source: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RowSplit:
    """A program with one operator split: `parts[k]` names the nodes of part k, `ranges` what each new weight holds."""

    program: Program
    shapes: Mapping[str, Shape]
    parts: tuple[tuple[str, ...], ...]
    ranges: Mapping[str, RowRange]


def split_rows(program: Program, shapes: Mapping[str, Shape], name: str, count: int) -> RowSplit:
    """The program with the lookup or linear layer `name` in `count` parts."""
    node = next(node for node in program.nodes if node.name == name)
    return (_lookup if node.op == EMBEDDING else _linear)(program, shapes, name, count)


def _linear(program: Program, shapes: Mapping[str, Shape], name: str, count: int) -> RowSplit:
    at = next(k for k, node in enumerate(program.nodes) if node.name == name)
    whole = program.nodes[at]
    held = [arg.name for arg in whole.args[1:] if isinstance(arg, Ref)]
    stored = {w.name: w for w in program.weights if w.name in held}
    rows = stored[held[0]].shape[0]
    step = -(-rows // count)
    nodes: list[Node] = []
    weights: list[Weight] = []
    ranges: dict[str, RowRange] = {}
    known = dict(shapes)
    for k, first in enumerate(range(0, rows, step)):
        last = min(first + step, rows)
        own: list[Ref] = []
        for source in held:
            own.append(Ref(f"{source}.rows.{first}"))
            ranges[own[-1].name] = RowRange(source, first, last)
            weights.append(replace(stored[source], name=own[-1].name, shape=(last - first, *stored[source].shape[1:])))
        nodes.append(Node(f"{name}.{k}.part", LINEAR, (whole.args[0], *own)))
        known[f"{name}.{k}.part"] = (*shapes[name][:-1], last - first)
    parts = tuple((node.name,) for node in nodes)
    nodes.append(Node(name, "aten.cat.default", ([Ref(node.name) for node in nodes], -1)))
    used = {ref for node in program.nodes if node.name != name for ref in node.refs()}
    kept = tuple(w for w in program.weights if w.name not in held or w.name in used)
    split = replace(program, nodes=(*program.nodes[:at], *nodes, *program.nodes[at + 1 :]), weights=(*kept, *weights))
    return RowSplit(split, known, parts, ranges)


def _lookup(program: Program, shapes: Mapping[str, Shape], name: str, count: int) -> RowSplit:
    """The program with the lookup `name` replaced by `count` partial ones and their sum, which keeps the name."""
    at = next(k for k, node in enumerate(program.nodes) if node.name == name)
    lookup = program.nodes[at]
    table, ids = lookup.args[0].name, lookup.args[1].name
    weight = next(w for w in program.weights if w.name == table)
    rows = weight.shape[0]
    step = -(-rows // count)
    nodes: list[Node] = []
    weights: list[Weight] = []
    parts: list[tuple[str, ...]] = []
    ranges: dict[str, RowRange] = {}
    known = dict(shapes)
    for k, first in enumerate(range(0, rows, step)):
        last = min(first + step, rows)
        own, made = f"{table}.rows.{first}", f"{name}.{k}"
        ranges[own] = RowRange(table, first, last)
        weights.append(replace(weight, name=own, shape=(last - first, *weight.shape[1:])))
        nodes += [
            Node(f"{made}.from", "aten.ge.Scalar", (Ref(ids), first)),
            Node(f"{made}.to", "aten.lt.Scalar", (Ref(ids), last)),
            Node(f"{made}.inside", "aten.logical_and.default", (Ref(f"{made}.from"), Ref(f"{made}.to"))),
            Node(f"{made}.local", "aten.sub.Scalar", (Ref(ids), first)),
            Node(f"{made}.row", "aten.where.ScalarOther", (Ref(f"{made}.inside"), Ref(f"{made}.local"), 0)),
            Node(f"{made}.mask", "aten.unsqueeze.default", (Ref(f"{made}.inside"), -1)),
            Node(f"{made}.found", EMBEDDING, (Ref(own), Ref(f"{made}.row"))),
            Node(f"{made}.part", "aten.where.ScalarOther", (Ref(f"{made}.mask"), Ref(f"{made}.found"), 0.0)),
        ]
        parts.append((f"{made}.found", f"{made}.part"))
        known[f"{made}.part"] = shapes[name]
    total = f"{name}.0.part"
    for k in range(1, len(parts)):
        sum_name = name if k == len(parts) - 1 else f"{name}.{k}.sum"
        nodes.append(Node(sum_name, "aten.add.Tensor", (Ref(total), Ref(f"{name}.{k}.part"))))
        known[sum_name] = shapes[name]
        total = sum_name
    still_used = any(table in node.refs() for node in program.nodes if node.name != name)
    kept = tuple(w for w in program.weights if w.name != table or still_used)
    return RowSplit(
        program=replace(
            program,
            nodes=(*program.nodes[:at], *nodes, *program.nodes[at + 1 :]),
            weights=(*kept, *weights),
            inputs=tuple(replace(i, below=rows) if i.name == ids else i for i in program.inputs),
        ),
        shapes=known,
        parts=tuple(parts),
        ranges=ranges,
    )
