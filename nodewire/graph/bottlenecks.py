"""What bounded a decomposition: where each task is fullest, what would not fit before each cut, what crosses most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodewire.graph.cut import UNBOUNDED
from nodewire.graph.decompose import Decomposition
from nodewire.graph.format import Program
from nodewire.graph.liveness import corners, walk
from nodewire.protocol.manifest import CUSTOMER, Edge, Manifest

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """`modules` has the path in the model of each operator's module, where it is known."""

    done: Decomposition
    modules: Mapping[str, str]
    target_bytes: int

    def lines(self, manifest: Manifest) -> list[str]:
        """The report of a registration, for people."""
        lines = [
            f"{manifest.name}: {len(manifest.tasks)} tasks under {self.target_bytes} bytes, calls of {self._call()}",
        ]
        before: set[str] = set()
        for task in manifest.tasks:
            made = self.done.tasks[task.name]
            own = [node.name for node in made.program.nodes if node.name not in before]
            fullest, live = peak(made.program)
            lines.append(
                f"{task.name}: {len(made.program.nodes)} operators, {made.weight_bytes} bytes of weights, "
                f"{live} live at {self._named(fullest)}, {task.memory_bytes} bytes in all"
                + (f"; cut before {self._named(own[0])}" if own and before else "")
            )
            before.update(own)
        largest = max(manifest.tasks, key=lambda task: task.memory_bytes)
        lines.append(f"largest task: {largest.name}, {largest.memory_bytes} of {self.target_bytes} bytes")
        inner = [edge for edge in manifest.edges if CUSTOMER not in (edge.source, edge.target)]
        if inner:
            widest = max(inner, key=lambda edge: edge.bytes_per_position)
            lines.append(f"largest boundary: {widest.name}, {_tensors(widest)}")
        return [line[: 2 * _SHOWN] for line in lines]

    def _call(self) -> str:
        program = next(iter(self.done.tasks.values())).program
        dims = {dim: most for made in self.done.tasks.values() for dim, most in made.program.dims.items()}
        if not dims:
            return "one size"
        return f"{' x '.join(f'{dim} up to {most}' for dim, most in dims.items())}, {program.volume} together"

    def _named(self, node: str) -> str:
        module = self.modules.get(node)
        return f"{node} ({module})" if module else node


def peak(program: Program) -> tuple[str, int]:
    """The node while which most bytes are live, weights apart, and how many."""
    fullest, most = "its inputs", 0
    for sizes in corners(program):
        for node, live in zip(program.nodes, walk(program, sizes, UNBOUNDED).live_bytes, strict=True):
            if live > most:
                fullest, most = node.name, live
    return fullest, most


def _tensors(edge: Edge) -> str:
    return ", ".join(f"{t.name} {t.dtype} [{', '.join(map(str, t.shape))}]" for t in edge.tensors)
