"""Who is admitted: sessions wait, first come, first served, until the router finds the first of them a way.

Shared by the simulator and the real processes beside it, so that they differ in what happens on the way only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bench.sim.traces import Session
from nodewire.plan.place.model import Chain, Placement, Pool, Stage, Workload
from nodewire.plan.place.prediction import Predictor

Way = tuple[Stage, ...]


@dataclass
class State:
    """What routers may look at: who is there and holds what, has how many slots, and how many sessions."""

    pool: Pool
    chain: Chain
    workload: Workload
    predictor: Predictor
    stages: dict[int, Stage]
    slots: dict[int, int]
    sessions: dict[int, int]

    @classmethod
    def of(cls, pool: Pool, chain: Chain, placement: Placement, workload: Workload) -> State:
        """With nobody admitted yet."""
        predictor = Predictor(pool, chain, workload)
        stages = {stage.node: stage for stage in placement.stages}
        slots = {node: max(predictor.items(stage), 0) for node, stage in stages.items()}
        return cls(pool, chain, workload, predictor, stages, slots, dict.fromkeys(stages, 0))


class Router(Protocol):
    def __call__(self, state: State) -> Way | None:
        """A way for one session; None while there is none."""
        ...


@dataclass(slots=True)
class Running:
    session: Session
    way: Way = ()
    attempt: int = 0
    made: int = 0
    """Output positions so far."""
    first_ms: float = 0.0


@dataclass
class Line:
    """Sessions that wait; whoever leaves it has its slots."""

    state: State
    router: Router
    waiting: deque[Running] = field(default_factory=deque)

    def come(self, running: Running) -> Iterator[Running]:
        """One more at the end; who is admitted for that."""
        self.waiting.append(running)
        if len(self.waiting) == 1:  # those before it found no way: nor does it
            yield from self.admitted()

    def admitted(self) -> Iterator[Running]:
        """One after the other, each as if those before it had begun."""
        while self.waiting and (way := self.router(self.state)) is not None:
            running = self.waiting.popleft()
            running.way = way
            for stage in way:
                self.state.sessions[stage.node] += 1
            yield running

    def leave(self, running: Running) -> None:
        """Its slots are free again, on nodes that are still there."""
        for stage in running.way:
            if stage.node in self.state.sessions:
                self.state.sessions[stage.node] -= 1
