"""Few nodes, many tasks: every node holds as many as its memory allows and divides its time, so that most is served.

    maximise z  with  z <= sum over i of rate[i, t] y[i, t]   for every task t
                      sum over t of y[i, t] <= 1,   y[i, t] <= x[i, t],   sum over t of bytes[t] x[i, t] <= memory[i]

x in {0, 1} is what is held, y the part of its time. Up to `_WHOLE` pairs HiGHS solves it; more are held greedily, the
scarcest task first wherever there is room, and y is then the best for that x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodewire.errors import NoProvider
from nodewire.plan.place.model import Node, Task
from nodewire.plan.place.solver import Programme, Solution, maximise

_WHOLE = 300
Pairs = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Sharing:
    """By node the tasks that it holds, with the part of its time that each gets; the rate; more than which none is."""

    held: tuple[dict[int, float], ...]
    per_s: float
    bound: float
    is_optimal: bool


def share(nodes: Sequence[Node], tasks: Sequence[Task], *, gap: float = 1e-4, effort: int = 500) -> Sharing:
    """The sharing, one item at a time.

    Raises NoProvider: a task has room nowhere, or not all of them together.
    """
    rates = _rates(nodes, tasks)
    sizes = [task.bytes_at(1) for task in tasks]
    for number, task in enumerate(tasks):
        if all(sizes[number] > node.memory_bytes for node in nodes):
            raise NoProvider(task.name, "no node has room for this task")
    every = {(i, t) for i, node in enumerate(nodes) for t in range(len(tasks)) if sizes[t] <= node.memory_bytes}
    programme, _, x = _programme(nodes, sizes, rates, every)
    bound = maximise(programme, relaxed=True).value
    if len(every) <= _WHOLE:
        solved = maximise(programme, gap=gap, nodes=effort)
        held = {key for key, at in x.items() if solved.columns[at] > 0.5}
        optimal = solved.is_optimal
    else:
        held, optimal = _held(nodes, sizes, rates), False
    found = divided(nodes, tasks, held)
    if found.per_s <= 1e-9:
        raise NoProvider("nodes", "together they have no room for all tasks")
    return replace(found, bound=max(bound, found.per_s), is_optimal=optimal)


def divided(nodes: Sequence[Node], tasks: Sequence[Task], held: set[tuple[int, int]]) -> Sharing:
    """What (node, task) pairs that are held give at best; memory is not looked at."""
    rates = _rates(nodes, tasks)
    roomy = [replace(node, memory_bytes=len(tasks), layouts=()) for node in nodes]
    programme, y, _ = _programme(roomy, [1] * len(tasks), rates, held)
    solved = maximise(programme, relaxed=True)
    return Sharing(_parts(len(nodes), held, y, solved), solved.value, solved.value, is_optimal=False)


def _rates(nodes: Sequence[Node], tasks: Sequence[Task]) -> list[list[float]]:
    return [[1_000 / max(task.ms_on(node), 1e-9) for task in tasks] for node in nodes]


def _programme(
    nodes: Sequence[Node], sizes: Sequence[int], rates: Sequence[Sequence[float]], pairs: set[tuple[int, int]]
) -> tuple[Programme, Pairs, Pairs]:
    made = Programme()
    least = made.variable(gain=1.0)
    y = {pair: made.variable(most=1.0) for pair in sorted(pairs)}
    x = {pair: made.variable(most=1.0, whole=True) for pair in sorted(pairs)}
    for task in range(len(sizes)):
        some = [pair for pair in y if pair[1] == task]
        made.row([least, *(y[pair] for pair in some)], [1.0, *(-rates[i][task] for i, _ in some)], most=0.0)
    for index, node in enumerate(nodes):
        some = [pair for pair in y if pair[0] == index]
        if some:
            made.row([y[pair] for pair in some], [1.0] * len(some), most=1.0)
            memory = max(node.memory_bytes, 1)
            made.row([x[pair] for pair in some], [sizes[t] / memory for _, t in some], most=1.0)
    for pair in y:
        made.row([y[pair], x[pair]], [1.0, -1.0], most=0.0)
    return made, y, x


def _held(nodes: Sequence[Node], sizes: Sequence[int], rates: Sequence[Sequence[float]]) -> set[tuple[int, int]]:
    """The scarcest task that fits, on the node with most room for its speed, until nothing fits anywhere."""
    left = [node.memory_bytes for node in nodes]
    count = [0] * len(nodes)
    service = [0.0] * len(sizes)
    held: set[tuple[int, int]] = set()
    open_ = set(range(len(sizes)))
    while open_:
        task = min(open_, key=lambda t: (service[t], -sizes[t], t))
        fitting = [i for i in range(len(nodes)) if left[i] >= sizes[task] and (i, task) not in held]
        if not fitting:
            open_.discard(task)
            continue
        node = max(fitting, key=lambda i: (rates[i][task] / (1 + count[i]), -i))
        held.add((node, task))
        left[node] -= sizes[task]
        count[node] += 1
        service[task] += rates[node][task] / (1 + count[node])
    return held


def _parts(count: int, held: set[tuple[int, int]], y: Pairs, solved: Solution) -> tuple[dict[int, float], ...]:
    parts: list[dict[int, float]] = [{} for _ in range(count)]
    for node, task in sorted(held):
        parts[node][task] = round(solved.columns[y[node, task]], 6)
    return tuple(parts)
