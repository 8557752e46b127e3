"""Backward through tasks: each runs under autograd with its weights as leaves, and only tensors pass between them.

A split model is trained as its tasks would be on as many machines: forward in topological order, every task on detached
inputs; backward in the reverse order, a task being given what its consumers say of its outputs and giving the same of
its inputs. By the chain rule the weights' gradients are the whole model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file

from nodewire.errors import BadInput, BadTask
from nodewire.graph.format import Program
from nodewire.graph.interpret import Interpreter, bind
from nodewire.graph.rows import RowRange
from nodewire.protocol.manifest import Manifest

Tensors = Mapping[str, torch.Tensor]
Place = tuple[str, str]
"""A tensor between tasks: its edge, and its name there."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of a task: for its floating inputs by place, for its weights by name. What nothing depends on is not in it."""

    inputs: Mapping[Place, torch.Tensor]
    weights: Tensors


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of a task. `outputs` are detached; what autograd recorded is kept until `backward`."""

    outputs: Mapping[Place, torch.Tensor]
    _recorded: Mapping[Place, torch.Tensor]
    _inputs: Mapping[Place, torch.Tensor]
    _weights: Tensors

    def backward(self, cotangents: Mapping[Place, torch.Tensor]) -> Gradients:
        """Gradients, given those of the loss with respect to `outputs`; an output that is not named counts for nothing.

        Raises:
            BadInput: a cotangent of another shape than its output, or of no output; or a second call.
        """
        for place, cotangent in cotangents.items():
            if place not in self._recorded or cotangent.shape != self._recorded[place].shape:
                raise BadInput(place[1], "a gradient of no output of that shape")
        heads = {p: c for p, c in cotangents.items() if self._recorded[p].requires_grad}
        leaves = [t for t in (*self._inputs.values(), *self._weights.values()) if t.requires_grad]
        if not heads or not leaves:
            return Gradients({}, {})
        try:
            found = torch.autograd.grad(
                [self._recorded[place] for place in heads], leaves, list(heads.values()), allow_unused=True
            )
        except RuntimeError as error:
            raise BadInput("gradient", str(error).splitlines()[0][:160]) from error
        by_leaf = {id(leaf): gradient for leaf, gradient in zip(leaves, found, strict=True) if gradient is not None}
        return Gradients(
            {place: by_leaf[id(t)] for place, t in self._inputs.items() if id(t) in by_leaf},
            {name: by_leaf[id(t)] for name, t in self._weights.items() if id(t) in by_leaf},
        )


def forward(program: Program, weights: Tensors, inputs: Mapping[Place, torch.Tensor], device: str = "cpu") -> Pass:
    """Run a task for training. `weights` by name as its table has them, `inputs` by edge and name.

    Raises:
        BadInput, BadTask, TooLarge: as the interpreter and `bind` do.
    """
    with torch.enable_grad():
        held = {one.name: _leaf(weights[one.name]) for one in program.weights}
        arrived = {(one.edge, one.name): _leaf(inputs[one.edge, one.name]) for one in program.inputs}
        named = {name: tensor for (_, name), tensor in arrived.items()}
        results = Interpreter(program, held, device).recorded(named, bind(program, named))
    recorded = {(out.edge, out.name): results[out.value] for out in program.outputs}
    return Pass({place: value.detach() for place, value in recorded.items()}, recorded, arrived, held)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    return detached.requires_grad_() if detached.is_floating_point() else detached


@dataclass(slots=True)
class SplitModel:
    """Tasks in topological order. `ranges` says which rows of a weight a row-split task holds (decompose.py)."""

    tasks: Mapping[str, Program]
    ranges: Mapping[str, RowRange] = field(default_factory=dict)
    _passes: dict[str, Pass] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, blobs: Mapping[str, Path]) -> tuple[Self, dict[str, torch.Tensor]]:
        """The graph tasks of a registration, and their weights by name. A weight that several tasks hold is one.

        Raises:
            BadTask: a task is not of the engine "graph".
        """
        tasks: dict[str, Program] = {}
        weights: dict[str, torch.Tensor] = {}
        for task in manifest.tasks:
            if task.engine != "graph":
                raise BadTask(task.name, f"of the engine {task.engine}, through which there is no backward")
            tasks[task.name] = Program.decode(blobs[task.program.sha256].read_bytes())
            for blob in task.weights:
                weights.update(load_file(blobs[blob.sha256]))
        return cls(tasks), weights

    def forward(self, weights: Tensors, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The model's outputs by name, detached, from its weights and its inputs by name.

        Raises:
            BadInput: an input or a weight is missing, or not as a task declares it.
        """
        moving: dict[Place, torch.Tensor] = {}
        self._passes.clear()
        for name, program in self.tasks.items():
            places = {(one.edge, one.name): moving.get((one.edge, one.name)) for one in program.inputs}
            given = {place: inputs.get(place[1]) if t is None else t for place, t in places.items()}
            known = {place: tensor for place, tensor in given.items() if tensor is not None}
            if len(known) < len(given):
                raise BadInput(next(p[1] for p in given if p not in known), f"an input of {name}, and not given")
            held = {one.name: self._held(one.name, weights) for one in program.weights}
            self._passes[name] = forward(program, held, known)
            moving.update(self._passes[name].outputs)
        return {place[1]: moving[place] for place in self._final()}

    def backward(self, cotangents: Tensors) -> dict[str, torch.Tensor]:
        """The loss's gradients for every weight by name, from those for the model's outputs by name."""
        final = self._final()
        due = {place: cotangents[place[1]] for place in final if place[1] in cotangents}
        totals: dict[str, torch.Tensor] = {}
        for name, program in reversed(list(self.tasks.items())):
            own = {(out.edge, out.name) for out in program.outputs}
            found = self._passes.pop(name).backward({place: t for place, t in due.items() if place in own})
            for place, gradient in found.inputs.items():
                due[place] = due[place] + gradient if place in due else gradient
            for weight, gradient in found.weights.items():
                totals[weight] = totals[weight] + gradient if weight in totals else gradient
        return self._joined(totals)

    def _final(self) -> list[Place]:
        """Where the model's outputs leave: on edges that lead to no task."""
        inward = {one.edge for program in self.tasks.values() for one in program.inputs}
        places = [(out.edge, out.name) for program in self.tasks.values() for out in program.outputs]
        return [place for place in places if place[0] not in inward]

    def _held(self, name: str, weights: Tensors) -> torch.Tensor:
        rows = self.ranges.get(name)
        source = rows.source if rows else name
        if source not in weights:
            raise BadInput(source, "a weight of the model, and not given")
        return weights[source][rows.first : rows.last] if rows else weights[source]

    def _joined(self, totals: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients of rows in the place that they have in the whole weight."""
        joined: dict[str, torch.Tensor] = {}
        for name, gradient in totals.items():
            rows = self.ranges.get(name)
            if rows is None:
                joined[name] = joined[name] + gradient if name in joined else gradient
                continue
            most = max(r.last for r in self.ranges.values() if r.source == rows.source)
            whole = joined.setdefault(rows.source, gradient.new_zeros(most, *gradient.shape[1:]))
            whole[rows.first : rows.last] += gradient
        return joined
