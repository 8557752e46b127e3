"""Tasks that are no chain: branches, joins, and a driver to which the last task answers.

One request runs through the graph: a task starts when all its inputs are there and its node is free, in the tasks'
order; a frame takes half a round trip and its bytes at the narrower of two lines. `latency_ms` is when the last output
is with the customer, or the last back edge at its target: one turn of a ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NoProvider
from nodewire.plan.place.model import CUSTOMER, MOST_TASKS, Chain, Pool, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BY_TRYING = 5_000
"""So many assignments are all looked at."""
_ROUNDS = 20
_MOST_MOVES = 40_000
_MOST_STEPS = 4_000_000
"""Tasks and links that are looked at in all these moves."""


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes of one request between tasks, or a task and CUSTOMER. `back`: nobody waits for it but the end."""

    source: int
    target: int
    bytes: int
    back: bool = False


@dataclass(frozen=True)
class Dag:
    """Tasks in topological order. `chain` has them one after the other, and between two all that passes there."""

    tasks: tuple[Task, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        """Raises BadInput: too many tasks, or a link that runs against their order."""
        if not 0 < len(self.tasks) <= MOST_TASKS:
            raise BadInput("tasks", f"{len(self.tasks)} of them; at most {MOST_TASKS} can be placed, at least one")
        for link in self.links:
            ends = (link.source, link.target)
            forward = CUSTOMER in ends or link.back or link.source < link.target
            if not forward or not all(CUSTOMER <= end < len(self.tasks) for end in ends):
                raise BadInput("links", "one runs against the order of the tasks, or ends nowhere")

    @cached_property
    def into(self) -> tuple[tuple[Link, ...], ...]:
        found: list[list[Link]] = [[] for _ in self.tasks]
        for link in self.links:
            if link.target != CUSTOMER and not link.back:
                found[link.target].append(link)
        return tuple(map(tuple, found))

    @cached_property
    def last(self) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.back or link.target == CUSTOMER)

    def chain(self) -> Chain:
        """As a line, for planners of chains: a frame passes every boundary between its two ends."""
        count = len(self.tasks)
        passing = [0] * (count + 1)
        for link in self.links:
            if link.back:
                continue
            first = 0 if link.source == CUSTOMER else link.source + 1
            end = count if link.target == CUSTOMER else link.target
            for boundary in range(first, end + 1):
                passing[boundary] += link.bytes
        tasks = (
            Task(t.name, t.memory_bytes, t.ms, t.item_bytes, passing[i + 1], t.on) for i, t in enumerate(self.tasks)
        )
        return Chain(tuple(tasks), passing[0])


def latency_ms(pool: Pool, dag: Dag, held: Sequence[int]) -> float:
    """One request alone; `held` says each task's node."""
    free: dict[int, float] = {}
    done: list[float] = []
    for index, node in enumerate(held):
        done.append(_ends_ms(pool, dag, index, node, held, done, free))
        free[node] = done[-1]

    def arrives(link: Link) -> float:
        b = CUSTOMER if link.target == CUSTOMER else held[link.target]
        return _arrives_ms(pool, link, b, held, done)

    return max([done[-1], *(arrives(link) for link in dag.last)])


def _arrives_ms(pool: Pool, link: Link, b: int, held: Sequence[int], done: Sequence[float]) -> float:
    """When what passes along a link is at node `b`; `done` says when tasks ended."""
    a = CUSTOMER if link.source == CUSTOMER else held[link.source]
    sent = 0.0 if link.source == CUSTOMER else done[link.source]
    return sent + pool.link_ms(a, b) + pool.byte_ms(a, b) * link.bytes


def _ends_ms(
    pool: Pool, dag: Dag, index: int, node: int, held: Sequence[int], done: Sequence[float], free: Mapping[int, float]
) -> float:
    """When a task ends on a node that is free from then on; those before it are `held` and `done`."""
    arrived = (_arrives_ms(pool, link, node, held, done) for link in dag.into[index])
    return max([free.get(node, 0.0), *arrived]) + dag.tasks[index].ms_on(pool.nodes[node])


