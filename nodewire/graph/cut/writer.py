"""A decomposition as a manifest's tasks and edges, and the blobs that they cite.

    customer -> customer.to.A -> A -> A.to.B -> B -> B.to.customer

Weights are copied in pieces from where they lie, so a model need not fit memory. One that several tasks hold is a blob
of its own: it is stored and fetched once, however many cite it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, TypeVar

import torch

from nodewire.errors import BadInput
from nodewire.graph.cut.carve import edge_name
from nodewire.graph.cut.decomposition import DRIVER, Decomposition, memory_bytes
from nodewire.graph.program.format import NAMES, SOME, Input, Output, Program, Weight
from nodewire.graph.program.verification import verify
from nodewire.kind import Registration, Say, TaskSize
from nodewire.protocol.encoding.byte_sizes import in_units
from nodewire.protocol.model.manifest import CUSTOMER, MAX_WEIGHT_FILES, BlobRef, Edge, Manifest, Task, Tensor
from nodewire.weights.blob_folder import blobs_in, check_room, weight_files
from nodewire.weights.tensorfile import AssembledTensor, StoredTensor, elements

if TYPE_CHECKING:
    from pathlib import Path

SHARED_BYTES = 2**20
"""Below, a weight of several tasks is copied into each of them."""

_Typed = TypeVar("_Typed", Input, Output)

Parts = Callable[[str], Sequence[StoredTensor | torch.Tensor]]
"""Where a weight's elements lie, end to end. Raises BadInput, NotFound."""


def write_run(
    done: Decomposition,
    parts: Parts | None,
    target_bytes: int,
    out: Path | None,
    *,
    name: str,
    license: str = "",
    modules: Mapping[str, str] | None = None,
    say: Say = lambda _: None,
) -> Registration:
    """A manifest of mode "run": the customer itself sends to the tasks, and gets their outputs.

    Without `out` it is a dry run, which may do without `parts`.

    Raises:
        BadInput: a weight is not as large as the program declares it.
        BadManifest: more tasks or edges than a manifest has, or labels that are none.

    """
    done = replace(
        done, tasks={task: replace(made, program=_to_customer(task, made.program)) for task, made in done.tasks.items()}
    )
    writer = Writer(done, parts, target_bytes, out, say)
    edges = writer.edges()
    tasks = tuple(writer.tasks())
    said = {"v": 1, "name": name, "mode": "run", "license": license, "tasks": tasks, "edges": tuple(edges)}
    manifest = Manifest.from_document(said)
    lines = tuple(report(name, done, target_bytes, modules or {}))
    return Registration(manifest, writer.blobs.paths, lines, pieces(done, modules or {}))


def pieces(done: Decomposition, modules: Mapping[str, str]) -> dict[str, TaskSize]:
    """What is known of each task; `modules` as in `report`."""
    limits = {one.task: one for one in done.bottlenecks}
    found: dict[str, TaskSize] = {}
    for task, made in done.tasks.items():
        limit = limits.get(task)
        found[task] = TaskSize(
            weights_bytes=made.weight_bytes,
            live_bytes=made.live_bytes,
            operators=len(made.program.nodes),
            most_at=_named(limit.node, modules) if limit else "",
            no_room_for=_named(limit.next_node, modules) if limit else "",
            holds=_parts_held(made.program, done),
        )
    return found


def _parts_held(program: Program, done: Decomposition) -> tuple[str, ...]:
    """Of which weights a task has some rows and others the rest; of a mixture's stacked weights a row is an expert."""
    rows: dict[str, list[int]] = {}
    for weight in program.weights:
        if one := done.ranges.get(weight.name):
            rows.setdefault(one.source, []).extend((one.first, one.last))
    ends = {source: max(one.last for one in done.ranges.values() if one.source == source) for source in rows}
    return tuple(
        f"rows {min(held)} to {max(held) - 1} of {source}, which has {ends[source]}"
        for source, held in rows.items()
        if (min(held), max(held)) != (0, ends[source])
    )


