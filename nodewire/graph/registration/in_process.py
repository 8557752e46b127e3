"""A registration's tasks one after the other in this process, each loaded for its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from nodewire.graph.program.format import Program
from nodewire.graph.program.interpreter import Interpreter, bind
from nodewire.protocol.model.manifest import Manifest, Task

if TYPE_CHECKING:
    from nodewire.kind import Registration

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Task, Interpreter, Tensors, Mapping[str, int]], Tensors]


def load(made: Registration, task: Task) -> Interpreter:
    program = Program.decode(made.blobs[task.program.sha256].read_bytes())
    weights: dict[str, torch.Tensor] = {}
    for blob in task.weights:
        weights.update(load_file(made.blobs[blob.sha256]))
    return Interpreter(program, weights)


def evaluate(
    manifest: Manifest,
    inputs: Tensors,
    loaded: Callable[[Task], Interpreter],
    call: Call = lambda _, run, given, dims: run(given, dims),
) -> dict[str, torch.Tensor]:
    """What the tasks make of a call's inputs: what leaves them for whoever is no task of theirs, by name.

    Raises:
        BadTask, BadInput, TooLarge, OverMemory: as `Interpreter` and `bind`.

    """
    sources = {edge.name: edge.source for edge in manifest.edges}
    targets = {edge.name: edge.target for edge in manifest.edges}
    own = {task.name for task in manifest.tasks if task.engine == "graph"}
    waiting: dict[tuple[str, str], torch.Tensor] = {}
    final: dict[str, torch.Tensor] = {}
    for task in manifest.tasks:
        if task.name not in own:
            continue
        run = loaded(task)
        given = {
            i.name: waiting[i.edge, i.name] if sources[i.edge] in own else inputs[i.name] for i in run.program.inputs
        }
        results = call(task, run, given, bind(run.program, given))
        for out in run.program.outputs:
            if targets[out.edge] in own:
                waiting[out.edge, out.name] = results[out.value]
            else:
                final[out.name] = results[out.value]
        del run  # before the next task is loaded
    return final
