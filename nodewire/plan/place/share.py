"""Few nodes, many tasks: every node holds as many as its memory allows and divides its time, so that most is served.

    maximise z  with  z <= sum over i of rate[i, t] y[i, t]   for every task t
                      sum over t of y[i, t] <= 1,   y[i, t] <= x[i, t],   sum over t of bytes[t] x[i, t] <= memory[i]
                      sum over i of x[i, t] >= 1   for every task t

x in {0, 1} is what is held, y the part of its time. Up to `_WHOLE` pairs HiGHS solves it; more are held greedily, the
scarcest task first wherever there is room, and y is then the best for that x.

Rates are in units of the most that the slowest task is served by all nodes, and a task that computes next to nothing
counts as `_FAST` of these: a manifest's tasks may be 10^10 apart, which no solver's tolerances bear.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nodewire.errors import NoProvider
from nodewire.plan.place.solver import Programme, Solution, maximise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.plan.place.model import Node, Task

_WHOLE = 300
_BOUNDED = 20_000
"""Pairs up to which the relaxation is solved for the bound."""
_FAST = 1e4
Pairs = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class TimeShares:
    """By node the tasks that it holds, with the part of its time that each gets; the rate; more than which none is."""

    held: tuple[dict[int, float], ...]
    per_s: float
    bound: float
    is_optimal: bool


def share(nodes: Sequence[Node], tasks: Sequence[Task], *, gap: float = 1e-4, effort: int = 500) -> TimeShares:
    """The sharing, one item at a time.

    Raises NoProvider: a task has room nowhere, or not all of them together.
    """
    rates = _rates(nodes, tasks)
    sizes = [task.bytes_at(1) for task in tasks]
    for number, task in enumerate(tasks):
        if all(sizes[number] > node.memory_bytes for node in nodes):
            raise NoProvider(task.name, "no node has room for this task")
    every = {(i, t) for i, node in enumerate(nodes) for t in range(len(tasks)) if sizes[t] <= node.memory_bytes}
    rates, unit = _scaled(rates)
    bound, held, optimal = unit, set[tuple[int, int]](), False
    with suppress(NoProvider):  # that there is none is found below, or that HiGHS found none in time
        if len(every) <= _BOUNDED:
            programme, _, x = _programme(nodes, sizes, rates, every)
            bound = unit * maximise(programme, relaxed=True).value
        if len(every) <= _WHOLE:
            solved = maximise(programme, gap=gap, nodes=effort)
            held = {key for key, at in x.items() if solved.columns[at] > 0.5}
            optimal = solved.is_optimal
            if not _fits(nodes, sizes, held):  # HiGHS takes a millionth too much for enough
                held, optimal = set(), False
    if not held:
        held = _held(nodes, sizes, rates, set())
    if len({task for _, task in held}) < len(tasks):
        held = _held(nodes, sizes, rates, _packed(nodes, sizes))
    found = divided(nodes, tasks, held)
    return replace(found, bound=max(bound, found.per_s), is_optimal=optimal)


def _fits(nodes: Sequence[Node], sizes: Sequence[int], held: set[tuple[int, int]]) -> bool:
    return all(sum(sizes[t] for i, t in held if i == index) <= node.memory_bytes for index, node in enumerate(nodes))


def divided(nodes: Sequence[Node], tasks: Sequence[Task], held: set[tuple[int, int]]) -> TimeShares:
    """What (node, task) pairs that are held give at best; memory is not looked at."""
    rates, unit = _scaled(_rates(nodes, tasks))
    roomy = [replace(node, memory_bytes=len(tasks), layouts=()) for node in nodes]
    if len({task for _, task in held}) < len(tasks):
        idle = tuple({task: 0.0 for node, task in sorted(held) if node == i} for i in range(len(nodes)))
        return TimeShares(idle, 0.0, 0.0, is_optimal=False)
    programme, y, _ = _programme(roomy, [1] * len(tasks), rates, held)
    solved = maximise(programme, relaxed=True)
    per_s = unit * solved.value
    return TimeShares(_parts(len(nodes), held, y, solved), per_s, per_s, is_optimal=False)


def _rates(nodes: Sequence[Node], tasks: Sequence[Task]) -> list[list[float]]:
    return [[1_000 / max(task.ms_on(node), 1e-9) for task in tasks] for node in nodes]


def _scaled(rates: Sequence[Sequence[float]]) -> tuple[list[list[float]], float]:
    """The rates in a unit of which no sharing gives more than 1, and the unit."""
    unit = min(map(sum, zip(*rates, strict=True)))
    return [[min(rate / unit, _FAST) for rate in row] for row in rates], unit


def _programme(
    nodes: Sequence[Node], sizes: Sequence[int], rates: Sequence[Sequence[float]], pairs: set[tuple[int, int]]
) -> tuple[Programme, Pairs, Pairs]:
    made = Programme()
    least = made.variable(gain=1.0)
    y = {pair: made.variable(most=1.0) for pair in sorted(pairs)}
    x = {pair: made.variable(most=1.0, whole=True) for pair in sorted(pairs)}
    by_node: list[list[tuple[int, int]]] = [[] for _ in nodes]
    by_task: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for pair in y:
        by_node[pair[0]].append(pair)
        by_task[pair[1]].append(pair)
    for task, some in enumerate(by_task):
        made.row([least, *(y[pair] for pair in some)], [1.0, *(-rates[i][task] for i, _ in some)], most=0.0)
        made.row([x[pair] for pair in some], [1.0] * len(some), least=1.0)
    for node, some in zip(nodes, by_node, strict=True):
        if some:
            made.row([y[pair] for pair in some], [1.0] * len(some), most=1.0)
            memory = max(node.memory_bytes, 1)
            made.row([x[pair] for pair in some], [sizes[t] / memory for _, t in some], most=1.0)
    for pair in y:
        made.row([y[pair], x[pair]], [1.0, -1.0], most=0.0)
    return made, y, x


def _packed(nodes: Sequence[Node], sizes: Sequence[int]) -> set[tuple[int, int]]:
    """Every task once: the largest first, where least room remains. Raises NoProvider: one finds no room."""
    left = [node.memory_bytes for node in nodes]
    held = set()
    for task in sorted(range(len(sizes)), key=lambda t: -sizes[t]):
        fitting = [i for i in range(len(nodes)) if left[i] >= sizes[task]]
        if not fitting:
            raise NoProvider("nodes", "together they have no room for all tasks")
        node = min(fitting, key=left.__getitem__)
        held.add((node, task))
        left[node] -= sizes[task]
    return held


def _held(
    nodes: Sequence[Node], sizes: Sequence[int], rates: Sequence[Sequence[float]], start: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """`start`, and then the scarcest task that fits, on the node with most room for its speed, until nothing fits."""
    left, count = np.array([node.memory_bytes for node in nodes]), np.zeros(len(nodes))
    service, rate = [0.0] * len(sizes), np.array(rates)
    is_held = np.zeros(rate.shape, dtype=bool)
    for node, task in start:
        left[node] -= sizes[task]
        count[node] += 1
        service[task] += rates[node][task]
        is_held[node, task] = True
    open_ = set(range(len(sizes)))
    while open_:
        task = min(open_, key=lambda t: (service[t], -sizes[t], t))
        fitting = np.flatnonzero((left >= sizes[task]) & ~is_held[:, task])
        if not fitting.size:
            open_.discard(task)
            continue
        node = fitting[(rate[fitting, task] / (1 + count[fitting])).argmax()]
        is_held[node, task] = True
        left[node] -= sizes[task]
        count[node] += 1
        service[task] += float(rate[node, task] / (1 + count[node]))
    return {(int(node), int(task)) for node, task in np.argwhere(is_held)}


def _parts(count: int, held: set[tuple[int, int]], y: Pairs, solved: Solution) -> tuple[dict[int, float], ...]:
    parts: list[dict[int, float]] = [{} for _ in range(count)]
    for node, task in sorted(held):
        parts[node][task] = round(solved.columns[y[node, task]], 6)
    return tuple(parts)
