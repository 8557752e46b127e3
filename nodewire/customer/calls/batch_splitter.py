"""What a program takes in one call, and calls that are larger in parts: only where parts give the same as the whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

import numpy as np

from nodewire.customer.calls.arrays import joined, sliced
from nodewire.errors import BadInput, TooLarge
from nodewire.protocol.model.signature import MAX_FRAME_BYTES, Call, Signature
from nodewire.taskgraph import batch_axis
from nodewire.taskgraph.program import MAX_BYTES, GraphProgram, Port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodewire.protocol.model.manifest import Manifest, Task, Tensor
    from nodewire.protocol.tensors.frame import Array
    from nodewire.public_record import PublicRecord

GRAPH = "graph"
MAX_PARTS = 4_096
MAX_PROGRAMS_BYTES = 32 * 2**20
"""Read for one model: they take many times that in memory."""
_FETCHES = 8
_INTEGERS = {"int64": "<i8", "int32": "<i4", "uint8": "|u1"}


class Programs:
    """The programs of a manifest's tasks, fetched when they are needed."""

    def __init__(self, record: PublicRecord) -> None:
        self._record = record
        self._limit = asyncio.Semaphore(_FETCHES)

    async def load(self, tasks: Sequence[Task]) -> dict[str, GraphProgram]:
        """By name, those of `tasks` that are graphs. Raises NotFound, BadHash, BadTask, TooLarge."""
        graphs = [task for task in tasks if task.engine == GRAPH]
        if (total := sum(task.program.bytes for task in graphs)) > MAX_PROGRAMS_BYTES:
            raise TooLarge("model", f"{total} bytes of programs, at most {MAX_PROGRAMS_BYTES} are read")
        found = await asyncio.gather(*map(self._one, graphs))
        return {task.name: program for task, program in zip(graphs, found, strict=True)}

    async def _one(self, task: Task) -> GraphProgram:
        async with self._limit:
            path = await self._record.fetch_blob(task.program.sha256, min(task.program.bytes, MAX_BYTES))
        return await asyncio.to_thread(lambda: GraphProgram.decode(path.read_bytes()))


