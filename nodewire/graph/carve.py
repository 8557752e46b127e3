"""Tasks out of a cut program: each gets its nodes, the free ones it needs, its weights, and edges to the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from nodewire.errors import BadTask
from nodewire.graph.format import Input, Output, Program, Shape


@dataclass(frozen=True, slots=True)
class Group:
    """A task to be: its name and the nodes that it owns."""

    name: str
    nodes: tuple[str, ...]


def edge_name(source: str, target: str) -> str:
    return f"{source}.to.{target}"


def carve(
    program: Program,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, torch.dtype],
    groups: Sequence[Group],
    free: Collection[str],
    source: str,
) -> dict[str, Program]:
    """A program for each group, in their order; the model's inputs come from the task named `source`.

    Raises:
        BadTask: a tensor between two groups has a derived size.
    """
    owner = {node: group.name for group in groups for node in group.nodes}
    tasks = {group.name: _task(program, shapes, dtypes, group, owner, free, source) for group in groups}
    for name, task in tasks.items():
        leaving = [
            Output(i.name, i.name, i.dtype, i.shape, i.edge)
            for target in tasks.values()
            for i in target.inputs
            if i.edge.startswith(edge_name(name, "")) and owner.get(i.name) == name
        ]
        final = [out for out in program.outputs if owner.get(out.value) == name]
        tasks[name] = replace(task, outputs=(*leaving, *final))
    return tasks


def _task(
    program: Program,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, torch.dtype],
    group: Group,
    owner: Mapping[str, str],
    free: Collection[str],
    source: str,
) -> Program:
    by_name = {node.name: node for node in program.nodes}
    model_inputs = {i.name: i for i in program.inputs}
    needed, used, waiting = set(group.nodes), set[str](), list(group.nodes)
    while waiting:
        for ref in by_name[waiting.pop()].refs():
            used.add(ref)
            if ref in by_name and ref in free and ref not in needed:
                needed.add(ref)
                waiting.append(ref)
    inputs = [replace(i, edge=edge_name(source, group.name)) for i in program.inputs if i.name in used]
    for node in program.nodes:
        if node.name in used and node.name not in needed:
            if node.name not in shapes:
                raise BadTask(node.name, "passes between tasks and has a derived size")
            edge = edge_name(owner[node.name], group.name)
            inputs.append(Input(node.name, dtypes[node.name], shapes[node.name], edge))
    have = {d for i in inputs for d in i.shape if isinstance(d, str)}
    for dim in used & set(program.dims) - have:
        extra = next(i for i in model_inputs.values() if dim in i.shape)
        if all(extra.name != i.name for i in inputs):
            inputs.insert(0, replace(extra, edge=edge_name(source, group.name)))
        have |= {d for d in extra.shape if isinstance(d, str)}
    return Program(
        dims={name: most for name, most in program.dims.items() if name in have},
        volume=program.volume,
        inputs=tuple(inputs),
        weights=tuple(w for w in program.weights if w.name in used),
        nodes=tuple(node for node in program.nodes if node.name in needed),
        outputs=(),
        slots=program.slots,
    )
