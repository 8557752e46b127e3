"""Every state that a run of the model can come to, the shortest runs first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bench.model.state import Broken, Rules, Run
from bench.model.steps import Steps, check, check_end, first_run


@dataclass(slots=True)
class Found:
    """`fault` is what a run came to that is ruled out, and `way` the steps to it; both are empty if there is none."""

    states: int = 0
    ends: int = 0
    depth: int = 0
    cpu_s: float = 0.0
    is_whole: bool = True
    """Whether every state was seen."""
    fault: str = ""
    way: list[str] = field(default_factory=list)


def search(rules: Rules, budget: tuple[int, ...], *, wanted: int, nodes: int = 3, most: int = 3_000_000) -> Found:
    """`most`: states, after which it is given up."""
    began, found, steps = time.process_time(), Found(), Steps(rules, wanted)
    start = first_run(nodes, budget)
    before: dict[Run, tuple[Run, str] | None] = {start: None}
    level = [start]
    while level and not found.fault:
        following: list[Run] = []
        for run in level:
            try:
                check(run)
                is_end = True
                for said, after in steps.of(run):
                    is_end = False
                    if after not in before:
                        before[after] = run, said
                        following.append(after)
                if is_end:
                    found.ends += 1
                    check_end(run, wanted)
            except Broken as error:
                found.fault, found.way = str(error), _way(before, run)
                break
        if len(before) > most:
            found.is_whole = False
            break
        found.depth += bool(following)
        level = following
    found.states, found.cpu_s = len(before), round(time.process_time() - began, 2)
    return found


def _way(before: dict[Run, tuple[Run, str] | None], run: Run) -> list[str]:
    said: list[str] = []
    while (step := before[run]) is not None:
        run = step[0]
        said.append(step[1])
    return said[::-1]