@dataclass(frozen=True, slots=True)
class Parts:
    """One call as the calls that are made of it: outputs are joined along `axes`; of one part they are its own.

    An output without an axis is the same of every part.
    """

    calls: tuple[Call, ...]
    axes: Mapping[str, int | None]

    def whole(self, outputs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """The call's outputs, from those of its parts."""
        if len(outputs) == 1:
            return dict(outputs[0])
        return {
            name: outputs[0][name] if axis is None else joined([one[name] for one in outputs], axis)
            for name, axis in self.axes.items()
        }


class BatchSplitter:
    """Checks calls against what the model's tasks say of themselves. Made once for many calls, by `load`."""

    def __init__(self, manifest: Manifest, signature: Signature, programs: Mapping[str, GraphProgram]) -> None:
        self.signature = signature
        self._manifest, self._programs = manifest, programs
        self._axes: dict[str, Mapping[str, int | None]] = {}
        self._sends = {edge.name: edge for edge in signature.sends}

    @classmethod
    async def load(cls, manifest: Manifest, programs: Programs) -> Self:
        """Reads all programs; of a model whose programs are too large only those that the customer feeds.

        Raises:
            BadManifest: it is no model that can be called.
            NotFound, BadHash, BadTask, TooLarge: a program is not to be had, or is none.

        """
        signature = Signature.from_manifest(manifest)
        tasks: Sequence[Task] = manifest.tasks
        if sum(task.program.bytes for task in tasks) > MAX_PROGRAMS_BYTES:
            fed = {edge.target for edge in signature.sends}
            tasks = [task for task in tasks if task.name in fed]
        return cls(manifest, signature, await programs.load(tasks))

    async def parts(self, call: Call) -> Parts:
        """A call as it can be made.

        Raises:
            BadInput: a name, dtype, size or integer that the model does not take; or it is larger than one call may
                be, and nothing proves that its parts would give the same.
            TooLarge: one task would get more than 64 MiB.

        """
        sizes = self.signature.check(call)
        self._check_integers(call)
        parts = Parts((call,), {}) if self._fits(sizes) else await self._split(call, sizes)
        if (most := max(map(self.signature.largest_bytes, parts.calls))) > MAX_FRAME_BYTES:
            raise TooLarge("inputs", f"{most} bytes for one task, at most {MAX_FRAME_BYTES} in a call")
        return parts

    def _check_integers(self, call: Call) -> None:
        for program in self._programs.values():
            for port, name in self._ports(program):
                array, below = call[name], program.below(port)
                if below and array.dtype in _INTEGERS and array.nbytes:
                    values = np.frombuffer(array.data, _INTEGERS[array.dtype])
                    low, high = int(values.min()), int(values.max())
                    if low < 0 or high >= below:
                        raise BadInput(name, f"has {low if low < 0 else high}; from 0 to {below - 1} is taken")

    def _ports(self, program: GraphProgram) -> Iterator[tuple[Port, str]]:
        """A program's inputs from the customer, and how the manifest calls them."""
        left: dict[str, Iterator[Tensor]] = {}
        for port in program.inputs:
            if (edge := self._sends.get(port.edge)) is not None:
                tensor = next(left.setdefault(edge.name, iter(edge.tensors)), None)
                if tensor is not None:
                    yield port, tensor.name

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        if any(size > self.signature.dims.get(name, size) for name, size in sizes.items()):
            return False
        return all(self._has_room(program, sizes) for program in self._programs.values())

    def _has_room(self, program: GraphProgram, sizes: Mapping[str, int]) -> bool:
        """As far as its dims are the call's; those that follow from values are not known before."""
        own = {name: sizes.get(name, 0) for name in program.dims}
        within = all(size <= program.dims[name] for name, size in own.items())
        return within and prod(max(1, size) for size in own.values()) <= program.volume

    async def _split(self, call: Call, sizes: Mapping[str, int]) -> Parts:
        """Parts along the first dim that makes them fit and keeps rows apart."""
        reasons = []
        for dim, size in sizes.items():
            rows = self._rows(dim, sizes)
            if rows == 0 or -(-size // rows) > MAX_PARTS:
                continue
            try:
                axes = await self._proven(dim)
            except batch_axis.Unproven as error:
                reasons.append(f"rows along {dim} are not proven to be apart ({error})")
                continue
            return Parts(tuple(self._part(call, dim, at, at + rows) for at in range(0, size, rows)), axes)
        why = f"; {reasons[0]}" if reasons else ""
        raise BadInput("inputs", f"too large for one call: {self._limit(sizes)}; make it several calls{why}")

    def _limit(self, sizes: Mapping[str, int]) -> str:
        """What of these sizes the model does not take, and what it would."""
        for name, most in self.signature.dims.items():
            if sizes.get(name, 0) > most:
                return f"{name} {sizes[name]}: at most {most}"
        for program in self._programs.values():
            if self._has_room(program, sizes):
                continue
            own = {name: max(1, sizes[name]) for name in program.dims if name in sizes}
            said = f"{_product(own)} = {prod(own.values())} positions ({_product(list(own))})"
            fitting = []
            for name in own:
                most = min(program.volume // (prod(own.values()) // own[name]), program.dims[name])
                if most > 0:
                    fitting.append(_product({**own, name: most}))
            such = f" ({', '.join(fitting)})" if fitting else ""
            return f"{said}; this model takes {program.volume} in one call{such}"
        return ", ".join(f"{name} {sizes[name]}" for name in self.signature.dims if name in sizes)

    def _rows(self, dim: str, sizes: Mapping[str, int]) -> int:
        """The most rows along `dim` that fit in one call; 0: not even one does."""
        low, high = 0, sizes[dim]
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits({**sizes, dim: middle}):
                low = middle
            else:
                high = middle - 1
        return low

    async def _proven(self, dim: str) -> Mapping[str, int | None]:
        if dim not in self._axes:
            if len(self._programs) < len(self._manifest.tasks):
                raise batch_axis.Unproven("a task that is not read")
            self._axes[dim] = await asyncio.to_thread(batch_axis.axes, self._manifest, self._programs, dim)
        return self._axes[dim]

    def _part(self, call: Call, dim: str, first: int, last: int) -> Call:
        inputs = self.signature.inputs
        return {
            name: sliced(array, inputs[name].shape.index(dim), first, last) if dim in inputs[name].shape else array
            for name, array in call.items()
        }


def _product(sizes: Mapping[str, int] | list[str]) -> str:
    return " x ".join(sizes if isinstance(sizes, list) else map(str, sizes.values()))
