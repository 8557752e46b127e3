"""What a fault did to a generation: how long it stood still, whether anybody was paid twice. Part of bench.chaos."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.jobs import Generated
from bench.report import spread
from nodewire.protocol.plan import Plan

Kind = Literal["kill", "stop"]
CLOSED_MS, BLACK_HOLE_MS = 100.0, 1_500.0
"""Within which a closed socket, and silence, must be noticed."""


@dataclass(slots=True)
class Fault:
    """What is done to one generation: `kind` to the plan's provider number `victim` (modulo how many there are) after
    `after` pieces and `delay` of a step; after 0 pieces `delay` is the part of the usual time to the first token."""

    kind: Kind
    victim: int
    after: int
    delay: float

    @classmethod
    def drawn(cls, rng: random.Random, tokens: int, kinds: Sequence[Kind]) -> Fault:
        return cls(rng.choice(kinds), rng.randrange(2**16), rng.randrange(0, max(1, tokens - 4)), rng.random())


@dataclass(slots=True)
class Outcome:
    """One generation with its fault. Times in ms; None where they could not be measured."""

    fault: Fault
    victim: str = ""
    tasks: tuple[str, ...] = ()
    request: str = ""
    anew: int = 0
    """How many further jobs it took."""
    identical: bool = False
    error: str = ""
    missed: bool = False
    takeovers: list[dict[str, Any]] = field(default_factory=list)
    stall_ms: float | None = None
    detection_ms: float | None = None
    resume_ms: float | None = None
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Normal:
    """Medians of fault-free generations."""

    step_ms: float
    first_ms: float


def measured(
    outcome: Outcome, done: Generated, struck: float, struck_unix: float, stood: float, normal: Normal
) -> None:
    """Fill in the figures of a generation that went on. `struck`: when the signal was sent, in monotonic and in unix
    seconds; `stood`: when the request was seen on the relay (monotonic)."""
    later = [(a, b) for a, b in zip([stood, *done.moments], done.moments, strict=False) if b > struck]
    if not later:
        return
    began, ended = max(later, key=lambda gap: gap[1] - gap[0])
    outcome.stall_ms = (ended - began) * 1000
    usual_ms = normal.first_ms if began == stood else normal.step_ms
    if outcome.takeovers:
        outcome.detection_ms = float(outcome.takeovers[0]["detected_ms"]) - struck_unix * 1000
    elif outcome.stall_ms < CLOSED_MS + normal.step_ms:
        outcome.detection_ms = 0.0  # nothing more was expected of the victim: nobody had to notice
    if outcome.detection_ms is not None:
        bound_ms = CLOSED_MS if outcome.fault.kind == "kill" else BLACK_HOLE_MS
        allowed_ms = min(max(outcome.detection_ms, 0.0), bound_ms)
        outcome.resume_ms = max(0.0, outcome.stall_ms - allowed_ms - usual_ms)


Replaced = dict[int, list[tuple[str, str, str, int]]]
"""By attempt: (task, provider that left, standby that entered, its first chunk), all since the job began."""


def paid_twice(paid: list[dict[str, Any]], plan: Plan, takeovers: Replaced, victim: str) -> list[tuple[int, str]]:
    """(chunk, task) of one job that were paid in more than one attempt, or to more than one payee.

    `paid`: the customer's paid debts (payee, chunk, attempt). A payee's tasks at an attempt are those of the newest
    takeover up to it; where there is none, the `victim`'s (public key) are taken to be its standbys'.
    """
    times: dict[tuple[int, str], int] = defaultdict(int)
    for debt in paid:
        known = [attempt for attempt in takeovers if attempt <= debt["attempt"]]
        if known:
            moved = takeovers[max(known)]
            place = {task: entered if debt["chunk"] >= first else left for task, left, entered, first in moved}
        else:
            place = {a.task: a.standby or "" for a in plan.tasks if debt["attempt"] and a.provider == victim}
        for task in plan.tasks:
            if place.get(task.task, task.provider) == debt["payee"]:
                times[debt["chunk"], task.task] += 1
    return sorted(key for key, count in times.items() if count > 1)


@dataclass(slots=True)
class Part:
    """Generations with their faults; those of documents that were made before come first."""

    lookahead: int
    outcomes: list[Outcome] = field(default_factory=list)
    double_paid: list[dict[str, Any]] = field(default_factory=list)

    def add(self, document: Path, arm: str, seed: int) -> None:
        """Go on from what a run of this bench has printed, broken off or not.

        Raises ValueError: it had other choices to make.
        """
        said = json.loads(document.read_text())
        before = said["arms"].get(arm)
        if before is None:
            return
        if (said["seed"], before["lookahead"]) != (seed, self.lookahead):
            raise ValueError(f"{document}: seed {said['seed']}, lookahead {before['lookahead']}")
        for one in before["generations"]:
            self.outcomes.append(Outcome(**{**one, "fault": Fault(**one["fault"])}))
        self.double_paid += before["double_paid"]

    def document(self) -> dict[str, Any]:
        struck = [o for o in self.outcomes if o.victim]
        return {
            "lookahead": self.lookahead,
            "generations": [asdict(o) for o in self.outcomes],
            "missed": sum(o.missed for o in self.outcomes),
            "identical": sum(o.identical for o in self.outcomes),
            "anew": sum(bool(o.anew) for o in self.outcomes),
            "errors": sorted({o.error.partition(":")[0] for o in self.outcomes if o.error}),
            "double_paid": self.double_paid,
            **{
                f"{kind}_{name}": spread(
                    [x for o in struck if o.fault.kind == kind and (x := getattr(o, name)) is not None]
                )
                for kind in ("kill", "stop")
                for name in ("stall_ms", "detection_ms", "resume_ms", "back_s")
            },
        }
