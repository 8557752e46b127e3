"""What changes when nodes come and go: as few moves as keep every task held, and a better plan only if it is worth it.

A pure step, (state, event) -> (state, moves). Whoever comes takes what is predicted to help most, and nobody else
moves. Whoever goes leaves its tasks to their other holders; a task that nobody holds any more is taken at once, by
nodes without work first, then by those whose tasks all have another holder. With each tick the pool is planned afresh,
and the plan is followed only if what it promises is more than `gain` times what is there, and the last change is
`rest_ms` ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from nodewire.errors import NoProvider
from nodewire.plan.place.model import Placement, Stage

Plan = Callable[[frozenset[int]], Placement]
"""A placement on the nodes with these indices. Raises NoProvider."""
Worth = Callable[[Placement], float]
"""What a placement promises, such as tokens a second, or turns a second; 0 for one that holds not every task."""
Room = Callable[[int, int], int]
"""How many tasks a node has room for, from a given first one on."""


@dataclass(frozen=True, slots=True)
class Arrival:
    node: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Departure:
    node: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    at_ms: int


Event = Arrival | Departure | Tick


@dataclass(frozen=True, slots=True)
class Balance:
    """Who is there and holds what; when it was last changed for the better."""

    nodes: frozenset[int]
    stages: tuple[Stage, ...]
    changed_ms: int = 0

    def placement(self) -> Placement:
        return Placement(self.stages)


@dataclass(frozen=True)
class Rules:
    """The pool's planner and figures, the number of tasks, and how much better is better."""

    plan: Plan
    worth: Worth
    room: Room
    tasks: int
    gain: float = 1.2
    rest_ms: int = 60_000


def step(state: Balance, event: Event, rules: Rules) -> tuple[Balance, tuple[Stage, ...]]:
    """The state after an event, and what nodes hold from now on that they did not hold before."""
    if isinstance(event, Arrival):
        return _came(state, event.node, rules)
    if isinstance(event, Departure):
        left = tuple(stage for stage in state.stages if stage.node != event.node)
        gone = replace(state, nodes=state.nodes - {event.node}, stages=left)
        return _repaired(gone, rules)
    return _replanned(state, event.at_ms, rules)


def _came(state: Balance, node: int, rules: Rules) -> tuple[Balance, tuple[Stage, ...]]:
    """The window of the newcomer that makes the whole worth most, of equals the longest, then the first."""
    if node in state.nodes:
        return state, ()
    state = replace(state, nodes=state.nodes | {node})
    if _missing(state.stages, rules.tasks):
        return _repaired(state, rules)
    firsts = sorted(
        {0, *(stage.first for stage in state.stages), *(stage.end for stage in state.stages)} - {rules.tasks}
    )
    windows = [
        Stage(node, first, min(rules.tasks, first + room)) for first in firsts if (room := rules.room(node, first)) > 0
    ]
    if not windows:
        return state, ()

    def key(window: Stage) -> tuple[float, int, int]:
        return rules.worth(Placement(_sorted((*state.stages, window)))), window.end - window.first, -window.first

    best = max(windows, key=key)
    return replace(state, stages=_sorted((*state.stages, best))), (best,)


def _repaired(state: Balance, rules: Rules) -> tuple[Balance, tuple[Stage, ...]]:
    """Every task held again, by as few moves as this simple rule finds; if it finds none, by a new plan."""
    stages = {stage.node: stage for stage in state.stages}
    moves: list[Stage] = []
    while missing := _missing(stages.values(), rules.tasks):
        first = missing[0]
        free = [node for node in sorted(state.nodes) if node not in stages or _is_spare(stages, node)]
        rooms = [(node in stages, -min(rules.room(node, first), _run(missing)), node) for node in free]
        rooms = [one for one in rooms if one[1] < 0 and all(move.node != one[2] for move in moves)]
        if not rooms:
            return _planned(state, rules)
        node = min(rooms)[2]
        moves.append(Stage(node, first, min(rules.tasks, first + rules.room(node, first))))
        stages[node] = moves[-1]
    return replace(state, stages=_sorted(stages.values())), tuple(moves)


def _planned(state: Balance, rules: Rules) -> tuple[Balance, tuple[Stage, ...]]:
    """A new plan, whatever it moves; the old stages if there is none."""
    try:
        wanted = rules.plan(state.nodes)
    except NoProvider:
        return state, ()
    moves = tuple(stage for stage in wanted.stages if stage not in state.stages)
    return replace(state, stages=_sorted(wanted.stages)), moves


def _replanned(state: Balance, at_ms: int, rules: Rules) -> tuple[Balance, tuple[Stage, ...]]:
    if at_ms - state.changed_ms < rules.rest_ms:
        return state, ()
    new, moves = _planned(state, rules)
    if not moves or rules.worth(new.placement()) <= rules.gain * rules.worth(state.placement()):
        return state, ()
    return replace(new, changed_ms=at_ms), moves


def _missing(stages: Iterable[Stage], tasks: int) -> list[int]:
    held = {task for stage in stages for task in range(stage.first, stage.end)}
    return [task for task in range(tasks) if task not in held]


def _run(missing: list[int]) -> int:
    """How many tasks in a row nobody holds, from the first such on."""
    return next((i for i, task in enumerate(missing) if task != missing[0] + i), len(missing))


def _is_spare(stages: dict[int, Stage], node: int) -> bool:
    others = {task for stage in stages.values() if stage.node != node for task in range(stage.first, stage.end)}
    return set(range(stages[node].first, stages[node].end)) <= others


def _sorted(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    return tuple(sorted(stages, key=lambda stage: stage.node))
