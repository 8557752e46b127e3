"""Where to cut a program: fewest tasks under a memory target, then fewest bytes between them, then most even.

Nodes that depend on no weights (masks, positions) are *free*: every task that needs them computes them again from the
model's inputs instead of receiving them. What remains is cut as a chain in the program's own order, by dynamic
programming over the boundaries that few tensors cross. Lookups split by rows stand beside the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nodewire.errors import OverMemory
from nodewire.graph.format import Program, Shape
from nodewire.graph.liveness import Walk, corners, walk

MAX_CROSSING = 4
"""Tensors that may cross a boundary; wider boundaries are not considered."""
FREE_WEIGHT_BYTES = 4_096
"""Recomputing a node is cheaper than shipping it while the weights behind it are no more than this (rotary tables)."""
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the chain: the weights it uses, by name and bytes, and what is live while it runs."""

    name: str
    weights: Mapping[str, int]
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What is cut. `crossing_bytes[k]` passes from the first k steps to the rest; None where no cut may be."""

    steps: tuple[Step, ...]
    crossing_bytes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Kinds:
    """Nodes by what stands behind them.

    `free` ones are made again by whoever uses them; `behind` has the weights, by name and bytes, that each node brings
    along, itself or through the free nodes that it uses.
    """

    free: frozenset[str]
    behind: Mapping[str, Mapping[str, int]]


def kinds(program: Program) -> Kinds:
    """Sort the nodes of a program into free ones and ones of the chain."""
    sizes = {w.name: w.nbytes for w in program.weights}
    dynamic = {i.name for i in program.inputs} | set(program.dims)
    cone: dict[str, Mapping[str, int]] = {name: {} for name in dynamic}
    cone.update({name: {name: size} for name, size in sizes.items()})
    behind: dict[str, Mapping[str, int]] = {}
    free: set[str] = set()
    for node in program.nodes:
        used = list(dict.fromkeys(node.refs()))
        whole: dict[str, int] = {}
        own: dict[str, int] = {}
        for name in used:
            whole.update(cone[name])
            if name in sizes or name in free:
                own.update(cone[name])
        if any(name in dynamic for name in used):
            dynamic.add(node.name)
        small = sum(whole.values()) <= FREE_WEIGHT_BYTES
        if node.name not in dynamic or small:
            free.add(node.name)
        # A node of the chain is never made again, so no cone needs to look through it.
        cone[node.name] = whole if node.name in free else {"": FREE_WEIGHT_BYTES + 1}
        behind[node.name] = own
    return Kinds(frozenset(free), behind)


def chain(program: Program, shapes: Mapping[str, Shape], sorted_nodes: Kinds, aside: Collection[str]) -> Chain:
    """The chain of a program, at the largest sizes it admits, without the nodes named in `aside`."""
    walks = [walk(program, sizes, UNBOUNDED) for sizes in corners(program)]
    live = [max(w.live_bytes[k] for w in walks) for k in range(len(program.nodes))]
    steps = [
        Step(node.name, sorted_nodes.behind[node.name], live[k])
        for k, node in enumerate(program.nodes)
        if node.name not in sorted_nodes.free and node.name not in aside
    ]
    return Chain(tuple(steps), tuple(_crossing(program, shapes, [s.name for s in steps], walks)))


def _crossing(
    program: Program, shapes: Mapping[str, Shape], names: Sequence[str], walks: Sequence[Walk]
) -> list[int | None]:
    place = {name: k for k, name in enumerate(names)}
    last = dict.fromkeys(names, 0)
    users: dict[str, list[str]] = {}
    for node in program.nodes:
        for ref in node.refs():
            users.setdefault(ref, []).append(node.name)
    for name in names:
        last[name] = max((place[u] for u in users.get(name, ()) if u in place), default=place[name])
    through: list[list[str]] = [[] for _ in range(len(names) + 1)]
    for name in names:
        for boundary in range(place[name] + 1, last[name] + 1):
            through[boundary].append(name)
    crossing: list[int | None] = []
    for values in through:
        if len(values) > MAX_CROSSING or any(value not in shapes for value in values):
            crossing.append(None)
        else:
            crossing.append(sum(max(w.types[value].nbytes for w in walks) for value in values))
    return crossing


def cut(line: Chain, limit_bytes: int) -> tuple[tuple[str, ...], ...]:
    """The names of each task's steps, in order.

    Raises:
        OverMemory: no cut keeps every task under `limit_bytes`; names the largest node.
    """
    found = _cut(line, limit_bytes)
    if found is None:
        worst = max(line.steps, key=_alone)
        raise OverMemory(worst.name, f"takes {_alone(worst)} bytes, {limit_bytes} given")
    return found


def _alone(step: Step) -> int:
    return sum(step.weights.values()) + step.live_bytes


def _cut(line: Chain, limit: int) -> tuple[tuple[str, ...], ...] | None:
    n = len(line.steps)
    boundaries = [k for k in range(n + 1) if k in (0, n) or line.crossing_bytes[k] is not None]
    best: dict[int, tuple[int, int, int, int]] = {0: (0, 0, 0, -1)}  # tasks, bytes crossing, largest task, previous cut
    for at, end in enumerate(boundaries[1:], start=1):
        weights: dict[str, int] = {}
        held = peak = 0
        for back in range(at - 1, -1, -1):
            start = boundaries[back]
            for step in line.steps[start : boundaries[back + 1]]:
                peak = max(peak, step.live_bytes)
                for name, size in step.weights.items():
                    if name not in weights:
                        weights[name] = size
                        held += size
            if held + peak > limit:
                break
            if start in best:
                tasks, crossed, largest, _ = best[start]
                crossing = (line.crossing_bytes[end] or 0) if end < n else 0
                candidate = (tasks + 1, crossed + crossing, max(largest, held + peak), start)
                if end not in best or candidate[:3] < best[end][:3]:
                    best[end] = candidate
    if n not in best:
        return None
    tasks_found: list[tuple[str, ...]] = []
    while n:
        start = best[n][3]
        tasks_found.append(tuple(step.name for step in line.steps[start:n]))
        n = start
    return tuple(reversed(tasks_found))
