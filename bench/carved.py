"""A registration's tasks run one after the other in this process, as providers' workers run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load_file

from nodewire.graph.format import Program
from nodewire.graph.interpret import Interpreter, bind
from nodewire.graph.liveness import walk
from nodewire.kind import Registration
from nodewire.protocol.manifest import CUSTOMER, Manifest


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a task's call took, weights apart: as the allocator had it, and as was predicted."""

    measured: int
    predicted: int


class Carved:
    """All tasks of a manifest without a driver, loaded."""

    def __init__(self, made: Registration) -> None:
        self.manifest: Manifest = made.manifest
        self._tasks: dict[str, Interpreter] = {}
        for task in made.manifest.tasks:
            program = Program.decode(made.blobs[task.program.sha256].read_bytes())
            weights: dict[str, torch.Tensor] = {}
            for blob in task.weights:
                weights.update(load_file(made.blobs[blob.sha256]))
            self._tasks[task.name] = Interpreter(program, weights)

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the tasks make of a call's inputs: the model's outputs by name."""
        outputs, _ = self._run(inputs, measured=False)
        return outputs

    def peaks(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Peak]:
        """What each task took for a call."""
        self._run(inputs, measured=False)  # what kernels keep for later calls is made by the first
        return self._run(inputs, measured=True)[1]

    def _run(
        self, inputs: Mapping[str, torch.Tensor], *, measured: bool
    ) -> tuple[dict[str, torch.Tensor], dict[str, Peak]]:
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        final: dict[str, torch.Tensor] = {}
        peaks: dict[str, Peak] = {}
        targets = {edge.name: edge.target for edge in self.manifest.edges}
        for name, run in self._tasks.items():
            program = run.program
            given = {
                i.name: inputs[i.name] if i.edge == f"{CUSTOMER}.to.{name}" else waiting[i.edge][i.name]
                for i in program.inputs
            }
            dims = bind(program, given)
            if measured:
                peaks[name] = _peak(run, given, dims)
            results = run(given, dims)
            for out in program.outputs:
                if targets[out.edge] == CUSTOMER:
                    final[out.name] = results[out.value]
                else:
                    waiting.setdefault(out.edge, {})[out.name] = results[out.value]
        return final, peaks


def _peak(run: Interpreter, given: Mapping[str, torch.Tensor], dims: Mapping[str, int]) -> Peak:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run({name: tensor.clone() for name, tensor in given.items()}, dims)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return Peak(most, walk(run.program, dims, 2**62).peak_bytes)
