"""A registration's tasks run one after the other in this process, as providers' workers run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.liveness import walk
from nodewire.graph.registration import in_process
from nodewire.kind import Registration
from nodewire.protocol.model.manifest import Manifest, Task


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a task's call took, weights apart: as the allocator had it, and as was predicted."""

    measured: int
    predicted: int


class Carved:
    """All tasks of a manifest without a driver, loaded."""

    def __init__(self, made: Registration) -> None:
        self.manifest: Manifest = made.manifest
        self._tasks = {task.name: in_process.load(made, task) for task in made.manifest.tasks if task.engine == "graph"}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the tasks make of a call's inputs: the model's outputs by name."""
        return in_process.evaluate(self.manifest, inputs, self._of)

    def peaks(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Peak]:
        """What each task took for a call."""
        peaks: dict[str, Peak] = {}

        def measured(
            task: Task, run: Interpreter, given: Mapping[str, torch.Tensor], dims: Mapping[str, int]
        ) -> dict[str, torch.Tensor]:
            peaks[task.name] = _peak(run, given, dims)
            return run(given, dims)

        self(inputs)  # what kernels keep for later calls is made by the first
        in_process.evaluate(self.manifest, inputs, self._of, measured)
        return peaks

    def _of(self, task: Task) -> Interpreter:
        return self._tasks[task.name]


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
