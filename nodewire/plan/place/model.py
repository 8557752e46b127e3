"""What a placement is made of: nodes, what lies between them, and the tasks of a model with their costs.

Times are milliseconds, sizes bytes, rates bytes per millisecond. A task's time is a table of (batch, ms): measured, or
predicted by whoever makes it. Between two entries it is a straight line, beyond the last the last line goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import hypot, inf
from typing import Literal

from nodewire.errors import BadInput

CUSTOMER = -1
"""Where requests come from, as an index of a pool's nodes: the last row of its matrix."""
Objective = Literal["latency", "throughput"]
Table = tuple[tuple[int, float], ...]
"""(batch, ms), ascending."""
Point = tuple[float, float, float]
"""x, y and height in ms: a round trip is the distance and both heights, as in `protocol.market.coordinates`."""
UPLINK = 12_500.0
"""100 Mbit/s, as `assign/2` counts links."""
MOST_NODES = 4_096
MOST_TASKS = 1_024
MOST_BYTES = 2**50
LEAST_RATE, MOST_RATE = 1e-12, 1e12
"""Of speeds and of lines. Beyond these, and `MOST_MS`, sums and ratios of floating point would lose what matters."""
LEAST_MS, MOST_MS = 1e-9, 1e15
"""What is said to take less, takes the least: planners divide by times."""
Tell = Callable[[str], None]
"""Is told what is under way, in a few words, by planners that may take seconds."""