def report(name: str, done: Decomposition, target_bytes: int, modules: Mapping[str, str]) -> Iterator[str]:
    """What was made and what bounded it, for people; `modules` has the paths of operators' modules in the model."""
    dims = {dim: most for made in done.tasks.values() for dim, most in made.program.dims.items()}
    calls = ", ".join(f"{dim} up to {most}" for dim, most in dims.items()) or "one size"
    count = f"{len(done.tasks)} task{'s' if len(done.tasks) > 1 else ''} under {in_units(target_bytes)}"
    yield f"{name}: {count}; calls of {calls}"
    bounded = {
        " x ".join(own): own
        for made in done.tasks.values()
        if len(own := made.program.dims) and prod(own.values()) > made.program.volume
    }
    for sizes, own in bounded.items():
        at_once = f"together at most {done.volume} in one call"
        yield f"{sizes}: {at_once}" + (", their product" if len(own) > 1 else "")
    found = {bottleneck.task: bottleneck for bottleneck in done.bottlenecks}
    for task, made in done.tasks.items():
        size = f"{in_units(made.weight_bytes)} of weights, {in_units(made.live_bytes)} live"
        line = f"{task}: {len(made.program.nodes)} operators, {size}"
        if limited := found.get(task):
            line += f", most at {_named(limited.node, modules)}"
            if limited.next_node:
                line += f"; no room for {_named(limited.next_node, modules)}"
            elif _next(task) in done.tasks:
                line += "; has room for more, but there must be as many tasks"
            elif limited.tensors:
                line += "; ends with its branch"
        yield line
    largest = max(done.tasks, key=lambda task: done.tasks[task].peak_bytes)
    taken = memory_bytes(done.tasks[largest], target_bytes)
    yield f"largest task: {largest}, {in_units(taken)} of {in_units(target_bytes)}"
    widest = max(done.bottlenecks, key=lambda bottleneck: bottleneck.crossing_bytes, default=None)
    if widest is not None and widest.tensors:
        tensors = ", ".join(_named(tensor, modules) for tensor in widest.tensors)
        yield f"largest boundary: after {widest.task}, {in_units(widest.crossing_bytes)} a call: {tensors}"


def _next(task: str) -> str:
    """The name of the task after it in its segment, if there is one."""
    segment, _, number = task.rpartition(".")
    return f"{segment}.{int(number) + 1}" if number.isdecimal() else ""


def _named(node: str, modules: Mapping[str, str]) -> str:
    return f"{node} ({modules[node]})" if modules.get(node) else node