def fits(pool: Pool, dag: Dag, held: Sequence[int]) -> bool:
    used: dict[int, int] = {}
    for task, node in zip(dag.tasks, held, strict=True):
        used[node] = used.get(node, 0) + task.bytes_at(1)
    return all(size <= pool.nodes[node].memory_bytes for node, size in used.items())


def least_latency(pool: Pool, dag: Dag, starts: Sequence[Sequence[int]] = ()) -> tuple[tuple[int, ...], float, bool]:
    """The node of every task, the latency, and whether nothing is better: up to 5,000 assignments are all tried.

    Otherwise: tasks in their order to the node where each ends first (HEFT's rule, Topcuoglu et al. 2002), and what
    `starts` has (plans of the chain, say), changed task by task and pair by pair as long as that helps.

    Raises NoProvider: nothing was found that fits.
    """
    nodes = range(len(pool.nodes))
    if len(nodes) ** len(dag.tasks) <= _BY_TRYING:
        every = (held for held in product(nodes, repeat=len(dag.tasks)) if fits(pool, dag, held))
        best = min(every, key=lambda held: latency_ms(pool, dag, held), default=None)
        if best is None:
            raise NoProvider("nodes", "together they have no room for all tasks")
        return best, latency_ms(pool, dag, best), True
    found = [tuple(start) for start in starts if fits(pool, dag, start)]
    if (eft := _earliest(pool, dag)) is not None:
        found.append(eft)
    if not found:
        raise NoProvider("nodes", "no placement was found that has room for all tasks")
    improved = [_improved(pool, dag, start) for start in dict.fromkeys(found)]
    best = min(improved, key=lambda held: (latency_ms(pool, dag, held), held))
    return best, latency_ms(pool, dag, best), False


def _earliest(pool: Pool, dag: Dag) -> tuple[int, ...] | None:
    """Each task where it ends first, given those before it; None if one finds no room."""
    left = [node.memory_bytes for node in pool.nodes]
    held: list[int] = []
    done: list[float] = []
    free: dict[int, float] = {}
    for index, task in enumerate(dag.tasks):
        ends = (
            (_ends_ms(pool, dag, index, node, held, done, free), node)
            for node in range(len(pool.nodes))
            if left[node] >= task.bytes_at(1)
        )
        ends_ms, node = min(ends, default=(0.0, -1))
        if node < 0:
            return None
        held.append(node)
        done.append(ends_ms)
        free[node] = ends_ms
        left[node] -= task.bytes_at(1)
    return tuple(held)


def _improved(pool: Pool, dag: Dag, held: tuple[int, ...]) -> tuple[int, ...]:
    least, tried = latency_ms(pool, dag, held), 0
    most = min(_MOST_MOVES, _MOST_STEPS // (len(dag.tasks) + len(dag.links)))
    for _ in range(_ROUNDS):
        before = least
        for index in range(len(held)):
            for node in range(len(pool.nodes)):
                # one task, and it with all that sit beside it: a neighbourhood moves where a single one cannot
                alone = (*held[:index], node, *held[index + 1 :])
                together = tuple(node if other == held[index] else other for other in held)
                for move in (alone, together):
                    if tried >= most:
                        return held
                    tried += 1
                    if move != held and fits(pool, dag, move) and (ms := latency_ms(pool, dag, move)) < least - 1e-9:
                        held, least = move, ms
        if least > before - 1e-9:
            return held
    return held


def in_order(stages: Sequence[tuple[int, int, int]], tasks: int) -> tuple[int, ...]:
    """(node, first, end) as the node of every task."""
    held = [-1] * tasks
    for node, first, end in stages:
        held[first:end] = [node] * (end - first)
    if -1 in held:
        raise BadInput("stages", "not all tasks are held")
    return tuple(held)