def silent(step: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Node:
    """`speed` divides the times of tasks that have no table for this node's `kind`.

    `layouts`: the ways in which its memory can be partitioned (MIG), each a tuple of slices in bytes; none: as a whole.
    """

    name: str
    memory_bytes: int
    speed: float = 1.0
    kind: str = ""
    layouts: tuple[tuple[int, ...], ...] = ()
    up: float = UPLINK
    down: float = UPLINK
    at: Point = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        """Raises BadInput naming the field."""
        for name in ("speed", "up", "down"):
            if not LEAST_RATE <= getattr(self, name) <= MOST_RATE:
                raise BadInput(f"{self.name}.{name}", f"not a number from {LEAST_RATE:g} to {MOST_RATE:g}")
        if not 0 <= self.memory_bytes <= MOST_BYTES:
            raise BadInput(f"{self.name}.memory_bytes", f"not from 0 to {MOST_BYTES}")
        if any(min(layout, default=-1) < 0 or sum(layout) > self.memory_bytes for layout in self.layouts):
            raise BadInput(f"{self.name}.layouts", "a layout has no slice, or more bytes than the node's memory")
        if not is_place(self.at):
            raise BadInput(f"{self.name}.at", "not three numbers of ms, the third from 0 on")

    @property
    def slices(self) -> tuple[tuple[int, ...], ...]:
        """Its layouts, or itself as the only slice of the only one."""
        return self.layouts or ((self.memory_bytes,),)


@dataclass(frozen=True, slots=True)
class Task:
    """`memory_bytes` whatever it serves, `item_bytes` more for every item (session, request) that it serves at once.

    `ms` is its time on a node of speed 1; `on` has tables of nodes of a kind, which go before it.
    `out_bytes` go to the next task for every item.
    """

    name: str
    memory_bytes: int
    ms: Table = ((1, 1.0),)
    item_bytes: int = 0
    out_bytes: int = 0
    on: Mapping[str, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises BadInput naming the field."""
        for table in (self.ms, *self.on.values()):
            batches = [batch for batch, _ in table]
            if not table or batches != sorted(set(batches)) or batches[0] < 1:
                raise BadInput(f"{self.name}.ms", "batches do not ascend from 1 or more")
            if not all(0 <= ms <= MOST_MS for _, ms in table):
                raise BadInput(f"{self.name}.ms", f"a time is no number from 0 to {MOST_MS:g} ms")
        for name in ("memory_bytes", "item_bytes", "out_bytes"):
            if not 0 <= getattr(self, name) <= MOST_BYTES:
                raise BadInput(f"{self.name}.{name}", f"not from 0 to {MOST_BYTES}")

    def bytes_at(self, batch: int) -> int:
        return self.memory_bytes + batch * self.item_bytes

    def ms_on(self, node: Node, batch: float = 1) -> float:
        """How long `batch` items take together on a node."""
        own = self.on.get(node.kind)
        return interpolated(own, batch) if own is not None else interpolated(self.ms, batch) / node.speed


def interpolated(table: Table, batch: float) -> float:
    """The time of a batch: straight lines between the entries, and on from the last two; before the first its own."""
    if batch <= table[0][0] or len(table) == 1:
        return max(table[0][1] * (batch / table[0][0] if batch > table[0][0] else 1.0), LEAST_MS)
    right = min(bisect_left(table, batch, key=lambda entry: entry[0]), len(table) - 1)
    (b0, ms0), (b1, ms1) = table[right - 1], table[right]
    return max(ms0 + (ms1 - ms0) * (batch - b0) / (b1 - b0), LEAST_MS)


def is_place(at: Point) -> bool:
    return len(at) == 3 and all(abs(one) <= MOST_MS for one in at) and at[2] >= 0


@dataclass(frozen=True)
class Chain:
    """A model's tasks in their order. `in_bytes` come from the customer for every item."""

    tasks: tuple[Task, ...]
    in_bytes: int = 0

    def __post_init__(self) -> None:
        """Raises BadInput: no task, or too many."""
        if not 0 < len(self.tasks) <= MOST_TASKS:
            raise BadInput("tasks", f"{len(self.tasks)} of them; at most {MOST_TASKS} can be placed, at least one")

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """Bytes of an item before every task and after the last: one more than there are tasks."""
        return (self.in_bytes, *(task.out_bytes for task in self.tasks))

    @cached_property
    def typical(self) -> Task:
        """For rules that take tasks to be alike: the one of median time, as large as the largest."""
        by_time = sorted(self.tasks, key=lambda task: task.ms[0][1])
        return replace(
            by_time[len(by_time) // 2],
            memory_bytes=max(task.memory_bytes for task in self.tasks),
            item_bytes=max(task.item_bytes for task in self.tasks),
            out_bytes=max(task.out_bytes for task in self.tasks),
        )

    @cached_property
    def measured(self) -> frozenset[str]:
        """The kinds of nodes for which a task has a table."""
        return frozenset(kind for task in self.tasks for kind in task.on)

    def summed_ms(self, node: Node, batch: float = 1) -> list[float]:
        """By number of tasks from the first on, their time on a node: one more than there are tasks."""
        return [0.0, *accumulate(task.ms_on(node, batch) for task in self.tasks)]

    def summed_bytes(self, batch: int = 1) -> list[int]:
        return [0, *accumulate(task.bytes_at(batch) for task in self.tasks)]


@dataclass(frozen=True)
class Pool:
    """Nodes and what lies between them.

    `rtt_ms` has a row and a column for every node and, last, for the customer; without it, coordinates tell.
    """

    nodes: tuple[Node, ...]
    rtt_ms: tuple[tuple[float, ...], ...] = ()
    customer: Point = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        """Raises BadInput: too many nodes, two of one name, or a matrix of another size."""
        if not 0 < len(self.nodes) <= MOST_NODES:
            raise BadInput("nodes", f"{len(self.nodes)} of them; at most {MOST_NODES}, at least one")
        if len({node.name for node in self.nodes}) != len(self.nodes):
            raise BadInput("nodes", "two of one name")
        side = len(self.nodes) + 1
        if self.rtt_ms and {len(self.rtt_ms), *map(len, self.rtt_ms)} != {side}:
            raise BadInput("rtt_ms", f"not {side} rows of {side}: the nodes and, last, the customer")
        if any(not 0 <= ms <= MOST_MS for row in self.rtt_ms for ms in row):
            raise BadInput("rtt_ms", f"not from 0 to {MOST_MS:g} ms")
        if not is_place(self.customer):
            raise BadInput("customer", "not three numbers of ms, the third from 0 on")

    def link_ms(self, a: int, b: int) -> float:
        """One way, of an empty frame; nothing to oneself."""
        if a == b:
            return 0.0
        if self.rtt_ms:
            return self.rtt_ms[a][b] / 2
        (ax, ay, ah), (bx, by, bh) = self.at(a), self.at(b)
        return (hypot(ax - bx, ay - by) + ah + bh) / 2

    def byte_ms(self, a: int, b: int) -> float:
        """What one byte takes: the narrower of the sender's uplink and the receiver's downlink counts."""
        if a == b:
            return 0.0
        up = self.nodes[a].up if a != CUSTOMER else inf
        down = self.nodes[b].down if b != CUSTOMER else inf
        return 1.0 / min(up, down, 1e12)

    def at(self, index: int) -> Point:
        return self.customer if index == CUSTOMER else self.nodes[index].at


@dataclass(frozen=True, slots=True)
class Stage:
    """A node, by its index, and the tasks `first` to before `end`."""

    node: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Stages from the customer around to the customer. `is_optimal`: no placement of contiguous tasks is better."""

    stages: tuple[Stage, ...]
    turn_ms: float
    is_optimal: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked for: sessions that decode `output` positions after a prompt of `prompt`, `per_s` new ones a second.

    `per_s` 0: as many as there is room for. `context`: the positions for which an item's bytes are meant. `chunk`:
    positions of a prompt in one frame. `most_items`: sessions that one node serves at once, although it had room for
    more.
    """

    prompt: int = 256
    output: int = 128
    context: int = 2_048
    per_s: float = 0.0
    chunk: int = 64
    most_items: int = 64

    def __post_init__(self) -> None:
        """Raises BadInput naming the field."""
        for name in ("prompt", "output", "context", "chunk", "most_items"):
            if getattr(self, name) < 1:
                raise BadInput(name, "less than 1")
        if not 0 <= self.per_s <= MOST_RATE:
            raise BadInput("per_s", f"not from 0 to {MOST_RATE:g}")


@dataclass(frozen=True, slots=True)
class Placement:
    """What every node should hold: at most one stage each. `rings`: the ways around that the planner had in mind.

    `tokens_per_s` and `turn_ms` are its predictions, 0 where it makes none.
    """

    stages: tuple[Stage, ...]
    rings: tuple[Ring, ...] = ()
    tokens_per_s: float = 0.0
    turn_ms: float = 0.0

    def is_complete(self, tasks: int) -> bool:
        """Whether every task is held by somebody."""
        return {k for stage in self.stages for k in range(stage.first, stage.end)} == set(range(tasks))


def turn_ms(pool: Pool, chain: Chain, stages: Sequence[Stage], *, batch: int = 1, anchor: int = CUSTOMER) -> float:
    """How long one turn takes with nobody else there: links, bytes and compute, from the anchor back to it.

    Raises BadInput: the stages are not the chain's tasks in order.
    """
    ends = [0, *(stage.end for stage in stages)]
    if [stage.first for stage in stages] != ends[:-1] or ends[-1] != len(chain.tasks):
        raise BadInput("stages", "not all tasks in their order")
    total = 0.0
    way = [anchor, *(stage.node for stage in stages), anchor]
    for boundary, (a, b) in zip(ends, pairwise(way), strict=True):
        total += pool.link_ms(a, b) + pool.byte_ms(a, b) * chain.boundaries[boundary] * batch
    for stage in stages:
        node = pool.nodes[stage.node]
        total += sum(task.ms_on(node, batch) for task in chain.tasks[stage.first : stage.end])
    return total