class Writer:
    """Writes a decomposition's blobs into a folder, and says what a manifest says of them.

    Without a folder nothing is written, and `parts` are not needed, without which no weight's size can be wrong.
    """

    def __init__(
        self,
        done: Decomposition,
        parts: Parts | None,
        target_bytes: int,
        out: Path | None,
        say: Say = lambda _: None,
    ) -> None:
        assert parts is not None or out is None
        self._done, self._parts, self._target, self._say = done, parts, target_bytes, say
        self._out, self.blobs = out, blobs_in(out)
        users = Counter(w.name for made in done.tasks.values() for w in made.program.weights)
        self._shared = {name for name, count in users.items() if count > 1}
        self._written: dict[tuple[str, ...], BlobRef] = {}
        """By the names of a file's tensors."""

    def tasks(self) -> list[Task]:
        """Raises BadInput, TooLarge: a weight is not as large as its program declares it, or cannot be published."""
        files = {name: self._files(made.program) for name, made in self._done.tasks.items()}
        if self._out is not None:
            sizes = {tuple(one): sum(w.nbytes for w in one.values()) for each in files.values() for one in each}
            check_room(self._out, sum(sizes.values()))
        made = []
        for number, name in enumerate(self._done.tasks, start=1):
            self._say(f"{name}, task {number} of {len(self._done.tasks)}")
            made.append(self._task(name, files[name]))
        return made

    def edges(self) -> list[Edge]:
        """Those that lead to each task, and from it to the customer, in the order of the tasks."""
        found: list[Edge] = []
        inner = {i.edge for made in self._done.tasks.values() for i in made.program.inputs}
        for task, made in self._done.tasks.items():
            program = made.program
            for edge, tensors in _by_edge(program.inputs).items():
                found.append(_edge(edge, edge.removesuffix(edge_name("", task)), task, program, tensors))
            final = [one for one in program.outputs if one.edge not in inner]
            for edge, leaving in _by_edge(final).items():
                found.append(_edge(edge, task, CUSTOMER, program, leaving))
        return found

    def _task(self, name: str, files: Sequence[Mapping[str, Weight]]) -> Task:
        made = self._done.tasks[name]
        lies = {weight: file for file, one in enumerate(files) for weight in one}
        program = replace(made.program, weights=tuple(replace(w, file=lies[w.name]) for w in made.program.weights))
        # What the program declares is what any loader will find, so what was cut is checked as it was written.
        encoded = program.encode()
        verify(Program.decode(encoded), self._target)
        for one in files:
            if tuple(one) not in self._written:
                (self._written[tuple(one)],) = self.blobs.weights({w.name: self._assembled(w) for w in one.values()})
        return Task(
            name=name,
            engine="graph",
            program=self.blobs.blob(encoded),
            weights=tuple(self._written[tuple(one)] for one in files),
            memory_bytes=memory_bytes(made, self._target),
            slots=program.slots,
            flops=-(-made.flops // self._done.volume),
            limit=f"target of {self._target} bytes",
        )

    def _files(self, program: Program) -> list[dict[str, Weight]]:
        """The weights of each of a program's files: first its own, then one for each that others hold, too.

        Raises TooLarge: they cannot be published.
        """
        every = {w.name: w for w in program.weights}
        left = MAX_WEIGHT_FILES - len(_parted(every))
        large = [w for w in program.weights if w.name in self._shared and w.nbytes >= SHARED_BYTES][:left]
        shared = {w.name: {w.name: w} for w in large}
        return [*_parted({name: w for name, w in every.items() if name not in shared}), *shared.values()]

    def _assembled(self, weight: Weight) -> AssembledTensor:
        if self._parts is None:
            return AssembledTensor(weight.dtype, weight.shape, ())
        rows = self._done.ranges.get(weight.name)
        parts = self._parts(rows.source if rows else weight.name)
        have = sum(_count(part) for part in parts)
        if rows:
            width = prod(weight.shape) // max(rows.last - rows.first, 1)
            parts = _cut(parts, rows.first * width, rows.last * width) if have >= rows.last * width else ()
            have = sum(_count(part) for part in parts)
        if have != prod(weight.shape) or (len(parts) == 1 and not rows and tuple(parts[0].shape) != weight.shape):
            said = [list(part.shape) for part in parts]
            raise BadInput(weight.name, f"is stored as {said}, the model makes it {list(weight.shape)}")
        return AssembledTensor(weight.dtype, weight.shape, tuple(parts))


def _parted(weights: Mapping[str, Weight]) -> list[dict[str, Weight]]:
    """As `weight_files`."""
    files = weight_files({w.name: AssembledTensor(w.dtype, w.shape, ()) for w in weights.values()})
    return [{name: weights[name] for name in one} for one in files]


def _to_customer(task: str, program: Program) -> Program:
    """The same task with the customer where a driver would stand before it, and as who gets its outputs."""
    inputs = tuple(
        replace(one, edge=edge_name(CUSTOMER, task)) if one.edge == edge_name(DRIVER, task) else one
        for one in program.inputs
    )
    outputs = tuple(one if one.edge else replace(one, edge=edge_name(task, CUSTOMER)) for one in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs)


def _by_edge(tensors: Sequence[_Typed]) -> dict[str, list[_Typed]]:
    found: dict[str, list[_Typed]] = {}
    for tensor in tensors:
        found.setdefault(tensor.edge, []).append(tensor)
    return found


def _edge(name: str, source: str, target: str, program: Program, tensors: Sequence[Input | Output]) -> Edge:
    used = {d for t in tensors for d in t.shape if isinstance(d, str)}
    return Edge(
        name=name,
        source=source,
        target=target,
        tensors=tuple(
            Tensor.from_document({"name": t.name, "dtype": NAMES[t.dtype], "shape": t.shape}) for t in tensors
        ),
        dims={d: most for d, most in {**program.dims, SOME: program.volume}.items() if d in used},
        bytes_per_position=sum(map(fixed_bytes, tensors)),
    )


def fixed_bytes(tensor: Input | Output) -> int:
    """Bytes of a tensor whose dims are all 1."""
    return tensor.dtype.itemsize * prod(n for n in tensor.shape if isinstance(n, int))


def _count(part: StoredTensor | torch.Tensor) -> int:
    return part.numel() if isinstance(part, torch.Tensor) else prod(part.shape)


def _cut(parts: Sequence[StoredTensor | torch.Tensor], first: int, last: int) -> list[StoredTensor | torch.Tensor]:
    """Elements [first, last) of all parts."""
    found, at = [], 0
    for part in parts:
        size = _count(part)
        low, high = max(first - at, 0), min(last - at, size)
        if low < high:
            found.append(elements(part, low, high))
        at += size
    return found
