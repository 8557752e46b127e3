"""A program as tasks that each stay under a memory target, at the largest volume that leaves room for weights.

A tenth of the target is for frames that wait for others, the rest for weights and activations. How many positions one
call may hold (`volume`) follows from it: the largest halving whose activations too take a tenth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from nodewire.errors import OverMemory
from nodewire.graph.carve import Group, carve
from nodewire.graph.cut import UNBOUNDED, chain, cut, kinds
from nodewire.graph.format import Program, Shape
from nodewire.graph.liveness import corners, walk, weight_bytes
from nodewire.graph.rows import EMBEDDING, RowRange, split_rows
from nodewire.graph.verify import Verified, verify
from nodewire.graph.whitelist import Ref

DRIVER = "driver"
MAX_PARTS = 64
SPARE = 10


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Verified programs by task name, in topological order; `ranges` says which rows of a weight each new one holds."""

    tasks: Mapping[str, Verified]
    ranges: Mapping[str, RowRange]
    volume: int


def decompose(program: Program, shapes: Mapping[str, Shape], target_bytes: int, least_volume: int) -> Decomposition:
    """A program as tasks that each stay under `target_bytes`, at the largest volume that leaves room for weights.

    Raises:
        OverMemory: not even calls of `least_volume` fit; names the node and a target that would do (within 6 %).
    """

    def attempt(target: int) -> Decomposition | OverMemory:
        try:
            return _at_target(program, shapes, target, least_volume)
        except OverMemory as error:
            return error

    found = attempt(target_bytes)
    if isinstance(found, Decomposition):
        return found
    low, high = target_bytes, 2 * max(target_bytes, 1)
    while isinstance(refused := attempt(high), OverMemory):
        found, low, high = refused, high, 2 * high
    while high - low > high // 16:
        middle = (low + high) // 2
        if isinstance(refused := attempt(middle), OverMemory):
            found, low = refused, middle
        else:
            high = middle
    raise OverMemory(found.field, f"needs a target of {high} bytes, {target_bytes} given") from found


def _at_target(program: Program, shapes: Mapping[str, Shape], target_bytes: int, least_volume: int) -> Decomposition:
    spare = target_bytes // SPARE
    volume = program.volume
    while volume > least_volume and _activation_bytes(program, volume) > spare:
        volume = max(least_volume, volume // 2)
    while True:
        try:
            return _decompose(replace(program, volume=volume), shapes, target_bytes)
        except OverMemory:
            if volume == least_volume:
                raise
            volume = max(least_volume, volume // 2)


def _activation_bytes(program: Program, volume: int) -> int:
    sized = replace(program, volume=volume)
    return max(walk(sized, sizes, UNBOUNDED).peak_bytes for sizes in corners(sized))


def _decompose(program: Program, shapes: Mapping[str, Shape], target_bytes: int) -> Decomposition:
    lookups = {node.name for node in program.nodes if node.op == EMBEDDING}
    to_split: set[str] = set()
    while True:
        try:
            return _cut(_split_lookups(program, shapes, target_bytes, to_split), target_bytes)
        except OverMemory as error:
            if error.field not in lookups - to_split:
                raise
            to_split.add(error.field)


def _cut(split: _Split, target_bytes: int) -> Decomposition:
    program, shapes = split.program, split.shapes
    sorted_nodes = kinds(program)
    line = chain(program, shapes, sorted_nodes, [node for part in split.parts for node in part])
    aside = [Group(f"embed.{k}", part) for k, part in enumerate(split.parts)]
    types = walk(program, corners(program)[0], UNBOUNDED).types
    dtypes = {value: found.dtype for value, found in types.items()}
    limit = target_bytes - target_bytes // SPARE
    while True:
        groups = [*aside, *(Group(f"graph.{k}", nodes) for k, nodes in enumerate(cut(line, limit)))]
        programs = carve(program, shapes, dtypes, groups, sorted_nodes.free, DRIVER)
        tasks = {name: verify(task, UNBOUNDED) for name, task in programs.items()}
        excess = max(memory_bytes(task, target_bytes) for task in tasks.values()) - target_bytes
        if excess <= 0:
            return Decomposition(tasks, split.ranges, program.volume)
        # The chain does not see what a task computes again for itself, nor what it receives; leave more room.
        limit -= excess


def memory_bytes(task: Verified, target_bytes: int) -> int:
    """A task's peak, and room for the frames that wait: one call's at least, so that it can ever be complete."""
    return task.peak_bytes + max(target_bytes // SPARE, task.input_bytes)


@dataclass(frozen=True, slots=True)
class _Split:
    program: Program
    shapes: Mapping[str, Shape]
    parts: Sequence[tuple[str, ...]]
    ranges: Mapping[str, RowRange]


def _split_lookups(program: Program, shapes: Mapping[str, Shape], target_bytes: int, chosen: Collection[str]) -> _Split:
    """Split every lookup that is chosen, or whose table alone is above the target, into as few parts as fit."""
    parts: list[tuple[str, ...]] = []
    ranges: dict[str, RowRange] = {}
    limit = target_bytes - target_bytes // SPARE
    free = kinds(program).free | {i.name for i in program.inputs}
    sizes = {w.name: w.nbytes for w in program.weights}
    for node in program.nodes:
        if node.op != EMBEDDING or node.name not in shapes:
            continue
        table, ids = (arg.name if isinstance(arg, Ref) else "" for arg in node.args[:2])
        too_large = sizes.get(table, 0) > limit
        if table not in sizes or ids not in free or not (too_large or node.name in chosen):
            continue
        for count in range(max(2, -(-sizes[table] // max(limit, 1))), MAX_PARTS + 1):
            split = split_rows(program, shapes, node.name, count)
            lookup = Group("embed", split.parts[0])
            task = carve(split.program, split.shapes, {}, [lookup], kinds(split.program).free, DRIVER)["embed"]
            live = _activation_bytes(task, task.volume)
            if live > limit:
                raise OverMemory(node.name, f"takes {live} bytes without its table, {limit} given")
            if live + weight_bytes(task) <= limit:
                program, shapes = split.program, split.shapes
                parts += split.parts
                ranges.update(split.ranges)
                break
        else:
            raise OverMemory(node.name, f"its table of {sizes[table]} bytes does not fit {MAX_PARTS} tasks of {limit}")
    return _Split(program, shapes, parts, ranges)
